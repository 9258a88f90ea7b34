"""The report: whole, self-contained, with the numbers of the records."""

import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest

from frozenprobe.errors import RecordError
from frozenprobe.records.reading import read_run
from frozenprobe.reports.page import make_page
from frozenprobe.reports.themes import THEMES
from tests.reports.runs import glue_run, make_run, make_unit
from tests.reports.svg_boxes import boxes


class Reader(HTMLParser):
    """Collects table cells, headings and links, and refuses tags that are not balanced."""

    VOID = frozenset({"meta", "link", "input", "br"})

    def __init__(self):
        super().__init__()
        self.open, self.links, self.headings, self.tables = [], [], [], {}

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.links += [attributes[name] for name in ("src", "href") if name in attributes]
        if tag == "table":
            self.tables[attributes["id"]] = self.table = []
        if tag == "tr":
            self.table.append([])
        if tag == "td":
            self.table[-1].append(attributes["data-value"])
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("h2", "h3"):
            self.headings.append(data)


def read(page):
    reader = Reader()
    reader.feed(page)
    assert not reader.open
    return reader


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return [
        read_run(
            glue_run(folder / f"m{i}", 0.3 + 0.2 * i, seed=i, layers=("last", 0, 1), training_flops=10.0 ** (18 + i))
        )
        for i in range(3)
    ]


@pytest.fixture(scope="module")
def page(runs):
    return make_page(runs)


def test_the_page_needs_nothing_from_outside(page):
    reader = read(page)
    assert reader.links == ["data:,"]
    outside = set(re.findall(r"https?://[^\"')\s]+", page)) - {"http://www.w3.org/2000/svg"}
    assert not outside
    assert "@import" not in page
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport"' in page


