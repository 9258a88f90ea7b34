"""`frozenprobe leaderboard`: runs, and the paper's, as one table and as CSV."""

from __future__ import annotations

import argparse
from pathlib import Path

from frozenprobe.errors import SettingsError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="results folders")
    parser.add_argument("--csv", type=Path, metavar="OUT", help="write the table there")
    parser.add_argument("--long", type=Path, metavar="OUT", help="write it there with one row per score")
    parser.add_argument("--with-published", action="store_true", help="add the paper's rows")
    parser.add_argument(
        "--suite",
        metavar="SUITE",
        help="glue, builtin, mteb-v1, mteb-v2 or custom (your own tasks); default: what the runs are of",
    )
    parser.add_argument(
        "--costs", type=Path, metavar="TOML", help="params, flops and tokens_per_s of models, a table for each"
    )


def run(arguments: argparse.Namespace) -> None:
    """Runs the command.

    Raises:
        FrozenprobeError: Wrong input.
    """
    files = [path.resolve() for path in (arguments.csv, arguments.long) if path is not None]
    if len(set(files)) < len(files):
        raise SettingsError(f"--csv and --long are both {arguments.csv}: one would replace the other")

    from frozenprobe.reports.console import terminal
    from frozenprobe.reports.leaderboard import make_leaderboard, write_leaderboard
    from frozenprobe.reports.leaderboard_table import print_leaderboard

    leaderboard = make_leaderboard(
        arguments.runs, suite=arguments.suite, with_published=arguments.with_published, costs=arguments.costs
    )
    write_leaderboard(leaderboard, arguments.csv, arguments.long)
    print_leaderboard(leaderboard, terminal())
