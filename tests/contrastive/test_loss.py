"""The contrastive loss against a direct formula, and against the failures that users of other projects reported."""

import math

import numpy as np
import pytest
import torch

from frozenprobe.contrastive.loss import Targets, contrastive_loss
from frozenprobe.contrastive.settings import LossSettings


def targets(query, positive, own, known):
    return Targets(
        torch.tensor(query),
        torch.tensor(positive),
        torch.tensor(own).reshape(len(query), -1),
        torch.tensor(known).bool(),
    )


def direct(queries, passages, aims, temperature, negatives="in-batch", margin=None):
    """Eq. 5 as it is printed, one row and one passage at a time, in float64."""
    q = torch.nn.functional.normalize(queries.double(), dim=1).numpy()
    p = torch.nn.functional.normalize(passages.double(), dim=1).numpy()
    total = 0.0
    for row in range(len(aims.query)):
        query, positive = int(aims.query[row]), int(aims.positive[row])
        own = {int(x) for x in aims.own[row] if x >= 0}
        chosen = set(own)
        if negatives == "in-batch":
            chosen |= set(range(len(p)))
        elif negatives == "in-batch-positives":
            chosen |= {int(x) for x in aims.positive}
        chosen = {n for n in chosen - {positive} if not aims.known[query, n]}
        phi = q[query] @ p[positive]
        if margin is not None:
            chosen = {n for n in chosen if n in own or q[query] @ p[n] <= phi + margin}
        above = math.exp(phi / temperature)
        total -= math.log(above / (above + sum(math.exp(q[query] @ p[n] / temperature) for n in chosen)))
    return total / len(aims.query)


@pytest.fixture
def drawn():
    """8 rows of 7 queries with 3 hard negatives at most, some of them shared, one query with two positives."""
    generator = torch.Generator().manual_seed(0)
    queries, passages = torch.randn(7, 5, generator=generator), torch.randn(20, 5, generator=generator)
    query = [0, 1, 2, 3, 4, 5, 6, 0]
    positive = [0, 1, 2, 3, 4, 5, 6, 7]
    own = [[8, 9, 10], [8, 11, -1], [0, 12, 13], [-1, -1, -1], [14, 15, 16], [17, 18, 19], [9, -1, -1], [8, 9, 1]]
    known = np.zeros((7, 20))
    known[query, positive] = 1
    known[4, 15] = 1  # known from a row that is not in the step
    return queries, passages, targets(query, positive, own, known)


@pytest.mark.parametrize("negatives", ["in-batch", "in-batch-positives", "hard-only"])
@pytest.mark.parametrize("temperature", [0.05, 1.0])
@pytest.mark.parametrize("margin", [None, 0.0, 0.3])
def test_it_is_equation_5(drawn, negatives, temperature, margin):
    settings = LossSettings(negatives=negatives, temperature=temperature, margin=margin)
    value = float(contrastive_loss(*drawn, settings))
    assert value == pytest.approx(direct(*drawn, temperature, negatives, margin), rel=1e-5)


def test_the_symmetric_form_is_the_mean_of_both_directions(drawn):
    queries, passages, aims = drawn
    # From a passage's side: its query among the queries that it does not answer.
    q, p = (torch.nn.functional.normalize(x, dim=1) for x in (queries, passages))
    back = 0.0
    for row in range(len(aims.query)):
        query, positive = int(aims.query[row]), int(aims.positive[row])
        others = [j for j in range(len(q)) if j != query and not aims.known[j, positive]]
        scores = torch.stack([q[j] @ p[positive] for j in (query, *others)]) / 0.05
        back -= float(scores.log_softmax(0)[0])
    expected = (direct(*drawn, 0.05) + back / len(aims.query)) / 2
    assert float(contrastive_loss(*drawn, LossSettings(symmetric=True))) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("negatives", "expected"), [("in-batch", 0.693), ("in-batch-positives", 0.0), ("hard-only", 0.0)]
)
def test_c06_targets_stay_aligned_beside_extra_negatives(interleaved, negatives, expected):
    positive, own = ([0, 2, 4], [1, 3, 5]) if interleaved else ([0, 1, 2], [3, 4, 5])
    passages = torch.empty(6, 3)
    passages[positive], passages[own] = torch.eye(3), torch.eye(3).roll(1, 0)
    known = np.zeros((3, 6))
    known[range(3), positive] = 1
    loss = contrastive_loss(
        torch.eye(3),
        passages,
        targets([0, 1, 2], positive, own, known),
        LossSettings(temperature=1 / 20, negatives=negatives),
    )
    assert float(loss) == pytest.approx(expected, abs=1e-3)


def test_c16_other_known_positives_are_as_if_absent():
    """4 rows of one query with 4 positives, and one row of another query."""
    generator = torch.Generator().manual_seed(1)
    queries, passages = torch.randn(2, 6, generator=generator), torch.randn(6, 6, generator=generator)
    known = np.zeros((2, 6))
    known[0, :4] = known[1, 4] = 1
    together = targets([0, 0, 0, 0, 1], [0, 1, 2, 3, 4], [[5]] * 5, known)
    expected = 0.0
    for row, (query, positive) in enumerate(zip([0, 0, 0, 0, 1], range(5), strict=True)):
        keep = [positive, *([4, 5] if query == 0 else [0, 1, 2, 3, 5])]
        alone = np.zeros((1, len(keep)))
        alone[0, 0] = 1
        expected += float(
            contrastive_loss(queries[[query]], passages[keep], targets([0], [0], [[-1]], alone), LossSettings())
        )
        assert row == positive
    assert float(contrastive_loss(queries, passages, together, LossSettings())) == pytest.approx(expected / 5, rel=1e-5)


def test_a_hard_negative_that_answers_the_query_elsewhere_is_masked():
    queries, passages = torch.eye(2), torch.tensor([[1.0, 0], [0, 1], [1, 0]])
    known = np.array([[1, 0, 1], [0, 1, 0]])
    masked = contrastive_loss(queries, passages, targets([0, 1], [0, 1], [[2], [-1]], known), LossSettings())
    known[0, 2] = 0
    unmasked = contrastive_loss(queries, passages, targets([0, 1], [0, 1], [[2], [-1]], known), LossSettings())
    assert float(masked) < 1e-6
    assert float(unmasked) == pytest.approx(math.log(2) / 2, abs=1e-6)


def test_masked_passages_get_no_gradient():
    passages = torch.tensor([[1.0, 0.2], [0.1, 1.0], [1.0, 0.3]], requires_grad=True)
    known = np.array([[1, 0, 1], [0, 1, 0]])
    aims = targets([0, 1], [0, 1], [[2], [-1]], known)
    contrastive_loss(torch.eye(2)[:1].repeat(2, 1), passages, aims, LossSettings(negatives="hard-only")).backward()
    assert not passages.grad.any()


def test_rows_without_any_negative_add_nothing():
    loss = contrastive_loss(
        torch.eye(2),
        torch.eye(2),
        targets([0, 1], [0, 1], [[-1], [-1]], np.eye(2)),
        LossSettings(negatives="hard-only"),
    )
    assert float(loss) == 0.0
