"""`frozenprobe compare`: two runs, or many checkpoints of one, by paired tests on their stored predictions."""

from __future__ import annotations

import argparse
from pathlib import Path

from frozenprobe.cli.options import add_options, read_options
from frozenprobe.settings import CompareSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="results folders; the first is the baseline")
    parser.add_argument("--csv", type=Path, metavar="OUT", help="write the comparison there, one row per task")
    add_options(parser, CompareSettings)


def run(arguments: argparse.Namespace) -> None:
    """Runs the command.

    Raises:
        ComparisonError: The runs are not comparable.
        RecordError: A folder is not a run, or the CSV cannot be written.
    """
    settings = read_options(arguments, CompareSettings)

    from frozenprobe.files import write_atomically
    from frozenprobe.records.reading import read_run
    from frozenprobe.reports.comparison import compare
    from frozenprobe.reports.console import print_comparison, terminal

    comparison = compare([read_run(folder) for folder in arguments.runs], settings)
    if arguments.csv is not None:
        write_atomically(arguments.csv, comparison.frame.to_csv(index=False).encode())
    print_comparison(comparison, terminal())
