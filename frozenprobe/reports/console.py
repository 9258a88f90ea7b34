"""A run as tables on the terminal."""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table
from rich.text import Text

from frozenprobe.records.reading import Run
from frozenprobe.reports.summary import Cell, summarise, titles


def print_run(run: Run, console: Console) -> None:
    """Prints the headline table of a run, its layers where there are several, its wall time and its warnings."""
    _print_headline(run, console)
    _print_views(run, console)
    for line in dict.fromkeys(
        f"{unit.title}: {unit.about['subset']}; not a {unit.key.suite} score"
        for unit in run.units
        if unit.about["subset"]
    ):
        console.print(line, style="yellow")
    for name in run.damaged:
        console.print(f"{name} is damaged and left out", style="yellow")
    seconds = run.seconds()
    if seconds:
        console.print(f"{_times(seconds)}; records in {run.folder}", style="dim", soft_wrap=True, highlight=False)


def _print_headline(run: Run, console: Console) -> None:
    columns, rows = titles(run), summarise(run)
    suites = ", ".join(dict.fromkeys(unit.key.suite for unit in run.units)) or "no finished task"
    encoder = run.manifest["encoder"]
    several_forms = len({row.pair_form for row in rows}) > 1
    wide = console.width >= 26 + 11 * (len(columns) + 1)
    trainings = {unit.key.training for unit in run.units}
    caption = f"percent, ± half the 95% interval; {encoder['dtype']}, {encoder['max_length']} tokens"
    if trainings != {"finetuned"}:
        caption += (
            f", at most {run.manifest['settings']['probes']['max_train']} train rows; "
            "honest: chosen inside train; paper: best on the reported split, so optimistic"
        )
    if "finetuned" in trainings:
        seeds = {len(unit.about["finetune"]["seeds"]) for unit in run.units if unit.key.training == "finetuned"}
        caption += (
            f"; finetuned: every weight trained, mean over {' or '.join(map(str, sorted(seeds)))} seeds, and the best "
            "epoch is the best on the reported split"
        )
    table = Table(
        title=f"{run.name} on {suites}, {' and '.join(sorted(trainings, reverse=True)) or 'frozen'}: "
        "last layer, mean over tokens",
        caption=caption,
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
    largest: dict[tuple, dict] = {}
    for row in run.rows("score"):
        if row["probe"] == "ridge" and row["protocol"] == "honest" and row["metric"] == _headline_metric(run, row):
            key = (row["layer"], row["pooling"], row["title"], row["pair_form"])
            if key not in largest or row["n"] > largest[key]["n"]:
                largest[key] = row
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


def _headline_metric(run: Run, row: dict) -> str | None:
    """The task's headline metric if the row is on its headline split, else None."""
    unit = next(unit for unit in run.units if unit.key.task == row["task"] and unit.key.pair_form == row["pair_form"])
    headline_split = next(other["split"] for other in unit.rows if other["kind"] == "label")
    return unit.about["metrics"][0] if row["split"] == headline_split else None


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
