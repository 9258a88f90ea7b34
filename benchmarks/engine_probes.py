"""The probes against their peers: scikit-learn for ridge and kNN, the size of the features for memory."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
from sklearn.linear_model import RidgeClassifier
from sklearn.neighbors import KNeighborsClassifier

from benchmarks.measure import by_turns
from frozenprobe.metrics import metrics_of
from frozenprobe.probes.base import Labelled
from frozenprobe.probes.knn import nearest, vote
from frozenprobe.probes.ridge import fit_ridge
from frozenprobe.probes.sweep import Sweep, draw_subsets, side_by_side
from frozenprobe.settings import KnnSettings, ProbeSettings, RidgeSettings

MEMORY = """
import resource, sys
import numpy as np
from frozenprobe.probes.ridge import fit_ridge
from frozenprobe.settings import RidgeSettings
rows, width = map(int, sys.argv[1:])
random = np.random.default_rng(0)
features = np.empty((rows, width), np.float32)
for start in range(0, rows, 10_000):
    features[start : start + 10_000] = random.standard_normal(features[start : start + 10_000].shape, np.float32)
fit_ridge(features[:2000], np.eye(3)[np.arange(2000) % 3], RidgeSettings())
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
fit_ridge(features, np.eye(3)[random.integers(0, 3, rows)], RidgeSettings()).predict(features[:10_000])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def ridge(rows: int = 10_000, width: int = 768, classes: int = 3) -> list[dict[str, Any]]:
    """13 lambdas, without and with leave-one-out, against 13 fits; all regimes against the largest alone."""
    train, validation = random_split(rows, width, classes, 0), random_split(1000, width, classes, 1)
    targets, settings = np.eye(classes)[train.labels], RidgeSettings()
    probes = ProbeSettings()
    sweep = Sweep([validation], "classification", classes, metrics_of(["accuracy"]), probes, "cpu", 0)

    def thirteen_fits() -> None:
        for strength in np.geomspace(1, 1e4, 13):
            RidgeClassifier(alpha=strength).fit(train.features, train.labels).predict(validation.features)

    def one_path(leave_one_out: bool) -> None:
        fit_ridge(train.features, targets, settings, leave_one_out=leave_one_out).predict(validation.features)

    def largest() -> None:
        sweep.ridge(train.features, train.labels)

    def all_regimes(draws: int) -> None:
        subsets = list(draw_subsets(rows, probes.model_copy(update={"draws": draws}), 0))
        list(side_by_side(lambda s: [sweep.ridge(train.features[s.rows], train.labels[s.rows])], subsets, "cpu"))
        largest()

    size = f"n={rows} d={width} C={classes}"
    plain, peer = by_turns(lambda: one_path(False), thirteen_fits)
    left_out, peer_again = by_turns(lambda: one_path(True), thirteen_fits)
    once, alone_once = by_turns(lambda: all_regimes(1), largest)
    every, alone = by_turns(lambda: all_regimes(5), largest)
    return [
        faster(f"ridge, 13 lambdas, {size} / 13 RidgeClassifier fits", plain, peer, 10),
        faster(f"ridge with leave-one-out, 13 lambdas, {size} / 13 RidgeClassifier fits", left_out, peer_again, 6),
        at_most("ridge, five regimes, 1 draw below the largest / the largest alone", once, alone_once, 1.6),
        at_most("ridge, five regimes, 5 draws below the largest / the largest alone", every, alone, 1.6),
    ]


def knn(rows: int = 20_000, width: int = 384, queries: int = 2000) -> list[dict[str, Any]]:
    """Two distances x four k against eight scikit-learn classifiers."""
    train, validation = random_split(rows, width, 3, 0), random_split(queries, width, 3, 1)
    ks = KnnSettings().ks

    def eight_classifiers() -> None:
        for metric in ("euclidean", "cosine"):
            for k in ks:
                KNeighborsClassifier(k, metric=metric).fit(train.features, train.labels).predict(validation.features)

    def ours() -> None:
        for distance in KnnSettings().distances:
            vote(train.labels[nearest(train.features, validation.features, max(ks), distance)], ks, 3)

    mine, peer = by_turns(ours, eight_classifiers)
    return [
        faster(f"kNN, 2 distances x 4 k, {rows} x {width}, {queries} queries / 8 KNeighborsClassifier", mine, peer, 6)
    ]


def memory(rows: int = 1_000_000, width: int = 768) -> list[dict[str, Any]]:
    """Peak memory that a sweep with leave-one-out adds to its features, in GiB; the peer is the features."""
    command = [sys.executable, "-c", MEMORY, str(rows), str(width)]
    added = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) / 2**20
    return [at_most(f"peak memory beyond the features, {rows} x {width}, GiB", added, 1.0, 1.0)]


def random_split(rows: int, width: int, classes: int, seed: int) -> Labelled:
    """Normal features whose first dimensions carry the class, under noise."""
    random = np.random.default_rng(seed)
    features = random.standard_normal((rows, width), np.float32)
    labels = (features[:, :classes] + 3 * random.standard_normal((rows, classes))).argmax(1)
    return Labelled("random", features, labels)


def faster(what: str, ours: float, peer: float, target: float) -> dict[str, Any]:
    """A row whose ratio is how many times faster we are."""
    ratio = peer / ours
    return {
        "what": what,
        "ours": ours,
        "peer": peer,
        "ratio": ratio,
        "target": f"at least {target}",
        "met": ratio >= target,
    }


def at_most(what: str, ours: float, peer: float, target: float) -> dict[str, Any]:
    """A row whose ratio is how many times more we take."""
    ratio = ours / peer
    return {
        "what": what,
        "ours": ours,
        "peer": peer,
        "ratio": ratio,
        "target": f"at most {target}",
        "met": ratio <= target,
    }
