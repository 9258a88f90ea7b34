"""A report: many runs as one HTML page that needs no network, no library and no server.

The page is tables and SVG; its script only sorts, filters and shows or hides runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template

import numpy as np
import pandas as pd

from frozenprobe.errors import RecordError
from frozenprobe.records.reading import Run
from frozenprobe.reports.figures import Figure, best_first, figures
from frozenprobe.reports.leaderboard import Leaderboard, leaderboard_of
from frozenprobe.reports.naming import labels as labels_of
from frozenprobe.reports.naming import once
from frozenprobe.reports.rows import Row
from frozenprobe.reports.themes import COLOURED, page_style, template
from frozenprobe.statistics.bootstrap import mean_interval

ABOUT = {
    "method": "method",
    "protocol": "protocol",
    "backbone": "backbone",
    "pair_form": "pair form",
    "max_train": "train rows",
    "source": "source",
}
COSTS = {"params": "params (M)", "flops": "training FLOPs", "encoding_tokens_per_s": "encoding tokens/s"}


@dataclass(frozen=True)
class Cell:
    """A table cell: what it sorts by, and what it shows."""

    value: str
    html: str
    style: str = ""


def make_page(
    runs: Sequence[Run],
    *,
    title: str = "frozenprobe report",
    with_published: bool = False,
    costs: str | Path | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> str:
    """The page, as HTML.

    Args:
        runs: Read whole.
        title: Its heading.
        with_published: Add the paper's rows.
        costs: TOML file with what models cost, see `make_leaderboard`.
        tell: Told what the page says of the runs below its legend: what is damaged, left out or not measured alike.

    Raises:
        RecordError: No run has a finished task.
        SettingsError: The costs cannot be read.
    """
    given, runs = once(runs), reported(runs)
    suites = list(dict.fromkeys(unit.key.suite for run in runs for unit in run.units))
    if not suites:
        raise RecordError(
            f"there is nothing to report: no task is finished in {', '.join(str(run.folder) for run in given)}"
        )
    runs = best_first(runs, leaderboard_of(runs, suite=suites[0]))
    labels = labels_of(runs)
    notes = [f"{run.folder}: no task is finished; left out" for run in given if not run.units]
    notes += [f"{run.folder}: {line}" for run in given if not run.units for line in run.left_out()]
    sections = []
    for number, suite in enumerate(suites):
        held = [run for run in runs if any(unit.key.suite == suite for unit in run.units)]
        leaderboard = leaderboard_of(held, suite=suite, with_published=with_published, costs=costs)
        notes += [note for note in leaderboard.notes if note not in notes]
        sections.append(_suite(number, leaderboard, figures(runs, labels, leaderboard), runs, labels))
    for note in notes:
        tell(note)
    tasks = sum(len(run.units) for run in runs)
    summary = f"{counted(len(runs), 'run')}, {counted(tasks, 'finished task')}; {', '.join(suites)}."
    return Template(template("report.html")).substitute(
        title=escape(title),
        style=page_style(),
        summary=escape(summary),
        legend="\n".join(_chip(i, label) for i, label in enumerate(labels)),
        notes="".join(f'<p class="note">{escape(note)}</p>' for note in notes),
        suites="\n".join(sections),
        script=template("report.js"),
    )


def reported(runs: Sequence[Run]) -> list[Run]:
    """The runs that a page is of: each once, and only those with a finished task."""
    return [run for run in once(runs) if run.units]


def counted(number: int, what: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def _chip(i: int, label: str) -> str:
    pressed = "true" if i < COLOURED else "false"
    dot = f'<span class="plot"><span class="r{i}"></span></span>'
    return f'<button type="button" data-legend="{i}" aria-pressed="{pressed}">{dot}{escape(label)}</button>'


def _suite(
    number: int, leaderboard: Leaderboard, drawn: Sequence[Figure], runs: Sequence[Run], labels: Sequence[str]
) -> str:
    suite = leaderboard.board.suite
    parts = [f"<section><h2>{escape(suite)}</h2>", _leaderboard(number, leaderboard)]
    for figure in drawn:
        plots = "".join(figure.plots.values())
        parts.append(
            f'<h3 id="{figure.name}-{number}">{escape(figure.title)}</h3><p class="note">{escape(figure.caption)}</p>'
            f'<div class="plots">{plots}</div>'
        )
    parts += [_diagnostics(number, suite, runs, labels), "</section>"]
    return "".join(parts)


def _leaderboard(number: int, leaderboard: Leaderboard) -> str:
    """The table with its filters."""
    frame = leaderboard.frame
    about = {
        name: title for name, title in ABOUT.items() if frame[name].nunique() > 1 or name in ("method", "protocol")
    }
    costs = {name: title for name, title in COSTS.items() if frame[name].replace("", pd.NA).notna().any()}
    columns = leaderboard.shown
    heads = [("model", "text"), *[(title, "text") for title in about.values()]]
    heads += [(leaderboard.heading(column), "") for column in columns] + [(title, "") for title in costs.values()]
    notes = [
        "; ".join(filter(None, [flag, f"lacks {row.lacks}" if row.missing else ""]))
        for row, flag in zip(leaderboard.rows, frame["flag"], strict=True)
    ]
    if any(notes):
        heads.append(("notes", "text"))
    lines, styles = [], []
    for row, values, note in zip(leaderboard.rows, frame.to_dict("records"), notes, strict=True):
        scores, intervals = leaderboard.values(row), _intervals(row, leaderboard)
        lines.append(
            [
                _text_cell(row.model),
                *[_text_cell(values[name]) for name in about],
                *[_score_cell(scores[column], intervals.get(column)) for column in columns],
                *[_cost_cell(name, values[name]) for name in costs],
                *([Cell(note, escape(note), "wrap")] if any(notes) else []),
            ]
        )
        styles.append(row.source)
    selects = []
    for place, (name, title) in enumerate(about.items(), start=1):
        options = "".join(
            f'<option value="{escape(value)}">{escape(value or "-")}</option>' for value in dict.fromkeys(frame[name])
        )
        selects.append(
            f'<label>{title} <select data-column="{place}"><option value="*">all</option>{options}</select></label>'
        )
    return (
        f'<div class="filters" data-table="board-{number}">'
        f'<input type="search" placeholder="filter models" aria-label="filter models">{"".join(selects)}<output></output></div>'
        + _table(f"board-{number}", heads, lines, styles)
    )


def _intervals(row: Row, leaderboard: Leaderboard) -> dict[str, float]:
    """Half the 95% interval by task, and of the mean where every task has its replicates."""
    if leaderboard.board.tasks_per_column:
        return {}
    by_task = {score["task"]: score for score in row.single}
    halves = {task: 50 * (score["high"] - score["low"]) for task, score in by_task.items()}
    replicates = [by_task.get(task, {}).get("values") for task in leaderboard.averaged]
    if all(replicates):
        low, high = mean_interval([np.asarray(values) for values in replicates])
        halves["avg"] = 50 * (high - low)
    return halves


def _diagnostics(number: int, suite: str, runs: Sequence[Run], labels: Sequence[str]) -> str:
    """What the features and the data looked like, task by task."""
    heads = [("run", "text"), ("task", "text"), ("rows scored", ""), ("train rows", ""), ("truncated (%)", "")]
    heads += [("effective rank", ""), ("of dimensions", ""), ("mean cosine", ""), ("dead dimensions", "")]
    heads += [("warnings", "text")]
    lines = []
    for run, label in zip(runs, labels, strict=True):
        for unit in run.units:
            if unit.key.suite != suite:
                continue
            about = unit.about
            seen, view = about.get("extraction", {}), about.get("diagnostics", {}).get("last/mean", {})
            scored = next(
                (row["n_evaluated"] for row in unit.rows if row["kind"] == "score" and row["is_headline"]), None
            )
            truncated = 100 * seen["truncated"] / seen["rows"] if seen.get("rows") else None
            warnings = "; ".join(filter(None, [about.get("subset"), *about.get("warnings", ())]))
            lines.append(
                [
                    _text_cell(label),
                    _text_cell(unit.title + (" (siamese)" if unit.key.pair_form == "siamese" else "")),
                    _number_cell(scored, 0),
                    _number_cell(about.get("train_rows"), 0),
                    _number_cell(truncated, 1),
                    _number_cell(view.get("effective_rank"), 1),
                    _number_cell(view.get("dimensions"), 0),
                    _number_cell(view.get("mean_cosine"), 2),
                    _number_cell(view.get("dead_dimensions"), 0),
                    Cell(warnings, escape(warnings), "wrap"),
                ]
            )
    note = "Of the train features of the headline view. A low effective rank or a high mean cosine is a collapse; truncated inputs lost tokens."
    return f'<h3 id="diagnostics-{number}">Diagnostics</h3><p class="note">{note}</p>' + _table(
        f"diagnostics-table-{number}", heads, lines, [""] * len(lines)
    )


def _table(name: str, heads: Sequence[tuple[str, str]], lines: Sequence[Sequence[Cell]], styles: Sequence[str]) -> str:
    head = "".join(
        f'<th scope="col" class="{style}"><button type="button">{escape(text)}</button></th>' for text, style in heads
    )
    body = []
    for cells, style in zip(lines, styles, strict=True):
        line = "".join(f'<td class="{cell.style}" data-value="{escape(cell.value)}">{cell.html}</td>' for cell in cells)
        body.append(f'<tr class="{style}">{line}</tr>')
    return (
        f'<div class="scroll"><table class="sortable" id="{name}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _text_cell(text: str) -> Cell:
    return Cell(text, escape(text), "text")


def _number_cell(value: float | None, decimals: int) -> Cell:
    if value is None or math.isnan(value):
        return Cell("", "-")
    return Cell(f"{value:.6g}", f"{value:,.{decimals}f}")


def _score_cell(value: float, half: float | None) -> Cell:
    cell = _number_cell(value, 1)
    if not cell.value or half is None or math.isnan(half):
        return cell
    return Cell(cell.value, f"{cell.html}<small>±{half:.1f}</small>")


def _cost_cell(name: str, value: object) -> Cell:
    if value is None or value == "" or pd.isna(value):
        return Cell("", "-")
    if name == "flops":
        return Cell(str(float(str(value).lstrip(">"))), escape(str(value)))
    return _number_cell(float(str(value)) / (1e6 if name == "params" else 1), 0)
