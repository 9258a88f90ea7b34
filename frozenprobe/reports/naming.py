"""What runs are called where several of them stand in one table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from frozenprobe.records.reading import Run


def once(runs: Sequence[Run]) -> list[Run]:
    """The runs without those that are named twice."""
    return list({run.folder.resolve(): run for run in runs}.values())


def labels(runs: Sequence[Run]) -> list[str]:
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
