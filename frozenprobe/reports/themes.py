"""Every colour, once: a light and a dark theme, as CSS variables of the page or as plain values of a plot that is a file of its own.

The colours of runs stay apart for colour-blind readers (tests/reports/test_themes.py).
"""

from __future__ import annotations

from importlib.resources import files
from string import Template
from typing import Literal

Theme = Literal["light", "dark"]
COLOURED = 8  # runs that have a colour of their own

THEMES: dict[Theme, dict[str, str]] = {
    "light": {
        "back": "#ffffff",
        "panel": "#f6f7f9",
        "line": "#d9dde2",
        "ink": "#1c2024",
        "dim": "#5c6570",
        "grid": "#e3e6ea",
        "other": "#7a7f87",
        "c0": "#0b66c2",
        "c1": "#c2410c",
        "c2": "#1396a3",
        "c3": "#fa3867",
        "c4": "#54284e",
        "c5": "#050fba",
        "c6": "#914382",
        "c7": "#8e1404",
    },
    "dark": {
        "back": "#14171b",
        "panel": "#1c2026",
        "line": "#363d46",
        "ink": "#e6e8eb",
        "dim": "#a3abb5",
        "grid": "#333942",
        "other": "#9aa1aa",
        "c0": "#62b0ff",
        "c1": "#ff9a5c",
        "c2": "#d90781",
        "c3": "#79f5e5",
        "c4": "#f7e812",
        "c5": "#a914f7",
        "c6": "#aa6d10",
        "c7": "#2979ae",
    },
}


def template(name: str) -> str:
    """A file of the templates' folder."""
    return (files("frozenprobe.reports") / "templates" / name).read_text()


def page_style() -> str:
    """The style of the page, which follows the reader's system."""
    light, dark = ("".join(f"--{name}: {value}; " for name, value in THEMES[theme].items()) for theme in THEMES)
    variables = f":root {{ {light}}}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}\n"
    named = {name: f"var(--{name})" for name in THEMES["light"]}
    return variables + template("report.css") + Template(template("plot.css")).substitute(named)


def file_style(theme: Theme) -> str:
    """The style of a plot that is a file of its own: plain values, which every program that shows SVG knows."""
    return Template(template("plot.css")).substitute(THEMES[theme])
