"""The figures of a report as SVG or PNG files, each with its own colours and legend."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Literal

from frozenprobe.files import write_atomically
from frozenprobe.records.reading import Run
from frozenprobe.reports.figures import best_first, figures
from frozenprobe.reports.leaderboard import leaderboard_of
from frozenprobe.reports.naming import labels as labels_of
from frozenprobe.reports.png import as_png
from frozenprobe.reports.svg import marker
from frozenprobe.reports.themes import COLOURED, Theme, file_style

ROW = 16  # pixels of a line of the legend


def write_plots(
    runs: Sequence[Run],
    folder: Path,
    *,
    suite: str | None = None,
    with_published: bool = False,
    costs: Path | None = None,
    theme: Theme = "light",
    kind: Literal["svg", "png"] = "svg",
    tell: Callable[[str], None] = lambda line: None,
) -> list[Path]:
    """Writes every plot of a report as `FIGURE-PLOT.svg` or `.png`, and returns where.

    Args:
        runs: Read whole.
        folder: Where the files go.
        suite: See `make_leaderboard`.
        with_published: Add the paper's rows.
        costs: See `make_leaderboard`.
        theme: `light` or `dark`, for the background that the plot will stand on.
        kind: Of the files. PNG has a background and needs matplotlib.
        tell: Told what is damaged, left out or not measured alike.

    Raises:
        FrozenprobeError: There is nothing to show, matplotlib is missing, or the folder cannot be written.
    """
    leaderboard = leaderboard_of(runs, suite=suite, with_published=with_published, costs=costs)
    for note in leaderboard.notes:
        tell(note)
    runs = best_first(runs, leaderboard)
    labels = labels_of(runs)
    written = []
    for figure in figures(runs, labels, leaderboard):
        for name, svg in figure.plots.items():
            path = folder / f"{figure.name}-{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}.{kind}"
            file = standalone(svg, labels, theme, figure.key)
            write_atomically(path, as_png(file, theme) if kind == "png" else file.encode())
            written.append(path)
    return written


def standalone(svg: str, labels: Sequence[str], theme: Theme, key: Mapping[str, str]) -> str:
    """A plot as a file of its own: with its style, its size and a legend of the runs and the kinds of marks in it."""
    shown = sorted({int(run) for run in re.findall(r'data-run="(\d+)"', svg)})
    width, height = map(int, re.findall(r'viewBox="0 0 (\d+) (\d+)"', svg)[0])
    entries: list[tuple[str, int | None, str]] = [("point", run, labels[run]) for run in shown if run < COLOURED]
    if len(shown) > len(entries):
        entries.append(("point", None, f"{len(shown) - len(entries)} other runs"))
    entries += [(style, None, text) for style, text in key.items() if re.search(rf'class="{style}\b', svg)]
    legend = "".join(
        marker(20, height + ROW * i + 4, style, run)
        + f'<text class="start" x="30" y="{height + ROW * i + 8}">{escape(text)}</text>'
        for i, (style, run, text) in enumerate(entries)
    )
    whole = height + ROW * len(entries) + 6
    size = f'width="{width}" height="{whole}" viewBox="0 0 {width} {whole}"'
    start, rest = svg.replace(f'viewBox="0 0 {width} {height}"', size).split(">", 1)
    return f"{start}><style>{file_style(theme)}</style>{rest.removesuffix('</svg>')}{legend}</svg>\n"
