"""Which answers of several runs may be set against each other; everything else is refused with the reason.

Paired tests need the same examples, answered under the same protocol. What may differ is the encoder and how it is run (length, dtype).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from frozenprobe.errors import ComparisonError
from frozenprobe.records.reading import Run
from frozenprobe.records.schema import Unit, UnitKey
from frozenprobe.reports.summary import place
from frozenprobe.settings import CompareSettings

# Probe settings that change no selected answer: how it is computed, and what is reported beside it.
HARMLESS = {"solver", "backend"}
SUBSET = "-subset"


@dataclass(frozen=True)
class Answers:
    """One task as every run answered it.

    Attributes:
        key: What was measured.
        title: The task's name as printed.
        split: The headline split.
        metric: Name of the headline metric.
        labels: Right answers of the split.
        predictions: One row per run.
    """

    key: UnitKey
    title: str
    split: str
    metric: str
    labels: Float[np.ndarray, " m"]
    predictions: Float[np.ndarray, "g m"]


def common_answers(runs: Sequence[Run], labels: Sequence[str], settings: CompareSettings) -> list[Answers]:
    """The answers of all runs on every task that all of them hold.

    Args:
        runs: At least two runs; all are held against the first.
        labels: What they are called.
        settings: Which probe and protocol.

    Raises:
        ComparisonError: The runs differ in suite, protocol, pair form, split or subset, or hold no predictions.
    """
    for run, label in zip(runs[1:], labels[1:], strict=True):
        _check_protocol(runs[0], run, labels[0], label, settings)
    held = [_by_task(run) for run in runs]
    common = [task for task in held[0] if all(task in tasks for tasks in held)]
    if not common:
        scored = "; ".join(f"{label}: {_names(run)}" for run, label in zip(runs, labels, strict=True))
        raise ComparisonError(f"the runs have no task of one suite in common ({scored})")
    answers = []
    for task in common:
        units = [tasks[task] for tasks in held]
        form = _pair_form(units, labels, settings)
        chosen = [by_form[form] for by_form in units]
        for unit, label in zip(chosen[1:], labels[1:], strict=True):
            _check_data(chosen[0], unit, labels[0], label)
        predictions = [_predictions(unit, label, settings) for unit, label in zip(chosen, labels, strict=True)]
        first = chosen[0]
        answers.append(
            Answers(
                first.key,
                first.title,
                str(first.headline_split),
                first.headline_metric,
                _labels(first),
                np.stack(predictions),
            )
        )
    return sorted(answers, key=lambda answer: place(answer.key.task))


def left_out(runs: Sequence[Run], labels: Sequence[str], answers: Sequence[Answers]) -> list[str]:
    """What is in some run but not in the comparison, one line each."""
    compared = {(answer.key.suite, answer.key.task) for answer in answers}
    lines = []
    for run, label in zip(runs, labels, strict=True):
        units = sorted(run.units, key=lambda unit: place(unit.key.task))
        others = dict.fromkeys(unit.title for unit in units if (unit.key.suite, unit.key.task) not in compared)
        if others:
            lines.append(f"not in every run, left out: {', '.join(others)} of {label}")
        lines += [f"{label}: {line}" for line in run.left_out()]
    return lines


def _check_protocol(first: Run, other: Run, first_label: str, label: str, settings: CompareSettings) -> None:
    ours, theirs = protocol_of(first, settings.probe), protocol_of(other, settings.probe)
    differences = [
        f"{name} {ours.get(name)} and {theirs.get(name)}"
        for name in dict.fromkeys([*ours, *theirs])
        if ours.get(name) != theirs.get(name)
    ]
    if differences:
        found = ", ".join(differences)
        raise ComparisonError(f"{first_label} and {label} were probed under different protocols: {found}")


def protocol_of(run: Run, probe: str) -> dict[str, Any]:
    """The settings that decide a probe's answers."""
    probes = run.manifest["identity"].get("probes", {})
    common = {name: probes.get(name) for name in ("max_train", "seed")}
    return common | {name: value for name, value in probes.get(probe, {}).items() if name not in HARMLESS}


def _by_task(run: Run) -> dict[tuple[str, str], dict[str, Unit]]:
    """Units by suite and bare task name, then by pair form; a subset stands where its task would."""
    found: dict[tuple[str, str], dict[str, Unit]] = {}
    for unit in run.units:
        task = unit.key.suite, unit.key.task.removesuffix(SUBSET)
        found.setdefault(task, {})[unit.key.pair_form] = unit
    return found


def _pair_form(units: Sequence[dict[str, Unit]], labels: Sequence[str], settings: CompareSettings) -> str:
    title = next(iter(units[0].values())).title
    common = [form for form in units[0] if all(form in by_form for by_form in units)]
    if settings.pair_form and "single" not in common:
        common = [form for form in common if form == settings.pair_form]
    if not common:
        held = "; ".join(f"{label}: {', '.join(by_form)}" for by_form, label in zip(units, labels, strict=True))
        raise ComparisonError(f"{title}: no pair form in common ({held}); scores of different forms do not compare")
    if len(common) > 1:
        raise ComparisonError(f"{title}: the runs hold {' and '.join(common)}; choose one with --pair-form")
    return common[0]


def _check_data(first: Unit, other: Unit, first_label: str, label: str) -> None:
    """Refuses units that were not scored on the same rows with the same metric."""
    title = first.title.removesuffix(" (subset)")
    if first.key.task != other.key.task:
        subset, whole = (first_label, label) if first.key.task.endswith(SUBSET) else (label, first_label)
        what = first.about["subset"] or other.about["subset"]
        raise ComparisonError(f"{title}: {subset} was scored on a subset ({what}), {whole} on the whole data")
    if first.headline_split != other.headline_split:
        raise ComparisonError(
            f"{title}: {first_label} was scored on the split {first.headline_split}, {label} on {other.headline_split}"
        )
    for split in (first.headline_split, "train"):
        ours, theirs = first.about.get("digests", {}).get(split), other.about.get("digests", {}).get(split)
        if ours != theirs:
            raise ComparisonError(f"{title}: {first_label} and {label} saw different rows of the split {split}")
    if not np.array_equal(_labels(first), _labels(other)):
        raise ComparisonError(f"{title}: {first_label} and {label} were scored against different labels")
    if first.headline_metric != other.headline_metric:
        metrics = f"{first.headline_metric} and {other.headline_metric}"
        raise ComparisonError(f"{title}: {first_label} and {label} report different metrics ({metrics})")


def _predictions(unit: Unit, label: str, settings: CompareSettings) -> Float[np.ndarray, " m"]:
    """The headline view's answers on the headline split."""
    wanted = {
        "kind": "prediction",
        "split": unit.headline_split,
        "probe": settings.probe,
        "protocol": settings.protocol,
        "layer": "last",
        "pooling": "mean",
    }
    for row in unit.rows:
        if all(row.get(name) == value for name, value in wanted.items()):
            return np.asarray(row["values"])
    raise ComparisonError(
        f"{unit.title}: {label} holds no predictions of {settings.probe}, {settings.protocol}; a paired test needs them"
    )


def _labels(unit: Unit) -> Float[np.ndarray, " m"]:
    return np.asarray(next((row["values"] for row in unit.rows if row["kind"] == "label"), []))


def _names(run: Run) -> str:
    return ", ".join(dict.fromkeys(f"{unit.title} of {unit.key.suite}" for unit in run.units)) or "no finished task"
