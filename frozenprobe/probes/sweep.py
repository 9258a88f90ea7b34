"""All probes of one view of one task: regimes x draws x grid, both choices, intervals, baseline and control.

Protocol: at the largest size all train rows; below it nested subsets of a seeded permutation, several draws. `honest` chooses by
leave-one-out inside train by the task's headline metric, `paper` takes the best on the reported split. Ties go to
the stronger regularisation: the larger lambda, the larger k, L2 before cosine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped

from frozenprobe.errors import ProbeError
from frozenprobe.metrics import Metric, metrics_of
from frozenprobe.probes.base import Labelled, ProbePredictions, ProbeResult, ProbeScore
from frozenprobe.probes.knn import nearest, neighbour_mean, vote
from frozenprobe.probes.ridge import fit_ridge
from frozenprobe.probes.selection import best
from frozenprobe.settings import ProbeSettings
from frozenprobe.statistics.bootstrap import Bootstrap, interval


@dataclass(frozen=True)
class Grid:
    """What one probe answered on one train set: every grid point, on every split and left out inside train.

    Attributes:
        probe: `ridge` or `knn`.
        points: Hyper-parameters of each grid point, from the weaker to the stronger regularisation.
        evaluated: Answers `[g, m]` by split.
        left_out: Answers `[g, n]` for the train rows, each left out; None where that is impossible.
    """

    probe: str
    points: list[dict[str, Any]]
    evaluated: list[Shaped[np.ndarray, "g m"]]
    left_out: Shaped[np.ndarray, "g n"] | None


def run_probes(
    train: Labelled,
    evaluations: Sequence[Labelled],
    *,
    target: Literal["classification", "regression"],
    n_classes: int,
    metrics: Sequence[str],
    settings: ProbeSettings,
    device: str,
    seed: int,
) -> ProbeResult:
    """Fits and scores every probe.

    Args:
        train: The fitting rows, `max_train` already applied.
        evaluations: The scored splits; the first gives the headline.
        target: Class ids or values.
        n_classes: Number of classes; 0 for values.
        metrics: Names of the metrics; the first is the headline.
        settings: Regimes, grids, bootstrap.
        device: Where the linear algebra runs.
        seed: Of the draws, the bootstrap and the control.

    Raises:
        ProbeError: Features or labels are not finite, or all train labels are equal.
    """
    _check(train, evaluations)
    sweep = Sweep(evaluations, target, n_classes, metrics_of(metrics), settings, device, seed)
    subsets = list(draw_subsets(len(train.labels), settings, seed))

    def fit(subset: Subset) -> list[Grid]:
        return list(sweep.grids(train.features[subset.rows], train.labels[subset.rows]))

    for subset, grids in zip(subsets, side_by_side(fit, subsets, device), strict=True):
        for grid in grids:
            sweep.score(grid, train.labels[subset.rows], len(subset.rows), subset.draw, is_largest=False)
    for grid in sweep.grids(train.features, train.labels):
        sweep.score(grid, train.labels, len(train.labels), 0, is_largest=True)
    sweep.add_baseline(train.labels)
    if settings.control:
        shuffled = np.random.default_rng([seed, 2]).permutation(train.labels)
        for grid in sweep.grids(train.features, shuffled):
            sweep.score_control(grid, shuffled)
    return ProbeResult(sweep.scores, sweep.predictions, list(dict.fromkeys(sweep.warnings)))


class Sweep:
    """Collects the scores of one view while its train sets go by."""

    def __init__(
        self,
        evaluations: Sequence[Labelled],
        target: str,
        n_classes: int,
        metrics: list[Metric],
        settings: ProbeSettings,
        device: str,
        seed: int,
    ) -> None:
        self._evaluations, self._metrics, self._settings = evaluations, metrics, settings
        self._classifies, self._n_classes, self._device = target == "classification", n_classes, device
        self._bootstraps = [
            Bootstrap(len(split.labels), settings.bootstrap, seed + i) for i, split in enumerate(evaluations)
        ]
        self.scores: list[ProbeScore] = []
        self.predictions: list[ProbePredictions] = []
        self.warnings: list[str] = []

    def grids(self, features: Float[np.ndarray, "n d"], labels: Shaped[np.ndarray, " n"]) -> Iterator[Grid]:
        """The ridge and the kNN grid of one train set."""
        yield self.ridge(features, labels)
        yield self.knn(features, labels)

    def ridge(self, features: Float[np.ndarray, "n d"], labels: Shaped[np.ndarray, " n"]) -> Grid:
        """Ridge for every lambda."""
        targets = np.eye(self._n_classes)[labels] if self._classifies else labels[:, None].astype(np.float64)
        path = fit_ridge(features, targets, self._settings.ridge, device=self._device)

        def answer(outputs: np.ndarray) -> np.ndarray:
            return outputs.argmax(2) if self._classifies else outputs[..., 0]

        return Grid(
            "ridge",
            [{"lambda_": float(value)} for value in path.lambdas],
            [answer(path.predict(split.features)) for split in self._evaluations],
            None if path.left_out is None else answer(path.left_out),
        )

    def knn(self, features: Float[np.ndarray, "n d"], labels: Shaped[np.ndarray, " n"]) -> Grid:
        """KNN for every distance and k."""
        knn, n = self._settings.knn, len(labels)
        ks = tuple(sorted({min(k, n) for k in knn.ks}))
        if max(knn.ks) > n and n not in self._settings.regimes:
            self.warnings.append(f"kNN: k is capped at the {n} train rows")

        def answers(queries: np.ndarray | None, distance: Any, counts: tuple[int, ...]) -> np.ndarray:
            found = nearest(features, queries, max(counts), distance, backend=knn.backend, device=self._device)
            neighbours = labels[found]
            return vote(neighbours, counts, self._n_classes) if self._classifies else neighbour_mean(neighbours, counts)

        distances = [name for name in ("cosine", "l2") if name in knn.distances]  # ties go to the last
        inside = tuple(min(k, n - 1) for k in ks)
        return Grid(
            "knn",
            [{"k": k, "distance": distance} for distance in distances for k in ks],
            [
                np.concatenate([answers(split.features, distance, ks) for distance in distances])
                for split in self._evaluations
            ],
            np.concatenate([answers(None, distance, inside) for distance in distances]) if n > 1 else None,
        )

    def score(self, grid: Grid, labels: Shaped[np.ndarray, " n"], n: int, draw: int, *, is_largest: bool) -> None:
        """Scores both choices on every split, and every grid point by the headline metric."""
        headline = self._metrics[0]
        honest = None if grid.left_out is None else int(best(headline.grid(labels, grid.left_out)))
        for i, split in enumerate(self._evaluations):
            values = headline.grid(split.labels, grid.evaluated[i])
            for point, value in zip(grid.points, values, strict=True):
                self._add(grid.probe, "grid", n, draw, split, headline.name, float(value), np.empty(0), False, point)
            for protocol, chosen in (("honest", honest), ("paper", int(best(values)))):
                if chosen is not None:
                    self._score_choice(grid, protocol, chosen, i, n, draw, is_largest)

    def score_control(self, grid: Grid, labels: Shaped[np.ndarray, " n"]) -> None:
        """Scores the honest choice on shuffled train labels."""
        if grid.left_out is None:
            return
        chosen = int(best(self._metrics[0].grid(labels, grid.left_out)))
        for i in range(len(self._evaluations)):
            self._score_choice(grid, "control", chosen, i, len(labels), 0, True)

    def add_baseline(self, labels: Shaped[np.ndarray, " n"]) -> None:
        """Scores the constant answer: the most frequent class of train, or its mean."""
        constant = np.bincount(labels).argmax() if self._classifies else labels.mean()
        evaluated = [np.full((1, len(split.labels)), constant) for split in self._evaluations]
        grid = Grid("majority", [{}], evaluated, None)
        for i in range(len(self._evaluations)):
            self._score_choice(grid, "baseline", 0, i, len(labels), 0, True)

    def _score_choice(
        self, grid: Grid, protocol: Any, chosen: int, i: int, n: int, draw: int, is_largest: bool
    ) -> None:
        split, bootstrap, answers = self._evaluations[i], self._bootstraps[i], grid.evaluated[i][chosen]
        again = np.full(bootstrap.replicates, chosen)
        for j, metric in enumerate(self._metrics):
            if protocol == "paper" and j == 0:  # it selects again, by the headline metric, in every resample
                values = bootstrap.values(metric, split.labels, grid.evaluated[i])
                again = best(values)
                replicates = np.take_along_axis(values, again[:, None], axis=1).ravel()
            else:
                replicates = bootstrap.chosen(metric, split.labels, grid.evaluated[i], again)
            is_headline = is_largest and i == 0 and j == 0
            value = metric(split.labels, answers)
            self._add(
                grid.probe, protocol, n, draw, split, metric.name, value, replicates, is_headline, grid.points[chosen]
            )
        if is_largest:
            self.predictions.append(ProbePredictions(grid.probe, protocol, split.name, answers))

    def _add(
        self,
        probe: str,
        protocol: Any,
        n: int,
        draw: int,
        split: Labelled,
        metric: str,
        value: float,
        replicates: np.ndarray,
        is_headline: bool,
        point: dict[str, Any],
    ) -> None:
        low, high = interval(replicates)
        kept = replicates if is_headline and len(replicates) else None
        self.scores.append(
            ProbeScore(
                probe,
                protocol,
                n,
                draw,
                split.name,
                metric,
                value,
                low,
                high,
                len(split.labels),
                is_headline,
                replicates=kept,
                **point,
            )
        )


class Subset(NamedTuple):
    """Train rows of one draw of one regime."""

    rows: Int[np.ndarray, " s"]
    draw: int


def draw_subsets(n: int, settings: ProbeSettings, seed: int) -> Iterator[Subset]:
    """The train sets below the largest; those of one draw are nested."""
    for draw in range(settings.draws):
        order = np.random.default_rng([seed, 1, draw]).permutation(n)
        for size in settings.regimes:
            if size < n:
                yield Subset(order[:size], draw)


def side_by_side(fit: Callable[[Subset], list[Grid]], subsets: Sequence[Subset], device: str) -> Iterator[list[Grid]]:
    """Fits small train sets in order; on a CPU one per core, as their linear algebra is too small for several threads."""
    if device != "cpu":
        yield from map(fit, subsets)
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads) as pool:
            yield from pool.map(fit, subsets)
    finally:
        torch.set_num_threads(threads)


def _check(train: Labelled, evaluations: Sequence[Labelled]) -> None:
    for split in (train, *evaluations):
        if not np.isfinite(split.labels).all():
            raise ProbeError(f"split {split.name} has a label that is not finite")
        finite = np.isfinite(split.features.sum(1, dtype=np.float64))
        if not finite.all():
            raise ProbeError(f"split {split.name}, row {int(np.argmin(finite))}: a feature is not finite")
    if len(np.unique(train.labels)) < 2:
        raise ProbeError(f"all {len(train.labels)} labels of split {train.name} are equal; there is nothing to learn")
