"""`frozenprobe pool`: trains a pooler, or a sweep of them, and prints their held-out scores."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from frozenprobe.cli.options import add_options, read_options
from frozenprobe.contrastive.settings import PoolSettings
from frozenprobe.errors import SettingsError

if TYPE_CHECKING:
    from frozenprobe.contrastive.results import TrainingResult


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
    from frozenprobe.engine.progress import default_reporter

    leads = os.environ.get("RANK", "0") == "0"
    with default_reporter(quiet=arguments.quiet or not leads) as reporter:
        reporter.plan(1, 0)
        reporter.start("pooler")
        started = time.perf_counter()
        result = run_pooling(
            settings,
            arguments.out,
            overwrite=arguments.overwrite,
            on_progress=lambda progress: reporter.advance(progress.facts(), progress.step, progress.steps),
            note=reporter.note,
        )
        reporter.finish("pooler", time.perf_counter() - started)
    if leads:
        _print(result, arguments.out)


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
