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
from frozenprobe.reports.mteb import is_mteb
from frozenprobe.reports.naming import labels as labels_of
from frozenprobe.settings import CompareSettings, parse
from frozenprobe.statistics.paired import Contrast, holm, mcnemar, mean_contrast, paired_contrasts

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
    if mteb := next((run.folder for run in runs if is_mteb(run)), None):
        raise ComparisonError(
            f"{mteb} is a run of MTEB, which keeps no answers for a paired test; set such runs side by side with leaderboard"
        )
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
    wanted = [("difference", i, weights) for i, weights in enumerate(_differences(len(runs)), start=1)]
    if len(runs) > 2:
        place = [run.step or 0 for run in runs] if has_steps else list(range(len(runs)))
        wanted.append(("trend", len(runs) - 1, _slope(place)))
        notes.append(
            "trend: fitted rise from first to last, " + ("by training step" if has_steps else "in the order given")
        )
    contrasts = [_contrasts(answer, np.stack([weights for *_, weights in wanted]), settings) for answer in answers]
    rows = []
    for number, (kind, last, _) in enumerate(wanted):
        about = {"comparison": kind, "baseline": labels[0], "candidate": labels[last]}
        of_tasks = [of_task[number] for of_task in contrasts]
        rows += [{**about, **row} for row in _rows(kind, last, answers, of_tasks)]
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


def _differences(runs: int) -> np.ndarray:
    """Every later run minus the first."""
    return np.hstack([-np.ones((runs - 1, 1)), np.eye(runs - 1)])


def _slope(place: Sequence[int]) -> np.ndarray:
    """Weights whose sum over scores is the rise of the least-squares line from the first place to the last."""
    centred = np.array(place, dtype=float) - np.mean(place)
    return centred * (centred[-1] - centred[0]) / (centred**2).sum()


def _contrasts(answer: Answers, weights: np.ndarray, settings: CompareSettings) -> list[Contrast]:
    """The contrasts of one task, on resamples of its own."""
    return paired_contrasts(
        METRICS[answer.metric],
        answer.labels,
        answer.predictions,
        weights,
        replicates=settings.replicates,
        seed=zlib.crc32(f"{settings.seed}/{answer.key.suite}/{answer.key.task}".encode()),
    )


def _rows(kind: str, last: int, answers: Sequence[Answers], contrasts: Sequence[Contrast]) -> list[dict[str, Any]]:
    """One row per task, and the mean."""
    rows = []
    for answer, contrast in zip(answers, contrasts, strict=True):
        ends = answer.predictions[[0, last]]
        test, p = "paired bootstrap", contrast.p
        if kind == "difference" and answer.metric == "accuracy":
            test, p = "McNemar", mcnemar(*(ends == answer.labels))
        about = {
            "suite": answer.key.suite,
            "task": answer.key.task,
            "title": answer.title,
            "pair_form": answer.key.pair_form,
            "split": answer.split,
            "metric": answer.metric,
            "n_evaluated": len(answer.labels),
        }
        values = METRICS[answer.metric].grid(answer.labels, ends)
        rows.append({**about, **_numbers(values, contrast), "test": test, "p": p})
    values = np.mean([[row["baseline_value"], row["candidate_value"]] for row in rows], axis=0)
    mean = mean_contrast(contrasts)
    suites = " + ".join(dict.fromkeys(answer.key.suite for answer in answers))
    about = {"suite": suites, "task": "mean", "title": f"mean of {len(answers)}", "test": "paired bootstrap"}
    return [*rows, {**about, "p": mean.p, **_numbers(values, mean)}]


def _numbers(values: np.ndarray, contrast: Contrast) -> dict[str, float]:
    low, high = contrast.interval
    return {
        "baseline_value": float(values[0]),
        "candidate_value": float(values[1]),
        "difference": contrast.value,
        "low": low,
        "high": high,
    }
