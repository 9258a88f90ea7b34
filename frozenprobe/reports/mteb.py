"""An MTEB run as tables: every task, the seven category means, their mean (Avg) and the mean over tasks (Overall).

A mean over some of its tasks is another number than the benchmark's: it is given only with how many it is of, and Avg and
Overall only where nothing is missing. Subsets of a task's rows and tasks outside of the benchmark are in no mean.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from frozenprobe.files import write_atomically
from frozenprobe.records.reading import Run
from frozenprobe.records.schema import Unit


@dataclass(frozen=True)
class TaskScore:
    """A task's main score.

    Attributes:
        task: Its name as printed.
        category: Its category.
        metric: The metric.
        value: The score as a fraction, or None where it is missing or not a number.
        unit: The unit it is from, if there is one.
        zero_shot: False where the task is among the training data; None where that is unknown.
    """

    task: str
    category: str
    metric: str
    value: float | None
    unit: Unit | None
    zero_shot: bool | None


@dataclass(frozen=True)
class CategoryMean:
    """The mean of a category over those of its tasks that are there."""

    category: str
    value: float | None
    done: int
    total: int


@dataclass(frozen=True)
class MtebSummary:
    """A run in numbers.

    Attributes:
        benchmark: Its name.
        tasks: Every task of it, missing ones included, category by category.
        others: Finished tasks outside of it, and subsets.
        categories: The category means.
        average: Mean of the category means (the paper's Avg.), or None where a task is missing.
        overall: Mean over all tasks, or None where a task is missing.
    """

    benchmark: str
    tasks: list[TaskScore]
    others: list[TaskScore]
    categories: list[CategoryMean]
    average: float | None
    overall: float | None

    @property
    def missing(self) -> list[str]:
        """Tasks of the benchmark without a score."""
        return [score.task for score in self.tasks if score.value is None]


def is_mteb(run: Run) -> bool:
    """True for a run of `frozenprobe mteb`."""
    return run.manifest.get("suite") == "mteb"


def summarise_mteb(run: Run) -> MtebSummary:
    """The numbers of a run."""
    benchmark = run.manifest["benchmark"]
    units = {unit.key.task: unit for unit in run.units if unit.key.suite == benchmark["name"]}
    outside = {unit.key.task: unit for unit in run.units if unit.key.suite == run.manifest["suite"]}
    known = run.manifest["zero_shot"] or {}
    tasks = [
        _score(name, category, metric, units.get(name), known.get(name))
        for name, category, metric in benchmark["tasks"]
    ]
    inside = {score.task for score in tasks}
    others = [
        _score(unit.title, unit.about["category"], unit.about["metrics"][0], unit, known.get(_plain(name)))
        for name, unit in sorted((outside | units).items())
        if name not in inside and any(row["is_headline"] for row in unit.rows)
    ]
    categories = []
    for category in dict.fromkeys(score.category for score in tasks):
        scores = [score.value for score in tasks if score.category == category]
        there = [value for value in scores if value is not None]
        categories.append(CategoryMean(category, _mean(there), len(there), len(scores)))
    complete = all(score.value is not None for score in tasks)
    return MtebSummary(
        benchmark["name"],
        tasks,
        others,
        categories,
        _mean([mean.value for mean in categories if mean.value is not None]) if complete else None,
        _mean([score.value for score in tasks if score.value is not None]) if complete else None,
    )


def print_mteb(run: Run, console: Console) -> None:
    """Prints the tasks, the means, and what is missing from them."""
    summary = summarise_mteb(run)
    manifest = run.manifest
    encoder, pooling = manifest["encoder"], manifest["identity"]["pooling"]
    unfrozen = ", unfrozen" if manifest["identity"].get("backbone") == "unfrozen" else ""
    table = Table(
        title=f"{run.name} on {summary.benchmark}: {pooling} pooling of layer {manifest['identity']['layer']}{unfrozen}",
        caption=f"percent; {encoder['dtype']}, {encoder['max_length']} tokens; * not zero-shot: among the training data",
        title_justify="left",
        caption_justify="left",
    )
    for column in ("category", "task", "metric"):
        table.add_column(column, no_wrap=True)
    table.add_column("score", justify="right", no_wrap=True)
    there = [score for score in summary.tasks if score.value is not None]
    for score in [*there, *summary.others]:
        outside = score not in there
        value = "-" if score.value is None else f"{100 * score.value:.2f}" + ("*" if score.zero_shot is False else "")
        name = score.task if not outside or (score.unit and score.unit.about["subset"]) else f"{score.task} (not in it)"
        table.add_row(score.category, name, score.metric, value, style="dim" if outside else "")
    console.print(table)
    means = Table(title="means over tasks by category", title_justify="left")
    means.add_column("category")
    means.add_column("tasks", justify="right")
    means.add_column("mean", justify="right")
    for mean in summary.categories:
        whole = mean.done == mean.total
        text = "-" if mean.value is None else f"{100 * mean.value:.2f}" if whole else f"({100 * mean.value:.2f})"
        means.add_row(mean.category, f"{mean.done} of {mean.total}", text, style="" if whole else "dim")
    for label, value in (("Avg (of categories)", summary.average), ("Overall (of tasks)", summary.overall)):
        text = "-" if value is None else f"{100 * value:.2f}"
        means.add_row(label, f"{len(there)} of {len(summary.tasks)}", text, style="bold")
    console.print(means)
    if summary.missing:
        some = ", ".join(summary.missing[:8]) + (
            f" and {len(summary.missing) - 8} more" if len(summary.missing) > 8 else ""
        )
        console.print(
            f"missing: {some}; a mean in brackets is over the tasks that are there, and is not {summary.benchmark}'s",
            style="yellow",
            soft_wrap=True,
            highlight=False,
        )
    for line in (*_of_pooler(manifest.get("pooler")), *run.warnings()):
        console.print(line, style="yellow", soft_wrap=True, highlight=False)
    seconds = run.seconds()
    order = ("import", "load", "train", "data", "tokenize", "forward", "cache", "score")
    spent = ", ".join(f"{phase} {seconds[phase]:.1f} s" for phase in order if seconds.get(phase, 0) >= 0.05)
    console.print(f"wall time: {spent}; records in {run.folder}", style="dim", soft_wrap=True, highlight=False)


def _of_pooler(about: dict[str, Any] | None) -> list[str]:
    """What a trained pooler was trained on, and how it did on held-out queries."""
    if not about:
        return []
    name = "" if about["name"] == "pooler" else f" {about['name']}"
    line = f"pooler{name}: trained on {about['data']['source']}"
    if score := about.get("held_out", {}).get("ndcg@10"):
        half = (score["against_mean_high"] - score["against_mean_low"]) / 2
        line += (
            f"; held-out nDCG@10 {score['value']:.3f}, against mean pooling {score['against_mean']:+.3f} ±{half:.3f}"
        )
    return [line]


def write_csv(run: Run, folder: Path) -> None:
    """Writes `scores.csv` (every number), `tasks.csv` (main scores) and `summary.csv` (the means, one row).

    Raises:
        RecordError: The disk is full or the folder cannot be written.
    """
    summary = summarise_mteb(run)
    write_atomically(folder / "scores.csv", run.scores().to_csv(index=False).encode())
    rows: list[Sequence[object]] = [
        ["encoder", "benchmark", "category", "task", "metric", "score", "zero_shot", "revision"]
    ]
    for score in [*summary.tasks, *summary.others]:
        inside = summary.benchmark if score in summary.tasks else ""
        revision = score.unit.about["revision"] if score.unit else ""
        zero_shot = {None: "", True: "yes", False: "no"}[score.zero_shot]
        value = "" if score.value is None else f"{100 * score.value:.4f}"
        rows.append([run.name, inside, score.category, score.task, score.metric, value, zero_shot, revision])
    write_atomically(folder / "tasks.csv", _csv(rows))
    identity = run.manifest["identity"]
    head: list[object] = ["encoder", "benchmark", "pooling", "backbone"]
    line: list[object] = [run.name, summary.benchmark, identity["pooling"], identity.get("backbone", "frozen")]
    for mean in summary.categories:
        head.append(mean.category)
        line.append(_percent(mean.value if mean.done == mean.total else None))
    head += ["Avg", "Overall", "tasks", "of", "missing"]
    line += [_percent(summary.average), _percent(summary.overall)]
    line += [len(summary.tasks) - len(summary.missing), len(summary.tasks), " ".join(summary.missing)]
    write_atomically(folder / "summary.csv", _csv([head, line]))


def _score(name: str, category: str, metric: str, unit: Unit | None, zero_shot: bool | None) -> TaskScore:
    row = next((row for row in unit.rows if row["is_headline"]), None) if unit else None
    value = row["value"] if row else None
    return TaskScore(name, category, metric, None if value is None or math.isnan(value) else value, unit, zero_shot)


def _plain(name: str) -> str:
    """The task that a unit's name is of."""
    return name.removesuffix("-subset")


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f}"


def _csv(rows: Sequence[Sequence[object]]) -> bytes:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue().encode()
