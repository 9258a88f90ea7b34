"""A leaderboard on the terminal: one table per method, backbone and protocol."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from frozenprobe.reports.leaderboard import Leaderboard
from frozenprobe.reports.paper_tables import flag
from frozenprobe.reports.rows import Row


def print_leaderboard(leaderboard: Leaderboard, console: Console) -> None:
    """Prints the tables, then flags and notes."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in leaderboard.rows:
        groups.setdefault((row.method, row.backbone, row.protocol, row.pair_form), []).append(row)
    flags = {id(row): flag(row, leaderboard.values(row)) for row in leaderboard.rows}
    for group, rows in groups.items():
        console.print(
            _table(", ".join(filter(None, [leaderboard.board.suite, *group])), rows, flags, leaderboard, console)
        )
    lines = [
        f"* {', '.join(filter(None, [row.model, row.method, row.backbone]))}: {flags[id(row)]}"
        for row in leaderboard.rows
        if flags[id(row)]
    ]
    lines += dict.fromkeys(f"{row.model}: incomplete, lacks {row.lacks}" for row in leaderboard.rows if row.missing)
    for line in [*lines, *leaderboard.notes]:
        console.print(line, style="yellow", soft_wrap=True, highlight=False)
    published = " (dim: published)" if any(row.source == "published" for row in leaderboard.rows) else ""
    console.print(f"percent; averages are recomputed from the row{published}", style="dim")


def _table(title: str, rows: Sequence[Row], flags: dict[int, str], leaderboard: Leaderboard, console: Console) -> Table:
    columns = (*leaderboard.columns, *leaderboard.board.averages)
    table = Table(title=title, title_justify="left")
    table.add_column("model", overflow="fold", min_width=8)
    wide = console.width >= 34 + 8 * len(columns)
    if wide:
        table.add_column("params", justify="right")
        table.add_column("FLOPs", justify="right")
    for name in columns:
        table.add_column(leaderboard.heading(name), justify="right", min_width=4)
    for row in rows:
        values = leaderboard.values(row)
        cost = [f"{row.params / 1e6:,.0f}M" if row.params else "", row.flops] if wide else []
        scores = ["-" if math.isnan(values[name]) else f"{values[name]:.1f}" for name in columns]
        style = "dim" if row.source == "published" else ""
        table.add_row(row.model + (" *" if flags[id(row)] else ""), *cost, *scores, style=style)
    return table
