"""`crossbert fit`: laws of learning rate and batch size from a sweep of one's own."""

from __future__ import annotations

import argparse
from pathlib import Path

from frozenprobe.errors import DataError, SettingsError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument(
        "sweep",
        type=Path,
        metavar="FILE",
        help="csv, jsonl or parquet: compute (FLOPs), learning_rate, batch_tokens (processed positions), loss, and model",
    )
    parser.add_argument("--top", type=int, default=3, metavar="N", help="runs kept of each model (default 3)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the paper's figure 7; needs the extra plots")


def run(arguments: argparse.Namespace) -> None:
    """Runs the command.

    Raises:
        DataError: The sweep cannot be read or fitted.
        SettingsError: An impossible option.
    """
    if arguments.top < 1:
        raise SettingsError(f"--top: at least 1 (got {arguments.top})")

    from crossbert.fit import fit_power_law, keep_best, plot, read_sweep
    from crossbert.scaling import LAWS

    runs = read_sweep(arguments.sweep)
    best = keep_best(runs, arguments.top)
    if best.empty:
        raise DataError(f"{arguments.sweep} has no run with a finite loss")
    print(f"{len(best)} of {len(runs)} runs kept: the best {arguments.top} of each of {best['model'].nunique()} models")
    fits = {name: fit_power_law(best["compute"], best[name]) for name in ("learning_rate", "batch_tokens")}
    for name, fit in fits.items():
        error = "" if fit.standard_error is None else f" (standard error of the exponent {fit.standard_error:.3f})"
        r2 = "" if fit.r2 is None else f", R2 {fit.r2:.3f}"
        print(f"{name:13} = {fit.law}{error}{r2}")
    for objective, laws in LAWS.items():
        print(f"the paper's {objective}: learning_rate = {laws.learning_rate}, batch_tokens = {laws.batch}")
    if arguments.plot is not None:
        plot(runs, best, fits, arguments.plot)
        print(f"drawn in {arguments.plot}")
