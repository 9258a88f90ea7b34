"""Figures 1 and 3 to 7 of the paper from records, with the paper's own points where a table of it holds them.

A point is one trained model at its last probed checkpoint; over seeds it is their mean. The paper's scores are levels (dotted):
their compute is many times that of a small sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.paper_records import OBJECTIVES, Record, Records, alike, shared, tasks_of, title_of
from crossbert.fit import draw, fit_power_law, keep_best
from crossbert.swept import TITLES, SweptRun, mean_score, size, table
from frozenprobe.errors import RecordError
from frozenprobe.reports.boards import BOARDS, GLUE_TASKS
from frozenprobe.reports.paper_tables import published_rows
from frozenprobe.reports.rows import run_rows

COLOURS = {"bert": "#c0392b", "crossbert": "#1f5fa8", "electra": "#2f855a"}
MARKERS = {"bert": "s", "crossbert": "o", "electra": "^"}
LINES = ("-", "--", ":", "-.")
LEVELS = (":", (0, (1, 4)))
FLOPS = "FLOPs of training (eq. 7 and 8)"
CHOICE = {"honest": "chosen inside train", "paper": "best on the reported split"}


@dataclass(frozen=True)
class Point:
    """A model's score against what its training cost.

    Attributes:
        objective: Of its training.
        variant: What else tells its curve from others, such as `linear`.
        column: The panel.
        flops: By eq. 7 and 8.
        score: In percent.
        is_paper: Whether it is the paper's.
    """

    objective: str
    variant: str
    column: str
    flops: float
    score: float
    is_paper: bool = False


def figure1(records: Records, protocol: str) -> Figure:
    """Averages of GLUE, and of MTEB(eng, v2), against compute."""
    points, notes = _glue_points(records, protocol)
    glue = [point for point in points if point.column == "avg"]
    mteb = [point for point in _mteb_points(records, "mteb-v2") if point.column == "avg"]
    found = _groups(records)
    tasks = tasks_of(found)
    over = "GLUE" if not tasks or set(tasks) == set(GLUE_TASKS) else ", ".join(tasks.values())
    figure = Figure(figsize=(7, 8), layout="constrained")
    top, bottom = figure.subplots(2, 1)
    _panel(top, glue, f"mean over {over}, {CHOICE[protocol]}")
    _panel(bottom, mteb, "MTEB(eng, v2), mean of categories")
    if not any(not point.is_paper for point in glue + mteb):
        raise RecordError("; ".join(notes) or "there is no record of GLUE or MTEB with the FLOPs of its training")
    return _noted(figure, notes)


def figure3(records: Records, protocol: str) -> Figure:
    """MTEB(eng, v2) by category against compute, frozen and unfrozen."""
    points = _mteb_points(records, "mteb-v2")
    return _grid(points, (*BOARDS["mteb-v2"].columns, "avg"), {}, "MTEB(eng, v2)")


def figure4(records: Records, protocol: str) -> Figure:
    """GLUE by task against compute, linear and kNN."""
    points, notes = _glue_points(records, protocol)
    tasks = tasks_of(_groups(records))
    return _noted(_grid(points, (*tasks, "avg"), tasks, f"frozen probes, {CHOICE[protocol]}"), notes)


def figure5(records: Records, protocol: str) -> Figure:
    """Validation losses during training, BERT left and CrossBERT right."""
    kinds = [name for name in ("bert", "crossbert") if any(_curve(run) for run in _trained(records, name))]
    if not kinds:
        raise RecordError("there is no validation loss of a BERT or CrossBERT")
    figure = Figure(figsize=(6 * len(kinds), 4.5), layout="constrained")
    for axes, kind in zip(np.atleast_1d(figure.subplots(1, len(kinds))), kinds, strict=True):
        runs = [run for run in _trained(records, kind) if _curve(run)]
        names = list(dict.fromkeys(name for run in runs for name in _losses(_curve(run)[0])))
        for colour, run in zip(_shades(kind, len(runs)), runs, strict=True):
            for line, marker, name in zip(LINES * len(names), "os^Dv" * len(names), names, strict=False):
                rows = [row for row in _curve(run) if name in row]
                x = [run.flops(row["step"]) for row in rows]
                axes.plot(x, [row[name] for row in rows], line, marker=marker, ms=4, color=colour)
            axes.plot([], [], color=colour, label=run.name if len(runs) > 1 else size(run.model))
        for line, marker, name in zip(LINES * len(names), "os^Dv" * len(names), names, strict=False):
            axes.plot([], [], line, marker=marker, ms=4, color="grey", label=_loss_title(name))
        axes.set(xscale="log", xlabel=FLOPS, ylabel="validation loss", title=TITLES[kind])
        axes.legend(fontsize=8)
    return figure


def figure6(records: Records, protocol: str) -> Figure:
    """Mean score of the linear probe during training."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    tasks: dict[str, str] = {}
    notes: list[str] = []
    trained = {name: [run for run in _trained(records, name) if len(run.probes) > 1] for name in OBJECTIVES}
    for run in (run for runs in trained.values() for run in runs):
        tasks |= {unit.key.task: unit.title for probe in run.probes for unit in probe.units}
    if not tasks:
        raise RecordError("there is no run of a sweep with two probed checkpoints or more")
    for objective, runs in trained.items():
        for colour, run in zip(_shades(objective, len(runs)), runs, strict=True):
            points = []
            for probe in run.probes:
                score = mean_score(probe, "ridge", protocol)
                lacking = [title for task, title in tasks.items() if all(task != unit.key.task for unit in probe.units)]
                if lacking:
                    notes.append(f"{run.name}, step {probe.step} is left out: it lacks {', '.join(lacking)}")
                elif score is not None:
                    points.append((probe.step, 100 * score))
            label = TITLES[objective] if len(runs) == 1 else f"{TITLES[objective]}, {run.name}"
            axes.plot(*np.array(points).reshape(-1, 2).T, "-", marker=MARKERS[objective], color=colour, label=label)
    axes.set(xlabel="step", ylabel=f"mean over {len(tasks)} tasks, percent", title=f"linear probe, {CHOICE[protocol]}")
    axes.legend(fontsize=8)
    return _noted(figure, [", ".join(tasks.values()), *notes])


