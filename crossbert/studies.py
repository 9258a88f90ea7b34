"""Which runs a sweep is made of: every combination of its axes, or a study of the paper at the scale of a base of one's own.

    --set optimiser.learning_rate=1e-3,2e-3 model.objective=bert,crossbert      four runs
    crossbert sweep table2 --config nano                                        the masking ratios of table 2

An axis has values, and a value changes one or more settings. The axes of a study follow from the base: `table4` on the paper's
base gives the paper's predictors, on a smaller one predictors of the same proportions.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from crossbert.config import OWNERS
from crossbert.recipes import read_assignment, read_recipe, read_value
from crossbert.scaling import NAMED
from crossbert.settings import TrainSettings
from frozenprobe.errors import FrozenprobeError, SettingsError

Changes = dict[str, Any]
"""Settings by dotted key; `config` stands for the whole configuration that a run starts from."""
Axis = dict[str, Changes]
"""The values of an axis, as printed, and what each changes."""

FROM_BASE = {"steps", "seed", "data.batch", "optimiser.learning_rate"}
"""Settings that an axis of a study takes from the base and scales; any other that it sets is the study's alone."""


@dataclass(frozen=True)
class Study:
    """What a table or figure of the paper compares.

    Attributes:
        title: In words.
        axes: Its axes, made from the base; `config` is an axis of whole configurations.
        fixed: What all of its runs have in common.
        probe: What is probed beyond the headline, made from the base.
    """

    title: str
    axes: Callable[[TrainSettings], dict[str, Axis]] = lambda base: {}
    fixed: Changes = field(default_factory=dict)
    probe: Callable[[TrainSettings], dict[str, Any]] = lambda base: {}
    configs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Member:
    """One run of a sweep.

    Attributes:
        name: Its folder's name: the values of the axes.
        config: What it starts from.
        axes: The value of each axis, as printed.
        settings: What is trained.
        probe: What is probed beyond what the sweep says.
    """

    name: str
    config: str
    axes: dict[str, str]
    settings: TrainSettings
    probe: dict[str, Any]


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def single(key: str, values: Sequence[Any], title: Callable[[Any], str] = _plain) -> Axis:
    """An axis of one setting.

    Raises:
        SettingsError: Two values are the same, be they written differently (1e3, 1000) or not.
    """
    titles = [title(value) for value in values]
    for number, name in enumerate(titles):
        for place, other in enumerate(titles[:number]):
            if name == other or values[number] == values[place]:
                raise SettingsError(f"{key}: {other} and {name} are the same value")
    return {name: {key: value} for name, value in zip(titles, values, strict=True)}


def _objectives(base: TrainSettings) -> dict[str, Axis]:
    return {"objective": single("model.objective", ("bert", "crossbert", "electra"))}


def _percent(ratio: float) -> str:
    return f"{100 * ratio:g}%"


