"""Runs and comparisons as tables on the terminal.

Names and paths may hold square brackets, so every console is made by `terminal`, which reads no markup.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence

import pandas as pd
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text, TextType

from frozenprobe.records.reading import Run
from frozenprobe.reports.comparison import Comparison
from frozenprobe.reports.summary import LABELS, Cell, SummaryRow, scores_by_view, summarise, titles

STYLES = {"honest": "", "paper": "cyan"}  # of a protocol's scores; dim otherwise
LEVEL_OF_DOUBT = 0.05  # a difference with a larger p is printed dim


def terminal(room: int = 160) -> Console:
    """The terminal, or whatever the output goes to: a file or a pipe has room for wide tables."""
    fixed = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(markup=False, width=None if fixed else room)


def print_whole(table: Table, console: Console) -> None:
    """Prints a table of which nothing is cut off: one that is too wide as several, each with the first column in front."""
    first, *others = table.columns
    title = table.title
    while others:
        taken = len(others)
        while taken > 1 and not _fits(_part(table, [first, *others[:taken]], title), console):
            taken -= 1
        part = _part(table, [first, *others[:taken]], title)
        if not _fits(part, console):
            for column in part.columns:
                column.overflow = "fold"
        console.print(part)
        others, title = others[taken:], None
    if table.caption:
        console.print(table.caption, style="table.caption", highlight=False)


def _part(table: Table, columns: Sequence[Column], title: TextType | None) -> Table:
    """The same rows with some of the columns."""
    part = Table(
        *(column.copy() for column in columns),
        title=title,
        title_justify=table.title_justify,
        show_footer=table.show_footer,
    )
    for row, *cells in zip(table.rows, *(column.cells for column in columns), strict=True):
        part.add_row(*cells, style=row.style, end_section=row.end_section)
    return part


def print_run(run: Run, console: Console) -> None:
    """Prints the headline table of a run, its layers where there are several, its wall time and its warnings."""
    if run.units:
        _print_headline(run, console)
        _print_views(run, console)
    else:
        console.print(f"{run.name}: no task is finished yet", soft_wrap=True, highlight=False)
    for line in run.warnings():
        console.print(line, style="yellow", soft_wrap=True, highlight=False)
    seconds = run.seconds()
    if seconds:
        console.print(f"{_times(seconds)}; records in {run.folder}", style="dim", soft_wrap=True, highlight=False)


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Prints the differences of two runs, or the scores of many with their trend, and what to know about them."""
    if len(comparison.labels) == 2:
        _print_differences(comparison, console)
    else:
        _print_trend(comparison, console)
    for note in comparison.notes:
        console.print(note, style="yellow", soft_wrap=True, highlight=False)


def _print_differences(comparison: Comparison, console: Console) -> None:
    baseline, candidate = comparison.labels
    table = _comparison_table(f"A: {baseline}, B: {candidate}; ", comparison)
    table.add_column("task", no_wrap=True)
    for name in ("A", "B", "B - A", "95% interval", "p", "p corrected"):
        table.add_column(name, justify="right", min_width=5)
    for row in comparison.frame.to_dict("records"):
        decisive = row["p"] if row["task"] == "mean" else row["p_corrected"]
        table.add_row(
            row["title"],
            f"{100 * row['baseline_value']:.1f}",
            f"{100 * row['candidate_value']:.1f}",
            Text(f"{100 * row['difference']:+.1f}", style="bold" if decisive < LEVEL_OF_DOUBT else "dim"),
            f"{100 * row['low']:+.1f} to {100 * row['high']:+.1f}",
            _p(row["p"]),
            _p(row["p_corrected"]),
        )
    console.print(table)


def _print_trend(comparison: Comparison, console: Console) -> None:
    trend = comparison.frame[comparison.frame["comparison"] == "trend"].to_dict("records")
    table = _comparison_table("", comparison)
    table.add_column("run", overflow="fold", min_width=8)
    for title in comparison.scores.columns:
        table.add_column(title, justify="right", min_width=6)
    for label, scores in comparison.scores.iterrows():
        table.add_row(str(label), *[f"{100 * value:.1f}" for value in scores])
    table.add_section()
    table.add_row("trend", *[f"{100 * row['difference']:+.1f}" for row in trend], style="bold")
    table.add_row("±", *[f"{50 * (row['high'] - row['low']):.1f}" for row in trend], style="dim")
    table.add_row("p", *[_p(row["p"]) for row in trend])
    table.add_row("p corrected", *[_p(row["p_corrected"]) for row in trend])
    console.print(table)


def _comparison_table(title: str, comparison: Comparison) -> Table:
    settings = comparison.settings
    return Table(
        title=f"{title}{LABELS[settings.probe, settings.protocol]}, last layer, mean over tokens",
        caption="percent; paired on the same examples: McNemar's exact test for accuracy, "
        f"{settings.replicates:,} resamples for everything else; corrected for the number of tests (Holm)",
        title_justify="left",
        caption_justify="left",
    )


def _p(value: float) -> str:
    if pd.isna(value):
        return ""
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def _print_headline(run: Run, console: Console) -> None:
    """The paper's layout, tasks as columns, where that fits; else a line per task, for each pair form."""
    rows = summarise(run)
    forms = list(dict.fromkeys(row.pair_form for row in rows))
    if _print_if_it_fits([_by_probe(run, rows, on_one_line) for on_one_line in (True, False)], console):
        return
    for form in forms:
        chosen = [row for row in rows if row.pair_form == form]
        title = f", {form}" if len(forms) > 1 else ""
        tables = [_by_task(run, chosen, title, on_one_line) for on_one_line in (True, False)]
        if not _print_if_it_fits(tables, console):
            print_whole(tables[-1], console)


