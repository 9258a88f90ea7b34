"""The poolers of one training: one, or every combination of a sweep.

`--sweep lr=5e-5,1e-4,blocks=1,2` names settings of the pooler, the loss, and `lr`, `min_lr`, `weight_decay` and `seed`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

from frozenprobe.contrastive.settings import LossSettings, PoolerSettings, PoolSettings
from frozenprobe.errors import SettingsError
from frozenprobe.settings import parse

_TRAINING = ("lr", "min_lr", "weight_decay", "seed")
_SECTIONS = {
    **dict.fromkeys(PoolerSettings.model_fields, "pooler"),
    **dict.fromkeys(LossSettings.model_fields, "loss"),
    **dict.fromkeys(_TRAINING, "training"),
}


@dataclass(frozen=True)
class Candidate:
    """One pooler to be trained, and how."""

    name: str
    pooler: PoolerSettings
    loss: LossSettings
    lr: float
    min_lr: float
    weight_decay: float
    seed: int


def candidates(settings: PoolSettings) -> list[Candidate]:
    """All poolers that settings ask for.

    Raises:
        SettingsError: The sweep cannot be read, names something else than a setting, or goes with `unfrozen`.
    """
    if settings.sweep is None:
        return [_candidate("pooler", settings)]
    if settings.training.unfrozen:
        raise SettingsError("--sweep shares one frozen forward pass, and --unfrozen has none: train one at a time")
    values = _read(settings.sweep)
    found: dict[tuple[Any, ...], Candidate] = {}
    for combination in product(*values.values()):
        chosen = _applicable(dict(zip(values, combination, strict=True)))
        candidate = _candidate(",".join(f"{key}={value}" for key, value in chosen.items()), _with(settings, chosen))
        found.setdefault(tuple(value for name, value in vars(candidate).items() if name != "name"), candidate)
    return list(found.values())


def _read(sweep: str) -> dict[str, list[str]]:
    """`lr=1,2,blocks=3` as {"lr": ["1", "2"], "blocks": ["3"]}."""
    values: dict[str, list[str]] = {}
    key = None
    for part in filter(None, map(str.strip, sweep.split(","))):
        name, equals, value = part.partition("=")
        if equals:
            key, part = name.strip().replace("-", "_"), value.strip()
            if key not in _SECTIONS:
                raise SettingsError(f"--sweep: {name.strip()!r} cannot be swept; allowed are {', '.join(_SECTIONS)}")
            if key in values:
                raise SettingsError(f"--sweep: {key} stands there twice")
            values[key] = []
        if key is None or not part:
            raise SettingsError(
                f"--sweep {sweep!r}: expected name=value,value,name=value, such as lr=5e-5,1e-4,blocks=1,2"
            )
        values[key].append(part)
    if not values:
        raise SettingsError("--sweep is empty: give name=value,value, such as lr=5e-5,1e-4")
    return values


def _is_warm(chosen: dict[str, str]) -> bool:
    return chosen.get("warm_start", "").lower() in ("true", "1", "yes", "on")


def _applicable(chosen: dict[str, str]) -> dict[str, str]:
    """Without the sizes where they do not apply: combinations that differ in the size of a warm start are one pooler."""
    if not _is_warm(chosen):
        return chosen
    return {key: value for key, value in chosen.items() if _SECTIONS[key] != "pooler" or key == "warm_start"}


def _with(settings: PoolSettings, chosen: dict[str, str]) -> PoolSettings:
    values = settings.model_dump()
    if _is_warm(chosen):
        values["pooler"] = PoolerSettings().model_dump()
    for key, value in chosen.items():
        values[_SECTIONS[key]][key] = value
    return parse(PoolSettings, values)


def _candidate(name: str, settings: PoolSettings) -> Candidate:
    training = settings.training
    return Candidate(
        name,
        settings.pooler,
        settings.loss,
        **{field: getattr(training, field) for field in _TRAINING},
    )
