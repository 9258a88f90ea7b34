"""Under which conditions scores were measured, and in a line what of them differs between the rows of one table.

What `compare` refuses, a table shows with a mark: other train rows, seeds, probe options or data, and another length asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from frozenprobe.records.reading import Run
from frozenprobe.records.schema import Unit
from frozenprobe.reports.comparable import protocol_of

TRAIN_ROWS = "train rows"
NAMED = 3  # rows named for each value; the others are counted


@dataclass(frozen=True)
class Conditions:
    """What scores of one probe depend on beside the encoder.

    Attributes:
        settings: By what people call them; only those that are known.
        data: What each task was scored on, and trained on under the same settings, as digests.
    """

    settings: dict[str, str] = field(default_factory=dict)
    data: dict[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict)

    @property
    def max_train(self) -> str:
        """Train rows at most; empty where that is unknown."""
        return next((value for name, value in self.settings.items() if name.endswith(TRAIN_ROWS)), "")


def conditions(run: Run, probe: str, scored: Sequence[tuple[Unit, dict[str, Any]]]) -> Conditions:
    """The conditions of some headline scores of one probe, given with their units."""
    finetuned = next((unit.about["finetune"] for unit, _ in scored if "finetune" in unit.about), None)
    of_probe = protocol_of(run, probe) if finetuned is None else finetuned["settings"]
    settings = {_called(name, probe): _text(value) for name, value in of_probe.items() if value is not None}
    # Each encoder's own length is a part of it; another one is asked for.
    asked = run.manifest.get("settings", {}).get("encoder", {}).get("max_length")
    settings["max length"] = str(asked or "the model's own")
    draw = (settings.get(_called("max_train", probe), ""), settings.get("seed", ""))
    data: dict[tuple[str, ...], tuple[str, ...]] = {}
    for unit, score in scored:
        digests = unit.about.get("digests", {})
        if score["split"] in digests:
            data[unit.title, "scored"] = (score["split"], score["metric"], digests[score["split"]])
        if "train" in digests:  # other train rows by other settings are told as settings
            data[unit.title, "train", *draw] = (digests["train"],)
    return Conditions(settings, data)


def unlike(rows: Iterable[tuple[str, Conditions]]) -> list[str]:
    """One line that names what differs between the rows of a table, each given with its name; none where nothing does."""
    rows = list(rows)
    found: dict[str, dict[str, dict[str, None]]] = {}
    data: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for name, of_row in rows:
        for setting, value in of_row.settings.items():
            found.setdefault(setting, {}).setdefault(value, {})[name] = None
        for part, digest in of_row.data.items():
            data.setdefault(part, set()).add(digest)
    parts = [
        f"{setting} " + ", ".join(f"{value} ({_names(list(names))})" for value, names in by_value.items())
        for setting, by_value in found.items()
        if len(by_value) > 1
    ]
    if titles := dict.fromkeys(part[0] for part, digests in data.items() if len(digests) > 1):
        parts.append(f"the data of {', '.join(titles)}")
    return [f"not measured alike: {'; '.join(parts)}"] if parts else []


def _called(setting: str, probe: str) -> str:
    """A setting's name; those of all frozen probes have none in front."""
    name = TRAIN_ROWS if setting == "max_train" else setting
    if probe == "finetune":
        return f"finetuning {name}"
    return name if setting in ("max_train", "seed") else f"{probe} {name}"


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _names(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more:,} more" if more > 0 else "")
