"""What runs are called where several of them stand in one table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


class Named(Protocol):
    """A run, read whole or in part."""

    @property
    def folder(self) -> Path:
        """Where it lies."""

    @property
    def name(self) -> str:
        """The encoder's name."""

    @property
    def step(self) -> int | None:
        """The training step, where it is known."""


def labels(runs: Sequence[Named]) -> list[str]:
    """A distinct label per run: its name, with its step or its folder where the name is not enough."""
    result = [run.name for run in runs]
    for detail in (
        [f"step {run.step}" if run.step is not None else "" for run in runs],
        [run.folder.name for run in runs],
        [str(run.folder) for run in runs],
    ):
        often = Counter(result)
        result = [
            f"{label}, {more}" if often[label] > 1 and more else label
            for label, more in zip(result, detail, strict=True)
        ]
    return result
