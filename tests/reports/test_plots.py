"""Plots as files: every figure, well-formed, with plain colours and a legend of the runs in it."""

import re
import sys
import xml.etree.ElementTree as ElementTree

import pytest

from frozenprobe.errors import SettingsError
from frozenprobe.records.reading import read_run
from frozenprobe.reports.plots import standalone, write_plots
from frozenprobe.reports.themes import THEMES
from tests.reports.runs import make_run, make_unit

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")

    def units(i):
        return [make_unit(task, 0.1 * i, suite="mine", seed=i, layers=("last", 0)) for task in ("rte", "sst2")]

    return [read_run(make_run(folder / f"m{i}", units(i))) for i in range(10)]


def test_every_plot_is_a_file(runs, tmp_path):
    written = {path.name for path in write_plots(runs, tmp_path / "plots")}
    assert {"honest-and-paper-ridge.svg", "layers-mean.svg", "lambda-sst-2.svg", "size-rte.svg"} <= written
    assert {path.name for path in (tmp_path / "plots").iterdir()} == written


@pytest.mark.parametrize("theme", THEMES)
def test_a_file_has_plain_colours_and_its_legend(runs, tmp_path, theme):
    write_plots(runs[:3], tmp_path, theme=theme)
    text = (tmp_path / "lambda-rte.svg").read_text()
    assert "var(" not in text
    assert "$" not in text
    assert THEMES[theme]["c0"] in text
    root = ElementTree.fromstring(text)
    legend = [node.text for node in root.iter(f"{SVG}text") if node.get("class") == "start"]
    assert sorted(legend[:3]) == ["m0", "m1", "m2"]
    assert legend[3:] == ["chosen by honest, inside train", "chosen by paper, on the reported split"]
    assert int(root.get("height")) == 250 + 5 * 16 + 6
    assert all(float(node.get("y")) < int(root.get("height")) for node in root.iter(f"{SVG}text"))


def test_more_runs_than_colours_are_counted(runs, tmp_path):
    write_plots(runs, tmp_path)
    root = ElementTree.fromstring((tmp_path / "lambda-rte.svg").read_text())
    legend = [node.text for node in root.iter(f"{SVG}text") if node.get("class") == "start"]
    assert len(legend) == 9 + 2
    assert legend[0] == "m9"
    assert legend[8] == "2 other runs"


def test_names_in_the_legend_are_escaped():
    text = standalone('<svg class="plot" viewBox="0 0 9 9"><g data-run="0"></g></svg>', ["a < b & c"], "light", {})
    assert "a &lt; b &amp; c" in text
    assert re.search(r"<style>.*</style>", text, re.DOTALL)


@pytest.mark.parametrize("theme", THEMES)
def test_png_shows_what_the_svg_says(runs, tmp_path, theme):
    image = pytest.importorskip("matplotlib.image")
    for kind in ("svg", "png"):
        write_plots(runs[:3], tmp_path, theme=theme, kind=kind)
    names = {path.stem for path in tmp_path.glob("*.svg")}
    assert names == {path.stem for path in tmp_path.glob("*.png")}
    for name in names:
        root = ElementTree.parse(tmp_path / f"{name}.svg").getroot()
        pixels = image.imread(tmp_path / f"{name}.png")
        assert pixels.shape[:2] == (2 * int(root.get("height")), 2 * int(root.get("width")))
        assert colour(pixels[1, 1]) == THEMES[theme]["back"]
        *_, last = (
            dot for dot in root.iter(f"{SVG}circle") if "run" in dot.get("class") and "ring" not in dot.get("class")
        )
        run = re.search(r" r(\d)", last.get("class"))[1]
        x, y = (round(2 * float(last.get(name))) for name in ("cx", "cy"))
        assert colour(pixels[y, x]) == THEMES[theme][f"c{run}"]


def colour(pixel):
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in pixel[:3])


def test_png_without_matplotlib_is_one_line(runs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SettingsError, match="needs matplotlib"):
        write_plots(runs[:1], tmp_path / "none", kind="png")
    assert not (tmp_path / "none").exists()