def contrast(one, other):
    """The contrast ratio of WCAG 2.1."""

    def luminance(colour):
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    darker, lighter = sorted(map(luminance, (one, other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("theme", THEMES)
def test_text_and_lines_stand_out_from_their_background(theme):
    colours = THEMES[theme]
    for text in ("ink", "dim"):
        assert contrast(colours[text], colours["back"]) >= 4.5
        assert contrast(colours[text], colours["panel"]) >= 4.5
    for line in [f"c{i}" for i in range(8)] + ["other"]:
        assert contrast(colours[line], colours["panel"]) >= 3


def test_the_page_has_every_part(page):
    headings = read(page).headings
    for heading in (
        "GLUE",
        "Score against training FLOPs",
        "Honest against paper",
        "By layer (diagnostic)",
        "Sweep over lambda",
        "Score by train size",
        "Diagnostics",
    ):
        assert heading in headings


def test_every_plot_is_well_formed_and_named(page):
    plots = re.findall(r"<svg.*?</svg>", page)
    assert (
        len(plots) == 2 * 9 + 2 + 1 + 8 + 8
    )  # cost (two methods, mean and tasks), honest-paper, layers, lambda, sizes
    for plot in plots:
        root = ElementTree.fromstring(plot)
        assert root.get("aria-label")
        assert all(left >= 0 and right <= 340 for left, right, _ in boxes(root, ""))


def test_the_table_holds_the_records_numbers(page, runs):
    rows = read(page).tables["board-0"]
    assert len(rows) == 1 + 3 * 4
    best = next(row for row in rows[1:] if row[:3] == ["m2", "linear", "honest"])
    expected = {
        row["task"]: 100 * row["value"]
        for row in runs[2].headline()
        if (row["probe"], row["protocol"]) == ("ridge", "honest")
    }
    assert float(best[3]) == pytest.approx(expected["mnli"], abs=1e-3)
    assert float(best[9]) == pytest.approx(expected["cola"], abs=1e-3)
    assert float(best[11]) == pytest.approx(sum(expected.values()) / 8, abs=1e-3)


def test_the_chosen_points_are_marked(page, runs):
    plot = next(
        plot for plot in re.findall(r"<svg.*?</svg>", page) if 'aria-label="CoLA"' in plot and "ridge λ" in plot
    )
    assert "chosen by honest: lambda 100" in plot
    assert "chosen by paper: lambda 1e+04" in plot
    assert plot.count("<polyline") == 3


def test_sizes_are_means_over_draws_with_their_range(page):
    plot = next(
        plot for plot in re.findall(r"<svg.*?</svg>", page) if 'aria-label="RTE"' in plot and "train rows" in plot
    )
    assert plot.count("<polygon") == 3
    assert "10 rows" in plot
    assert "2 draws" in plot
    assert "100 rows" in plot


def test_layers_are_means_over_tasks_and_the_last_is_named(page, runs):
    plot = next(plot for plot in re.findall(r"<svg.*?</svg>", page) if 'aria-label="mean pooling"' in plot)
    by_task = {
        row["task"]: 100 * row["value"]
        for row in runs[2].rows("score")
        if (row["probe"], row["protocol"], row["layer"], row["n"]) == ("ridge", "honest", "1", 100)
    }
    assert len(by_task) == 8
    assert f"m2, layer 1: {sum(by_task.values()) / 8:.1f}" in plot
    assert re.findall(r'class="tick">(\w+)<', plot) == ["0", "1", "last"]


def test_diagnostics_are_those_recorded(page):
    rows = read(page).tables["diagnostics-table-0"]
    assert len(rows) == 1 + 24
    assert rows[1][2:] == ["200", "", "1", "12.5", "32", "0.3", "", ""]


def test_names_are_escaped(tmp_path):
    run = read_run(glue_run(tmp_path / "x", 0.5, ["rte"], name='<script>alert("x")</script>$title'))
    page = make_page([run], title="A & B")
    assert "<script>alert" not in page
    assert "A &amp; B" in page
    read(page)


def test_what_is_unknown_is_left_out(tmp_path):
    run = read_run(glue_run(tmp_path / "x", 0.5, ["rte"]))
    headings = read(make_page([run])).headings
    assert not [heading for heading in headings if heading.startswith(("Score against", "By layer"))]
    assert "Sweep over lambda" in headings


def test_checkpoints_are_drawn_by_step_and_joined(tmp_path):
    runs = [
        read_run(glue_run(tmp_path / f"step-{step}", 0.5, ["rte"], name="mine", seed=step)) for step in (100, 200, 300)
    ]
    page = make_page(runs)
    assert "Score against training step" in read(page).headings
    assert page == make_page(runs)
    plot = next(plot for plot in re.findall(r"<svg.*?</svg>", page) if 'aria-label="RTE, linear"' in plot)
    assert plot.count('class="line trail"') == 1
    assert plot.count("<circle") == 3


def test_published_rows_are_drawn_under_the_protocol_that_they_have(runs):
    page = make_page(runs, with_published=True)
    plot = next(plot for plot in re.findall(r"<svg.*?</svg>", page) if 'aria-label="CoLA, linear"' in plot)
    assert "CrossBERT: 47.9" in plot
    assert "DeBERTaV3: 67.1 at at least 2e+20" in plot
    ours = 100 * next(
        row["value"]
        for row in runs[0].headline()
        if (row["task"], row["probe"], row["protocol"]) == ("cola", "ridge", "paper")
    )
    assert f"m0: {ours:.1f} at 1e+18 FLOPs" in plot


def test_several_suites_are_sections_of_their_own(tmp_path):
    runs = [
        read_run(make_run(tmp_path / name, [make_unit("rte", 0.5), make_unit("x", 0.5, suite="mine")])) for name in "ab"
    ]
    reader = read(make_page(runs))
    assert [heading for heading in reader.headings if heading in ("GLUE", "mine")] == ["GLUE", "mine"]
    assert {"board-0", "board-1", "diagnostics-table-0", "diagnostics-table-1"} == set(reader.tables)


def test_incomplete_rows_and_damaged_files_are_said(tmp_path):
    folder = glue_run(tmp_path / "part", 0.5, ["rte", "cola"])
    file = next(iter(folder.glob("units/*.parquet")))
    file.write_bytes(b"PAR1")
    page = make_page([read_run(folder)])
    assert f"{file.name} is damaged and left out" in page
    assert "lacks mnli, qnli" in page


def test_a_run_without_a_finished_task_is_no_report(tmp_path):
    with pytest.raises(RecordError, match="nothing to report"):
        make_page([read_run(make_run(tmp_path / "x", []))])
