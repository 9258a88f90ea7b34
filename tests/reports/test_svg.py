"""Plots: round ticks, nothing cut off, nothing on top of each other, points where their values are."""

import xml.etree.ElementTree as ElementTree
from itertools import combinations, pairwise

import numpy as np
import pytest

from frozenprobe.reports.svg import Plot, linear_axis, log_axis, named_axis
from tests.reports.svg_boxes import SVG, boxes


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([51.2, 73.8], ["50", "55", "60", "65", "70", "75"]),
        ([-3, 88], ["-20", "0", "20", "40", "60", "80", "100"]),
        ([70.01, 70.04], ["70.01", "70.02", "70.03", "70.04"]),
        ([5, 5], ["4.0", "4.5", "5.0", "5.5", "6.0"]),
    ],
)
def test_linear_ticks_are_round(values, labels):
    assert [text for _, text in linear_axis(values, "").ticks] == labels


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([1, 1e4], ["1", "10", "100", "1000", "10k"]),
        ([4e18, 5e21], ["10¹⁹", "10²⁰", "10²¹"]),
        ([2e7, 3e7], ["20M", "22M", "24M", "26M", "28M", "30M"]),
        ([2.1, 2.4], ["2.1", "2.2", "2.3", "2.4"]),
        ([100, 800], ["100", "200", "500"]),
    ],
)
def test_logarithmic_ticks_are_powers_or_one_two_five(values, labels):
    assert [text for _, text in log_axis(values, "").ticks] == labels


@pytest.mark.parametrize("seed", range(30))
def test_nothing_is_cut_off_and_no_labels_touch(seed):
    random = np.random.default_rng(seed)
    y = linear_axis((random.normal(50, 10 ** random.uniform(-2, 1.5), 9)).tolist(), "score (%)")
    values = (10 ** random.uniform(0, random.uniform(0.5, 22), 9)).tolist()
    steps = random.integers(0, int(10 ** random.uniform(1, 7)), 9).tolist()
    layers = {float(i): str(i) for i in range(int(random.integers(2, 60)))}
    for x in (log_axis(values, "x (log scale)"), linear_axis(steps, "x", most=5), named_axis(layers, "layer")):
        plot = Plot("a title", x, y)
        root = ElementTree.fromstring(plot.svg())
        for left, right, height in boxes(root, ""):
            assert left >= 0
            assert right <= plot.width
            assert 0 < height < plot.height
        ticks = sorted(box for box in boxes(root, "tick") if box[2] > plot.height - 40)
        assert len(ticks) >= 2
        assert all(a[1] < b[0] for a, b in pairwise(ticks))
        places = [x.place(value) for value, _ in x.ticks]
        assert all(-1e-9 <= place <= 1 + 1e-9 for place in places)


def test_points_lie_where_their_values_are():
    plot = Plot("t", log_axis([1, 10_000], "x"), linear_axis([0, 100], "y"))
    for value in (1, 100, 10_000):
        plot.point((value, 50), f"x is {value} & y <50>", run=3)
    plot.line([(1, 0), (10_000, 100)], run=3)
    root = ElementTree.fromstring(plot.svg())
    circles = list(root.iter(f"{SVG}circle"))
    xs = [float(circle.get("cx")) for circle in circles]
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.2)
    assert circles[0].find(f"{SVG}title").text == "x is 1 & y <50>"
    assert {circle.get("data-run") for circle in circles} == {"3"}
    (line,) = root.iter(f"{SVG}polyline")
    (x0, y0), (x1, y1) = (map(float, pair.split(",")) for pair in line.get("points").split())
    assert (x0, x1) == (xs[0], xs[2])
    assert y0 > float(circles[0].get("cy")) > y1


def test_names_stand_beside_their_points_or_not_at_all():
    plot = Plot("t", linear_axis([0, 100], "x"), linear_axis([0, 100], "y"))
    places = [(10, 10), (50, 50), (51, 50), (52, 50), (53, 50), (54, 50), (55, 50), (99, 99)]
    for i, place in enumerate(places):
        plot.point(place, "hint")
        plot.name(place, f"a rather long name {i}")
    root = ElementTree.fromstring(plot.svg())
    found = boxes(root, "name")
    assert 3 <= len(found) < len(places)
    assert all(left >= 0 and right <= plot.width for left, right, _ in found)
    for one, other in combinations(found, 2):
        assert one[1] <= other[0] + 12 or other[1] <= one[0] + 12 or abs(one[2] - other[2]) >= 10


def test_marks_may_be_the_values_themselves():
    axis = log_axis([10, 100, 2490], "rows", marks=[10, 100, 2490])
    assert [text for _, text in axis.ticks] == ["10", "100", "2490"]
