"""Runs and comparisons as tables on the terminal."""

from __future__ import annotations

import math

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from frozenprobe.records.reading import Run
from frozenprobe.reports.comparison import Comparison
from frozenprobe.reports.summary import LABELS, Cell, scores_by_view, summarise, titles

LEVEL_OF_DOUBT = 0.05  # a difference with a larger p is printed dim


def print_run(run: Run, console: Console) -> None:
    """Prints the headline table of a run, its layers where there are several, its wall time and its warnings."""
    _print_headline(run, console)
    _print_views(run, console)
    for unit in run.units:
        if unit.about["subset"]:
            console.print(f"{unit.title}: {unit.about['subset']}; not a {unit.key.suite} score", style="yellow")
    for name in run.damaged:
        console.print(f"{name} is damaged and left out", style="yellow")
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
    columns, rows = titles(run), summarise(run)
    suites = ", ".join(dict.fromkeys(unit.key.suite for unit in run.units)) or "no finished task"
    encoder = run.manifest["encoder"]
    several_forms = len({row.pair_form for row in rows}) > 1
    wide = console.width >= 26 + 11 * (len(columns) + 1)
    table = Table(
        title=f"{run.name} on {suites}, frozen: last layer, mean over tokens",
        caption=f"percent, ± half the 95% interval; {encoder['dtype']}, {encoder['max_length']} tokens, "
        f"at most {run.manifest['settings']['probes']['max_train']} train rows; "
        "honest: chosen inside train; paper: best on the reported split, so optimistic",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("probe", no_wrap=True)
    for title in columns:
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column(f"mean of {len(columns)}", justify="right", style="bold", no_wrap=True)
    for row in rows:
        label = row.label + (f" ({row.pair_form})" if several_forms else "")
        cells = [_cell(row.cells.get(title), wide) for title in columns]
        style = {"honest": "", "paper": "cyan"}.get(row.protocol, "dim")
        table.add_row(label, *cells, _cell(row.mean, wide), style=style)
    console.print(table)


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
    columns = list(dict.fromkeys((title, form) for _, _, title, form in largest))
    table = Table(title="by layer and pooling: linear, honest (diagnostic)", title_justify="left")
    table.add_column("layer")
    table.add_column("pooling")
    for title, form in columns:
        table.add_column(title if form in ("single", "joint") else f"{title} ({form})", justify="right")
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
    order = ("import", "data", "load", "tokenize", "forward", "cache", "probe")
    parts = [f"{phase} {seconds[phase]:.1f} s" for phase in order if seconds.get(phase, 0) >= 0.05]
    return f"wall time: {', '.join(parts)}"
