"""The records that tables and figures of the paper are made of: sweeps, and runs of `frozenprobe glue` and `frozenprobe mteb`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from crossbert.config import ModelConfig
from crossbert.reading import find_checkpoint, read_config
from crossbert.scaling import count_parameters
from crossbert.swept import MEMBER, SweptRun, read_sweeps, read_swept, size
from frozenprobe.errors import EncoderError, RecordError
from frozenprobe.records.reading import Run, read_run
from frozenprobe.reports.boards import BOARDS, TITLES
from frozenprobe.reports.summary import place

OBJECTIVES = ("bert", "crossbert", "electra")
GLUE_SUITES = ("GLUE", "built-in")


@dataclass(frozen=True)
class Record:
    """One probed checkpoint.

    Attributes:
        run: Its scores, headline only.
        swept: The run of a sweep that it is of, if it is of one.
        model: What was trained, where that is known.
        objective: `bert`, `crossbert`, `electra`, or None for an encoder from elsewhere.
    """

    run: Run
    swept: SweptRun | None
    model: ModelConfig | None
    objective: str | None

    @property
    def flops(self) -> float | None:
        """What its training had cost, by eq. 7 and 8."""
        return self.run.manifest["encoder"].get("training_flops")

    @property
    def parameters(self) -> int:
        """All that was trained, or what was probed where that is not known."""
        return count_parameters(self.model).total if self.model else self.run.manifest["encoder"]["parameters"]

    @property
    def label(self) -> str:
        """The model in a few words."""
        return size(self.model) if self.model else self.run.name

    @property
    def seed(self) -> int | None:
        """Of its training, where that is known."""
        return self.swept.settings.seed if self.swept else None

    @property
    def is_frozen_glue(self) -> bool:
        """Whether it was probed on GLUE or on the built-in suite, and not only finetuned."""
        return any(unit.key.suite in GLUE_SUITES and unit.key.training == "frozen" for unit in self.run.units)

    @cached_property
    def likeness(self) -> str:
        """Equal for runs that differ in nothing but their seed."""
        if self.swept is None:
            return str(self.run.folder)
        settings = self.swept.settings.model_dump(mode="json", exclude={"seed": True, "system": True})
        axes = {name: value for name, value in self.swept.axes.items() if name != "seed"}
        return json.dumps([settings, axes, self.run.step])

    def scores(self, probe: str, protocol: str) -> dict[str, float]:
        """Percent by task for one probe; of pair tasks read as one sequence, where both forms are there."""
        rows = [row for row in self.run.headline() if (row["probe"], row["protocol"]) == (probe, protocol)]
        rows.sort(key=lambda row: row["pair_form"] == "joint")
        return {row["task"]: 100 * row["value"] for row in rows if row["suite"] in GLUE_SUITES}

    def by_layer(self, protocol: str) -> dict[str, float]:
        """The linear probe's mean over tasks by layer, in percent."""
        values: dict[str, list[float]] = {}
        units = read_run(self.run.folder).units
        for unit in units:
            rows = [
                row
                for row in unit.rows
                if row["kind"] == "score"
                and (row["probe"], row["protocol"], row["pooling"]) == ("ridge", protocol, "mean")
                and (row["split"], row["metric"]) == (unit.headline_split, unit.headline_metric)
            ]
            largest = max((row["n"] for row in rows), default=0)
            for row in rows:
                if row["n"] == largest:
                    values.setdefault(row["layer"], []).append(100 * row["value"])
        return {layer: float(np.mean(found)) for layer, found in values.items() if len(found) == len(units)}


@dataclass(frozen=True)
class Records:
    """All that was found.

    Attributes:
        probed: Every probed checkpoint.
        swept: Every run of a sweep, once.
        notes: What was left out.
    """

    probed: list[Record]
    swept: list[SweptRun]
    notes: list[str] = field(default_factory=list)

    @property
    def last(self) -> list[Record]:
        """Of each run of a sweep its last probed checkpoint, and all that are not of a sweep."""
        final: dict[Any, Record] = {}
        for record in self.probed:
            inside = record.swept is not None and record.swept.folder in record.run.folder.parents
            key = record.swept.folder if record.swept is not None and inside else record.run.folder
            if key not in final or (record.run.step or 0) >= (final[key].run.step or 0):
                final[key] = record
        return list(final.values())

    @property
    def glue(self) -> list[Record]:
        """Of `last` those with scores of GLUE or of the built-in suite."""
        return [record for record in self.last if any(unit.key.suite in GLUE_SUITES for unit in record.run.units)]

    def mteb(self, board: str) -> list[Record]:
        """Of `last` those with scores of an MTEB benchmark."""
        suite = BOARDS[board].suite
        return [record for record in self.last if any(unit.key.suite == suite for unit in record.run.units)]


