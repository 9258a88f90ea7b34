"""`frozenprobe report`: runs as one HTML page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="results folders")
    parser.add_argument("--html", type=Path, metavar="OUT", required=True, help="write the page there")
    parser.add_argument("--title", default="frozenprobe report", help="its heading")
    parser.add_argument("--with-published", action="store_true", help="add the paper's rows")
    parser.add_argument("--costs", type=Path, metavar="TOML", help="what models cost, see `frozenprobe leaderboard`")


def run(arguments: argparse.Namespace) -> None:
    """Runs the command.

    Raises:
        FrozenprobeError: Wrong input.
    """
    from frozenprobe.files import write_atomically
    from frozenprobe.records.reading import read_run
    from frozenprobe.reports.page import counted, make_page, reported

    runs = [read_run(folder) for folder in arguments.runs]
    page = make_page(
        runs,
        title=arguments.title,
        with_published=arguments.with_published,
        costs=arguments.costs,
        tell=lambda line: print(line, file=sys.stderr),
    ).encode()
    write_atomically(arguments.html, page)
    print(f"{arguments.html}: {counted(len(reported(runs)), 'run')}, {len(page) / 1e6:.1f} MB")
