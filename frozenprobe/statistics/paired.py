"""Paired tests between encoders that answered the same examples, and their correction for many tasks.

Two encoders are the contrast (-1, +1) of their scores; a trend over many checkpoints is a longer contrast. Both resample
the same examples for every encoder, so that what is hard for all of them cancels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Shaped

from frozenprobe.metrics import Metric
from frozenprobe.statistics.bootstrap import Bootstrap, interval


@dataclass(frozen=True)
class Contrast:
    """A weighted sum of scores, with what resampling the examples makes of it.

    Attributes:
        value: The sum, in the metric's unit.
        replicates: The same in every resample.
    """

    value: float
    replicates: Float[np.ndarray, " b"]

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% percentile interval, NaN where there are no replicates."""
        return interval(self.replicates)

    @property
    def p(self) -> float:
        """Two-sided p-value of "the sum is zero": twice the smaller tail beyond zero, never below `2 / (b + 1)`."""
        if not len(self.replicates):
            return float("nan")
        tail = min((self.replicates <= 0).sum(), (self.replicates >= 0).sum())
        return float(min(1.0, 2 * (tail + 1) / (len(self.replicates) + 1)))


def mcnemar(first: Bool[np.ndarray, " m"], second: Bool[np.ndarray, " m"]) -> float:
    """Exact two-sided p-value of McNemar's test: which examples each of two encoders got right.

    Under the null hypothesis an example that only one of them gets right is either's with probability 1/2 (McNemar 1947; the
    exact form is a binomial test).
    """
    from scipy.special import bdtr  # a fifth of the import time of scipy.stats

    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    if not only_first + only_second:
        return 1.0
    return float(min(1.0, 2 * bdtr(min(only_first, only_second), only_first + only_second, 0.5)))


def paired_contrasts(
    metric: Metric,
    labels: Shaped[np.ndarray, " m"],
    predictions: Shaped[np.ndarray, "g m"],
    weights: Float[np.ndarray, "c g"],
    *,
    replicates: int,
    seed: int,
) -> list[Contrast]:
    """Weighted sums of the scores of `g` encoders, bootstrapped over the examples that all of them answered.

    Args:
        metric: Scores one encoder's predictions.
        labels: Right answers.
        predictions: One row per encoder.
        weights: One row per sum, each summing to zero: `(-1, 1)` for a difference.
        replicates: Resamples; 0 gives the values alone.
        seed: Of the resamples.
    """
    values = weights @ metric.grid(labels, predictions)
    if metric.name == "accuracy" and replicates:
        resampled = [_mean_replicates(row @ (predictions == labels), replicates, seed) for row in weights]
    else:
        resampled = list((Bootstrap(len(labels), replicates, seed).values(metric, labels, predictions) @ weights.T).T)
    return [Contrast(float(value), row) for value, row in zip(values, resampled, strict=True)]


def _mean_replicates(values: Float[np.ndarray, " m"], replicates: int, seed: int) -> Float[np.ndarray, " b"]:
    """The mean in every resample: a multinomial draw of the few distinct values, far quicker than drawing examples."""
    distinct, counts = np.unique(values, return_counts=True)
    drawn = np.random.default_rng(seed).multinomial(len(values), counts / len(values), size=replicates)
    return drawn @ distinct / len(values)


def mean_contrast(contrasts: Sequence[Contrast]) -> Contrast:
    """The plain mean over tasks that were resampled independently."""
    return Contrast(
        float(np.mean([contrast.value for contrast in contrasts])),
        np.mean([contrast.replicates for contrast in contrasts], axis=0),
    )


def holm(p_values: Sequence[float]) -> Float[np.ndarray, " t"]:
    """p-values corrected for their number so that the chance of any false alarm is kept (Holm 1979)."""
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(stepped, 1.0)
    return corrected
