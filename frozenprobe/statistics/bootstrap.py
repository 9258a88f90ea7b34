"""Percentile bootstrap over examples, for whole grids of predictions at once.

A resample of m examples is a row of multinomial weights, so that every metric is a few matrix products.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float, Int, Shaped

from frozenprobe.metrics import Metric

LEVEL = 0.95
CHUNK_VALUES = 4 * 2**20
KEEP_VALUES = 16 * 2**20


class Bootstrap:
    """The same resamples of one split for every score, so that scores of one task are paired."""

    def __init__(self, examples: int, replicates: int, seed: int) -> None:
        self._examples, self.replicates, self._seed = examples, replicates, seed
        self._kept: list[Float[np.ndarray, "b m"]] = []

    def weights(self) -> Iterator[Float[np.ndarray, "b m"]]:
        """How often each example is in each resample, in chunks; kept between calls unless they are large."""
        if self._kept or self._examples * self.replicates > KEEP_VALUES:
            yield from self._kept or self._draw()
            return
        self._kept = list(self._draw())
        yield from self._kept

    def _draw(self) -> Iterator[Float[np.ndarray, "b m"]]:
        random = np.random.default_rng(self._seed)
        step = max(1, CHUNK_VALUES // self._examples)
        for start in range(0, self.replicates, step):
            rows = min(step, self.replicates - start)
            drawn = random.integers(self._examples, size=(rows, self._examples))
            flat = drawn + self._examples * np.arange(rows)[:, None]
            counts = np.bincount(flat.ravel(), minlength=rows * self._examples)
            yield counts.reshape(rows, self._examples).astype(np.float64)

    def values(
        self, metric: Metric, labels: Shaped[np.ndarray, " m"], predictions: Shaped[np.ndarray, "g m"]
    ) -> Float[np.ndarray, "b g"]:
        """The metric of every row of predictions in every resample."""
        if not self.replicates:
            return np.empty((0, len(predictions)))
        return np.concatenate([metric.weighted(labels, predictions, weights) for weights in self.weights()])

    def chosen(
        self,
        metric: Metric,
        labels: Shaped[np.ndarray, " m"],
        predictions: Shaped[np.ndarray, "g m"],
        rows: Int[np.ndarray, " b"],
    ) -> Float[np.ndarray, " b"]:
        """The metric of one row of predictions in each resample, the row that `rows` names."""
        values = np.empty(len(rows))
        start = 0
        for weights in self.weights() if len(rows) else ():
            part = rows[start : start + len(weights)]
            for row in np.unique(part):
                among = part == row
                found = metric.weighted(labels, predictions[row : row + 1], weights[among])
                values[start : start + len(weights)][among] = found[:, 0]
            start += len(weights)
        return values


def interval(replicates: Float[np.ndarray, " b"]) -> tuple[float, float]:
    """The 95% percentile interval, NaN where there are no replicates."""
    if not len(replicates):
        return float("nan"), float("nan")
    low, high = np.quantile(replicates, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def mean_interval(replicates: Sequence[Float[np.ndarray, " b"]]) -> tuple[float, float]:
    """The 95% interval of the plain mean over tasks that were resampled independently."""
    shortest = min(len(values) for values in replicates)
    return interval(np.mean([values[:shortest] for values in replicates], axis=0))
