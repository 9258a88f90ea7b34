"""`frozenprobe glue`: evaluates a checkpoint and prints the table."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from frozenprobe.cli.options import add_options, read_options
from frozenprobe.errors import SettingsError
from frozenprobe.settings import GlueSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    run = parser.add_argument_group("the run")
    run.add_argument("--out", type=Path, metavar="DIR", help="results folder; the same command resumes there")
    run.add_argument("--overwrite", action="store_true", help="drop what another run left in --out")
    run.add_argument(
        "--dry-run",
        action="store_true",
        help="list tasks, rows, tokens and estimated time, and what --out holds already; write nothing",
    )
    run.add_argument("--quiet", action="store_true", help="print nothing but the table")
    add_options(parser, GlueSettings)


def run(arguments: argparse.Namespace) -> None:
    """Runs the command.

    Raises:
        FrozenprobeError: Wrong input.
    """
    settings = read_options(arguments, GlueSettings)
    if arguments.out is None and not arguments.dry_run:
        raise SettingsError("--out DIR is required: records are kept there, and an interrupted run goes on from there")
    if arguments.dry_run and settings.unfrozen:
        raise SettingsError("--dry-run estimates forward passes, not trainings; leave out --unfrozen")

    from frozenprobe import ranks
    from frozenprobe.engine.progress import default_reporter
    from frozenprobe.reports.console import print_run, terminal
    from frozenprobe.suites.glue import forecast, run_glue

    console = terminal()
    if arguments.dry_run:
        if ranks.launched_rank() == 0:
            _print_forecast(forecast(settings, arguments.out, overwrite=arguments.overwrite), console)
        return
    imported = time.perf_counter() - arguments.started
    with ranks.joined():
        result = run_glue(
            settings,
            arguments.out,
            overwrite=arguments.overwrite,
            reporter=default_reporter(arguments.quiet),
            import_seconds=imported,
        )
    print_run(result, console)


def _print_forecast(forecasts: list, console: Console) -> None:
    from frozenprobe.reports.console import print_whole

    left = [task for task in forecasts if not task.finished]
    table = Table(title="what would be encoded", title_justify="left", show_footer=True)
    table.add_column("task", footer="all" if left == forecasts else f"the {len(left)} left of {len(forecasts)}")
    table.add_column("rows", justify="right", footer=f"{sum(task.rows for task in left):,}")
    table.add_column("distinct tokens", justify="right", footer=f"{sum(task.tokens for task in left):,}")
    table.add_column("forward pass, about", justify="right", footer=f"{sum(task.seconds for task in left):,.0f} s")
    for task in forecasts:
        cost = ("-", "finished") if task.finished else (f"{task.tokens:,}", f"{task.seconds:,.0f} s")
        table.add_row(task.task, f"{task.rows:,}", *cost, style="dim" if task.finished else "")
    print_whole(table, console)