def _predictors(base: TrainSettings) -> dict[str, Axis]:
    """Table 4: a quarter to the whole of the encoder's width, 12 and 6 blocks on 28."""
    d, heads, layers = base.model.width, base.model.heads, base.model.layers
    deep, shallow = (max(1, round(blocks / 28 * layers)) for blocks in (12, 6))
    axis = {}
    for quarters, blocks in ((1, deep), (2, deep), (3, deep), (4, deep), (4, shallow)):
        width = d * quarters // 4
        axis[f"{width} x {blocks}"] = {
            "model.predictor_width": width,
            "model.predictor_layers": blocks,
            "model.predictor_heads": max(1, heads * quarters // 4),
        }
    return {"predictor": axis}


def _hyperparameters(base: TrainSettings) -> dict[str, Axis]:
    """Table 9: what did not save BERT was other seeds, learning rates and batch sizes."""
    other = {"seed": base.seed + 1, "optimiser.learning_rate": base.optimiser.learning_rate / 2}
    return _objectives(base) | {"other_hyperparameters": {"no": {}, "yes": other}}


def _rates_and_batches(base: TrainSettings) -> dict[str, Axis]:
    """Figure 7: around the base, with the tokens of a run kept."""
    rate, batch = base.optimiser.learning_rate, base.data.batch
    batches = [max(1, round(batch * factor)) for factor in (0.5, 1, 2)]
    return {
        "learning_rate": single("optimiser.learning_rate", [rate * 2.0**power for power in (-2, -1, 0, 1, 2)]),
        "batch": {str(size): {"data.batch": size, "steps": round(base.steps * batch / size)} for size in batches},
    }


def _layers(base: TrainSettings) -> dict[str, Any]:
    """Table 1: the last four, and the one as deep as the 20th of 28."""
    count = base.model.layers
    inner = [count - back for back in (1, 2, 3) if back < count]
    return {"features": {"layers": tuple(dict.fromkeys(["last", *inner, max(1, round(20 / 28 * count))]))}}


# Table 2 is without complementary masking: its 73.1 at 50% is the row "no" of table 5.
STUDIES = {
    "table1": Study("layers of BERT", fixed={"model.objective": "bert"}, probe=_layers),
    "table2": Study(
        "masking ratio of CrossBERT, one view",
        lambda base: {"mask_ratio": single("model.mask_ratio", (0.2, 0.4, 0.5, 0.65), _percent)},
        {"model.objective": "crossbert", "model.complementary": False},
    ),
    "table3": Study("BERT, CrossBERT and Electra", _objectives),
    "table4": Study("shape of the predictor", _predictors, {"model.objective": "crossbert"}),
    "table5": Study(
        "complementary masking",
        lambda base: {"cms": {"no": {"model.complementary": False}, "yes": {"model.complementary": True}}},
        {"model.objective": "crossbert", "model.mask_ratio": 0.5},
    ),
    "table6": Study(
        "masking ratio of BERT",
        lambda base: {"mask_ratio": single("model.mask_ratio", (0.2, 0.3, 0.4, 0.65), _percent)},
        {"model.objective": "bert"},
    ),
    "table9": Study("other hyper-parameters", _hyperparameters),
    "scaling": Study(
        "the suites of tables 10 and 11 (figures 1, 3, 4 and 5)",
        configs=tuple(name for name, run in NAMED.items() if run.source.startswith(("table 10", "table 11"))),
    ),
    "figure7": Study("learning rate and batch size", _rates_and_batches),
}


def read_axes(assignments: Sequence[str]) -> tuple[Changes, dict[str, Axis]]:
    """Splits `key=value` from `key=a,b,c`, which is an axis.

    Values are TOML; text needs no quotes. A list stands in brackets and is one value.

    Raises:
        SettingsError: It cannot be read, or a key stands there twice.
    """
    fixed: Changes = {}
    axes: dict[str, Axis] = {}
    for assignment in assignments:
        key, _ = read_assignment(assignment)
        text = assignment.partition("=")[2]
        try:
            values = tomllib.loads(f"values = [{text}]")["values"]
        except tomllib.TOMLDecodeError:
            values = [read_value(part.strip()) for part in text.split(",") if part.strip()]
        if not values:
            raise SettingsError(f"--set {assignment}: no value")
        if key in fixed or key in axes:
            raise SettingsError(f"--set {key} stands there twice; write {key}=a,b for an axis")
        if len(values) == 1:
            fixed[key] = values[0]
        else:
            axes[key] = single(key, values)
    return fixed, axes


def as_axes(tables: Mapping[str, Any]) -> dict[str, Axis]:
    """Axes as a TOML file writes them: a list of a setting's values, or a table of named values, each a table of settings.

    Raises:
        SettingsError: An axis is neither.
    """
    axes: dict[str, Axis] = {}
    for name, values in flat(tables, down_to=_is_axis).items():
        if isinstance(values, list) and values:
            axes[name] = single(name, values)
        elif isinstance(values, dict) and values and all(isinstance(value, dict) for value in values.values()):
            axes[name] = {title: flat(changes) for title, changes in values.items()}
        else:
            raise SettingsError(
                f"axes.{name}: a list of values, or a table of named values, each a table of settings (got {values!r})"
            )
    return axes


def flat(tables: Mapping[str, Any], down_to: Callable[[Any], bool] = lambda value: False) -> dict[str, Any]:
    """Nested tables as values by dotted key."""
    found: dict[str, Any] = {}
    for name, value in tables.items():
        if isinstance(value, Mapping) and value and not down_to(value):
            found |= {f"{name}.{key}": inner for key, inner in flat(value, down_to).items()}
        else:
            found[name] = value
    return found


def _is_axis(value: Mapping[str, Any]) -> bool:
    """Whether a table is one axis of named values, and not a section of axes such as `[axes.model]`."""
    return all(isinstance(inner, dict) for inner in value.values())


def members(study: str | None, config: str | None, fixed: Changes, axes: Mapping[str, Axis]) -> list[Member]:
    """The runs of a sweep.

    Args:
        study: A study of the paper, or None.
        config: What all runs start from; None where an axis `config`, or the study, says it.
        fixed: Settings of all runs.
        axes: Axes of one's own; one that changes what an axis of the study changes takes its place.

    Raises:
        SettingsError: The study is unknown, nothing says what to start from, settings contradict each other, or a run is
            impossible.
    """
    if study is not None and study not in STUDIES:
        raise SettingsError(f"there is no study {study!r}; known are {', '.join(STUDIES)}, or a TOML file")
    plan = STUDIES[study] if study is not None else Study("")
    axes, configs = dict(axes), [config]
    if "config" in axes:
        configs = [changes.get("config") for changes in axes.pop("config").values()]
    elif plan.configs and config is None:
        configs = list(plan.configs)
    found: dict[str, Member] = {}
    for start in configs:
        if start is None:
            raise SettingsError("--config is required: what the runs start from")
        common = {**plan.fixed, **fixed}
        # Where an axis says where the data is, the base's own folder need not be there.
        folders = [
            changes["data.folder"] for axis in axes.values() for changes in axis.values() if "data.folder" in changes
        ]
        base = read_recipe(start, changes={**common, **({"data.folder": folders[0]} if folders else {})})
        own = {key for axis in axes.values() for changes in axis.values() for key in changes}
        of_study = {
            name: axis
            for name, axis in plan.axes(base).items()
            if not own & {key for changes in axis.values() for key in changes}
        }
        decided = {
            key for axis in of_study.values() for changes in axis.values() for key in changes
        } | plan.fixed.keys()
        if refused := sorted((decided - FROM_BASE) & fixed.keys()):
            raise SettingsError(f"{study} decides {refused[0]}; give it several values to replace that axis")
        whole = ({"config": {str(start): {}}} if len(configs) > 1 else {}) | of_study | axes
        for combination in product(*(axis.items() for axis in whole.values())):
            titles = {name: title for name, (title, _) in zip(whole, combination, strict=True)}
            chosen = {key: value for _, more in combination for key, value in more.items()}
            changes = _applicable(common, chosen.get("model.objective")) | chosen
            name = _folder(titles)
            try:
                settings = read_recipe(start, changes=changes)
            except FrozenprobeError as error:
                raise SettingsError(f"{name}: {error}") from None
            if name in found:
                raise SettingsError(f"two runs would both be called {name}")
            found[name] = Member(name, str(start), titles, settings, plan.probe(settings))
    return list(found.values())


def _applicable(changes: Changes, objective: str | None) -> Changes:
    """Settings without those that an objective does not have, where an axis chooses it: they are for the others."""
    if objective is None:
        return changes
    foreign = {f"model.{name}" for name, owner in OWNERS.items() if owner != objective}
    return {key: value for key, value in changes.items() if key not in foreign}


def _folder(titles: Mapping[str, str]) -> str:
    """A folder's name: `mask_ratio=20,cms=yes`, each setting by its last part where that is clear."""
    last = [name.rpartition(".")[2] for name in titles]
    short = {name: part if last.count(part) == 1 else name for name, part in zip(titles, last, strict=True)}
    parts = [f"{short[name]}={re.sub(r'[^A-Za-z0-9.+-]+', '_', title).strip('_')}" for name, title in titles.items()]
    return ",".join(parts) or "run"
