"""`frozenprobe mine`: mines hard negatives for a file of pairs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from frozenprobe.cli.options import add_options, read_options
from frozenprobe.contrastive.settings import MineSettings
from frozenprobe.errors import SettingsError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    run = parser.add_argument_group("the run")
    run.add_argument("--out", type=Path, metavar="JSONL", help="file to write: query, positive, negatives")
    run.add_argument("--overwrite", action="store_true", help="replace an older file")
    run.add_argument("--quiet", action="store_true", help="print nothing")
    add_options(parser, MineSettings)


def run(arguments: argparse.Namespace) -> None:
    """Runs the command.

    Raises:
        FrozenprobeError: Wrong input.
    """
    settings = read_options(arguments, MineSettings)
    if arguments.out is None:
        raise SettingsError("--out FILE.jsonl is required")

    from frozenprobe.contrastive.mining import run_mining
    from frozenprobe.engine.progress import default_reporter

    with default_reporter(arguments.quiet) as reporter:
        reporter.plan(1, 0)
        reporter.start("encoding")
        report = run_mining(
            settings,
            arguments.out,
            overwrite=arguments.overwrite,
            on_progress=lambda progress: reporter.advance("forward", progress.done, progress.total),
        )
    if arguments.quiet:
        return
    print(
        f"{arguments.out}: {report.pairs:,} pairs with {report.negatives:,} hard negatives out of {report.passages:,} "
        f"passages; {report.short:,} pairs have fewer than {settings.negatives}",
    )
    for count, what in (
        (report.bad_pairs, "pairs had no query or no positive and were left out"),
        (report.bad_passages, "passages were no text and were left out"),
        (report.truncated, "texts were longer than the encoder's limit and were cut"),
        (report.near, f"candidates within {settings.margin:g} of the positive were passed over"),
    ):
        if count:
            print(f"note: {count:,} {what}", file=sys.stderr)
