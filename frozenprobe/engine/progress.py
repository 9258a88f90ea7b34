"""What a person sees while work is going on: a live bar with rate and time left, plain lines, or nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

_SECONDS_BETWEEN_LINES = 30.0


class Reporter(Protocol):
    """Told what happens, in this order: `plan`, then for each unit `start`, `advance` ..., `finish`."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def plan(self, units: int, finished: int) -> None:
        """So many units in all, so many of them finished by an earlier run."""
        ...

    def start(self, unit: str) -> None:
        """A unit begins."""
        ...

    def advance(self, phase: str, done: int, total: int) -> None:
        """A unit's phase has got so far: `forward`, counted in tokens; `probe`, in views; else what is to be shown of it."""
        ...

    def finish(self, unit: str, seconds: float) -> None:
        """A unit is written."""
        ...

    def note(self, line: str) -> None:
        """Something the reader of the scores should know."""
        ...


class SilentReporter:
    """Shows nothing; the base of the others."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def plan(self, units: int, finished: int) -> None:
        """See `Reporter`."""

    def start(self, unit: str) -> None:
        """See `Reporter`."""

    def advance(self, phase: str, done: int, total: int) -> None:
        """See `Reporter`."""

    def finish(self, unit: str, seconds: float) -> None:
        """See `Reporter`."""

    def note(self, line: str) -> None:
        """See `Reporter`."""


class PlainReporter(SilentReporter):
    """One line a unit, and one each half minute of a long one, for logs and pipes."""

    def __init__(self, write: Callable[[str], None] | None = None) -> None:
        self._write = write or (lambda line: print(line, file=sys.stderr, flush=True))
        self._units = self._done = 0
        self._unit = ""
        self._started = self._last = time.monotonic()

    def plan(self, units: int, finished: int) -> None:
        """See `Reporter`."""
        self._units, self._done = units, finished
        if finished:
            self._write(f"{finished} of {units} tasks were finished before; going on with the rest")

    def start(self, unit: str) -> None:
        """See `Reporter`."""
        self._unit = unit
        self._started = self._last = time.monotonic()

    def advance(self, phase: str, done: int, total: int) -> None:
        """See `Reporter`."""
        now = time.monotonic()
        if done and now - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = now
            left = (now - self._started) * (total - done) / done
            self._write(f"{self._unit}: {done / total:.0%}, {phase}, about {left:,.0f} s left")

    def finish(self, unit: str, seconds: float) -> None:
        """See `Reporter`."""
        self._done += 1
        self._write(f"[{self._done}/{self._units}] {unit}: {seconds:.1f} s")

    def note(self, line: str) -> None:
        """See `Reporter`."""
        self._write(f"note: {line}")


class TimeColumn(ProgressColumn):
    """How long a task will still take, or has taken where that is unknown or nothing is left."""

    max_refresh = 0.5  # seconds: figures that change faster cannot be read

    def render(self, task: Task) -> Text:
        """The time, and which of the two it is."""
        left = None if task.finished else task.time_remaining
        if left is not None:
            return Text(f"{timedelta(seconds=int(left))} left", style="progress.remaining")
        elapsed = task.finished_time if task.finished else task.elapsed
        return Text(f"{timedelta(seconds=int(elapsed or 0))} elapsed", style="progress.elapsed")


class LiveReporter(SilentReporter):
    """Two live bars on a terminal: tasks, and the tokens of the task in progress with their rate and time left."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=16),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[rate]}", style="dim"),
            TimeColumn(),
            console=self._console,
            transient=True,
        )
        self._started = 0.0

    def __enter__(self) -> Self:
        self._bars.start()
        self._all = self._bars.add_task("tasks", total=None, rate="")
        self._one = self._bars.add_task("", total=None, rate="", visible=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def plan(self, units: int, finished: int) -> None:
        """See `Reporter`."""
        self._bars.update(self._all, total=units, completed=finished)
        if finished:
            self._say("", f"{finished} of {units} tasks were finished before; going on with the rest")

    def start(self, unit: str) -> None:
        """See `Reporter`."""
        self._bars.reset(self._one, description=f"  {unit}", total=None, visible=True, rate="")
        self._started = time.perf_counter()

    def advance(self, phase: str, done: int, total: int) -> None:
        """See `Reporter`."""
        elapsed = time.perf_counter() - self._started
        rate = f"{done / elapsed:,.0f} tokens/s" if phase == "forward" and elapsed > 0.5 else phase
        self._bars.update(self._one, completed=done, total=max(total, 1), rate=rate)

    def finish(self, unit: str, seconds: float) -> None:
        """See `Reporter`."""
        self._bars.advance(self._all)
        self._bars.update(self._one, visible=False)
        self._say("done ", f"{unit} {seconds:.1f} s", "green")

    def note(self, line: str) -> None:
        """See `Reporter`."""
        self._say("note ", line, "yellow")

    def _say(self, word: str, line: str, style: str = "dim") -> None:
        """A line above the bars; names in it may hold square brackets, which are no markup."""
        self._console.print(Text.assemble((word, style), line))


def default_reporter(quiet: bool = False) -> Reporter:
    """A live display on a terminal, plain lines elsewhere, nothing when asked to be quiet."""
    if quiet:
        return SilentReporter()
    return LiveReporter() if sys.stderr.isatty() else PlainReporter()