def _noted(figure: Figure, notes: Sequence[str]) -> Figure:
    """The figure with lines below it."""
    lines = [line for note in notes for line in wrap(note, int(14 * figure.get_figwidth()))]
    if lines:
        figure.supxlabel("\n".join(lines), fontsize=7, color="grey")
    return figure


def figure7(records: Records, protocol: str) -> Figure:
    """Learning rate and batch size of CrossBERT by compute, with the laws that the best runs give."""
    frame = table([run for run in records.swept if run.model.objective == "crossbert"])
    if frame.empty or frame["loss"].isna().all():
        raise RecordError("there is no finished CrossBERT of a sweep with a validation loss")
    best = keep_best(frame, 3)
    several = np.log(best["compute"].to_numpy()).std() > 1e-6  # a law of compute needs two amounts of it
    names = ("learning_rate", "batch_tokens") if several else ()
    return draw(frame, best, {name: fit_power_law(best["compute"], best[name]) for name in names})


FIGURES: Mapping[str, Callable[[Records, str], Figure]] = {
    "figure1": figure1,
    "figure3": figure3,
    "figure4": figure4,
    "figure5": figure5,
    "figure6": figure6,
    "figure7": figure7,
}


def _groups(records: Records) -> list[Record]:
    return [record for record in records.glue if record.objective and record.flops and record.is_frozen_glue]


def _glue_points(records: Records, protocol: str) -> tuple[list[Point], list[str]]:
    """Linear and kNN by task and on average, and the paper's linear ones; and what is left out, in lines.

    A model that lacks a task which others have is left out of the averages.
    """
    points: list[Point] = []
    notes: list[str] = []
    wanted = tasks_of(_groups(records))
    for group in alike(_groups(records), notes):
        for probe, variant in (("ridge", "linear"), ("knn", "kNN")):
            scores = [record.scores(probe, protocol) for record in group]
            tasks = shared(scores)
            points += [_point(group[0], variant, task, [one[task] for one in scores]) for task in tasks]
            if lacking := [title for task, title in wanted.items() if task not in tasks]:
                notes.append(f"{group[0].label} is left out of the {variant} mean: it lacks {', '.join(lacking)}")
            else:
                points.append(_point(group[0], variant, "avg", [np.mean(list(one.values())) for one in scores]))
    whole = set(wanted) == set(GLUE_TASKS)  # a mean over other tasks is another number
    published = _published("glue", "linear", lambda row: "linear")
    return points + [point for point in published if whole or point.column != "avg"], list(dict.fromkeys(notes))