def read_records(folders: Sequence[Path]) -> Records:
    """Reads whatever lies below the folders; a run of a sweep that lies there twice counts once.

    Raises:
        RecordError: A folder is missing, or a record is damaged.
    """
    if missing := next((folder for folder in folders if not folder.is_dir()), None):
        raise RecordError(f"{missing} is no folder")
    folders = [folder.resolve() for folder in folders]  # one folder may be written in several ways
    every = read_sweeps(folders)
    swept, notes = _once(every)
    copies = {probe for run in every if run not in swept for probe in run.probe_folders}
    inside = {probe: run for run in swept for probe in run.probe_folders}
    found = dict.fromkeys(manifest.parent for folder in folders for manifest in sorted(folder.rglob("manifest.json")))
    probed = []
    for folder in found:
        if folder in copies or not (folder / "units").is_dir():  # prepared text has a manifest too
            continue
        run = read_run(folder, headline_only=True)
        if run.units:
            probed.append(_record(run, inside.get(folder)))
    return Records(probed, swept, notes)


def _once(runs: Sequence[SweptRun]) -> tuple[list[SweptRun], list[str]]:
    """Runs without copies of them, of which the one with the most scores stays; and what to know of the others."""
    groups: dict[str, list[SweptRun]] = {}
    for run in runs:
        settings = run.settings.model_dump(mode="json", exclude={"system": True})
        groups.setdefault(json.dumps([settings, run.axes]), []).append(run)
    kept, notes = [], []
    for copies in groups.values():
        best = max(copies, key=lambda run: len(list(run.folder.glob("probes/*/units/*"))))
        kept.append(best)
        notes += [
            f"{run.folder} has the seed and the settings of {best.folder}: counted once"
            for run in copies
            if run is not best
        ]
    return kept, notes


def _record(run: Run, swept: SweptRun | None) -> Record:
    ckpt = Path(run.manifest["settings"]["encoder"]["ckpt"].removeprefix("crossbert:"))
    if swept is None:  # a checkpoint of a sweep, or its training's folder, probed apart
        place = next((folder for folder in (ckpt.parent, ckpt.parent.parent) if (folder / MEMBER).is_file()), None)
        swept = None if place is None else read_swept(place)
    model = swept.model if swept else None
    if model is None:
        try:
            model = read_config(find_checkpoint(ckpt)).model
        except EncoderError:
            model = None
    notes = [note.removeprefix("pre-trained as ") for note in run.manifest["encoder"].get("notes", ())]
    objective = model.objective if model else next((note for note in notes if note in OBJECTIVES), None)
    return Record(run, swept, model, objective)


def alike(records: Iterable[Record], notes: list[str]) -> Iterator[list[Record]]:
    """Frozen probes that differ in nothing but the seed of the training, together.

    A seed that was probed twice counts once, with the most tasks; `notes` receives what to know of that.
    """
    groups: dict[str, dict[int | None, list[Record]]] = {}
    for record in records:
        if record.is_frozen_glue:
            groups.setdefault(record.likeness, {}).setdefault(record.seed, []).append(record)
    for seeds in groups.values():
        best = [max(probed, key=lambda record: len(record.run.units)) for probed in seeds.values()]
        for one, probed in zip(best, seeds.values(), strict=True):
            notes += [
                f"{record.run.folder} and {one.run.folder} are of one training: counted once"
                for record in probed
                if record is not one
            ]
        yield best


def shared(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """The tasks that all of them hold, in the order of the first."""
    return [task for task in found[0] if all(task in one for one in found)]


def tasks_of(records: Sequence[Record]) -> dict[str, str]:
    """The tasks of GLUE or of the built-in suite in records, in the paper's order, with their titles."""
    found = {
        unit.key.task: unit.title for record in records for unit in record.run.units if unit.key.suite in GLUE_SUITES
    }
    return {task: found[task] for task in sorted(found, key=place)}


def title_of(column: str) -> str:
    """A column of the paper's tables as printed."""
    return TITLES.get(column, column.capitalize())


def warm_start(run: Run) -> bool | None:
    """Whether the pooler of a run began as CrossBERT's predictor; None where its records do not say."""

    def find(value: Any) -> bool | None:
        if not isinstance(value, dict):
            return None
        if isinstance(value.get("warm_start"), bool):
            return value["warm_start"]
        return next((found for inner in value.values() if (found := find(inner)) is not None), None)

    return find(run.manifest)
