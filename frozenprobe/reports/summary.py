"""The headline of a run as rows: one per probe and protocol, a value per task, and their plain mean."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from frozenprobe.records.reading import Run
from frozenprobe.records.schema import Unit
from frozenprobe.statistics.bootstrap import mean_interval

ROWS = (
    ("ridge", "honest"),
    ("ridge", "paper"),
    ("knn", "honest"),
    ("knn", "paper"),
    ("finetune", "honest"),
    ("finetune", "paper"),
    ("majority", "baseline"),
    ("ridge", "control"),
    ("knn", "control"),
)
LABELS = {
    ("ridge", "honest"): "linear, honest",
    ("ridge", "paper"): "linear, paper",
    ("knn", "honest"): "kNN, honest",
    ("knn", "paper"): "kNN, paper",
    ("finetune", "honest"): "finetuned, last epoch",
    ("finetune", "paper"): "finetuned, best epoch",
    ("majority", "baseline"): "constant answer",
    ("ridge", "control"): "linear, shuffled labels",
    ("knn", "control"): "kNN, shuffled labels",
}
ORDER = ("mnli", "qnli", "qqp", "rte", "sst2", "mrpc", "cola", "stsb", "wnli")


@dataclass(frozen=True)
class Cell:
    """A score with its 95% interval, as fractions."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class SummaryRow:
    """One line of the table.

    Attributes:
        probe: `ridge`, `knn`, `finetune` or `majority`.
        protocol: `honest`, `paper`, `baseline` or `control`.
        pair_form: Pair form of the pair tasks in it.
        cells: Scores by task title.
        mean: Plain mean over the tasks, or None where one of them is missing.
    """

    probe: str
    protocol: str
    pair_form: str
    cells: dict[str, Cell]
    mean: Cell | None

    @property
    def label(self) -> str:
        """What the line is called in a table."""
        return LABELS[self.probe, self.protocol]


def titles(run: Run) -> list[str]:
    """The run's tasks as printed, in the paper's column order, others behind."""
    found = dict.fromkeys((unit.key.task, unit.title) for unit in run.units)
    return [title for _, title in sorted(found, key=lambda item: place(item[0]))]


def scores_by_view(unit: Unit) -> dict[tuple[str, str], dict]:
    """The honest ridge score of every layer and pooling at the largest size: a diagnostic, not a choice of the best."""
    largest: dict[tuple[str, str], dict] = {}
    for row in unit.rows:
        if (
            row["kind"] == "score"
            and (row["probe"], row["protocol"]) == ("ridge", "honest")
            and (row["split"], row["metric"]) == (unit.headline_split, unit.headline_metric)
        ):
            view = row["layer"], row["pooling"]
            if view not in largest or row["n"] > largest[view]["n"]:
                largest[view] = row
    return largest


def place(task: str) -> tuple[int, str]:
    """Where a task stands in a table: in the paper's column order, others behind by name."""
    name = task.removesuffix("-subset")
    return (ORDER.index(name) if name in ORDER else len(ORDER), name)


def summarise(run: Run) -> list[SummaryRow]:
    """The table of a run. A task without pairs stands in the rows of every pair form."""
    forms = sorted({unit.key.pair_form for unit in run.units} - {"single"}) or ["single"]
    wanted = titles(run)
    headline = run.headline()
    rows = []
    for form in forms:
        for probe, protocol in ROWS:
            scores = {
                row["title"]: row
                for row in headline
                if row["probe"] == probe and row["protocol"] == protocol and row["pair_form"] in (form, "single")
            }
            if scores:
                cells = {title: Cell(row["value"], row["low"], row["high"]) for title, row in scores.items()}
                complete = all(title in scores for title in wanted)
                rows.append(SummaryRow(probe, protocol, form, cells, _mean(scores.values()) if complete else None))
    return rows


def _mean(scores: Iterable[dict]) -> Cell:
    """The plain mean over tasks, with the interval of independent resamples of every task."""
    scores = list(scores)
    value = float(np.mean([row["value"] for row in scores]))
    replicates = [row["values"] for row in scores]
    if any(values is None or not len(values) for values in replicates):
        return Cell(value, float("nan"), float("nan"))
    low, high = mean_interval([np.asarray(values) for values in replicates])
    return Cell(value, low, high)
