"""`frozenprobe show`: prints finished runs from their records."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="results folder of `frozenprobe glue` or `frozenprobe mteb`"
    )


def run(arguments: argparse.Namespace) -> None:
    """Runs the command.

    Raises:
        RecordError: A folder is not a run.
    """
    from rich.console import Console

    from frozenprobe.records.reading import read_run
    from frozenprobe.reports.console import print_run
    from frozenprobe.reports.mteb import is_mteb, print_mteb

    console = Console()
    for run in [read_run(folder) for folder in arguments.runs]:
        (print_mteb if is_mteb(run) else print_run)(run, console)
