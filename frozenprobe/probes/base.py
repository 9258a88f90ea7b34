"""The vocabulary of probing: what goes in, what a score is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Shaped

Protocol = Literal["honest", "paper", "baseline", "control", "grid"]


@dataclass(frozen=True)
class Labelled:
    """Features with their labels: one split.

    Attributes:
        name: Name of the split.
        features: One float32 row per example.
        labels: Class ids (int64) or values (float64).
    """

    name: str
    features: Float[np.ndarray, "n d"]
    labels: Shaped[np.ndarray, " n"]


@dataclass(frozen=True)
class ProbeScore:
    """One score of one probe.

    Attributes:
        probe: `ridge`, `knn`, `majority` (the constant answer: most frequent class, or the train mean) or `finetune`.
        protocol: `honest` (chosen inside train by leave-one-out, or not chosen at all), `paper` (best on the reported split, so
            optimistic), `baseline` (the constant answer), `control` (honest, on shuffled train labels) or `grid` (one point of the sweep,
            headline metric only, without an interval).
        n: Train rows used.
        draw: Which random subset of that size; 0 for the largest size. For one training of `finetune`, its seed.
        split: The scored split.
        metric: Name of the metric.
        value: The score, in the metric's own unit (a fraction for accuracy, not a percentage).
        low: Lower end of the 95% interval, NaN where there is none.
        high: Upper end.
        n_evaluated: Rows scored.
        is_headline: True for the task's headline metric on its first split at the largest size.
        lambda_: Ridge strength in use, None for other probes.
        k: Neighbours in use, None for other probes.
        distance: Distance in use, None for other probes.
        epoch: Epoch of a finetuning, None for other probes.
        replicates: Bootstrap replicates of headline scores (for intervals of means over tasks), else None.
    """

    probe: str
    protocol: Protocol
    n: int
    draw: int
    split: str
    metric: str
    value: float
    low: float
    high: float
    n_evaluated: int
    is_headline: bool
    lambda_: float | None = None
    k: int | None = None
    distance: str | None = None
    epoch: int | None = None
    replicates: Float[np.ndarray, " replicates"] | None = None


@dataclass(frozen=True)
class ProbePredictions:
    """What a selected probe answered on a split, at the largest size; `draw` is the seed of a finetuning."""

    probe: str
    protocol: Protocol
    split: str
    values: Shaped[np.ndarray, " m"]
    draw: int | None = None


@dataclass(frozen=True)
class ProbeResult:
    """All scores of one view, the predictions of its selected probes, and warnings in plain words."""

    scores: list[ProbeScore]
    predictions: list[ProbePredictions]
    warnings: list[str]
