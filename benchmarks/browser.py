"""A headless Chromium that stays at home: an own empty profile, no look-ups in the background."""

from __future__ import annotations

import shutil
from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
)


def command(profile: Path, *options: str) -> list[str]:
    """The command line that opens what is put behind it.

    Args:
        profile: An empty folder, or the one of an earlier call.
        options: More of Chromium's options.
    """
    if CHROMIUM is None:
        raise FileNotFoundError("no Chromium is installed")
    return [CHROMIUM, *OPTIONS, f"--user-data-dir={profile}", *options]
