"""What a person sees while text is prepared or a model is trained: a live bar with time left, plain lines, or nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from frozenprobe.engine.progress import TimeColumn


class Display:
    """Shows nothing; the base of the others."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def advance(self, done: int, total: int | None, facts: str) -> None:
        """The work has got so far (of a total that may be unknown), and what there is to say about it."""

    def note(self, line: str) -> None:
        """Something the reader should know."""


class PlainDisplay(Display):
    """A line every few seconds, for logs and pipes."""

    def __init__(self, unit: str, seconds: float = 10.0, write: Callable[[str], None] | None = None) -> None:
        self._unit, self._seconds = unit, seconds
        self._write = write or (lambda line: print(line, file=sys.stderr, flush=True))
        self._first: tuple[float, int] | None = None
        self._last = 0.0

    def advance(self, done: int, total: int | None, facts: str) -> None:
        """See `Display`."""
        now = time.monotonic()
        if self._first is None:
            self._first = (now, done)
        finished = total is not None and done >= total
        if now - self._last < self._seconds and not finished:
            return
        self._last = now
        started, before = self._first
        left = ""
        if total is not None and not finished and done > before:
            left = f"  {timedelta(seconds=round((now - started) / (done - before) * (total - done)))} left"
        self._write(f"{self._unit} {done:,}" + (f"/{total:,}" if total is not None else "") + f"  {facts}{left}")

    def note(self, line: str) -> None:
        """See `Display`."""
        self._write(f"note: {line}")


class LiveDisplay(Display):
    """A live bar on a terminal."""

    def __init__(self, unit: str, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._bars = Progress(
            TextColumn(unit),
            TextColumn("{task.completed:,.0f}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[facts]}", style="dim"),
            TimeColumn(),
            console=self._console,
        )

    def __enter__(self) -> Self:
        self._bars.start()
        self._task = self._bars.add_task("", total=None, facts="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def advance(self, done: int, total: int | None, facts: str) -> None:
        """See `Display`."""
        self._bars.update(self._task, completed=done, total=total, facts=facts)

    def note(self, line: str) -> None:
        """See `Display`."""
        self._console.print(Text.assemble(("note ", "yellow"), line))  # brackets in a path are no markup


def default_display(unit: str, quiet: bool = False) -> Display:
    """A live bar on a terminal, plain lines elsewhere, nothing when asked to be quiet."""
    if quiet:
        return Display()
    return LiveDisplay(unit) if sys.stderr.isatty() else PlainDisplay(unit)
