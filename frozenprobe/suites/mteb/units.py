"""The units of an MTEB run: one per task that is encoded, one per aggregate of such tasks, each filed under its benchmark.

A task that another benchmark's run in the same folder has finished is filed again, not computed again. The parts of an
aggregate are units, so that a kill loses one of them and not all, but no scores of the benchmark.
"""

from __future__ import annotations

import time
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import mteb
from mteb.abstasks.aggregated_task import AbsTaskAggregate

from frozenprobe.engine.run import OnProgress, PlannedUnit
from frozenprobe.errors import DataError, FrozenprobeError
from frozenprobe.features.extract import ExtractionProgress
from frozenprobe.records.schema import Unit, UnitKey
from frozenprobe.records.store import RunStore, read_units
from frozenprobe.suites.mteb import data
from frozenprobe.suites.mteb.adapter import MtebEncoder
from frozenprobe.suites.mteb.results import OUTSIDE, Filing, refiled, task_result, unit_of
from frozenprobe.suites.mteb.selection import Selection, fresh

_ROWS_PER_BATCH = 1024
"""Rows in a batch of mteb's DataLoader, where one is read at all; without effect on what is encoded together."""


@dataclass(frozen=True)
class Plan:
    """What is to be run: a selection, and the tasks that are encoded for it, with their data found.

    Attributes:
        selection: The tasks asked for.
        parts: The tasks to encode, by the task they belong to, in order.
        folders: Where the rows of those with a local copy are, by name.
    """

    selection: Selection
    parts: dict[str, list[Any]]
    folders: dict[str, str] = field(default_factory=dict)

    @property
    def encoded(self) -> list[Any]:
        """All tasks to encode, each once."""
        return list({part.metadata.name: part for parts in self.parts.values() for part in parts}.values())

    def source(self, task: Any) -> str:
        """Where a task's rows come from: a folder, or the hub's data set."""
        return self.folders.get(task.metadata.name, task.metadata.dataset["path"])

    def filing(self, task: Any, *, is_part: bool = False) -> Filing:
        """Under which benchmark a task asked for is filed; a part goes with its aggregate."""
        inside = task.metadata.name in {name for name, *_ in self.selection.complete}
        return Filing(self.selection.benchmark if inside else OUTSIDE, is_headline=not is_part)


def planned_units(plan: Plan, model: MtebEncoder, store: RunStore) -> list[PlannedUnit]:
    """Every unit of a run, in the order in which they are computed."""
    held = read_units(store.folder, store.manifest).units
    finished = {unit.key for unit in held}
    by_task = {unit.key.task: unit for unit in held}
    units: dict[UnitKey, PlannedUnit] = {}

    def add(task: Any, filing: Filing, compute: Any) -> None:
        key = _key(task, filing.suite, finished)
        other = by_task.get(key.task)
        if other is not None and key not in finished:
            compute = partial(_file_again, other, key, filing)
        units.setdefault(key, PlannedUnit(key, task.metadata.name, compute))

    for task in plan.selection.tasks:
        filing = plan.filing(task)
        parts = plan.parts[task.metadata.name]
        if not isinstance(task, AbsTaskAggregate):
            add(task, filing, partial(_compute, task, plan.source(task), filing, model))
            continue
        of_part = plan.filing(task, is_part=True)
        for part in parts:
            add(part, of_part, partial(_compute, part, plan.source(part), of_part, model))
        add(task, filing, partial(_combine, task, parts, filing, model, store))
    return list(units.values())


def _compute(
    task: Any, source: str, filing: Filing, model: MtebEncoder, on_progress: OnProgress
) -> tuple[Unit, dict[str, float]]:
    """Loads a task's rows and lets mteb score them; they go with the instance."""
    task = fresh(task)
    model.start_task()

    def show(progress: ExtractionProgress) -> None:
        before = sum(report.tokens for report in model.reports)  # of the texts that the task asked for earlier
        on_progress("forward", before + progress.done, before + progress.total)

    model.on_progress = show
    started = time.perf_counter()
    data.load(task)
    seconds = {"data": time.perf_counter() - started}
    subset = data.subset_of(task)
    counted = sum(data.rows_of(task, split, part) for split in task.eval_splits for part in task.hf_subsets)
    started = time.perf_counter()
    (result,) = _evaluate(model, task).task_results
    total = time.perf_counter() - started
    for phase in ("tokenize", "forward", "cache"):
        seconds[phase] = sum(report.seconds[phase] for report in model.reports)
    seconds["score"] = total - sum(seconds[phase] for phase in ("tokenize", "forward", "cache"))
    return unit_of(result, task, model, filing, source=source, subset=subset, n_evaluated=counted), seconds


def _evaluate(model: MtebEncoder, task: Any) -> Any:
    """What mteb gives; what it cannot score is told in one line."""
    options = {"batch_size": _ROWS_PER_BATCH, "show_progress_bar": False}
    try:
        return mteb.evaluate(
            model, task, cache=None, co2_tracker=False, show_progress_bar=False, encode_kwargs=cast("Any", options)
        )
    except FrozenprobeError:
        raise
    except Exception as error:  # rows of another shape than the task expects show only here
        reason = (str(error).strip().splitlines() or [""])[0]
        raise DataError(
            f"{task.metadata.name}: mteb cannot score its rows: {type(error).__name__}: {reason}"
        ) from error


def _combine(
    task: Any, parts: Sequence[Any], filing: Filing, model: MtebEncoder, store: RunStore, on_progress: OnProgress
) -> tuple[Unit, dict[str, float]]:
    """The unit of an aggregate, from the units of its parts."""
    model.start_task()
    by_key = {unit.key: unit for unit in read_units(store.folder, store.manifest).units}
    units = [by_key[_key(part, filing.suite, set(by_key))] for part in parts]
    subsets = [unit.title for unit in units if unit.about["subset"]]
    result = task.combine_task_results([task_result(unit) for unit in units])
    subset = f"the mean of {', '.join(subsets)} and others" if subsets else None
    counted = sum(row["n_evaluated"] or 0 for unit in units for row in unit.rows)
    source = ", ".join(dict.fromkeys(unit.about["source"] for unit in units))
    return unit_of(result, task, model, filing, source=source, subset=subset, n_evaluated=counted), {}


def _file_again(unit: Unit, key: UnitKey, filing: Filing, on_progress: OnProgress) -> tuple[Unit, dict[str, float]]:
    return refiled(unit, key, filing), {}


def finished_tasks(plan: Plan, out: Path) -> set[str]:
    """The tasks asked for that a run in `out` has finished, of whichever benchmark."""
    held = {unit.key for unit in read_units(out).units}
    names = {key.task for key in held}
    return {task.metadata.name for task in plan.selection.tasks if _key(task, OUTSIDE, held).task in names}


def _key(task: Any, suite: str, finished: Set[UnitKey]) -> UnitKey:
    """The unit of a task; of a subset, where that is all that its local copy has given."""
    name = task.metadata.name
    unknown = task.metadata.dataset["revision"] == data.UNKNOWN_REVISION
    is_subset = unknown and any(key.task == f"{name}-subset" for key in finished)
    return UnitKey(suite, f"{name}-subset" if is_subset else name, "single")
