"""Every colour, once: a light and a dark theme, as CSS variables of the page or as plain values of a plot that is a file of its own."""

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
        "c2": "#15803d",
        "c3": "#a21caf",
        "c4": "#92700c",
        "c5": "#0e7490",
        "c6": "#be123c",
        "c7": "#5b5bd6",
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
        "c2": "#5fd38a",
        "c3": "#e58bf0",
        "c4": "#e0bc4a",
        "c5": "#4fd0e6",
        "c6": "#ff8aa0",
        "c7": "#a9a9ff",
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
