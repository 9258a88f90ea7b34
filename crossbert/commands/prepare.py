"""`crossbert prepare`: text to packed token files."""

from __future__ import annotations

import argparse
from pathlib import Path

from crossbert.settings import PrepareSettings
from frozenprobe.cli.options import add_options, read_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the prepared data goes")
    parser.add_argument("--quiet", action="store_true", help="print nothing but the counts")
    add_options(parser, PrepareSettings)


def run(arguments: argparse.Namespace) -> None:
    """Runs the command.

    Raises:
        FrozenprobeError: Wrong input.
    """
    settings = read_options(arguments, PrepareSettings)

    from crossbert.display import default_display
    from crossbert.prepare import prepare

    unit = "tokens" if settings.max_tokens else "documents"
    manifest = prepare(settings, arguments.out, default_display(unit, arguments.quiet))
    documents, tokens = manifest["documents"], manifest["tokens"]
    print(f"{arguments.out}: vocabulary {manifest['vocabulary']:,}")
    for split in documents:
        print(f"  {split}: {documents[split]:,} documents, {tokens[split]:,} tokens")
    print(
        f"  {manifest['characters_per_token']:.2f} characters a token; {manifest['empty_documents']:,} empty documents dropped"
    )
