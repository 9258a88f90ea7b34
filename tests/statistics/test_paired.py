"""Paired tests against SciPy and statsmodels on the same predictions."""

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import matthews_corrcoef
from statsmodels.stats.contingency_tables import mcnemar as reference_mcnemar
from statsmodels.stats.multitest import multipletests

from frozenprobe.metrics import METRICS
from frozenprobe.statistics.paired import holm, mcnemar, mean_contrast, paired_contrasts

DIFFERENCE = np.array([-1.0, 1.0])


def answers(seed, examples, *rates):
    """Binary labels and one row of answers per rate, right with that probability."""
    random = np.random.default_rng(seed)
    labels = random.integers(2, size=examples)
    return labels, np.stack([np.where(random.random(examples) < rate, labels, 1 - labels) for rate in rates])


def paired_contrast(metric, labels, predictions, weights, **options):
    return paired_contrasts(metric, labels, predictions, weights[None], **options)[0]


def table(first, second):
    return [[(first & second).sum(), (first & ~second).sum()], [(~first & second).sum(), (~first & ~second).sum()]]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("examples", [1, 20, 277, 5000])
def test_mcnemar_is_that_of_statsmodels_and_a_binomial_test(seed, examples):
    labels, (a, b) = answers(seed, examples, 0.7, 0.75)
    first, second = a == labels, b == labels
    p = mcnemar(first, second)
    assert p == pytest.approx(reference_mcnemar(table(first, second), exact=True).pvalue, rel=1e-9)
    one, other = (first & ~second).sum(), (second & ~first).sum()
    assert p == pytest.approx(stats.binomtest(one, one + other).pvalue if one + other else 1.0, rel=1e-9)


def test_mcnemar_of_equal_answers_is_one():
    right = np.array([True, False, True])
    assert mcnemar(right, right) == 1.0


@pytest.mark.parametrize("metric", ["accuracy", "matthews", "f1"])
def test_the_paired_bootstrap_is_that_of_scipy(metric):
    labels, predictions = answers(0, 400, 0.7, 0.74)
    ours = paired_contrast(METRICS[metric], labels, predictions, DIFFERENCE, replicates=4000, seed=0)

    def difference(y, a, b):
        return METRICS[metric](y, b) - METRICS[metric](y, a)

    reference = stats.bootstrap(
        (labels, *predictions),
        difference,
        paired=True,
        vectorized=False,
        n_resamples=2000,
        method="percentile",
        rng=np.random.default_rng(1),
    )
    assert ours.value == pytest.approx(difference(labels, *predictions), abs=1e-12)
    assert ours.replicates.std() == pytest.approx(reference.standard_error, rel=0.06)
    np.testing.assert_allclose(ours.interval, reference.confidence_interval, atol=0.15 * reference.standard_error * 2)


def test_the_value_is_the_difference_of_the_metrics():
    labels, predictions = answers(3, 300, 0.6, 0.8)
    ours = paired_contrast(METRICS["matthews"], labels, predictions, DIFFERENCE, replicates=0, seed=0)
    assert ours.value == pytest.approx(
        matthews_corrcoef(labels, predictions[1]) - matthews_corrcoef(labels, predictions[0])
    )
    assert np.isnan([ours.p, *ours.interval]).all()


def test_pairing_removes_what_is_hard_for_both():
    labels, (a,) = answers(0, 1000, 0.7)
    b = a.copy()
    b[:30] = labels[:30]
    paired = paired_contrast(METRICS["accuracy"], labels, np.stack([a, b]), DIFFERENCE, replicates=2000, seed=0)
    shuffled = np.random.default_rng(0).permutation(1000)
    labels_two, b_two = labels.copy(), np.where(b == labels, labels, 1 - labels)
    right_two = (b_two == labels_two)[shuffled]
    unpaired = paired_contrast(
        METRICS["accuracy"],
        labels,
        np.stack([a, np.where(right_two, labels, 1 - labels)]),
        DIFFERENCE,
        replicates=2000,
        seed=0,
    )
    assert np.ptp(paired.interval) < np.ptp(unpaired.interval) / 3


@pytest.mark.parametrize("metric", ["accuracy", "matthews"])
def test_p_is_uniform_under_the_null_hypothesis(metric):
    p = [
        paired_contrast(METRICS[metric], *answers(seed, 300, 0.7, 0.7), DIFFERENCE, replicates=400, seed=seed).p
        for seed in range(200)
    ]
    assert 0.01 <= np.mean(np.array(p) < 0.05) <= 0.1
    assert np.mean(np.array(p) < 0.5) == pytest.approx(0.5, abs=0.12)


def test_p_is_never_below_what_the_resamples_can_show():
    labels, predictions = answers(0, 500, 0.5, 0.99)
    contrast = paired_contrast(METRICS["accuracy"], labels, predictions, DIFFERENCE, replicates=999, seed=0)
    assert contrast.p == pytest.approx(2 / 1000)


def test_a_trend_is_a_contrast_of_many():
    labels, predictions = answers(0, 600, 0.6, 0.7, 0.8, 0.9)
    weights = np.array([-0.9, -0.3, 0.3, 0.9])  # least squares: the fitted rise from the first to the last of four
    contrast = paired_contrast(METRICS["accuracy"], labels, predictions, weights, replicates=1000, seed=0)
    scores = (predictions == labels).mean(1)
    assert contrast.value == pytest.approx(weights @ scores)
    assert contrast.value == pytest.approx(np.polyfit(np.linspace(0, 1, 4), scores, 1)[0])
    assert contrast.interval[0] < contrast.value < contrast.interval[1]
    general = paired_contrast(METRICS["f1"], labels, predictions, weights, replicates=1000, seed=0)
    assert general.replicates.std() == pytest.approx(contrast.replicates.std(), rel=0.3)


@pytest.mark.parametrize("metric", ["accuracy", "matthews"])
def test_several_contrasts_at_once_are_each_of_them_alone(metric):
    labels, predictions = answers(0, 300, 0.6, 0.7, 0.8)
    weights = np.array([[-1, 1, 0], [-1, 0, 1], [-0.5, 0, 0.5]])
    together = paired_contrasts(METRICS[metric], labels, predictions, weights, replicates=200, seed=3)
    for contrast, row in zip(together, weights, strict=True):
        alone = paired_contrast(METRICS[metric], labels, predictions, row, replicates=200, seed=3)
        assert contrast.value == pytest.approx(alone.value)
        np.testing.assert_allclose(contrast.replicates, alone.replicates, atol=1e-12)


def test_the_mean_over_tasks_is_narrower_than_its_tasks():
    parts = [
        paired_contrast(METRICS["accuracy"], *answers(seed, 500, 0.6, 0.65), DIFFERENCE, replicates=2000, seed=seed)
        for seed in range(4)
    ]
    mean = mean_contrast(parts)
    assert mean.value == pytest.approx(np.mean([part.value for part in parts]))
    assert np.ptp(mean.interval) == pytest.approx(np.mean([np.ptp(part.interval) for part in parts]) / 2, rel=0.1)


@pytest.mark.parametrize("seed", range(4))
def test_holm_is_that_of_statsmodels(seed):
    p = np.random.default_rng(seed).random(8) ** 4
    p[3] = p[5]
    np.testing.assert_allclose(holm(p), multipletests(p, method="holm")[1], rtol=1e-12)
    assert holm([]).shape == (0,)
