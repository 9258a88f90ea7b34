"""Prints a table of the paper, or draws one of its figures, from records of one's own, at whatever scale they were made.

    python -m benchmarks.paper table2 sweeps/table2
    python -m benchmarks.paper figure5 sweeps/scaling --out figure5.svg

Records are folders of `crossbert sweep`, of `frozenprobe glue` and of `frozenprobe mteb`, in any mixture. The paper's numbers stand
beside the measured ones where it prints them; they are of models of a hundred million parameters and more.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.table import Table as RichTable

from benchmarks.paper_figures import FIGURES
from benchmarks.paper_records import read_records
from benchmarks.paper_tables import PAPER, TABLES, Line, Table
from frozenprobe.errors import FrozenprobeError, RecordError, SettingsError


def _sweep(study: str, settings: str = "") -> str:
    return f"crossbert sweep {study} --config CONFIG --set data.folder=DATA {settings}--out sweeps/{study}"


def _mteb(study: str, benchmark: str, also: str) -> str:
    run = f"frozenprobe mteb --benchmark '{benchmark}' --ckpt sweeps/{study}/RUN/train --frozen --out scores/RUN"
    return f"{_sweep(study)}, then for each of its runs {run}, and the same with {also}"


COMMANDS = {
    **{name: _sweep(name) for name in ("table1", "table2", "table4", "table5", "table6", "table9", "figure7")},
    "table3": f"{_sweep('table3')} for GLUE; for MTEB {_mteb('table3', 'MTEB(eng, v1)', '--unfrozen')}",
    "table7": _mteb("table3", "MTEB(eng, v2)", "--warm-start"),
    "table8": _mteb("table3", "MTEB(eng, v2)", "--unfrozen"),
    "figure1": f"{_sweep('scaling')} for GLUE; for MTEB {_mteb('scaling', 'MTEB(eng, v2)', '--unfrozen')}",
    "figure3": _mteb("scaling", "MTEB(eng, v2)", "--unfrozen"),
    "figure4": _sweep("scaling"),
    "figure5": _sweep("scaling", 'data.held_out=\'["ONE","OTHER"]\' system.validate_every=1000 '),
    "figure6": _sweep("table3", "system.checkpoint_every=1000 "),
}
"""What makes the records of each entry."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program; gives its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "entry", choices=[*TABLES, *FIGURES], metavar="TABLE|FIGURE", help=", ".join([*TABLES, *FIGURES])
    )
    parser.add_argument(
        "records", nargs="*", type=Path, metavar="DIR", help="records; without any, the command that makes them"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="a table as csv; a figure as png, svg or pdf")
    parser.add_argument(
        "--protocol",
        choices=("honest", "paper"),
        default="honest",
        help="of probes in figures: chosen inside train (default), or best on the reported split as the paper's are",
    )
    arguments = parser.parse_args(argv)
    try:
        if arguments.entry in TABLES:
            print_tables(arguments.entry, arguments.records, arguments.out)
        else:
            draw(arguments.entry, arguments.records, arguments.out, arguments.protocol)
    except FrozenprobeError as error:
        print(f"{arguments.entry}: {error}", file=sys.stderr)
        return 2
    return 0


def print_tables(entry: str, folders: Sequence[Path], out: Path | None, console: Console | None = None) -> None:
    """Prints what a table of the paper consists of.

    Raises:
        RecordError: There are no records for it, or one is damaged.
    """
    records = read_records(folders)
    tables = TABLES[entry](records)
    if not any(table.is_measured for table in tables):
        raise RecordError(_missing(entry, folders))
    console = console or Console()
    if not console.is_terminal:
        console = Console(width=240, file=console.file)
    for table in tables:
        if table.is_measured:
            print_table(table, console)
        else:
            console.print(f"{table.title}: no records", style="yellow")
    for note in records.notes:
        console.print(note, style="yellow", highlight=False, soft_wrap=True)
    if out is not None:
        rows = [
            {
                "table": table.title,
                "source": line.source,
                **dict(zip(table.about, line.about, strict=True)),
                **line.scores,
            }
            for table in tables
            for line in table.lines
        ]
        try:
            pd.DataFrame(rows).to_csv(out, index=False)
        except OSError as error:
            raise RecordError(f"--out {out} cannot be written: {error.strerror or error}") from error


def print_table(table: Table, console: Console) -> None:
    """Prints one table in percent, the paper's lines dimmed, and its notes."""
    shown = {
        column: title for column, title in table.columns.items() if any(column in line.scores for line in table.lines)
    }
    printed = RichTable(title=table.title, title_justify="left", caption_justify="left")
    for heading in (*table.about, "source"):
        printed.add_column(heading)
    for title in shown.values():
        printed.add_column(title, justify="right", no_wrap=True)
    for line in table.lines:
        cells = [_cell(line, column) for column in shown]
        printed.add_row(*line.about, line.source, *cells, style="dim" if line.source == PAPER else None)
    console.print(printed)
    for note in table.notes:
        console.print(note, style="yellow", highlight=False, soft_wrap=True)


def _cell(line: Line, column: str) -> str:
    if column not in line.scores:
        return "-"
    if column == "avg" and line.spread is not None:
        return f"{line.scores[column]:.1f} ± {line.spread:.1f}"
    return f"{line.scores[column]:+.1f}" if column == "gain" else f"{line.scores[column]:.1f}"


def draw(entry: str, folders: Sequence[Path], out: Path | None, protocol: str) -> None:
    """Draws a figure into a file.

    Raises:
        RecordError: There are no records for it, or one is damaged.
        SettingsError: The file cannot be written.
    """
    if not folders:
        raise RecordError(_missing(entry, folders))
    try:
        records = read_records(folders)
        figure = FIGURES[entry](records, protocol)
    except RecordError as error:
        raise RecordError(f"{error}; {_missing(entry, ())}") from error
    out = out or Path(f"{entry}.png")
    try:
        figure.savefig(out, dpi=150)
    except (OSError, ValueError) as error:
        raise SettingsError(f"--out {out} cannot be written: {error}") from error
    for note in records.notes:
        print(note)
    print(f"drawn in {out}")


def _missing(entry: str, folders: Sequence[Path]) -> str:
    where = f"no records for it in {', '.join(map(str, folders))}; " if folders else ""
    return f"{where}this makes them: {COMMANDS[entry]}"


if __name__ == "__main__":
    raise SystemExit(main())
