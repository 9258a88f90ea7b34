"""The GLUE tasks as data, in the column order of the paper's tables.

Metrics and headline splits follow the paper's protocol ("Separating Representation from Reconstruction Enables Scalable
Text Encoders", GLUE tables): Matthews for CoLA, Pearson for STS-B, accuracy elsewhere, MNLI on its matched split.
Test splits carry no labels on the hub and are not named here. WNLI is not in the paper's mean: on request only.
"""

from __future__ import annotations

from frozenprobe.tasks.base import TaskSpec

SUITE = "GLUE"
HUB_ID = "nyu-mll/glue"


def _task(
    name: str,
    title: str,
    columns: tuple[str, ...],
    classes: tuple[str, ...],
    metrics: tuple[str, ...],
    rows: dict[str, int],
    label_range: tuple[float, float] | None = None,
) -> TaskSpec:
    return TaskSpec(
        name=name,
        title=title,
        suite=SUITE,
        target="classification" if classes else "regression",
        columns=columns,
        label_column="label",
        classes=classes,
        train_split="train",
        evaluation_splits=tuple(split for split in rows if split != "train"),
        metrics=metrics,
        config=name,
        hub_id=HUB_ID,
        published_rows=rows,
        label_range=label_range,
    )


_SENTENCES = ("sentence1", "sentence2")
_ACCURACY = ("accuracy",)
_ACCURACY_F1 = ("accuracy", "f1")

GLUE: dict[str, TaskSpec] = {
    spec.name: spec
    for spec in (
        _task(
            "mnli",
            "MNLI",
            ("premise", "hypothesis"),
            ("entailment", "neutral", "contradiction"),
            _ACCURACY,
            {"train": 392_702, "validation_matched": 9_815, "validation_mismatched": 9_832},
        ),
        _task(
            "qnli",
            "QNLI",
            ("question", "sentence"),
            ("entailment", "not_entailment"),
            _ACCURACY,
            {"train": 104_743, "validation": 5_463},
        ),
        _task(
            "qqp",
            "QQP",
            ("question1", "question2"),
            ("not_duplicate", "duplicate"),
            _ACCURACY_F1,
            {"train": 363_846, "validation": 40_430},
        ),
        _task(
            "rte", "RTE", _SENTENCES, ("entailment", "not_entailment"), _ACCURACY, {"train": 2_490, "validation": 277}
        ),
        _task(
            "sst2", "SST-2", ("sentence",), ("negative", "positive"), _ACCURACY, {"train": 67_349, "validation": 872}
        ),
        _task(
            "mrpc",
            "MRPC",
            _SENTENCES,
            ("not_equivalent", "equivalent"),
            _ACCURACY_F1,
            {"train": 3_668, "validation": 408},
        ),
        _task(
            "cola",
            "CoLA",
            ("sentence",),
            ("unacceptable", "acceptable"),
            ("matthews", "accuracy"),
            {"train": 8_551, "validation": 1_043},
        ),
        _task(
            "stsb",
            "STS-B",
            _SENTENCES,
            (),
            ("pearson", "spearman"),
            {"train": 5_749, "validation": 1_500},
            label_range=(0.0, 5.0),
        ),
        _task(
            "wnli", "WNLI", _SENTENCES, ("not_entailment", "entailment"), _ACCURACY, {"train": 635, "validation": 71}
        ),
    )
}
"""Every GLUE task by name, in the paper's column order, WNLI last."""

DEFAULT_TASKS: tuple[str, ...] = tuple(name for name in GLUE if name != "wnli")
"""The eight tasks of the paper's mean, in its column order."""
