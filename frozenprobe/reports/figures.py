"""The figures of a report, drawn from runs: score against cost, layers, lambda, sample size, honest against paper.

All scores are percent. A figure that has nothing to show is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from frozenprobe.records.reading import Run
from frozenprobe.records.schema import Unit
from frozenprobe.reports.leaderboard import Leaderboard
from frozenprobe.reports.naming import once
from frozenprobe.reports.rows import Row
from frozenprobe.reports.summary import place, scores_by_view
from frozenprobe.reports.svg import Axis, Plot, Point, linear_axis, log_axis, named_axis

FEWEST = 3  # costs in a plot: through two points there is always a line


@dataclass(frozen=True)
class Figure:
    """A group of plots under one heading.

    Attributes:
        name: Short, for anchors and file names.
        title: The heading.
        caption: How to read it.
        plots: SVG by a short name.
        key: What the kinds of marks mean, for a plot that stands alone.
    """

    name: str
    title: str
    caption: str
    plots: dict[str, str]
    key: dict[str, str] = field(default_factory=dict)


def best_first(runs: Sequence[Run], leaderboard: Leaderboard) -> list[Run]:
    """Runs, each once, in the order of a leaderboard, so that the best ones have the colours."""
    rank: dict[str, int] = {}
    for row in leaderboard.rows:
        rank.setdefault(row.run, len(rank))
    return sorted(once(runs), key=lambda run: rank.get(str(run.folder), len(rank)))


def figures(runs: Sequence[Run], labels: Sequence[str], leaderboard: Leaderboard) -> list[Figure]:
    """Every figure that has something to show; run i of the legend is run i of the plots."""
    suite = leaderboard.board.suite
    held = [[unit for unit in run.units if unit.key.suite == suite] for run in runs]
    made = [
        _cost(runs, leaderboard),
        _honest_and_paper(held, labels),
        _layers(runs, held, labels),
        _lambdas(held, labels),
        _sizes(held, labels),
    ]
    return [figure for figure in made if figure.plots]


def _cost(runs: Sequence[Run], leaderboard: Leaderboard) -> Figure:
    """The score of every column, and the mean, against FLOPs, steps or parameters (the paper's figures 1, 3, 4 and 6)."""
    has_published = any(row.source == "published" for row in leaderboard.rows)
    wanted = ("paper", "") if has_published else ("honest", "")
    rows = [row for row in leaderboard.rows if row.protocol in wanted]
    steps = {str(run.folder): float(run.step) for run in runs if run.step is not None}
    choices = {
        "training FLOPs": {id(row): float(row.flops.lstrip(">")) for row in rows if row.flops},
        "training step": {id(row): steps[row.run] for row in rows if row.run in steps},
        "parameters": {id(row): float(row.params) for row in rows if row.params},
    }
    name, cost = _known_cost(choices, [row for row in rows if row.source == "measured"])
    number = {str(run.folder): i for i, run in enumerate(runs)}
    methods = dict.fromkeys(_method(row) for row in rows)
    plots = {}
    for method in methods:
        for column in ("avg", *leaderboard.columns):
            points = []
            for row in rows:
                value = leaderboard.values(row)[column]
                if id(row) in cost and _method(row) == method and not np.isnan(value):
                    points.append((cost[id(row)], value, row))
            if len({x for x, _, _ in points}) < FEWEST:
                continue
            title = f"{'mean' if column == 'avg' else leaderboard.heading(column)}, {method}"
            x = _cost_axis([x for x, _, _ in points], name)
            plot = Plot(title, x, linear_axis([y for _, y, _ in points], "score (%)"))
            if name == "training step":
                for encoder in dict.fromkeys(row.encoder for _, _, row in points):
                    trail = sorted((x, y) for x, y, row in points if row.encoder == encoder)
                    plot.line(trail, style="line trail")
            for x, y, row in points:
                bound = "at least " if row.flops.startswith(">") and name == "training FLOPs" else ""
                hint = f"{row.model}: {y:.1f} at {bound}{x:.3g} {name.removeprefix('training ')}"
                style = "ring" if bound else "diamond" if row.source == "published" else "point"
                plot.point((x, y), hint, number.get(row.run), style)
                if row.source == "published":
                    plot.name((x, y), row.model.split(" (")[0])
            plots[f"{column}-{method}"] = plot.svg()
    caption = ["Honest protocol."]
    if has_published:
        caption = ["Paper protocol, as the published rows are. Diamonds are published rows."]
        if any(row.flops.startswith(">") for row in rows) and name == "training FLOPs":
            caption.append("A ring is a published lower bound of the cost.")
    if any(id(row) not in cost for row in rows):
        caption.append("Rows whose cost is unknown are not drawn.")
    key = {"diamond": "published", "ring": "published, at least that cost"}
    return Figure("cost", f"Score against {name}", " ".join(caption), plots, key)


def _known_cost(choices: dict[str, dict[int, float]], measured: Sequence[Row]) -> tuple[str, dict[int, float]]:
    """The first cost that differs between rows, before all one that is known of every run."""
    differing = {name: costs for name, costs in choices.items() if len(set(costs.values())) > 1}
    of_all = [name for name, costs in differing.items() if all(id(row) in costs for row in measured)]
    name = next(iter([*of_all, *differing]), "")
    return name, differing.get(name, {})


def _cost_axis(values: Sequence[float], name: str) -> Axis:
    return linear_axis(values, name, most=5) if name == "training step" else log_axis(values, f"{name} (log scale)")


def _method(row: Row) -> str:
    form = f", {row.pair_form}" if row.pair_form == "siamese" else ""
    return f"{row.method}, {row.backbone}{form}" if row.method == "contrastive" else f"{row.method}{form}"


def _honest_and_paper(held: Sequence[list[Unit]], labels: Sequence[str]) -> Figure:
    """What choosing on the reported split is worth: every task of every run."""
    plots = {}
    for probe, title in (("ridge", "linear"), ("knn", "kNN")):
        points = []
        for i, units in enumerate(held):
            for unit in units:
                scores = {
                    row["protocol"]: 100 * row["value"]
                    for row in unit.rows
                    if row["kind"] == "score" and row["is_headline"] and row["probe"] == probe
                }
                if {"honest", "paper"} <= set(scores):
                    points.append((scores["honest"], scores["paper"], i, unit))
        if not points:
            continue
        both = [value for x, y, *_ in points for value in (x, y)]
        plot = Plot(title, linear_axis(both, "honest (%)"), linear_axis(both, "paper (%)"))
        ends = plot.x.low, plot.x.high
        plot.line([(end, end) for end in ends], style="line trail")
        for x, y, i, unit in points:
            plot.point((x, y), f"{labels[i]}, {unit.title}: honest {x:.1f}, paper {y:.1f}", i)
        plots[probe] = plot.svg()
    caption = "A point is a task. Above the line: what the paper protocol gains by choosing on the reported split."
    return Figure("honest-and-paper", "Honest against paper", caption, plots)


def _layers(runs: Sequence[Run], held: Sequence[list[Unit]], labels: Sequence[str]) -> Figure:
    """The mean over tasks by layer (the paper's table 1), a plot per pooling."""
    curves: dict[str, dict[int, dict[str, float]]] = defaultdict(dict)
    for i, units in enumerate(held):
        by_view: dict[tuple[str, str], list[float]] = defaultdict(list)
        for unit in units:
            for view, row in scores_by_view(unit).items():
                by_view[view].append(100 * row["value"])
        for (layer, pooling), values in by_view.items():
            if len(values) == len(units):  # a mean over the same tasks at every layer
                curves[pooling].setdefault(i, {})[layer] = float(np.mean(values))
    plots = {}
    for pooling, by_run in curves.items():
        placed, names, ends = {}, {}, []
        for i, by_layer in by_run.items():
            deepest = runs[i].manifest["encoder"].get("layers", 0)
            beside = str(deepest) in by_layer  # the last block is shown too
            last = float(deepest + beside)
            placed[i] = sorted(
                (last if layer == "last" else float(layer), value, layer) for layer, value in by_layer.items()
            )
            names |= {float(layer): layer for layer in by_layer if layer != "last"}
            ends.append(last)
        names = dict.fromkeys(ends, "last") | names  # a block's number goes before "last" of a shallower encoder
        placed = {i: curve for i, curve in placed.items() if len(curve) > 1}
        if not placed:
            continue
        x = named_axis(names, "layer (0: embeddings)")
        y = linear_axis([value for curve in placed.values() for _, value, _ in curve], "score (%)")
        plot = Plot(f"{pooling} pooling", x, y)
        for i, curve in placed.items():
            plot.line([(at, value) for at, value, _ in curve], i)
            for at, value, layer in curve:
                plot.point((at, value), f"{labels[i]}, layer {layer}: {value:.1f}", i)
        plots[pooling] = plot.svg()
    caption = "Linear, honest, mean over the tasks of the run; last is what the model returns, after its final norm if it has one. A diagnostic: the best layer here is no score, since it was not chosen inside train."
    return Figure("layers", "By layer (diagnostic)", caption, plots)


def _lambdas(held: Sequence[list[Unit]], labels: Sequence[str]) -> Figure:
    """The ridge sweep at the largest size, with the points that both protocols chose."""

    def draw(plot: Plot, i: int, unit: Unit, rows: list[dict]) -> None:
        curve, chosen = _sweep(rows)
        plot.line(curve, i)
        for protocol, style in (("honest", "point"), ("paper", "ring")):
            if protocol in chosen:
                x, y = chosen[protocol]
                plot.point((x, y), f"{labels[i]}, chosen by {protocol}: lambda {x:.3g}, {y:.1f}", i, style)

    def points(rows: list[dict]) -> list[tuple[float, float]]:
        curve, chosen = _sweep(rows)
        return [*curve, *chosen.values()] if len(curve) > 1 else []

    plots = _small_multiples(held, points, draw, partial(log_axis, label="ridge λ (log scale)"))
    caption = "Scores on the reported split at the largest train size. Filled: chosen by honest, inside train. Ring: by paper, on the reported split."
    key = {"point": "chosen by honest, inside train", "ring": "chosen by paper, on the reported split"}
    return Figure("lambda", "Sweep over lambda", caption, plots, key)


def _sizes(held: Sequence[list[Unit]], labels: Sequence[str]) -> Figure:
    """The honest ridge score by train rows: the mean over draws, and their range."""

    def draw(plot: Plot, i: int, unit: Unit, rows: list[dict]) -> None:
        by_size = _by_size(rows)
        plot.band([(n, min(v)) for n, v in by_size.items()], [(n, max(v)) for n, v in by_size.items()], i)
        curve = [(n, float(np.mean(values))) for n, values in by_size.items()]
        plot.line(curve, i)
        for n, value in curve:
            style = "point" if n == max(by_size) else "small"
            plot.point((n, value), f"{labels[i]}, {n:,.0f} rows: {value:.1f}, {_draws(by_size[n])}", i, style)

    def points(rows: list[dict]) -> list[tuple[float, float]]:
        by_size = _by_size(rows)
        return [(n, value) for n, values in by_size.items() for value in values] if len(by_size) > 1 else []

    def axis(sizes: Sequence[float]) -> Axis:
        return log_axis(sizes, "train rows (log scale)", marks=sorted(set(sizes)))

    plots = _small_multiples(held, points, draw, axis)
    caption = "Linear, honest. The line is the mean over random subsets, the band their range; the largest size, the reported one, is marked."
    return Figure("size", "Score by train size", caption, plots, {"band": "range over random subsets"})


def _small_multiples(
    held: Sequence[list[Unit]],
    points: Callable[[list[dict]], list[Point]],
    draw: Callable[[Plot, int, Unit, list[dict]], None],
    axis: Callable[[Sequence[float]], Axis],
) -> dict[str, str]:
    """One plot per task, with a line per run; all on the rows of the headline view, split and metric."""
    tasks: dict[tuple, list[tuple[int, Unit, list[dict]]]] = defaultdict(list)
    for i, units in enumerate(held):
        for unit in units:
            rows = [
                row
                for row in unit.rows
                if row["kind"] == "score"
                and row["probe"] == "ridge"
                and (row["layer"], row["pooling"]) == ("last", "mean")
                and (row["split"], row["metric"]) == (unit.headline_split, unit.headline_metric)
            ]
            if points(rows):
                form = f" ({unit.key.pair_form})" if unit.key.pair_form == "siamese" else ""
                tasks[(*place(unit.key.task), unit.title + form)].append((i, unit, rows))
    plots = {}
    for key in sorted(tasks):
        shown = [point for _, _, rows in tasks[key] for point in points(rows)]
        metric = tasks[key][0][1].headline_metric
        plot = Plot(key[-1], axis([x for x, _ in shown]), linear_axis([y for _, y in shown], f"{metric} (%)"))
        for i, unit, rows in tasks[key]:
            draw(plot, i, unit, rows)
        plots[key[-1]] = plot.svg()
    return plots


def _sweep(rows: list[dict]) -> tuple[list[tuple[float, float]], dict[str, tuple[float, float]]]:
    """The grid at the largest size, and what each protocol chose there."""
    largest = max((row["n"] for row in rows), default=0)
    rows = [row for row in rows if row["n"] == largest and row["lambda"]]
    curve = sorted((row["lambda"], 100 * row["value"]) for row in rows if row["protocol"] == "grid")
    chosen = {
        row["protocol"]: (row["lambda"], 100 * row["value"]) for row in rows if row["protocol"] in ("honest", "paper")
    }
    return curve, chosen


def _by_size(rows: list[dict]) -> dict[float, list[float]]:
    by_size: dict[float, list[float]] = defaultdict(list)
    for row in rows:
        if row["protocol"] == "honest":
            by_size[float(row["n"])].append(100 * row["value"])
    return dict(sorted(by_size.items()))


def _draws(values: Sequence[float]) -> str:
    return "one draw" if len(values) == 1 else f"{len(values)} draws"
