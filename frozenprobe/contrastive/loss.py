"""The contrastive loss (paper, eq. 5) over the distinct texts of a step.

`loss_i = -log exp(s(q_i, p_i)) / (exp(s(q_i, p_i)) + sum over S_i of exp(s(q_i, n)))`, with s the cosine similarity
over the temperature. S_i is a set of passages: one that occurs in several rows counts once. A known positive of the
query is never its negative, whichever row it comes from.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch.nn import functional

from frozenprobe.contrastive.settings import LossSettings


@dataclass(frozen=True)
class Targets:
    """Who belongs to whom in a step of `b` rows, `u` distinct queries and `m` distinct passages.

    Attributes:
        query: The query of each row.
        positive: The positive passage of each row.
        own: The hard negatives of each row, -1 where it has fewer than the widest row.
        known: True where a passage is known to answer a query, in this step or elsewhere in the data.
    """

    query: Int[torch.Tensor, " b"]
    positive: Int[torch.Tensor, " b"]
    own: Int[torch.Tensor, "b k"]
    known: Bool[torch.Tensor, "u m"]

    def to(self, device: torch.device) -> Targets:
        """The same on a device."""
        return Targets(*(part.to(device) for part in (self.query, self.positive, self.own, self.known)))


def negatives_of(targets: Targets, settings: LossSettings) -> Bool[torch.Tensor, "b m"]:
    """S_i before the score margin: True where a passage is a negative of a row."""
    rows, passages = len(targets.query), targets.known.shape[1]
    own = _own(targets)
    if settings.negatives == "hard-only":
        chosen = own
    elif settings.negatives == "in-batch-positives":
        chosen = own.clone()
        chosen[:, targets.positive] = True
    else:
        chosen = own.new_ones(rows, passages)
    chosen = chosen & ~targets.known[targets.query]
    return chosen.scatter(1, targets.positive[:, None], False)


def contrastive_loss(
    queries: Float[torch.Tensor, "u e"],
    passages: Float[torch.Tensor, "m e"],
    targets: Targets,
    settings: LossSettings,
) -> Float[torch.Tensor, ""]:
    """The mean of eq. 5 over the rows of a step.

    Args:
        queries: Embeddings of the distinct queries; they need not be normalised.
        passages: Embeddings of the distinct passages.
        targets: Who belongs to whom.
        settings: Temperature, which negatives, symmetric form, margin.

    Returns:
        A scalar. A row without any negative adds 0. In the symmetric form, the mean of both directions.
    """
    cosines = functional.normalize(queries.float(), dim=-1) @ functional.normalize(passages.float(), dim=-1).T
    by_row = cosines[targets.query]
    at_positive = by_row.gather(1, targets.positive[:, None])
    negatives = negatives_of(targets, settings)
    if settings.margin is not None:
        # A hard negative of the row's own stays: being above the positive is what it is trained on.
        negatives = negatives & (_own(targets) | (by_row.detach() <= at_positive.detach() + settings.margin))
    loss = _cross_entropy(by_row, at_positive, negatives, settings.temperature)
    if not settings.symmetric:
        return loss
    by_passage = cosines[:, targets.positive].T
    others = ~targets.known[:, targets.positive].T
    others = others.scatter(1, targets.query[:, None], False)
    return (loss + _cross_entropy(by_passage, at_positive, others, settings.temperature)) / 2


def _own(targets: Targets) -> Bool[torch.Tensor, "b m"]:
    rows, passages = len(targets.query), targets.known.shape[1]
    beyond = targets.own.where(targets.own >= 0, passages)
    return targets.known.new_zeros(rows, passages + 1).scatter(1, beyond, True)[:, :passages]


def _cross_entropy(
    cosines: Float[torch.Tensor, "b m"],
    at_positive: Float[torch.Tensor, "b 1"],
    negatives: Bool[torch.Tensor, "b m"],
    temperature: float,
) -> Float[torch.Tensor, ""]:
    """The mean of -log softmax at the positive, over it and the negatives."""
    scores = torch.cat([at_positive, cosines.masked_fill(~negatives, -torch.inf)], dim=1) / temperature
    return functional.cross_entropy(scores, scores.new_zeros(len(scores), dtype=torch.long))