def _print_if_it_fits(tables: Sequence[Table], console: Console) -> bool:
    """Prints the first table that is narrow enough."""
    for table in tables:
        if _fits(table, console):
            console.print(table)
            return True
    return False


def _fits(table: Table, console: Console) -> bool:
    return console.measure(table, options=console.options.update(max_width=10_000)).maximum <= console.width


def _by_probe(run: Run, rows: Sequence[SummaryRow], on_one_line: bool) -> Table:
    columns = titles(run)
    several_forms = len({row.pair_form for row in rows}) > 1
    table = _headline_table(run)
    table.add_column("probe", no_wrap=True)
    for title in columns:
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column(f"mean of {len(columns)}", justify="right", style="bold", no_wrap=True)
    for row in rows:
        label = row.label + (f" ({row.pair_form})" if several_forms else "")
        cells = [_cell(row.cells.get(title), on_one_line) for title in columns]
        table.add_row(label, *cells, _cell(row.mean, on_one_line), style=STYLES.get(row.protocol, "dim"))
    return table


def _by_task(run: Run, rows: Sequence[SummaryRow], form: str, on_one_line: bool) -> Table:
    columns = titles(run)
    table = _headline_table(run, form)
    table.add_column("task", overflow="fold")
    for row in rows:
        style = STYLES.get(row.protocol, "dim")
        table.add_column("\n".join(row.label.replace(",", "").split()), justify="right", style=style, overflow="fold")
    for title in columns:
        table.add_row(title, *[_cell(row.cells.get(title), on_one_line) for row in rows])
    table.add_section()
    table.add_row(f"mean of {len(columns)}", *[_cell(row.mean, on_one_line) for row in rows], style="bold")
    return table


def _headline_table(run: Run, form: str = "") -> Table:
    suites = [unit.key.suite + (", subsets" if unit.about.get("subset") else "") for unit in run.units]
    encoder = run.manifest["encoder"]
    trainings = sorted({unit.key.training for unit in run.units}, reverse=True)
    caption = f"percent, ± half the 95% interval; {encoder['dtype']}, {encoder['max_length']} tokens"
    probes = run.manifest.get("settings", {}).get("probes", {})
    if (most := probes.get("max_evaluated", "all")) != "all":
        caption += f", at most {most} rows scored per split"
    if "frozen" in trainings:
        caption += (
            f", {_train_rows(probes['max_train'])}; "
            "honest: chosen inside train; paper: best on the reported split, so optimistic"
        )
    # The manifest is of the run that began the folder; the units know how they were finetuned.
    finetunings = [unit.about["finetune"] for unit in run.units if unit.key.training == "finetuned"]
    for most, seeds in dict.fromkeys((about["settings"]["max_train"], len(about["seeds"])) for about in finetunings):
        caption += (
            f"; finetuned: every weight trained on {_train_rows(most)}, mean over {seeds} seed{'s' * (seeds > 1)}; last epoch: "
            "chooses nothing; best epoch: best on the reported split, so optimistic"
        )
    return Table(
        title=f"{run.name} on {'; '.join(dict.fromkeys(suites))}, {' and '.join(trainings)}: "
        f"last layer, mean over tokens{form}",
        caption=caption,
        title_justify="left",
        caption_justify="left",
    )


def _train_rows(most: int | str) -> str:
    return "all train rows" if most == "all" else f"at most {most} train rows"


def _print_views(run: Run, console: Console) -> None:
    """Layers and poolings beyond the headline, by honest ridge: a diagnostic, not a choice of the best."""
    largest = {
        (layer, pooling, unit.title, unit.key.pair_form): score
        for unit in run.units
        for (layer, pooling), score in scores_by_view(unit).items()
    }
    views = list(dict.fromkeys((layer, pooling) for layer, pooling, *_ in largest))
    if len(views) < 2:
        return
    order = titles(run)
    columns = sorted({(title, form) for _, _, title, form in largest}, key=lambda item: (order.index(item[0]), item[1]))
    table = Table(title="by layer and pooling: linear, honest (diagnostic)", title_justify="left")
    table.add_column("layer")
    table.add_column("pooling")
    for title, form in columns:
        table.add_column(title if form in ("single", "joint") else f"{title}\n{form}", justify="right", overflow="fold")
    for layer, pooling in views:
        values = [largest.get((layer, pooling, title, form)) for title, form in columns]
        table.add_row(layer, pooling, *[f"{100 * value['value']:.1f}" if value else "" for value in values])
    console.print(table)


def _cell(cell: Cell | None, on_one_line: bool) -> Text:
    if cell is None:
        return Text("-", style="dim")
    text = Text(f"{100 * cell.value:.1f}")
    if not math.isnan(cell.low):
        text.append(f"{' ' if on_one_line else chr(10)}±{50 * (cell.high - cell.low):.1f}", style="dim")
    return text


def _times(seconds: dict[str, float]) -> str:
    """Wall time by phase, in the order in which it is spent."""
    order = ("import", "data", "load", "tokenize", "forward", "cache", "probe", "train")
    parts = [f"{phase} {seconds[phase]:.1f} s" for phase in order if seconds.get(phase, 0) >= 0.05]
    return f"wall time: {', '.join(parts)}"
