"""Runs planned units one by one into a store, passing over those that are finished: plan, run, resume.

It does not know what a unit measures; a suite plans them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from frozenprobe.engine.progress import Reporter
from frozenprobe.records.schema import Unit, UnitKey
from frozenprobe.records.store import RunStore

OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class PlannedUnit:
    """A unit to be computed.

    Attributes:
        key: What it measures.
        title: Its name as printed.
        compute: Does the work; is given a callback for progress, returns the unit and its seconds by phase.
    """

    key: UnitKey
    title: str
    compute: Callable[[OnProgress], tuple[Unit, dict[str, float]]]


def run_units(
    units: Sequence[PlannedUnit],
    store: RunStore,
    reporter: Reporter,
    on_written: Callable[[Unit], None] = lambda unit: None,
) -> None:
    """Computes every unit that the store does not hold yet, and calls `on_written` with each when it is kept.

    An interruption loses the unit in progress and nothing else; the same call goes on from there.

    Raises:
        FrozenprobeError: Whatever a unit's input is guilty of; the finished units stay.
    """
    finished = store.finished()
    for name in store.damaged:
        reporter.note(f"{name} is damaged; its task is computed again")
    reporter.plan(len(units), sum(unit.key in finished for unit in units))
    for unit in units:
        if unit.key in finished:
            continue
        reporter.start(unit.title)
        started = time.perf_counter()
        result, seconds = unit.compute(reporter.advance)
        if unit.key not in store.finished():  # a second run in the same folder may have been quicker
            store.write(result, seconds)
        on_written(result)
        for warning in result.about.get("warnings", ()):
            reporter.note(f"{unit.title}: {warning}")
        reporter.finish(unit.title, time.perf_counter() - started)
