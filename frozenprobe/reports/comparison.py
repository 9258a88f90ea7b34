"""Two runs, or many checkpoints of one, set against each other by paired tests on their stored predictions.

Accuracy is tested by McNemar's exact test, every other metric by the paired bootstrap; p-values are corrected for their number by
Holm's method. Values, differences and intervals are fractions, as in the records.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from frozenprobe.errors import ComparisonError
from frozenprobe.metrics import METRICS
from frozenprobe.records.reading import Run, read_run
from frozenprobe.reports.comparable import Answers, common_answers, left_out
from frozenprobe.reports.naming import labels as labels_of
from frozenprobe.settings import CompareSettings, parse
from frozenprobe.statistics.paired import Contrast, holm, mcnemar, mean_contrast, paired_contrast

COLUMNS = (
    "comparison",
    "baseline",
    "candidate",
    "suite",
    "task",
    "title",
    "pair_form",
    "split",
    "metric",
    "n_evaluated",
    "baseline_value",
    "candidate_value",
    "difference",
    "low",
    "high",
    "test",
    "p",
    "p_corrected",
)


@dataclass(frozen=True)
class Comparison:
    """What a comparison found.

    Attributes:
        labels: The runs, as they are called, in the order compared.
        settings: What was compared.
        frame: One row per comparison and task, and one for the mean over tasks; columns as in `compare_runs`.
        scores: One row per run, one column per task title, and `mean`.
        notes: What was left out, and what to know when reading it.
    """

    labels: list[str]
    settings: CompareSettings
    frame: pd.DataFrame
    scores: pd.DataFrame
    notes: list[str]


def compare_runs(*runs: str | Path | Run, **settings: Any) -> pd.DataFrame:
    """Compares runs by paired tests on the predictions that they stored.

    Args:
        *runs: Two or more folders, or runs read back. All are held against the first; of more than two,
            the checkpoints are ordered by their training step where all have one.
        **settings: Fields of `CompareSettings`: `probe="knn"`, `protocol="paper"`.

    Returns:
        One row per comparison and task, and one for the plain mean over tasks. `comparison` is `difference` (candidate minus baseline) or,
        for three runs or more, also `trend`: the rise from first to last that a straight line through all of them gives. `test` says
        which test `p` is of; `p_corrected` is corrected by Holm's method for all tasks and candidates of the same comparison.

    Raises:
        ComparisonError: The runs are not comparable; says why.
        RecordError: A folder is not a run.
    """
    read = [run if isinstance(run, Run) else read_run(run) for run in runs]
    return compare(read, parse(CompareSettings, settings)).frame


def compare(runs: Sequence[Run], settings: CompareSettings) -> Comparison:
    """See `compare_runs`.

    Raises:
        ComparisonError: The runs are not comparable; says why.
    """
    if len(runs) < 2:
        raise ComparisonError("a comparison needs two runs or more")
    folders = [run.folder.resolve() for run in runs]
    if twice := next((folder for folder in folders if folders.count(folder) > 1), None):
        raise ComparisonError(f"{twice} is named twice")
    steps = [run.step for run in runs]
    has_steps = None not in steps and len(set(steps)) == len(steps)
    if has_steps and len(runs) > 2:
        runs = sorted(runs, key=lambda run: run.step or 0)
    labels = labels_of(runs)
    answers = common_answers(runs, labels, settings)
    notes = left_out(runs, labels, answers)
    rows = []
    for i, label in enumerate(labels[1:], start=1):
        weights = np.zeros(len(runs))
        weights[0], weights[i] = -1.0, 1.0
        rows += _rows("difference", labels[0], label, weights, answers, settings)
    if len(runs) > 2:
        place = np.array([run.step for run in runs] if has_steps else range(len(runs)), dtype=float)
        weights = place - place.mean()
        weights *= (place[-1] - place[0]) / (weights**2).sum()
        rows += _rows("trend", labels[0], labels[-1], weights, answers, settings)
        notes.append(
            "trend: fitted rise from first to last, " + ("by training step" if has_steps else "in the order given")
        )
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    single = frame["task"] != "mean"
    for kind in frame["comparison"].unique():
        family = single & (frame["comparison"] == kind)
        frame.loc[family, "p_corrected"] = holm(frame.loc[family, "p"].to_numpy())
    scores = pd.DataFrame(
        {answer.title: METRICS[answer.metric].grid(answer.labels, answer.predictions) for answer in answers},
        index=labels,
    )
    scores["mean"] = scores.mean(axis=1)
    return Comparison(labels, settings, frame, scores, notes)


def _rows(
    kind: str,
    baseline: str,
    candidate: str,
    weights: np.ndarray,
    answers: Sequence[Answers],
    settings: CompareSettings,
) -> list[dict[str, Any]]:
    """One row per task, and the mean."""
    rows, contrasts = [], []
    first, last = (0, len(weights) - 1) if kind == "trend" else (0, int(weights.argmax()))
    for answer in answers:
        metric = METRICS[answer.metric]
        contrast = paired_contrast(
            metric,
            answer.labels,
            answer.predictions,
            weights,
            replicates=settings.replicates,
            seed=zlib.crc32(f"{settings.seed}/{answer.key.suite}/{answer.key.task}".encode()),  # a task's own
        )
        contrasts.append(contrast)
        test, p = "paired bootstrap", contrast.p
        if kind == "difference" and answer.metric == "accuracy":
            right = answer.predictions == answer.labels
            test, p = "McNemar", mcnemar(right[first], right[last])
        values = metric.grid(answer.labels, answer.predictions[[first, last]])
        key = answer.key
        about = {
            "suite": key.suite,
            "task": key.task,
            "title": answer.title,
            "pair_form": key.pair_form,
            "split": answer.split,
            "metric": answer.metric,
            "n_evaluated": len(answer.labels),
        }
        rows.append({**about, **_numbers(values, contrast), "test": test, "p": p})
    means = np.mean([[row["baseline_value"], row["candidate_value"]] for row in rows], axis=0)
    mean = mean_contrast(contrasts)
    rows.append(
        {
            "task": "mean",
            "title": f"mean of {len(answers)}",
            **_numbers(means, mean),
            "test": "paired bootstrap",
            "p": mean.p,
        }
    )
    return [{"comparison": kind, "baseline": baseline, "candidate": candidate, **row} for row in rows]


def _numbers(values: np.ndarray, contrast: Contrast) -> dict[str, float]:
    low, high = contrast.interval
    return {
        "baseline_value": float(values[0]),
        "candidate_value": float(values[1]),
        "difference": contrast.value,
        "low": low,
        "high": high,
    }
