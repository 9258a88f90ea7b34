"""Training settings from a TOML file and from `key=value` assignments."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from crossbert.data import PreparedData
from crossbert.scaling import NAMED, Published, named
from crossbert.settings import TrainSettings
from frozenprobe.errors import SettingsError
from frozenprobe.settings import parse


def read_recipe(config: str | Path, assignments: Sequence[str] = ()) -> TrainSettings:
    """Training settings.

    `model` is a table of `ModelConfig`'s fields; its `name` (or the whole of it, as text) may name a configuration that
    `crossbert configs` lists, which the other fields change. The vocabulary is the prepared data's unless it is stated.

    Args:
        config: A TOML file, a recipe of this package, or one of the paper's runs by its name (`crossbert configs`), which
            says all but where the data is.
        assignments: `key=value`, with dotted keys and TOML values; text needs no quotes.

    Raises:
        SettingsError: The file cannot be read, or a setting is unknown or impossible.
        DataError: The data's folder is not prepared data.
    """
    values = _read(config)
    for assignment in assignments:
        _assign(values, assignment)
    model = values.setdefault("model", {})
    if isinstance(model, str):
        model = {"name": model}
    if isinstance(model, dict):
        values["model"] = model = _named(model)
        folder = values["data"].get("folder") if isinstance(values.get("data"), dict) else None
        if folder is not None and "vocabulary" not in model:
            model["vocabulary"] = PreparedData.open(Path(folder)).vocabulary
    return parse(TrainSettings, values)


def _read(config: str | Path) -> dict[str, Any]:
    if config in NAMED:
        run = NAMED[str(config)]
        return {
            "model": _shape(run),
            "data": {"batch": run.sequences_per_step},
            "steps": run.steps,
            "optimiser": {
                "learning_rate": run.learning_rate,
                "min_learning_rate": run.min_learning_rate,
                "beta1": run.betas[0],
                "beta2": run.betas[1],
            },
        }
    path = Path(config)
    recipe = files("crossbert.recipes") / f"{config}.toml"
    if not path.exists() and path.suffix != ".toml" and recipe.is_file():
        return tomllib.loads(recipe.read_text())
    try:
        return tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SettingsError(f"--config {config}: {error}") from None


def _assign(values: dict[str, Any], assignment: str) -> None:
    key, equals, text = assignment.partition("=")
    if not equals or not key:
        raise SettingsError(f"--set {assignment}: write key=value, as in data.batch=64")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *tables, field = key.split(".")
    place: Any = values
    for table in tables:
        if isinstance(place.get(table), str) and table == "model":
            place[table] = {"name": place[table]}
        place = place.setdefault(table, {})
        if not isinstance(place, dict):
            raise SettingsError(f"--set {assignment}: {table} is no table")
    place[field] = value


def _named(model: dict[str, Any]) -> dict[str, Any]:
    """The fields of a model, those of the configuration that it names first."""
    fields = dict(model)
    name = fields.pop("name", None)
    return fields if name is None else _shape(named(name)) | fields


def _shape(run: Published) -> dict[str, Any]:
    return run.model.model_dump(exclude={"vocabulary"})
