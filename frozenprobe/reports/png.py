"""A plot as PNG: the SVG file of `plots.standalone` drawn by matplotlib, which is optional.

Only what our own plots are made of is understood: lines, circles, diamonds and texts, styled by class.
"""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ElementTree
from typing import TYPE_CHECKING, Any

import numpy as np

from frozenprobe.errors import SettingsError
from frozenprobe.reports.themes import THEMES, Theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SVG = "{http://www.w3.org/2000/svg}"
SCALE = 2  # pixels of the image for one of the plot
ALIGNMENT = {"start": "left", "middle": "center", "end": "right"}


def as_png(svg: str, theme: Theme) -> bytes:
    """Draws a plot, on the theme's background.

    Args:
        svg: A whole file, as `plots.standalone` makes it.
        theme: The one that it was made with.

    Raises:
        SettingsError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise SettingsError("--format png needs matplotlib: pip install 'frozenprobe[plots]'") from None
    root = ElementTree.fromstring(svg)
    rules = _rules(root.findtext(f"{SVG}style") or "")
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    # One inch is 72 points, so that a point is a pixel of the plot.
    figure = Figure(figsize=(width / 72, height / 72), dpi=72 * SCALE, facecolor=THEMES[theme]["back"])
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    for order, element in enumerate(root.iter()):  # what comes later covers what came before
        _draw(axes, element, _style(element, rules), order)
    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": None})
    return buffer.getvalue()


def _rules(css: str) -> dict[str, dict[str, str]]:
    """Declarations by class, or by `text` and ``, in the order of the style sheet, in which the last one wins."""
    rules: dict[str, dict[str, str]] = {}
    for selectors, body in re.findall(r"([^{}]+){([^}]*)}", css):
        declarations = dict(re.findall(r"([\w-]+):\s*([^;]+?)\s*(?:;|$)", body.strip()))
        for selector in selectors.split(","):
            name = selector.strip().removeprefix(".plot").strip().lstrip(".")
            rules[name] = rules.get(name, {}) | declarations
    return rules


def _style(element: ElementTree.Element, rules: dict[str, dict[str, str]]) -> dict[str, str]:
    """What applies to an element; `currentColor` is resolved."""
    applies = {"", *element.get("class", "").split(), *(["text"] if element.tag == f"{SVG}text" else [])}
    style: dict[str, str] = {}
    for name, declarations in rules.items():
        if name in applies:
            style |= declarations
    return {name: style["color"] if value == "currentColor" else value for name, value in style.items()}


def _draw(axes: Axes, element: ElementTree.Element, style: dict[str, str], order: int) -> None:
    """Adds an element to matplotlib's axes; groups and hints draw nothing themselves."""
    from matplotlib.patches import Circle, Polygon

    def number(name: str) -> float:
        return float(element.get(name, 0))

    stroke = style.get("stroke", "none")
    width = float(style.get("stroke-width", 1))
    paint: dict[str, Any] = {
        "facecolor": style.get("fill", "black"),
        "edgecolor": stroke,
        "linewidth": width,
        "alpha": float(style.get("opacity", 1)),
        "zorder": order,
    }
    pen: dict[str, Any] = {"color": stroke, "linewidth": width, "solid_joinstyle": "round", "zorder": order}
    tag = element.tag.removeprefix(SVG)
    if tag == "line":
        axes.plot([number("x1"), number("x2")], [number("y1"), number("y2")], **pen)
    elif tag == "polyline":
        dashes = [float(part) / width for part in style.get("stroke-dasharray", "").split()]  # in widths of the line
        x, y = zip(*_points(element.get("points", "")), strict=True)
        axes.plot(x, y, **pen, linestyle=(0, dashes) if dashes else "solid")
    elif tag == "polygon":
        axes.add_patch(Polygon(_points(element.get("points", "")), **paint))
    elif tag == "circle":
        axes.add_patch(Circle((number("cx"), number("cy")), number("r"), **paint))
    elif tag == "path":  # a diamond: where it starts, and three steps
        axes.add_patch(Polygon(np.cumsum(_points(element.get("d", "")), axis=0), **paint))
    elif tag == "text":
        axes.text(
            number("x"),
            number("y"),
            element.text or "",
            color=style["fill"],
            fontsize=float(style["font-size"].removesuffix("px")),
            fontweight="bold" if "font-weight" in style else "normal",
            horizontalalignment=ALIGNMENT[style["text-anchor"]],
            rotation=90 if element.get("transform") else 0,  # only the label of the vertical axis is turned
            rotation_mode="anchor",
            parse_math=False,
            zorder=order,
        )


def _points(text: str) -> list[tuple[float, float]]:
    numbers = [float(number) for number in re.findall(r"-?[\d.]+", text)]
    return list(zip(numbers[::2], numbers[1::2], strict=True))
