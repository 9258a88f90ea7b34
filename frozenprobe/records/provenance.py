"""Where a number came from: versions, machine, git state of the working directory."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

PACKAGES = (
    "frozenprobe",
    "torch",
    "transformers",
    "tokenizers",
    "sentence-transformers",
    "datasets",
    "mteb",
    "numpy",
    "faiss-cpu",
    "faiss-gpu",
)


@cache
def provenance() -> dict[str, Any]:
    """Versions of the packages that decide a score, the machine, and the git commit with its dirty state.

    Looked up once: what a process runs is what it was started from, whatever is committed meanwhile.
    """
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "versions": versions,
        "machine": {"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count()},
        "git": _git_state(),
    }


def _git_state() -> dict[str, Any] | None:
    """Commit and dirty state of the working directory, or None outside a checkout."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=5, check=True).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None
