"""Many runs, and the paper's, as one table: a row per model and method, in percent, with every average recomputed.

A row that lacks a column has no average. The frame is as it is written: rounded, so that the CSV read back is the same table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from frozenprobe.errors import ComparisonError, RecordError
from frozenprobe.files import write_atomically
from frozenprobe.records.reading import Run, read_run
from frozenprobe.reports.boards import TITLES, Board, board_of
from frozenprobe.reports.conditions import unlike
from frozenprobe.reports.naming import labels as labels_of
from frozenprobe.reports.naming import once
from frozenprobe.reports.paper_tables import flag, published_rows
from frozenprobe.reports.rows import Row, add_costs, read_costs, run_rows
from frozenprobe.reports.summary import place

ABOUT = ("model", "source", "method", "backbone", "protocol", "pair_form")
TEXT = (*ABOUT, "max_train", "flops", "device", "missing", "flag", "run")
COUNTS = ("params", "tokens_per_s", "encoding_tokens_per_s")
BEFORE = (*ABOUT, "max_train", "params", "flops", "tokens_per_s", "encoding_tokens_per_s", "device")
METHOD_ORDER = ("linear", "kNN", "finetuned", "contrastive")
LONG = (
    *ABOUT,
    "suite",
    "task",
    "metric",
    "score",
    "low",
    "high",
    "n",
    "n_evaluated",
    "lambda",
    "k",
    "distance",
    "run",
)
LONG_TEXT = (*ABOUT, "suite", "task", "metric", "distance", "run")
LONG_COUNTS = ("n", "n_evaluated", "k")


@dataclass(frozen=True)
class Leaderboard:
    """A leaderboard.

    Attributes:
        board: Which one.
        columns: Its tasks or categories; the averages are over `averaged`, extra tasks stand behind.
        averaged: The columns that the averages are taken over.
        rows: What the frame is made of, in its order.
        frame: One row per model and method.
        long: One row per score.
        notes: What to know: damaged files, costs of models that are not there, rows that were not measured alike.
    """

    board: Board
    columns: tuple[str, ...]
    averaged: tuple[str, ...]
    rows: list[Row]
    frame: pd.DataFrame
    long: pd.DataFrame
    notes: list[str]

    def values(self, row: Row) -> dict[str, float]:
        """A row's scores and averages, not rounded; a column that it lacks is NaN, and so is an average over it."""
        return _values(row, self.board, self.columns, self.averaged)

    @property
    def shown(self) -> tuple[str, ...]:
        """The columns that some row has a score in, and the averages: what people are shown. Files have every column."""
        scored = {column for row in self.rows for column in row.scores}
        return (*[column for column in self.columns if column in scored], *self.board.averages)

    def heading(self, column: str) -> str:
        """What a column is called where people read it: a task by its title."""
        recorded = (score["title"] for row in self.rows for score in row.single if score["task"] == column)
        return TITLES.get(column) or next(recorded, column.capitalize())


def make_leaderboard(
    folders: Sequence[str | Path],
    *,
    suite: str | None = None,
    with_published: bool = False,
    costs: str | Path | None = None,
) -> Leaderboard:
    """Reads runs into a leaderboard.

    Args:
        folders: Runs.
        suite: `glue`, `builtin`, `mteb-v1`, `mteb-v2` or a suite of your own; None: the one that the runs are of.
        with_published: Add the paper's rows.
        costs: TOML file with `params`, `flops` and `tokens_per_s` by model.

    Raises:
        ComparisonError: The runs hold several suites and none is chosen, or a task is called like a column.
        RecordError: A folder is not a run, or there is nothing to show.
        SettingsError: The costs cannot be read.
    """
    runs = [read_run(folder, headline_only=True) for folder in folders]
    return leaderboard_of(runs, suite=suite, with_published=with_published, costs=costs)


def leaderboard_of(
    runs: Sequence[Run], *, suite: str | None = None, with_published: bool = False, costs: str | Path | None = None
) -> Leaderboard:
    """See `make_leaderboard`, for runs that were read already."""
    runs = once(runs)
    found = {unit.key.suite for run in runs for unit in run.units}
    board = board_of(suite, found)
    names = labels_of(runs)
    rows = published_rows(board) if with_published else []
    notes = []
    for run, name in zip(runs, names, strict=True):
        added = run_rows(run, name, board)
        if not added:
            notes.append(f"{run.folder}: no finished task of {board.suite}; left out")
        rows += added
        notes += [f"{run.folder}: {line}" for line in run.left_out()]
    if costs is not None:
        notes += [f"{costs}: no row is of {name}" for name in add_costs(rows, read_costs(Path(costs)))]
    if not rows:
        raise RecordError(_nothing(runs, board, is_published=with_published))
    scored = {column for row in rows for column in row.scores}
    if clash := scored & {*TEXT, *COUNTS, *board.averages}:
        raise ComparisonError(
            f"a task is called {', '.join(sorted(clash))}, as a column of the leaderboard is; rename it"
        )
    extra = tuple(sorted(scored - set(board.columns), key=place))
    averaged = board.columns or extra
    columns = tuple(dict.fromkeys((*board.columns, *extra)))
    for row in rows:
        for column in averaged:
            if column not in row.scores:
                row.missing.setdefault(column, column)
    notes += unlike(("published" if row.source == "published" else row.model, row.conditions) for row in rows)
    rows.sort(key=lambda row: _rank(row, board, averaged))
    wide = _wide(rows, board, columns, averaged)
    return Leaderboard(board, columns, averaged, rows, wide, _long(rows, board), notes)


