import numpy as np
import pytest

from frozenprobe.metrics import METRICS
from frozenprobe.statistics import bootstrap as module
from frozenprobe.statistics.bootstrap import Bootstrap, interval, mean_interval


def test_the_interval_of_an_accuracy_is_that_of_a_binomial():
    labels = np.zeros(2000, int)
    answers = (np.arange(2000) < 600).astype(int)
    low, high = interval(Bootstrap(2000, 4000, 0).values(METRICS["accuracy"], labels, answers[None]).ravel())
    half = 1.96 * np.sqrt(0.7 * 0.3 / 2000)
    assert low == pytest.approx(0.7 - half, abs=0.002)
    assert high == pytest.approx(0.7 + half, abs=0.002)


def test_the_same_seed_gives_the_same_resamples_in_chunks_or_at_once(monkeypatch):
    labels, answers = np.arange(50) % 2, np.arange(50) % 3 % 2
    whole = Bootstrap(50, 30, 7).values(METRICS["matthews"], labels, answers[None])
    monkeypatch.setattr(module, "CHUNK_VALUES", 50 * 7)
    monkeypatch.setattr(module, "KEEP_VALUES", 0)
    again = Bootstrap(50, 30, 7)
    np.testing.assert_array_equal(again.values(METRICS["matthews"], labels, answers[None]), whole)
    np.testing.assert_array_equal(again.values(METRICS["matthews"], labels, answers[None]), whole)
    assert (Bootstrap(50, 30, 8).values(METRICS["matthews"], labels, answers[None]) != whole).any()


def test_without_replicates_there_is_no_interval():
    values = Bootstrap(4, 0, 0).values(METRICS["accuracy"], np.zeros(4, int), np.zeros((1, 4), int))
    assert np.isnan(interval(values.ravel())).all()


def test_the_mean_over_tasks_is_narrower_than_its_tasks():
    random = np.random.default_rng(0)
    tasks = [random.normal(0.5, 0.02, 5000) for _ in range(4)]
    low, high = mean_interval(tasks)
    assert high - low == pytest.approx(2 * 1.96 * 0.02 / 2, rel=0.05)
