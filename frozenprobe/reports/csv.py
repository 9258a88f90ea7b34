"""A run as CSV: `scores.csv`, one row per score, and `summary.csv`, the printed table."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from frozenprobe.files import write_atomically
from frozenprobe.records.reading import Run
from frozenprobe.reports.summary import summarise, titles


def write_csv(run: Run, folder: Path) -> None:
    """Writes both files.

    Raises:
        RecordError: The disk is full or the folder cannot be written.
    """
    write_atomically(folder / "scores.csv", run.scores().to_csv(index=False).encode())
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    columns = titles(run)
    writer.writerow(["encoder", "suite", "probe", "protocol", "pair_form", *columns, f"mean of {len(columns)}"])
    suites = " + ".join(dict.fromkeys(unit.key.suite for unit in run.units))
    for row in summarise(run):
        cells = [row.cells.get(title) for title in columns] + [row.mean]
        values = ["" if cell is None else f"{100 * cell.value:.2f}" for cell in cells]
        writer.writerow([run.name, suites, row.probe, row.protocol, row.pair_form, *values])
    write_atomically(folder / "summary.csv", buffer.getvalue().encode())