def _nothing(runs: Sequence[Run], board: Board, *, is_published: bool) -> str:
    """Why a leaderboard has no row."""
    if is_published:
        return f"there is nothing to show: the paper has no rows of {board.suite}, and no run given has"
    if not runs:
        return "there is nothing to show: name runs, or --with-published"
    damaged = sum(len(run.damaged) for run in runs)
    folders = ", ".join(str(run.folder) for run in runs) + (f" ({damaged} damaged)" if damaged else "")
    if not any(run.units for run in runs):
        return f"there is nothing to show: no task is finished in {folders}"
    return f"there is nothing to show: no task of {board.suite} is finished in {folders}"


def _values(row: Row, board: Board, columns: tuple[str, ...], averaged: tuple[str, ...]) -> dict[str, float]:
    return {column: row.scores.get(column, np.nan) for column in columns} | board.average(row.scores, averaged)


def _wide(rows: Sequence[Row], board: Board, columns: tuple[str, ...], averaged: tuple[str, ...]) -> pd.DataFrame:
    lines = []
    for row in rows:
        values = _values(row, board, columns, averaged)
        line = {name: getattr(row, name) for name in (*BEFORE, "run")} | values
        line |= {f"printed_{name}": row.printed.get(name, np.nan) for name in board.averages}
        lines.append({**line, "missing": row.lacks, "flag": flag(row, values)})
    printed = [f"printed_{name}" for name in board.averages]
    order = [*BEFORE, *columns, *board.averages, "missing", *printed, "flag", "run"]
    return _typed(pd.DataFrame(lines, columns=order), TEXT, COUNTS, 2)


def _rank(row: Row, board: Board, averaged: tuple[str, ...]) -> tuple:
    """By method and protocol, then the best first, and rows without an average behind.

    Finetuned rows stand together whatever epoch they are of, since the paper does not say it of its own.
    """
    method = METHOD_ORDER.index(row.method) if row.method in METHOD_ORDER else len(METHOD_ORDER)
    average = board.average(row.scores, averaged)["avg"]
    rest = (row.model, row.pair_form, row.run)
    protocol = "" if row.method == "finetuned" else row.protocol
    return (method, row.backbone, protocol, np.isnan(average), 0.0 if np.isnan(average) else -average, *rest)


def _long(rows: Sequence[Row], board: Board) -> pd.DataFrame:
    """One row per score: of every task where the records are ours, of every column where the paper's."""
    lines = []
    for row in rows:
        common = {name: getattr(row, name) for name in (*ABOUT, "run")} | {"suite": board.suite}
        for score in row.single:
            percent = {name: 100 * score[name] for name in ("low", "high")}
            lines.append({**score, **common, **percent, "score": 100 * score["value"]})
        if not row.single:
            lines += [{**common, "task": column, "score": row.scores[column]} for column in board.columns]
    frame = _typed(pd.DataFrame(lines, columns=list(LONG)), LONG_TEXT, LONG_COUNTS, 4)
    return frame.sort_values([*ABOUT, "run", "task"], kind="stable").reset_index(drop=True)


def _typed(frame: pd.DataFrame, text: Sequence[str], counts: Sequence[str], decimals: int) -> pd.DataFrame:
    """Text as text, counts as whole numbers, everything else rounded as it is written."""
    for column in frame.columns:
        if column in text:
            frame[column] = frame[column].fillna("").astype("string")
        elif column in counts:
            frame[column] = pd.to_numeric(frame[column]).astype("Int64")
        else:
            frame[column] = pd.to_numeric(frame[column]).astype(float).round(decimals)
    return frame


def write_leaderboard(leaderboard: Leaderboard, csv: str | Path | None = None, long: str | Path | None = None) -> None:
    """Writes the table, and the one with a row per score.

    Raises:
        RecordError: The disk is full or the folder cannot be written.
    """
    if csv is not None:
        write_atomically(Path(csv), leaderboard.frame.to_csv(index=False, float_format="%.2f").encode())
    if long is not None:
        write_atomically(Path(long), leaderboard.long.to_csv(index=False, float_format="%.4f").encode())


def read_leaderboard(path: str | Path) -> pd.DataFrame:
    """Reads either CSV back as the same frame.

    Raises:
        RecordError: There is no such file, or it is no leaderboard.
    """
    try:
        header = pd.read_csv(path, nrows=0).columns
        is_long = tuple(header) == LONG
        text, counts = (LONG_TEXT, LONG_COUNTS) if is_long else (TEXT, COUNTS)
        if "model" not in header or "run" not in header:
            raise ValueError("it has no columns model and run")
        frame = pd.read_csv(
            path,
            dtype=dict.fromkeys(set(text) & set(header), "string"),
            keep_default_na=False,
            na_values={column: [""] for column in header if column not in text},
        )
    except (OSError, ValueError) as error:
        raise RecordError(f"{path} is no leaderboard: {error}") from None
    return _typed(frame, text, counts, 4 if is_long else 2)
