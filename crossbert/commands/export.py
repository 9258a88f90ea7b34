"""`crossbert export`: a training checkpoint as a Hugging Face folder."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument(
        "--ckpt", type=Path, required=True, metavar="DIR", help="a run (its newest complete step) or a step folder"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new folder")
    parser.add_argument(
        "--dtype", choices=("fp32", "bf16", "fp16"), default="fp32", help="of the weights in the file (default fp32)"
    )


def run(arguments: argparse.Namespace) -> None:
    """Runs the command.

    Raises:
        FrozenprobeError: The checkpoint is damaged or the folder is taken.
    """
    from crossbert.export import export

    folder = export(arguments.ckpt, arguments.out, arguments.dtype)
    print(f"exported {folder} to {arguments.out}")
