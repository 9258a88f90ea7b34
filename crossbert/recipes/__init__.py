"""Training settings from a TOML file and from `key=value` assignments."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from crossbert.config import OWNERS
from crossbert.data import PreparedData
from crossbert.scaling import NAMED, Published, named
from crossbert.settings import RECIPES, TrainSettings
from frozenprobe.errors import SettingsError
from frozenprobe.settings import parse

_FIRST = {"model": 0, "model.objective": 1}  # these drop fields, so that others are set behind them


def read_recipe(
    config: str | Path, assignments: Sequence[str] = (), changes: Mapping[str, Any] | None = None
) -> TrainSettings:
    """Training settings.

    `model` is a table of `ModelConfig`'s fields; its `name` (or the whole of it, as text) may name a configuration that
    `crossbert configs` lists, which the other fields change. The vocabulary is the prepared data's unless it is stated.
    Another objective drops what belongs to the one before it: its own fields, and the mask ratio.

    Args:
        config: A TOML file, a recipe of this package, or one of the paper's runs by its name (`crossbert configs`), which
            says all but where the data is.
        assignments: `key=value`, with dotted keys and TOML values; text needs no quotes.
        changes: The same as values by dotted key, set after the assignments.

    Raises:
        SettingsError: The file cannot be read, or a setting is unknown or impossible.
        DataError: The data's folder is not prepared data.
    """
    values = _read(config)
    wanted = [*map(read_assignment, assignments), *(changes or {}).items()]
    for key, value in sorted(wanted, key=lambda item: _FIRST.get(item[0], len(_FIRST))):
        _set(values, key, value)
    model = values.setdefault("model", {})
    if isinstance(model, str):
        model = {"name": model}
    if isinstance(model, dict):
        values["model"] = model = _named(model)
        folder = values["data"].get("folder") if isinstance(values.get("data"), dict) else None
        if folder is not None and not isinstance(folder, (str, Path)):
            raise SettingsError(f"data.folder: a folder's name in quotes, as in '\"{folder}\"' (got {folder!r})")
        if folder is not None and "vocabulary" not in model:
            model["vocabulary"] = PreparedData.open(Path(folder)).vocabulary
    return parse(TrainSettings, values)


def read_shape(config: str | Path) -> dict[str, Any]:
    """The fields of a model alone, of whatever `read_recipe` takes or of a file that holds nothing else.

    Raises:
        SettingsError: The file cannot be read, or names a configuration that there is not.
    """
    values = _read(str(config))
    of_training = values.keys() & TrainSettings.model_fields.keys()
    if of_training and (unknown := values.keys() - of_training):
        raise SettingsError(f"--config {config}: unknown setting {min(unknown)}; a model's stand under [model]")
    model = values.get("model", {} if of_training else values)
    if not isinstance(model, (str, dict)):
        raise SettingsError(f"--config {config}: model must be a table")
    return _named({"name": model} if isinstance(model, str) else model)


def _read(config: str | Path) -> dict[str, Any]:
    if not isinstance(config, (str, Path)):
        raise SettingsError(f"config: a file or a name (got {config!r})")
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
    if not path.is_file() and path.suffix != ".toml" and recipe.is_file():
        return tomllib.loads(recipe.read_text())
    if not path.exists():
        raise SettingsError(
            f"--config {config}: there is no such file; recipes are {', '.join(RECIPES)}, and crossbert configs lists more"
        )
    try:
        return tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SettingsError(f"--config {config}: {error}") from None


def read_assignment(assignment: str) -> tuple[str, Any]:
    """The dotted key and the value of `key=value`.

    Raises:
        SettingsError: It is not of that form.
    """
    key, equals, text = assignment.partition("=")
    if not equals or not key:
        raise SettingsError(f"--set {assignment}: write key=value, as in data.batch=64")
    return key, read_value(text)


def read_value(text: str) -> Any:
    """A TOML value, or the text itself where it is none."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _set(values: dict[str, Any], key: str, value: Any) -> None:
    *tables, field = key.split(".")
    place: Any = values
    for table in tables:
        if isinstance(place.get(table), str) and table == "model":
            place[table] = {"name": place[table]}
        place = place.setdefault(table, {})
        if not isinstance(place, dict):
            raise SettingsError(f"--set {key}={value}: {table} is no table")
    if key == "model.objective":
        values["model"] = place = for_objective(place, value)
    place[field] = value


def _named(model: dict[str, Any]) -> dict[str, Any]:
    """The fields of a model, those of the configuration that it names first."""
    fields = dict(model)
    name = fields.pop("name", None)
    if name is None:
        return fields
    shape = _shape(_published(name))
    return for_objective(shape, fields.get("objective", shape["objective"])) | fields


def for_objective(fields: dict[str, Any], objective: Any) -> dict[str, Any]:
    """The fields of a model without what only another objective has, if they were of another."""
    default = _published(fields["name"]).model.objective if "name" in fields else "crossbert"
    if fields.get("objective", default) == objective:
        return fields
    return {name: value for name, value in fields.items() if name not in OWNERS and name != "mask_ratio"}


def _published(name: Any) -> Published:
    if not isinstance(name, str):
        raise SettingsError(f"model.name: the name of a configuration (got {name!r})")
    return named(name)


def _shape(run: Published) -> dict[str, Any]:
    return run.model.model_dump(exclude={"vocabulary"})
