"""`frozenprobe pool`: trains a pooler, or a sweep of them, and prints their held-out scores."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from frozenprobe.cli.options import add_options, read_options
from frozenprobe.contrastive.settings import PoolSettings
from frozenprobe.errors import SettingsError

if TYPE_CHECKING:
    from frozenprobe.contrastive.results import TrainingResult
    from frozenprobe.contrastive.train import TrainingProgress

_SECONDS_BETWEEN_LINES = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    run = parser.add_argument_group("the run")
    run.add_argument("--out", type=Path, metavar="DIR", help="results folder; the same command resumes there")
    run.add_argument("--overwrite", action="store_true", help="drop what another training left in --out")
    run.add_argument("--quiet", action="store_true", help="print nothing but the table")
    add_options(parser, PoolSettings)


def run(arguments: argparse.Namespace) -> None:
    """Runs the command; under torchrun only the first rank prints.

    Raises:
        FrozenprobeError: Wrong input.
    """
    settings = read_options(arguments, PoolSettings)
    if arguments.out is None:
        raise SettingsError(
            "--out DIR is required: poolers are kept there, and an interrupted training goes on from there"
        )

    from frozenprobe.contrastive.run import run_pooling

    leads = os.environ.get("RANK", "0") == "0"
    with _display(quiet=arguments.quiet or not leads) as (show, note):
        result = run_pooling(settings, arguments.out, overwrite=arguments.overwrite, on_progress=show, note=note)
    if leads:
        _print(result, arguments.out)


@contextmanager
def _display(quiet: bool) -> Generator[tuple[Callable[[TrainingProgress], None], Callable[[str], None]]]:
    """Where progress and notes go: a live bar on a terminal, a line now and then elsewhere, nowhere when quiet."""
    if quiet:
        yield lambda progress: None, lambda line: None
        return
    if not sys.stderr.isatty():
        yield _Lines(), lambda line: print(f"note: {line}", file=sys.stderr, flush=True)
        return

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.text import Text

    console = Console(stderr=True)
    with Progress(
        BarColumn(bar_width=10),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[facts]}", style="dim"),
        TextColumn("left", style="dim"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as bars:
        task = bars.add_task("training", total=None, facts="")
        yield (
            lambda progress: bars.update(task, completed=progress.step, total=progress.steps, facts=_facts(progress)),
            lambda line: console.print(Text.assemble(("note ", "yellow"), line)),
        )


class _Lines:
    """A line of progress at most every half minute, and at the end."""

    def __init__(self) -> None:
        self._last = 0.0

    def __call__(self, progress: TrainingProgress) -> None:
        now = time.monotonic()
        if progress.step == progress.steps or now - self._last > _SECONDS_BETWEEN_LINES:
            self._last = now
            line = f"step {progress.step}/{progress.steps}: {_facts(progress)}, {progress.seconds_left:,.0f} s left"
            print(line, file=sys.stderr, flush=True)


def _facts(progress: TrainingProgress) -> str:
    """Rate, loss and held-out score; of a sweep, those of the best."""
    facts = f"{progress.rows_per_second:,.0f} rows/s, loss {min(progress.losses.values()):.3f}"
    scores = [entry["ndcg@10"] for name, entry in progress.held_out.items() if name in progress.losses]
    return facts + (f", held-out nDCG@10 {max(scores):.3f}" if scores else "")


def _print(result: TrainingResult, out: Path) -> None:
    from rich.table import Table

    from frozenprobe.reports.console import terminal

    held_out = result.results["held_out"]
    if held_out:
        table = Table(
            title="held-out retrieval",
            title_justify="left",
            caption="± half the 95% interval over queries",
            caption_justify="left",
        )
        table.add_column("pooler", overflow="fold")
        for name in ("nDCG@10", "MRR@10", "nDCG@10 - mean"):
            table.add_column(name, justify="right", no_wrap=True)
        for name, scores in held_out.items():
            gain, rank = scores["ndcg@10"], scores["mrr@10"]
            spread = (gain["against_mean_high"] - gain["against_mean_low"]) / 2
            against = f"{gain['against_mean']:+.3f} ±{spread:.3f}" if name in result.poolers else ""
            table.add_row(name, _with_half(gain), _with_half(rank), against)
        terminal().print(table)
    if len(result.poolers) > 1 and held_out:
        print(f"{result.best} is best on the held-out queries, which chose it: its score here is optimistic")
    print(f"poolers are in {out / 'poolers'}")


def _with_half(score: dict[str, float]) -> str:
    return f"{score['value']:.3f} ±{(score['high'] - score['low']) / 2:.3f}"
