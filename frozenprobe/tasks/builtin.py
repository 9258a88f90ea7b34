"""The built-in suite: five small tasks in the shape of GLUE's, generated from a grammar, the same for the same seed.

For demonstrations and tests without any data or network. Its scores say whether the machinery works and whether an
encoder is better than chance; they are not GLUE scores and are never called so.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

from frozenprobe.errors import DataError
from frozenprobe.tasks import grammar
from frozenprobe.tasks.base import Split, TaskData, TaskSpec

SUITE = "built-in"
GRAMMAR_VERSION = 1
"""Raised with any change of words or sentences: scores of different versions do not compare."""

TRAIN_ROWS = 1_200
VALIDATION_ROWS = 450


def _task(
    name: str,
    title: str,
    columns: tuple[str, ...],
    classes: tuple[str, ...],
    metrics: tuple[str, ...],
    label_range: tuple[float, float] | None = None,
) -> TaskSpec:
    return TaskSpec(
        name=f"builtin-{name}",
        title=title,
        suite=SUITE,
        target="classification" if classes else "regression",
        columns=columns,
        label_column="label",
        classes=classes,
        train_split="train",
        evaluation_splits=("validation",),
        metrics=metrics,
        config=name,
        published_rows={"train": TRAIN_ROWS, "validation": VALIDATION_ROWS},
        label_range=label_range,
    )


_PAIR = ("sentence1", "sentence2")

BUILTIN: dict[str, TaskSpec] = {
    spec.name: spec
    for spec in (
        _task("inference", "B-Infer", _PAIR, ("entailment", "neutral", "contradiction"), ("accuracy",)),
        _task("paraphrase", "B-Para", _PAIR, ("different", "same"), ("accuracy", "f1")),
        _task("sentiment", "B-Sent", ("sentence",), ("negative", "positive"), ("accuracy",)),
        _task("acceptability", "B-Accept", ("sentence",), ("unacceptable", "acceptable"), ("matthews", "accuracy")),
        _task("similarity", "B-Sim", _PAIR, (), ("pearson", "spearman"), label_range=(0.0, 5.0)),
    )
}
"""Every built-in task by name."""

_GENERATORS: dict[str, Callable[[random.Random, grammar.Vocabulary], grammar.Example]] = {
    "inference": grammar.inference,
    "paraphrase": grammar.paraphrase,
    "sentiment": grammar.sentiment,
    "acceptability": grammar.acceptability,
    "similarity": grammar.similarity,
}


def load_builtin(name: str, seed: int = 0) -> TaskData:
    """Generates a built-in task.

    Args:
        name: One of `BUILTIN`.
        seed: Chooses the held-out words and every sentence.

    Returns:
        1,200 train and 450 validation rows, all distinct, without a content word in common.

    Raises:
        DataError: There is no such task.
    """
    if name not in BUILTIN:
        raise DataError(f"unknown built-in task {name!r}; allowed are {', '.join(BUILTIN)}")
    spec = BUILTIN[name]
    rng = random.Random(f"{name}/{seed}")  # a text seeds through SHA-512: the same on every machine
    words = grammar.split_vocabulary(rng)
    seen: set[tuple[str, ...]] = set()
    train, validation = (
        _split(spec, split, rows, rng, vocabulary, seen)
        for (split, rows), vocabulary in zip(spec.published_rows.items(), words, strict=True)
    )
    return TaskData(
        spec=spec,
        train=train,
        evaluations=(validation,),
        source=SUITE,
        revision=f"grammar {GRAMMAR_VERSION}, seed {seed}",
    )


def _split(
    spec: TaskSpec, name: str, rows: int, rng: random.Random, words: grammar.Vocabulary, seen: set[tuple[str, ...]]
) -> Split:
    generate = _GENERATORS[spec.config]
    examples: list[grammar.Example] = []
    while len(examples) < rows:
        example = generate(rng, words)
        if example[0] not in seen:
            seen.add(example[0])
            examples.append(example)
    labels = np.array([label for _, label in examples], dtype=np.int64 if spec.classes else np.float64)
    return Split(
        name=name,
        texts=[texts[0] for texts, _ in examples],
        pairs=[texts[1] for texts, _ in examples] if spec.is_pair else None,
        labels=labels,
    )