def _mteb_points(records: Records, name: str) -> list[Point]:
    """Contrastive finetuning by category and on average; an unfinished category has no point."""
    board, points = BOARDS[name], []
    for record in records.mteb(name):
        if not (record.objective and record.flops):
            continue
        for row in run_rows(record.run, record.label, board):
            if row.method == "contrastive":
                for column, score in (row.scores | board.average(row.scores)).items():
                    if not np.isnan(score):
                        points.append(_point(record, row.backbone, column, [score]))
    return points + _published(name, "contrastive", lambda row: row.backbone)


def _point(record: Record, variant: str, column: str, scores: Sequence[Any]) -> Point:
    assert record.objective is not None
    assert record.flops is not None
    return Point(record.objective, variant, column, record.flops, float(np.mean(scores)))


def _published(name: str, method: str, variant: Callable[[Any], str]) -> list[Point]:
    names = {title: objective for objective, title in TITLES.items()}
    return [
        Point(names[row.model], variant(row), column, float(row.flops), score, is_paper=True)
        for row in published_rows(BOARDS[name])
        if row.method == method and row.model in names
        for column, score in (row.scores | row.printed).items()
    ]


def _grid(points: Sequence[Point], columns: Sequence[str], titles: Mapping[str, str], title: str) -> Figure:
    measured = {point.column for point in points if not point.is_paper}
    shown = [column for column in columns if column in measured]
    if not shown:
        raise RecordError("there is no record of these tasks with the FLOPs of its training")
    wide = min(4, len(shown))
    tall = -(-len(shown) // wide)
    figure = Figure(figsize=(3.4 * wide, 3 * tall + 0.6), layout="constrained")
    panels = np.atleast_1d(figure.subplots(tall, wide)).ravel()
    for axes, column in zip(panels, shown, strict=False):
        heading = "mean" if column == "avg" else titles.get(column) or title_of(column)
        _panel(axes, [point for point in points if point.column == column], heading, legend=column == shown[0])
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    figure.suptitle(title)
    return figure


def _panel(axes: Axes, points: Sequence[Point], title: str, *, legend: bool = True) -> None:
    """Curves of measured points, and the paper's as hollow ones."""
    variants = list(dict.fromkeys(point.variant for point in points))
    for objective in OBJECTIVES:
        for variant, line in zip(variants, LINES, strict=False):
            mine = [point for point in points if (point.objective, point.variant) == (objective, variant)]
            style = {"marker": MARKERS[objective], "color": COLOURS[objective], "ms": 5}
            measured = sorted((point.flops, point.score) for point in mine if not point.is_paper)
            if measured:
                axes.plot(*zip(*measured, strict=True), line, label=f"{TITLES[objective]}, {variant}", **style)
            for point in mine:
                if point.is_paper:
                    label = f"paper's {TITLES[objective]} ({point.flops:.1e} FLOPs), {variant}".replace("e+", "e")
                    level = LEVELS[variants.index(variant) % len(LEVELS)]
                    axes.axhline(point.score, ls=level, lw=1, color=COLOURS[objective], label=label)
    axes.set(xscale="log", xlabel=FLOPS, ylabel="percent", title=title)
    if legend and points:
        axes.legend(fontsize=7, handlelength=3)


def _trained(records: Records, objective: str) -> list[SweptRun]:
    """The runs of an objective, the cheapest first."""
    return sorted((run for run in records.swept if run.model.objective == objective), key=lambda run: run.flops())


def _curve(run: SweptRun) -> list[dict[str, Any]]:
    return run.validations


def _losses(row: Mapping[str, Any]) -> list[str]:
    """The validation losses in a line of metrics; of the held-out sets where there are any."""
    names = [name for name in row if name.startswith("validation_") and name.endswith("loss")]
    whole = [name for name in names if name != "validation_loss" and name.count("_") >= 2]
    return whole or ["validation_loss"]


def _loss_title(name: str) -> str:
    return name.removeprefix("validation_").removesuffix("loss").strip("_") or "validation split"


def _shades(objective: str, count: int) -> list[Any]:
    """So many shades of an objective's colour, the darkest last."""
    from matplotlib.colors import to_rgb

    colour = np.array(to_rgb(COLOURS[objective]))
    return [tuple(1 - (1 - colour) * share) for share in np.linspace(0.4, 1, count)] if count != 1 else [tuple(colour)]
