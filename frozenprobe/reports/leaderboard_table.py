"""A leaderboard on the terminal: one table per method, backbone and protocol.

Nothing is cut off: where the columns do not fit, the lines between them go first, and then models become the columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from frozenprobe.reports.leaderboard import Leaderboard
from frozenprobe.reports.paper_tables import flag
from frozenprobe.reports.rows import Row

COMPACT: dict[str, Any] = {"box": box.SIMPLE_HEAD, "padding": 0}
EPOCHS = {"honest": "last epoch", "paper": "best epoch"}  # of finetuned rows, which share a table with the paper's
NAME = 12  # characters that a model's name may be broken to


def print_leaderboard(leaderboard: Leaderboard, console: Console) -> None:
    """Prints the tables, then flags and notes."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in filter(lambda row: row.scores, leaderboard.rows):
        protocol = "" if row.method == "finetuned" else row.protocol
        groups.setdefault((row.method, row.backbone, protocol, row.pair_form), []).append(row)
    flags = {id(row): flag(row, leaderboard.values(row)) for row in leaderboard.rows}
    for group, rows in groups.items():
        title = ", ".join(filter(None, [leaderboard.board.suite, *group]))
        for table in _layout(title, rows, flags, leaderboard, console):
            console.print(table)
    lines = [
        f"* {', '.join(filter(None, [row.model, row.method, row.backbone]))}: {flags[id(row)]}"
        for row in leaderboard.rows
        if flags[id(row)]
    ]
    lines += dict.fromkeys(_incomplete(row) for row in leaderboard.rows if row.missing)
    for line in [*lines, *leaderboard.notes]:
        console.print(line, style="yellow", soft_wrap=True, highlight=False)
    published = " (dim: published)" if any(row.source == "published" for row in leaderboard.rows) else ""
    console.print(f"percent; averages are recomputed from the row{published}", style="dim")


def _incomplete(row: Row) -> str:
    if row.scores:
        return f"{row.model}: incomplete, lacks {row.lacks}"
    return f"{row.model}: not in the table, no category is whole ({row.lacks}); `frozenprobe show {row.run}` prints its tasks"


def _layout(
    title: str, rows: Sequence[Row], flags: dict[int, str], leaderboard: Leaderboard, console: Console
) -> list[Table]:
    """The widest layout that fits, in one table or, where models are the columns, in as many as it takes."""
    heads = ["model", "params", "FLOPs", *[leaderboard.heading(name) for name in leaderboard.shown]]
    lines, styles = [], []
    for row in rows:
        values = leaderboard.values(row)
        cost = [f"{row.params / 1e6:,.0f}M" if row.params else "", row.flops]
        scores = ["-" if math.isnan(values[name]) else f"{values[name]:.1f}" for name in leaderboard.shown]
        lines.append([_name(row) + (" *" if flags[id(row)] else ""), *cost, *scores])
        styles.append("dim" if row.source == "published" else "")
    scores_only_heads, scores_only = heads[:1] + heads[3:], [line[:1] + line[3:] for line in lines]
    for table in (
        _table(title, heads, lines, styles),
        _table(title, scores_only_heads, scores_only, styles),
        _table(title, scores_only_heads, scores_only, styles, **COMPACT),
    ):
        needed = console.measure(table, options=console.options.update(max_width=10_000))
        if (needed.minimum if table.box is COMPACT["box"] else needed.maximum) <= console.width:
            return [table]
    most = max(1, (console.width - max(map(len, heads)) - 1) // (NAME + 1))
    tables = []
    for first in range(0, len(lines), most):
        turned = list(zip(heads, *lines[first : first + most], strict=True))
        tables.append(table := _table(title, turned[0], turned[1:], [""] * len(turned), **COMPACT))
        for column, style in zip(table.columns[1:], styles[first:], strict=False):
            column.style = style
    return tables


def _name(row: Row) -> str:
    epoch = EPOCHS.get(row.protocol) if row.method == "finetuned" else None
    return f"{row.model}, {epoch}" if epoch else row.model


def _table(
    title: str, heads: Sequence[str], lines: Sequence[Sequence[str]], styles: Sequence[str], **layout: Any
) -> Table:
    table = Table(title=title, title_justify="left", **layout)
    for i, column in enumerate(zip(heads, *lines, strict=True)):
        width = min(NAME, max(map(len, column)))
        table.add_column(heads[i], justify="right" if i else "left", overflow="fold", min_width=width)
    for line, style in zip(lines, styles, strict=False):
        table.add_row(*line, style=style)
    return table
