"""The metrics of GLUE on whole arrays, with a vectorised form for weighted examples.

A metric is never averaged over batches. The weighted form values a whole grid of predictions under many sets of example weights at
once, which is what a bootstrap needs; with weights of one it equals the plain form. Where a metric is undefined because the answers or the labels are
constant, its value is 0, as scikit-learn has it for Matthews and F1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Shaped

Weighted = Callable[
    [Shaped[np.ndarray, " m"], Shaped[np.ndarray, "g m"], Float[np.ndarray, "b m"]], Float[np.ndarray, "b g"]
]


@dataclass(frozen=True)
class Metric:
    """A metric.

    Attributes:
        name: As recorded.
        target: What it scores: class ids or values.
        weighted: `(labels [m], predictions [g, m], weights [b, m]) -> values [b, g]`.
    """

    name: str
    target: Literal["classification", "regression"]
    weighted: Weighted

    def __call__(self, labels: Shaped[np.ndarray, " m"], predictions: Shaped[np.ndarray, " m"]) -> float:
        """The value on all examples."""
        return float(self.weighted(labels, predictions[None], np.ones((1, len(labels))))[0, 0])

    def grid(self, labels: Shaped[np.ndarray, " m"], predictions: Shaped[np.ndarray, "g m"]) -> Float[np.ndarray, " g"]:
        """The value of every row of a grid of predictions."""
        return self.weighted(labels, predictions, np.ones((1, len(labels))))[0]


def _divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)


def _accuracy(labels, predictions, weights):
    """Share of right answers."""
    return weights @ (predictions == labels).T.astype(float) / weights.sum(1, keepdims=True)


def _f1(labels, predictions, weights):
    """F1 of class 1: 2 tp / (predicted + actual)."""
    positive = (predictions == 1).astype(float)
    hits = weights @ (positive * (labels == 1)).T
    return _divide(2 * hits, weights @ positive.T + (weights @ (labels == 1).astype(float))[:, None])


def _matthews(labels, predictions, weights):
    """Matthews correlation for any number of classes: the correlation of the one-hot answers with the one-hot labels."""
    classes = range(int(max(labels.max(), predictions.max())) + 1)
    columns = [np.ones((1, len(labels))), predictions == labels]
    for c in classes:
        columns += [predictions == c, (labels == c)[None]]
    # One product reads the weights once; they are the largest array here.
    counts = weights @ np.concatenate(columns).T.astype(float)
    total, right, *by_class = np.split(counts, np.cumsum([len(column) for column in columns])[:-1], axis=1)
    agreement, answers, truths = 0.0, 0.0, 0.0
    for answered, true in zip(by_class[::2], by_class[1::2], strict=True):
        agreement, answers, truths = agreement + answered * true, answers + answered**2, truths + true**2
    spread = np.clip(total**2 - answers, 0, None) * np.clip(total**2 - truths, 0, None)
    return _divide(total * right - agreement, np.sqrt(spread))


def _pearson(labels, predictions, weights):
    """Linear correlation, from weighted moments of centred values."""
    x = predictions - predictions.mean(1, keepdims=True)
    scale = np.abs(x).max(1, keepdims=True)
    # A constant answer differs from its mean by rounding only; that must not pass for a correlation.
    x = np.where(scale > 1e-12 * (1 + np.abs(predictions).max(1, keepdims=True)), x, 0.0)
    y = labels - labels.mean()
    total = weights.sum(1, keepdims=True)
    x_mean, y_mean = weights @ x.T / total, (weights @ y)[:, None] / total
    covariance = weights @ (x * y).T / total - x_mean * y_mean
    variances = (weights @ (x**2).T / total - x_mean**2) * ((weights @ y**2)[:, None] / total - y_mean**2)
    return _divide(covariance, np.sqrt(np.clip(variances, 0, None)))


def _spearman(labels, predictions, weights):
    """Rank correlation: Pearson of the mid-ranks, ranked anew for every set of weights."""
    truth = _weighted_ranks(labels, weights)
    total = weights.sum(1)
    truth -= (weights * truth).sum(1, keepdims=True) / total[:, None]
    columns = []
    for row in predictions:
        ranks = _weighted_ranks(row, weights)
        ranks -= (weights * ranks).sum(1, keepdims=True) / total[:, None]
        covariance = (weights * ranks * truth).sum(1)
        columns.append(_divide(covariance, np.sqrt((weights * ranks**2).sum(1) * (weights * truth**2).sum(1))))
    return np.stack(columns, axis=1)


def _weighted_ranks(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Mid-ranks `[b, m]` of `values` in resamples that hold example i `weights[:, i]` times."""
    distinct, group = np.unique(values, return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(len(distinct)))
    size = np.add.reduceat(weights[:, order], starts, axis=1)
    middle = np.cumsum(size, axis=1) - size / 2
    return middle[:, group]


METRICS = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "classification", _accuracy),
        Metric("f1", "classification", _f1),
        Metric("matthews", "classification", _matthews),
        Metric("pearson", "regression", _pearson),
        Metric("spearman", "regression", _spearman),
    )
}


def metrics_of(names: Sequence[str]) -> list[Metric]:
    """The metrics of the given names."""
    return [METRICS[name] for name in names]
