"""The held-out retrieval score: each held-out query searches all passages of the held-out rows.

MRR@10 and nDCG@10 with binary relevance; what is relevant is every known positive of a query. Intervals resample
queries, and a pooler is compared with mean pooling of the same features query by query.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float

from frozenprobe.statistics.bootstrap import Bootstrap, interval

DEPTH = 10
_REPLICATES = 1000
_QUERIES_AT_ONCE = 1024

PerQuery = dict[str, Float[np.ndarray, " u"]]


def score(
    queries: Float[torch.Tensor, "u e"], passages: Float[torch.Tensor, "m e"], relevant: Bool[np.ndarray, "u m"]
) -> PerQuery:
    """`mrr@10` and `ndcg@10` of every query; of equally similar passages the relevant come last, so that a collapse scores low."""
    reached = []
    depth = min(DEPTH, len(passages))
    for start in range(0, len(queries), _QUERIES_AT_ONCE):
        part = slice(start, start + _QUERIES_AT_ONCE)
        scores = (queries[part] @ passages.T).cpu()
        hits = torch.from_numpy(relevant[part])
        # Stable sorts, the lesser key first.
        order = torch.argsort(hits.int(), dim=1, stable=True)
        ranked = order.gather(1, torch.argsort(-scores.gather(1, order), dim=1, stable=True)[:, :depth])
        reached.append(hits.gather(1, ranked).numpy())
    found = np.concatenate(reached)
    return {"mrr@10": _reciprocal_rank(found), "ndcg@10": _gain(found, relevant.sum(axis=1))}


def _reciprocal_rank(found: Bool[np.ndarray, "u k"]) -> Float[np.ndarray, " u"]:
    return np.where(found.any(axis=1), 1 / (found.argmax(axis=1) + 1), 0.0)


def _gain(found: Bool[np.ndarray, "u k"], relevant: np.ndarray) -> Float[np.ndarray, " u"]:
    discounts = 1 / np.log2(np.arange(2, found.shape[1] + 2))
    ideal = np.concatenate([[0.0], np.cumsum(discounts)])[np.minimum(relevant, found.shape[1])]
    return (found * discounts).sum(axis=1) / ideal


def paired_interval(difference: Float[np.ndarray, " u"], seed: int = 0) -> tuple[float, float]:
    """The 95% bootstrap interval of the mean of per-query differences (or of plain values)."""
    bootstrap = Bootstrap(len(difference), _REPLICATES, seed)
    return interval(np.concatenate([weights @ difference / len(difference) for weights in bootstrap.weights()]))
