"""The report in a headless Chromium: no console errors, sorting and filtering work, a phone's width is enough."""

import json
import re
import subprocess

import numpy as np
import pytest

from benchmarks.browser import CHROMIUM, command
from frozenprobe.records.reading import read_run
from frozenprobe.reports.page import make_page
from frozenprobe.reports.plots import write_plots
from frozenprobe.reports.themes import THEMES
from tests.reports.runs import glue_run

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    runs = [read_run(glue_run(folder / f"model-{i}", 0.2 + 0.2 * i, seed=i, layers=("last", 0, 1))) for i in range(4)]
    return make_page(runs, with_published=True)


def browse(folder, html, *options):
    """Opens a page; gives its DOM after its scripts, and what they wrote to the console."""
    path = folder / "page.html"
    path.write_text(html)
    options = ("--enable-logging=stderr", "--virtual-time-budget=3000", "--dump-dom", *options)
    open_page = [*command(folder / "profile", *options), path.as_uri()]
    done = subprocess.run(open_page, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, re.findall(r"CONSOLE[^\n]*", done.stderr)


def ask(folder, page, script):
    """Runs a script on the page that returns something, and gives it back."""
    wrapped = f"<script>document.body.dataset.answer = JSON.stringify((() => {{{script}}})());</script></body>"
    dom, console = browse(folder, page.replace("</body>", wrapped))
    assert not console
    answer = re.search(r'data-answer="([^"]*)"', dom)[1]
    return json.loads(answer.replace("&quot;", '"').replace("&amp;", "&"))


def test_it_loads_without_a_word_on_the_console(page, tmp_path):
    dom, console = browse(tmp_path, page)
    assert not console
    assert re.search(r"<output>(\d+) of \1 rows</output>", dom)


def test_a_click_on_a_heading_sorts(page, tmp_path):
    script = """
        const table = document.getElementById("board-0");
        const heading = Array.from(table.tHead.rows[0].cells).find((cell) => cell.textContent === "CoLA");
        const values = () => Array.from(table.tBodies[0].rows, (row) => Number(row.cells[heading.cellIndex].dataset.value));
        heading.querySelector("button").click();
        const down = values();
        heading.querySelector("button").click();
        return [down, values()];
    """
    down, up = ask(tmp_path, page, script)
    assert down == sorted(down, reverse=True)
    assert up == sorted(up)
    assert len(set(down)) > 5


def test_words_and_choices_filter(page, tmp_path):
    script = """
        const filters = document.querySelector(".filters");
        const shown = () => Array.from(document.getElementById("board-0").tBodies[0].rows)
            .filter((row) => row.offsetParent !== null).map((row) => row.cells[0].dataset.value);
        const change = (element, value) => { element.value = value; element.dispatchEvent(new Event("input", {bubbles: true})); };
        change(filters.querySelector("input"), "model-1");
        const words = shown();
        change(filters.querySelector("select"), "kNN");
        return [words, shown()];
    """
    words, chosen = ask(tmp_path, page, script)
    assert words == ["model-1"] * 4
    assert chosen == ["model-1"] * 2


def test_the_legend_hides_a_run_in_every_plot(page, tmp_path):
    script = """
        const visible = () => Array.from(document.querySelectorAll('[data-run="0"]'))
            .filter((mark) => getComputedStyle(mark).display !== "none").length;
        const before = visible();
        document.querySelector('[data-legend="0"]').click();
        return [before, visible()];
    """
    before, after = ask(tmp_path, page, script)
    assert before > 20
    assert after == 0


def test_a_phone_is_wide_enough(page, tmp_path):
    frame = page.replace("&", "&amp;").replace('"', "&quot;")
    wrapper = f"""<!DOCTYPE html><body><iframe style="width:390px;height:844px;border:0" srcdoc="{frame}"></iframe>
        <script>onload = () => {{
            const inner = document.querySelector("iframe").contentDocument;
            const size = parseFloat(inner.defaultView.getComputedStyle(inner.body).fontSize);
            const plot = inner.querySelector("svg.plot").getBoundingClientRect();
            document.body.dataset.answer = JSON.stringify([inner.documentElement.scrollWidth, size, plot.width]);
        }};</script></body>"""
    dom, console = browse(tmp_path, wrapper)
    assert not console
    width, size, plot = json.loads(re.search(r'data-answer="([^"]*)"', dom)[1])
    assert width <= 390
    assert size >= 14
    assert plot >= 300  # labels of 11 pixels are not scaled below about 10


def test_dark_is_dark_and_light_is_light(page, tmp_path):
    script = "return getComputedStyle(document.body).backgroundColor;"
    assert ask(tmp_path, page, script) == "rgb(255, 255, 255)"
    dark = page.replace("(prefers-color-scheme: dark)", "all")
    assert ask(tmp_path, dark, script) == "rgb(20, 23, 27)"


def test_no_label_is_cut_off_or_covers_another(page, tmp_path):
    script = """
        const faults = [];
        for (const plot of document.querySelectorAll("svg.plot")) {
            const frame = plot.getBoundingClientRect();
            const labels = Array.from(plot.querySelectorAll("text"), (text) => [text, text.getBoundingClientRect()]);
            labels.forEach(([text, box], i) => {
                const inside = box.left >= frame.left && box.right <= frame.right && box.top >= frame.top && box.bottom <= frame.bottom;
                if (!inside) faults.push(plot.getAttribute("aria-label") + ": " + text.textContent + " is cut off");
                for (const [other, its] of labels.slice(i + 1)) {
                    const apart = box.right <= its.left || its.right <= box.left || box.bottom <= its.top + 4 || its.bottom <= box.top + 4;
                    if (!apart) faults.push(plot.getAttribute("aria-label") + ": " + text.textContent + " and " + other.textContent);
                }
            });
        }
        return [document.querySelectorAll("svg.plot").length, faults];
    """
    plots, faults = ask(tmp_path, page, script)
    assert plots > 30
    assert faults == []


@pytest.mark.parametrize("theme", THEMES)
def test_png_files_look_like_the_svg_files(theme, tmp_path):
    """Chromium's drawing of the SVG against matplotlib's: alike but for the font's own shapes."""
    image = pytest.importorskip("matplotlib.image")
    runs = [read_run(glue_run(tmp_path / f"m{i}", 0.3 + 0.3 * i, ("cola",), seed=i)) for i in range(2)]
    for kind in ("svg", "png"):
        write_plots(runs, tmp_path, theme=theme, kind=kind)
    svg = (tmp_path / "size-cola.svg").read_text()
    width, height = (int(re.search(rf'{side}="(\d+)"', svg)[1]) for side in ("width", "height"))
    back = THEMES[theme]["back"]
    (tmp_path / "page.html").write_text(f'<body style="margin:0;background:{back}">{svg}')
    options = (
        f"--window-size={width},{height}",
        "--force-device-scale-factor=2",
        f"--screenshot={tmp_path / 'shot.png'}",
    )
    page = (tmp_path / "page.html").as_uri()
    subprocess.run([*command(tmp_path / "profile", *options), page], capture_output=True, timeout=120, check=True)
    theirs, ours = (image.imread(tmp_path / name)[:, :, :3] for name in ("shot.png", "size-cola.png"))
    assert theirs.shape == ours.shape
    different = np.abs(theirs - ours).max(axis=2) > 0.3
    drawn = np.abs(theirs - theirs[0, 0]).max(axis=2) > 0.3
    assert drawn.mean() > 0.02
    assert different.mean() < 0.5 * drawn.mean()
