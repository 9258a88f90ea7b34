"""Many runs as one table: a line per checkpoint, and `sweep.csv` with every probe."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from frozenprobe.files import write_atomically
from frozenprobe.records.reading import Run
from frozenprobe.reports.conditions import Conditions, conditions, unlike
from frozenprobe.reports.summary import LABELS, SummaryRow, summarise, titles

_SHOWN = (("ridge", "honest"), ("knn", "honest"), ("finetune", "honest"))


def print_sweep(runs: Mapping[str, Run], failed: Mapping[str, str], console: Console) -> None:
    """Prints a table for each honest probe, and names the checkpoints that failed."""
    columns = _columns(runs)
    rows = {name: summarise(run) for name, run in runs.items()}
    for probe, protocol in _SHOWN:
        wanted = {name: _with(lines, probe, protocol) for name, lines in rows.items()}
        if not any(wanted.values()):
            continue
        several_forms = len({line.pair_form for lines in wanted.values() for line in lines}) > 1
        table = Table(title=f"{LABELS[probe, protocol]}, percent", title_justify="left")
        table.add_column("checkpoint")
        for title in (*columns, f"mean of {len(columns)}"):
            table.add_column(title, justify="right", no_wrap=True)
        for name, lines in wanted.items():
            for line in lines:
                label = f"{name} ({line.pair_form})" if several_forms else name
                table.add_row(label, *_cells(line, columns, 1, missing="-"))
        console.print(table)
    for note in unlike((name, _conditions(runs[name], line)) for name, lines in rows.items() for line in lines):
        console.print(note, style="yellow", soft_wrap=True, highlight=False)
    for name, reason in failed.items():
        console.print(f"{name} failed: {reason}", style="yellow", soft_wrap=True, highlight=False)


def write_sweep(runs: Mapping[str, Run], path: Path) -> None:
    """Writes a line for each checkpoint, probe, protocol and pair form.

    Raises:
        RecordError: The disk is full or the folder cannot be written.
    """
    columns = _columns(runs)
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["checkpoint", "probe", "protocol", "pair_form", "max_train", *columns, f"mean of {len(columns)}"])
    for name, run in runs.items():
        for line in summarise(run):
            about = [name, line.probe, line.protocol, line.pair_form, _conditions(run, line).max_train]
            writer.writerow([*about, *_cells(line, columns, 2, missing="")])
    write_atomically(path, buffer.getvalue().encode())


def _columns(runs: Mapping[str, Run]) -> list[str]:
    """The tasks of the run with the most of them, then those of the others."""
    by_size = sorted((titles(run) for run in runs.values()), key=len, reverse=True)
    return list(dict.fromkeys(title for run in by_size for title in run))


def _conditions(run: Run, line: SummaryRow) -> Conditions:
    scored = [
        (unit, score)
        for unit in run.units
        for score in unit.rows
        if score["kind"] == "score" and score["is_headline"] and score["probe"] == line.probe
    ]
    return conditions(run, line.probe, scored)


def _with(lines: list[SummaryRow], probe: str, protocol: str) -> list[SummaryRow]:
    return [line for line in lines if (line.probe, line.protocol) == (probe, protocol)]


def _cells(line: SummaryRow, columns: list[str], digits: int, *, missing: str) -> list[str]:
    """Scores in percent; a mean only where no task is missing."""
    cells = [line.cells.get(title) for title in columns]
    cells.append(line.mean if all(cells) else None)
    return [missing if cell is None else f"{100 * cell.value:.{digits}f}" for cell in cells]
