"""A leaderboard on the terminal: one table per method, backbone and protocol."""

from __future__ import annotations

import pandas as pd
from rich.console import Console
from rich.table import Table

from frozenprobe.reports.leaderboard import Leaderboard

GROUP = ("method", "backbone", "protocol", "pair_form")
HEADINGS = {"stsb": "STS-B", "sst2": "SST-2", "cola": "CoLA", "sts": "STS"}
HEADINGS |= {name: name.upper() for name in ("mnli", "qnli", "qqp", "rte", "mrpc", "wnli")}


def heading(column: str) -> str:
    """What a column is called in a table."""
    task = column.removesuffix("-subset")
    title = HEADINGS.get(task) or task.removeprefix("builtin-").capitalize()
    return title if task == column else f"{title} (subset)"


def print_leaderboard(leaderboard: Leaderboard, console: Console) -> None:
    """Prints the tables, then flags and notes."""
    rows = leaderboard.frame.to_dict("records")
    for group in dict.fromkeys(tuple(row[name] for name in GROUP) for row in rows):
        title = ", ".join(filter(None, [leaderboard.board.suite, *group]))
        table = Table(title=title, title_justify="left")
        table.add_column("model", overflow="fold", min_width=8)
        wide = console.width >= 34 + 8 * (len(leaderboard.columns) + 2)
        if wide:
            table.add_column("params", justify="right")
            table.add_column("FLOPs", justify="right")
        for name in (*leaderboard.columns, *leaderboard.board.averages):
            table.add_column(heading(name), justify="right", min_width=4)
        for row in rows:
            if tuple(row[name] for name in GROUP) != group:
                continue
            cost = [_millions(row["params"]), row["flops"]] if wide else []
            scores = [row[name] for name in (*leaderboard.columns, *leaderboard.board.averages)]
            mark = " *" if row["flag"] else ""
            style = "dim" if row["source"] == "published" else ""
            table.add_row(row["model"] + mark, *cost, *["-" if pd.isna(x) else f"{x:.1f}" for x in scores], style=style)
        console.print(table)
    for row in rows:
        where = ", ".join(filter(None, [row["model"], row["method"], row["backbone"], row["protocol"]]))
        if row["flag"]:
            console.print(f"* {where}: {row['flag']}", style="yellow", soft_wrap=True, highlight=False)
        if row["missing"]:
            console.print(
                f"{where}: incomplete, lacks {row['missing']}", style="yellow", soft_wrap=True, highlight=False
            )
    for note in leaderboard.notes:
        console.print(note, style="yellow", soft_wrap=True, highlight=False)
    published = " (dim: published)" if (leaderboard.frame["source"] == "published").any() else ""
    console.print(f"percent; averages are recomputed from the row{published}", style="dim")


def _millions(count: int) -> str:
    return "" if pd.isna(count) else f"{count / 1e6:,.0f}M"
