"""`frozenprobe mteb`: evaluates a checkpoint on MTEB and prints the tables."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from frozenprobe.cli.options import add_options, read_options
from frozenprobe.errors import SettingsError
from frozenprobe.suites.mteb.settings import MtebSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    run = parser.add_argument_group("the run")
    run.add_argument("--out", type=Path, metavar="DIR", help="results folder; the same command resumes there")
    run.add_argument("--overwrite", action="store_true", help="drop what another run left in --out")
    run.add_argument(
        "--dry-run",
        action="store_true",
        help="list tasks with category, main score, texts, estimated time, and what --out holds already; write nothing",
    )
    run.add_argument("--quiet", action="store_true", help="print nothing but the tables")
    add_options(parser, MtebSettings)


def run(arguments: argparse.Namespace) -> None:
    """Runs the command.

    Raises:
        FrozenprobeError: Wrong input.
    """
    settings = read_options(arguments, MtebSettings)
    if arguments.out is None and not arguments.dry_run:
        raise SettingsError("--out DIR is required: records are kept there, and an interrupted run goes on from there")
    os.environ.setdefault("TQDM_DISABLE", "1")  # read when tqdm is imported; one of mteb's bars has no other switch

    from frozenprobe import ranks
    from frozenprobe.engine.progress import default_reporter
    from frozenprobe.reports.console import terminal
    from frozenprobe.reports.mteb import print_mteb
    from frozenprobe.suites.mteb.run import forecast, run_mteb

    console = terminal()
    if arguments.dry_run:
        if ranks.launched_rank() > 0:
            return
        _print_forecast(forecast(settings, arguments.out, overwrite=arguments.overwrite), console)
        if settings.trains:
            console.print("the training of the pooler comes first, and is not in it", style="yellow")
        return
    imported = time.perf_counter() - arguments.started
    with ranks.joined():
        result = run_mteb(
            settings,
            arguments.out,
            overwrite=arguments.overwrite,
            reporter=default_reporter(arguments.quiet),
            import_seconds=imported,
        )
    print_mteb(result, console)


def _print_forecast(forecasts: list, console: Console) -> None:
    from frozenprobe.reports.console import print_whole

    left = [task for task in forecasts if not task.finished]
    unknown = sum(task.seconds is None for task in left)
    tasks = f"{len(left)} tasks" if left == forecasts else f"the {len(left)} left of {len(forecasts)}"
    table = Table(title="what would be encoded, in this order", title_justify="left", show_footer=True)
    table.add_column("task", footer=tasks + (f", {unknown} of unknown size" if unknown else ""))
    table.add_column("category")
    table.add_column("main score")
    table.add_column("distinct texts", justify="right", footer=f"{sum(task.texts or 0 for task in left):,}")
    table.add_column("characters", justify="right", footer=f"{sum(task.characters or 0 for task in left):,}")
    total = _duration(sum(task.seconds or 0 for task in left))
    table.add_column("forward pass, about", justify="right", footer=total)
    for task in forecasts:
        counts = ["?" if count is None else f"{count:,}" for count in (task.texts, task.characters)]
        cost = "finished" if task.finished else "?" if task.seconds is None else _duration(task.seconds)
        table.add_row(task.task, task.category, task.main_score, *counts, cost, style="dim" if task.finished else "")
    print_whole(table, console)


def _duration(seconds: float) -> str:
    return (
        f"{seconds:,.0f} s"
        if seconds < 600
        else f"{seconds / 60:,.0f} min"
        if seconds < 36_000
        else f"{seconds / 3600:,.0f} h"
    )
