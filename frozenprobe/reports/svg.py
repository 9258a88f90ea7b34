"""Plots as plain SVG text: two axes, lines, points, bands. Colours come from the page's style sheet, so that a plot follows its theme.

An element of a run carries `class="run r3"` and `data-run="3"`: the legend shows and hides by them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

CHARACTER = 6.2  # estimated width of a character of 11 pixels
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
Point = tuple[float, float]


@dataclass(frozen=True)
class Axis:
    """One axis.

    Attributes:
        low: Smallest value shown.
        high: Largest value shown.
        label: What it measures, with its unit.
        is_log: Logarithmic.
        ticks: Values with their labels.
    """

    low: float
    high: float
    label: str
    is_log: bool
    ticks: tuple[tuple[float, str], ...]

    def place(self, value: float) -> float:
        """Where a value lies, from 0 to 1."""
        low, high, value = (math.log10(x) if self.is_log else x for x in (self.low, self.high, value))
        return (value - low) / (high - low)


def linear_axis(values: Sequence[float], label: str, most: int = 6) -> Axis:
    """An axis with round ticks around the values."""
    low, high = min(values), max(values)
    if high - low < 1e-9:
        low, high = low - 1, high + 1
    raw = (high - low) / (most - 1)
    unit = 10 ** math.floor(math.log10(raw))
    step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= raw - 1e-12)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    values = [i * step for i in range(first, last + 1)]
    ticks = tuple((value, _number(value) if step >= 1000 else f"{value:.{decimals}f}") for value in values)
    return Axis(first * step, last * step, label, False, ticks)


def log_axis(values: Sequence[float], label: str, most: int = 6, marks: Sequence[float] = ()) -> Axis:
    """A logarithmic axis; ticks at powers of ten, at 1, 2 and 5 within a decade and a half, evenly within less.

    Args:
        values: All above zero.
        label: What it measures.
        most: Ticks at most.
        marks: Where the ticks are, if not at round values.
    """
    low, high = math.log10(min(values)), math.log10(max(values))
    pad = 0.04 * (high - low) or 0.3
    low, high = low - pad, high + pad
    if not marks:
        factors = (1, 2, 5) if high - low < 1.5 else (1,)
        decades = range(math.floor(low), math.ceil(high) + 1)
        marks = _within([factor * 10.0**d for d in decades for factor in factors], low, high)
        if len(marks) < 2:
            marks = _within([mark for mark, _ in linear_axis(values, label, most).ticks], low, high)
        marks = marks[:: max(1, math.ceil(len(marks) / (most + 1)))]
    return Axis(10**low, 10**high, label, True, tuple((mark, _number(mark)) for mark in marks))


def _within(marks: Sequence[float], low: float, high: float) -> list[float]:
    """The marks between two powers of ten."""
    return [mark for mark in marks if mark > 0 and low <= math.log10(mark) <= high]


def named_axis(names: dict[float, str], label: str) -> Axis:
    """An axis of whole places with names, such as layers; thinned where there are many, the last one always named."""
    places = sorted(names)
    every = math.ceil(len(places) / 10)
    shown = [place for i, place in enumerate(places) if i % every == 0 and places[-1] - place >= every]
    low, high = (places[0] - 0.5, places[-1] + 0.5) if len(places) == 1 else (places[0], places[-1])
    return Axis(low, high, label, False, tuple((place, names[place]) for place in [*shown, places[-1]]))


def _number(value: float) -> str:
    """`1000`, `20k`, `150M`, `2·10¹⁹`."""
    for limit, unit, letter in ((1e4, 1, ""), (1e6, 1e3, "k"), (1e9, 1e6, "M")):
        if value < limit:
            return f"{value / unit:.6g}{letter}"
    exponent = math.floor(math.log10(value) + 1e-9)
    factor = f"{value / 10.0**exponent:.3g}"
    return ("" if factor == "1" else f"{factor}·") + f"10{str(exponent).translate(SUPERSCRIPT)}"


@dataclass
class Plot:
    """A plot in the making.

    Attributes:
        title: Above it.
        x: Horizontal axis.
        y: Vertical axis.
        width: In pixels of its own scale.
        height: In pixels of its own scale.
    """

    title: str
    x: Axis
    y: Axis
    width: int = 340
    height: int = 250
    _marks: list[str] = field(default_factory=list)
    _points: list[Point] = field(default_factory=list)
    _names: list[tuple[Point, str]] = field(default_factory=list)

    @property
    def _left(self) -> float:
        return 30 + CHARACTER * max(len(text) for _, text in self.y.ticks)

    def _at(self, point: Point) -> tuple[float, float]:
        top, right, bottom = 30, 20, 44
        x = self._left + self.x.place(point[0]) * (self.width - self._left - right)
        y = self.height - bottom - self.y.place(point[1]) * (self.height - top - bottom)
        return round(x, 1), round(y, 1)

    def line(self, points: Sequence[Point], run: int | None = None, style: str = "line") -> None:
        """Adds a line through the points."""
        path = " ".join(f"{x},{y}" for x, y in map(self._at, points))
        self._marks.append(f'<polyline class="{_class(style, run)}"{_data(run)} points="{path}"/>')

    def band(self, lower: Sequence[Point], upper: Sequence[Point], run: int | None = None) -> None:
        """Adds the area between two lines."""
        path = " ".join(f"{x},{y}" for x, y in map(self._at, [*lower, *reversed(upper)]))
        self._marks.append(f'<polygon class="{_class("band", run)}"{_data(run)} points="{path}"/>')

    def point(self, point: Point, hint: str, run: int | None = None, style: str = "point") -> None:
        """Adds a point; the hint is shown when it is pointed at."""
        x, y = self._at(point)
        self._points.append((x, y))
        self._marks.append(marker(x, y, style, run, f"<title>{escape(hint)}</title>"))

    def name(self, point: Point, text: str) -> None:
        """Writes a name beside a point, where there is room for it."""
        self._names.append((self._at(point), text))

    def _placed_names(self) -> list[str]:
        """Names right or left of their points, above or below; one that would cover another or a point is left to the hint."""
        taken = [(x - 5, y - 5, x + 5, y + 5) for x, y in self._points]
        parts = []
        for (x, y), text in self._names:
            width = 1.1 * CHARACTER * len(text)
            beside = ((x + 7, y, "start"), (x - 7, y, "end"), (x, y - 11, ""), (x, y + 12, ""))
            for at, middle, anchor in (*beside, (x + 5, y - 11, "end"), (x + 5, y + 12, "end")):
                left = at - {"start": 0.0, "": width / 2, "end": width}[anchor]
                box = (left, middle - 5, left + width, middle + 5)
                inside = (
                    box[0] >= self._left and box[2] <= self.width - 4 and box[1] >= 22 and box[3] <= self.height - 44
                )
                if inside and not any(_overlap(box, other) for other in taken):
                    taken.append(box)
                    parts.append(_text(at, middle + 4, text, f"name {anchor}".strip()))
                    break
        return parts

    def svg(self) -> str:
        """The plot as an SVG element."""
        left, bottom = self._at((self.x.low, self.y.low))
        right, top = self._at((self.x.high, self.y.high))
        parts = [
            f'<svg class="plot" viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{escape(self.title)}" '
            'xmlns="http://www.w3.org/2000/svg">',
            _text(self.width / 2, 16, self.title, "title"),
        ]
        for value, text in self.y.ticks:
            _, y = self._at((self.x.low, value))
            parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y}" y2="{y}"/>')
            parts.append(_text(left - 6, y + 4, text, "tick end"))
        free = 0.0  # where the next label may start
        for value, text in self.x.ticks:
            x, _ = self._at((value, self.y.low))
            half = CHARACTER * len(text) / 2
            parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{bottom}" y2="{top}"/>')
            if x - half >= free and x + half <= self.width:
                parts.append(_text(x, bottom + 15, text, "tick"))
                free = x + half + CHARACTER
        middle = (top + bottom) / 2
        parts.append(_text((left + right) / 2, self.height - 8, self.x.label, "label"))
        turned = f' transform="rotate(-90 12 {middle:.1f})"'
        parts.append(_text(12, middle, self.y.label, "label", turned))
        return "".join([*parts, *self._marks, *self._placed_names(), "</svg>"])


def marker(x: float, y: float, style: str, run: int | None = None, inner: str = "") -> str:
    """A mark at pixels: `ring` is hollow, `diamond` a diamond, everything else a dot."""
    common = f'class="{_class(style, run)}"{_data(run)}>{inner}</'
    if style == "diamond":
        return f'<path d="M{x} {y - 5}l5 5l-5 5l-5 -5z" {common}path>'
    return f'<circle cx="{x}" cy="{y}" r="3.5" {common}circle>'


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _text(x: float, y: float, text: str, style: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}"{more}>{escape(text)}</text>'


def _class(style: str, run: int | None) -> str:
    return style if run is None else f"{style} run r{run}"


def _data(run: int | None) -> str:
    return "" if run is None else f' data-run="{run}"'
