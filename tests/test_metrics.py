import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as reference

from frozenprobe.metrics import METRICS

RANDOM = np.random.default_rng(0)
PEERS = {
    "accuracy": reference.accuracy_score,
    "f1": lambda labels, answers: reference.f1_score(labels, answers, pos_label=1, average="binary"),
    "matthews": reference.matthews_corrcoef,
    "pearson": lambda labels, answers: stats.pearsonr(labels, answers).statistic,
    "spearman": lambda labels, answers: stats.spearmanr(labels, answers).statistic,
}


def example(metric, size=64):
    if METRICS[metric].target == "regression":
        labels = np.round(RANDOM.uniform(0, 5, size), 1)
        return labels, np.round(labels + RANDOM.normal(size=size), 1)  # rounded, so that there are ties
    labels = RANDOM.integers(0, 2, size)
    return labels, np.where(RANDOM.random(size) < 0.7, labels, 1 - labels)


@pytest.mark.parametrize("metric", PEERS)
def test_equals_the_reference_library(metric):
    for _ in range(20):
        labels, answers = example(metric)
        assert METRICS[metric](labels, answers) == pytest.approx(PEERS[metric](labels, answers), abs=1e-12)


def test_matthews_of_three_classes():
    labels, answers = RANDOM.integers(0, 3, 100), RANDOM.integers(0, 3, 100)
    assert METRICS["matthews"](labels, answers) == pytest.approx(reference.matthews_corrcoef(labels, answers))


@pytest.mark.parametrize("metric", PEERS)
@pytest.mark.parametrize("batch", [1, 8, 64])
def test_is_pooled_whatever_the_batches_were(metric, batch):
    """C10: the value of the pooled answers, never a mean over batches."""
    labels, answers = example(metric)
    arrived = [(labels[i : i + batch], answers[i : i + batch]) for i in range(0, len(labels), batch)]
    pooled = METRICS[metric](*(np.concatenate(side) for side in zip(*arrived, strict=True)))
    assert pooled == METRICS[metric](labels, answers)


@pytest.mark.parametrize("metric", ["matthews", "pearson", "spearman"])
def test_a_constant_answer_scores_zero(metric):
    labels, _ = example(metric)
    assert METRICS[metric](labels, np.full(len(labels), 1)) == 0
    if METRICS[metric].target == "regression":
        assert METRICS[metric](labels, np.full(len(labels), labels.mean())) == 0


@pytest.mark.parametrize("metric", PEERS)
def test_weights_are_repeated_examples(metric):
    labels, first = example(metric)
    grid = np.stack([first, RANDOM.permutation(first)])
    drawn = RANDOM.integers(0, len(labels), (5, len(labels)))
    weights = np.stack([np.bincount(rows, minlength=len(labels)) for rows in drawn]).astype(float)
    values = METRICS[metric].weighted(labels, grid, weights)
    expected = [[METRICS[metric](labels[rows], answers[rows]) for answers in grid] for rows in drawn]
    np.testing.assert_allclose(values, expected, atol=1e-12)
