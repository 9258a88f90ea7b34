"""Runs made by hand: whole records, of an encoder that answers as well as it is told to."""

from dataclasses import replace

import numpy as np

from frozenprobe.metrics import METRICS
from frozenprobe.probes.base import ProbePredictions, ProbeResult, ProbeScore
from frozenprobe.records.schema import Unit, UnitKey
from frozenprobe.records.store import RunStore

TITLES = {
    "mnli": "MNLI",
    "qnli": "QNLI",
    "qqp": "QQP",
    "rte": "RTE",
    "sst2": "SST-2",
    "mrpc": "MRPC",
    "cola": "CoLA",
    "stsb": "STS-B",
}
METRIC = {"cola": "matthews", "stsb": "pearson"}
SINGLE = {"sst2", "cola"}
PROBES = {
    "regimes": [10],
    "draws": 2,
    "max_train": 100,
    "seed": 0,
    "bootstrap": 50,
    "control": False,
    "ridge": {"lambda_min": 1.0, "lambda_max": 1e4, "lambdas": 3, "standardisation": "centre", "solver": "auto"},
    "knn": {"ks": [1, 3], "distances": ["l2"], "backend": "torch"},
}


def answers(task, skill, examples=200, seed=0):
    """Labels of a task, the same for every encoder, and one encoder's answers, better with more skill in [0, 1]."""
    labels = np.random.default_rng(sum(map(ord, task))).integers(2, size=examples)
    random = np.random.default_rng([seed, *map(ord, task)])
    if task == "stsb":
        return labels.astype(float), skill * labels + (1.01 - skill) * random.normal(size=examples)
    return labels, np.where(random.random(examples) < skill, labels, random.integers(2, size=examples))


def make_unit(
    task, skill, *, suite="GLUE", form=None, split="validation", subset=None, seed=0, layers=("last",), **about
):
    """One finished task: the selected probes' scores and answers, and the sweep that they were chosen from."""
    metric = METRICS[METRIC.get(task, "accuracy")]
    title = TITLES.get(task, task) + (" (subset)" if subset else "")
    key = UnitKey(suite, task + ("-subset" if subset else ""), form or ("single" if task in SINGLE else "joint"))
    unit = Unit(
        key,
        title,
        {
            "subset": subset,
            "metrics": [metric.name],
            "digests": {split: "rows", "train": "train rows"},
            "extraction": {"encoded": 300, "tokens": 3000, "truncated": 3, "rows": 300, "lost_tokens": 7},
            "diagnostics": {"last/mean": {"effective_rank": 12.5, "dimensions": 32, "mean_cosine": 0.3}},
            "warnings": [],
            **about,
        },
    )
    labels, predictions = answers(task, skill, seed=seed)
    unit.add_labels(split, labels)
    for place, layer in enumerate(layers):
        unit.add_view(layer, "mean", layer == "last", _result(metric, labels, predictions, split, shift=0.01 * place))
    return unit


def finetuned_unit(task, skill, *, max_train="all", seeds=(0,), **more):
    """The same task with every weight trained: scores of the last epoch and of the best."""
    unit = make_unit(task, skill, finetune={"settings": {"max_train": max_train}, "seeds": list(seeds)}, **more)
    unit.key = replace(unit.key, training="finetuned")
    unit.rows = [row for row in unit.rows if row.get("probe") in (None, "ridge")]
    for row in unit.rows:
        row |= {"training": "finetuned", "probe": row.get("probe") and "finetune"}
    return unit


def _result(metric, labels, predictions, split, shift):
    value = metric(labels, predictions) - shift

    def score(probe, protocol, n, draw, value, headline=False, **chosen):
        interval = (value - 0.03, value + 0.03) if protocol != "grid" else (float("nan"),) * 2
        replicates = np.random.default_rng(0).normal(value, 0.015, 50) if headline else None
        return ProbeScore(
            probe,
            protocol,
            n,
            draw,
            split,
            metric.name,
            value,
            *interval,
            len(labels),
            headline,
            replicates=replicates,
            **chosen,
        )

    scores = []
    for n, draws, loss in ((10, 2, 0.2), (100, 1, 0.0)):
        for draw in range(draws):
            at_n = value - loss - 0.01 * draw
            for i, lambda_ in enumerate((1.0, 100.0, 10_000.0)):
                scores.append(score("ridge", "grid", n, draw, at_n - 0.02 * abs(i - 1), lambda_=lambda_))
            for k in (1, 3):
                scores.append(score("knn", "grid", n, draw, at_n - 0.1 + 0.01 * k, k=k, distance="l2"))
            last = n == 100
            scores.append(score("ridge", "honest", n, draw, at_n, last, lambda_=100.0))
            scores.append(score("ridge", "paper", n, draw, at_n + 0.01, last, lambda_=10_000.0))
            scores.append(score("knn", "honest", n, draw, at_n - 0.07, last, k=3, distance="l2"))
            scores.append(score("knn", "paper", n, draw, at_n - 0.06, last, k=1, distance="l2"))
    scores.append(score("majority", "baseline", 100, 0, 0.5, True))
    answered = [
        ProbePredictions(probe, protocol, split, predictions)
        for probe in ("ridge", "knn")
        for protocol in ("honest", "paper")
    ]
    return ProbeResult(scores, answered, [])


def make_run(folder, units, *, name=None, fingerprint="f", probes=PROBES, **encoder):
    """Writes a run that holds the given units."""
    manifest = {
        "identity": {"fingerprint": fingerprint, "probes": probes},
        "encoder": {
            "name": name or folder.name,
            "revision": None,
            "fingerprint": fingerprint,
            "parameters": 22_000_000,
            "layers": 2,
            "dtype": "fp32",
            "device": "cpu",
            "max_length": 128,
            **encoder,
        },
        "settings": {"encoder": {"ckpt": name or folder.name}, "probes": probes},
    }
    store = RunStore(folder, manifest)
    for unit in units:
        store.write(unit, {"forward": 1.5, "probe": 0.5})
    return folder


def glue_run(folder, skill, tasks=tuple(TITLES), seed=0, layers=("last",), **more):
    """A run of GLUE tasks with one skill for all of them."""
    return make_run(folder, [make_unit(task, skill, seed=seed, layers=layers) for task in tasks], **more)
