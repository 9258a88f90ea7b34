"""`frozenprobe sweep`: evaluates many checkpoints and prints one table of them."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from frozenprobe.cli.options import add_options, read_options
from frozenprobe.errors import SettingsError
from frozenprobe.settings import SweepSettings

_OF_EACH = {"encoder.ckpt": "", "encoder.name": None, "encoder.revision": None}
"""Options of `glue` that each checkpoint decides for itself."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    run = parser.add_argument_group("the run")
    run.add_argument(
        "--out", type=Path, metavar="DIR", help="a folder for each checkpoint; the same command resumes there"
    )
    run.add_argument("--overwrite", action="store_true", help="drop what other runs left in those folders")
    run.add_argument("--quiet", action="store_true", help="print nothing but the table")
    add_options(parser, SweepSettings, without=tuple(_OF_EACH))


def run(arguments: argparse.Namespace) -> None:
    """Runs the command.

    Raises:
        FrozenprobeError: Wrong input, or a checkpoint that failed; the table of the others is printed first.
    """
    settings = read_options(arguments, SweepSettings, fixed={**_OF_EACH, "encoder.ckpt": "-"})
    if arguments.out is None:
        raise SettingsError(
            "--out DIR is required: records are kept there, and an interrupted sweep goes on from there"
        )

    from frozenprobe import ranks
    from frozenprobe.engine.progress import default_reporter
    from frozenprobe.errors import EncoderError
    from frozenprobe.reports.console import terminal
    from frozenprobe.reports.sweep import print_sweep
    from frozenprobe.suites.sweep import run_sweep

    def tell(line: str) -> None:
        if not arguments.quiet:
            print(line, file=sys.stderr, flush=True)

    with ranks.joined():
        sweep = run_sweep(
            settings,
            arguments.out,
            overwrite=arguments.overwrite,
            reporter=partial(default_reporter, arguments.quiet),
            on_checkpoint=tell,
        )
    print_sweep(sweep.runs, sweep.failed, terminal())
    if sweep.failed:
        of_all = f"{len(sweep.failed)} of {len(sweep.failed) + len(sweep.runs)} checkpoints"
        raise EncoderError(f"{of_all} failed ({', '.join(sweep.failed)}); the others are kept")
