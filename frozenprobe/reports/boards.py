"""The leaderboards as data: their columns in the paper's order, and what their averages are taken over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from frozenprobe.errors import ComparisonError

CUSTOM = "custom"  # the suite of tasks from files
GLUE_TASKS = ("mnli", "qnli", "qqp", "rte", "sst2", "mrpc", "cola", "stsb")
TITLES = {"mnli": "MNLI", "qnli": "QNLI", "qqp": "QQP", "rte": "RTE", "sst2": "SST-2", "mrpc": "MRPC", "cola": "CoLA"}
TITLES |= {"stsb": "STS-B", "sts": "STS"}
# Category of MTEB -> column of the paper's tables.
CATEGORIES = {
    "Classification": "class",
    "Clustering": "clust",
    "PairClassification": "pairclass",
    "Reranking": "rerank",
    "Retrieval": "retriev",
    "STS": "sts",
    "Summarization": "summ",
}


@dataclass(frozen=True)
class Board:
    """A leaderboard.

    Attributes:
        name: As typed.
        suite: The suite that its scores are of, as recorded.
        columns: What it is made of, tasks or categories; empty where the runs themselves say it.
        tasks_per_column: Tasks in each category, where the columns are categories.
    """

    name: str
    suite: str
    columns: tuple[str, ...] = ()
    tasks_per_column: tuple[int, ...] = ()

    @property
    def averages(self) -> tuple[str, ...]:
        """`avg` is the plain mean over the columns; `overall` the mean over tasks, where columns are categories."""
        return ("avg", "overall") if self.tasks_per_column else ("avg",)

    def average(self, scores: Mapping[str, float], columns: tuple[str, ...] | None = None) -> dict[str, float]:
        """Every average, from a row's own scores; NaN where one of them is missing."""
        values = np.array([scores.get(column, np.nan) for column in columns or self.columns])
        result = {"avg": float(values.mean())}
        if self.tasks_per_column:
            result["overall"] = float(np.average(values, weights=self.tasks_per_column))
        return result


BOARDS = {
    board.name: board
    for board in (
        Board("glue", "GLUE", GLUE_TASKS),
        Board("builtin", "built-in"),
        Board("mteb-v1", "MTEB(eng, v1)", tuple(CATEGORIES.values()), (12, 11, 3, 4, 15, 10, 1)),
        Board("mteb-v2", "MTEB(eng, v2)", tuple(CATEGORIES.values()), (8, 8, 3, 2, 10, 9, 1)),
    )
}


def board_of(suite: str | None, found: set[str]) -> Board:
    """The leaderboard asked for, or the only one that there is something to put on.

    Args:
        suite: Name of a board or of a suite; None: decided by what was found.
        found: Suites of the runs.

    Raises:
        ComparisonError: The name is unknown, or several suites were found and none was chosen.
    """
    by_suite = {board.suite: board for board in BOARDS.values()}
    if suite is None:
        if len(found) > 1:
            names = sorted(by_suite[name].name if name in by_suite else name for name in found)
            raise ComparisonError(f"the runs hold several suites; choose one with --suite: {', '.join(names)}")
        suite = next(iter(found), "glue")
    if suite in BOARDS:
        return BOARDS[suite]
    if suite in by_suite:
        return by_suite[suite]
    if suite in found or suite == CUSTOM:
        return Board(suite, suite)
    allowed = ", ".join(dict.fromkeys([*BOARDS, CUSTOM, *sorted(found - set(by_suite))]))
    raise ComparisonError(f"unknown suite {suite!r}; allowed are {allowed}")
