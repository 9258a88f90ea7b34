"""`crossbert train`: a model from prepared data, to checkpoints."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from crossbert.settings import RECIPES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    recipes = ", ".join(RECIPES)
    parser.add_argument(
        "--config",
        required=True,
        metavar="FILE",
        help=f"settings in TOML: a file, a recipe of this package ({recipes}), or a run that `crossbert configs` lists",
    )
    parser.add_argument(
        "--set",
        action="extend",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="overrides single settings, as in data.batch=64 steps=500",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="the run's folder (default: runs/NAME, after the file)")
    parser.add_argument("--quiet", action="store_true", help="print nothing but the last checkpoint")


def run(arguments: argparse.Namespace) -> None:
    """Runs the command.

    Raises:
        FrozenprobeError: Wrong input.
    """
    from crossbert.display import default_display
    from crossbert.recipes import read_recipe
    from crossbert.train import train

    settings = read_recipe(arguments.config, arguments.set)
    out = arguments.out or Path("runs") / Path(arguments.config).stem
    last = train(settings, out, display=default_display("step", arguments.quiet))
    if os.environ.get("RANK", "0") == "0":  # under torchrun, one of many
        print(last)
