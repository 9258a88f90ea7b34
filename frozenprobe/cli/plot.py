"""`frozenprobe plot`: the plots of a report as SVG or PNG files."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="results folders")
    parser.add_argument("--out", type=Path, metavar="DIR", required=True, help="write the files there")
    parser.add_argument("--suite", metavar="SUITE", help="see `frozenprobe leaderboard`")
    parser.add_argument("--with-published", action="store_true", help="add the paper's rows")
    parser.add_argument("--costs", type=Path, metavar="TOML", help="what models cost, see `frozenprobe leaderboard`")
    parser.add_argument("--format", choices=("svg", "png"), default="svg", help="png needs matplotlib (default svg)")
    parser.add_argument("--theme", choices=("light", "dark"), default="light", help="of the background they stand on")


def run(arguments: argparse.Namespace) -> None:
    """Runs the command.

    Raises:
        FrozenprobeError: Wrong input.
    """
    from frozenprobe.records.reading import read_run
    from frozenprobe.reports.plots import write_plots

    written = write_plots(
        [read_run(folder) for folder in arguments.runs],
        arguments.out,
        suite=arguments.suite,
        with_published=arguments.with_published,
        costs=arguments.costs,
        theme=arguments.theme,
        kind=arguments.format,
        tell=lambda line: print(line, file=sys.stderr),
    )
    print(f"{arguments.out}: {len(written)} plots")
