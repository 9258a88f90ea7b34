"""`frozenprobe cache`: shows what the feature cache holds, prunes it, clears it."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from frozenprobe.errors import SettingsError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument(
        "--cache-dir", type=Path, metavar="DIR", help="default: $FROZENPROBE_CACHE, else ~/.cache/frozenprobe"
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--prune", type=float, metavar="GB", help="drop the least recently used until so much is left")
    action.add_argument("--clear", action="store_true", help="drop everything")


def run(arguments: argparse.Namespace) -> None:
    """Runs the command.

    Raises:
        SettingsError: The limit is no size, or the folder is none.
    """
    if arguments.prune is not None and not 0 <= arguments.prune < math.inf:
        raise SettingsError(f"--prune: a size in GB is needed (got {arguments.prune:g})")

    from rich.table import Table

    from frozenprobe.features.cache import FeatureCache, default_cache_dir
    from frozenprobe.reports.console import terminal

    root = arguments.cache_dir or default_cache_dir()
    if root.is_file() or (arguments.cache_dir and not root.is_dir()):
        raise SettingsError(f"--cache-dir {root}: there is no such folder")
    cache = FeatureCache(root)
    if arguments.clear:
        cache.clear()
    elif arguments.prune is not None:
        cache.prune(int(arguments.prune * 1e9))
    table = Table(title=f"feature cache in {root}", title_justify="left")
    for name, justify in (
        ("encoder", "left"),
        ("view", "left"),
        ("rows", "right"),
        ("size", "right"),
        ("last used", "left"),
    ):
        table.add_column(name, justify=justify)
    for store in cache.stores():
        table.add_row(
            store.encoder, store.view, f"{store.rows:,}", f"{store.bytes / 1e6:,.1f} MB", f"{store.used:%Y-%m-%d %H:%M}"
        )
    console = terminal()
    console.print(table)
    console.print(f"{cache.size() / 1e6:,.1f} MB in all")
