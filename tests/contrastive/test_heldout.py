"""Held-out scores against scikit-learn and against the definition."""

import numpy as np
import pytest
import torch
from sklearn.metrics import ndcg_score

from frozenprobe.contrastive.heldout import paired_interval, score


def test_ndcg_and_mrr_at_10():
    generator = np.random.default_rng(0)
    queries, passages = (torch.from_numpy(generator.normal(size=(n, 8))) for n in (50, 80))
    relevant = generator.random((50, 80)) < 0.06
    relevant[np.arange(50), generator.integers(80, size=50)] = True
    found = score(queries, passages, relevant)
    scores = (queries @ passages.T).numpy()
    expected = [ndcg_score(relevant[[i]].astype(int), scores[[i]], k=10) for i in range(50)]
    assert np.allclose(found["ndcg@10"], expected)
    for i in range(50):
        ranks = [rank for rank, m in enumerate(np.argsort(-scores[i])[:10], start=1) if relevant[i, m]]
        assert found["mrr@10"][i] == (1 / ranks[0] if ranks else 0)


def test_a_small_corpus_and_many_relevant_passages():
    relevant = np.ones((1, 3), dtype=bool)
    found = score(torch.ones(1, 2), torch.ones(3, 2), relevant)
    assert found["ndcg@10"][0] == pytest.approx(1.0)
    found = score(torch.ones(1, 2), torch.rand(40, 2), np.ones((1, 40), dtype=bool))
    assert found["ndcg@10"][0] == pytest.approx(1.0)


def test_collapsed_embeddings_score_nothing():
    relevant = np.zeros((5, 50), dtype=bool)
    relevant[np.arange(5), np.arange(5)] = True
    found = score(torch.ones(5, 4), torch.ones(50, 4), relevant)
    assert not found["mrr@10"].any()
    assert not found["ndcg@10"].any()


def test_the_interval_covers_the_mean_and_shrinks_with_the_spread():
    values = np.random.default_rng(0).normal(0.2, 0.1, size=400)
    low, high = paired_interval(values)
    assert low < values.mean() < high
    # The normal approximation of a mean's interval.
    assert high - low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.15)
    assert paired_interval(np.full(10, 0.3)) == pytest.approx((0.3, 0.3))
