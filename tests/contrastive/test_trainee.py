"""Gradients of a step: chunks, ranks and recomputation all give those of one plain graph."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from frozenprobe.contrastive.batches import noise_of
from frozenprobe.contrastive.distributed import Ranks
from frozenprobe.contrastive.features import Block
from frozenprobe.contrastive.loss import Targets, contrastive_loss
from frozenprobe.contrastive.pooler import AttentionPooler
from frozenprobe.contrastive.settings import LossSettings, PoolerSettings
from frozenprobe.contrastive.sweep import Candidate
from frozenprobe.contrastive.trainee import Side, Trainee, backward, train_together

WIDTH = 16
SIZE = PoolerSettings(blocks=2, queries=2, heads=2, dropout=0.3)
CANDIDATE = Candidate("pooler", SIZE, LossSettings(), lr=0.01, min_lr=0.001, weight_decay=0.1, seed=5)


def texts(count, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randn(count, 6, WIDTH, generator=generator)
    mask = torch.arange(6)[None] < torch.randint(1, 7, (count,), generator=generator)[:, None]
    return tokens, mask, np.arange(count, dtype=np.uint64) + 100 * seed


def module_on(module, drawn, step=0):
    """The module on all texts at once, with the dropout that the step's number gives."""
    tokens, mask, keys = drawn
    return module(tokens, mask, noise_of(CANDIDATE.seed, step, keys))


def block(rows, tokens, mask):
    return Block(rows, lambda: (tokens[rows], mask[rows]))


def side(drawn, chunk, rank=0, world=1):
    tokens, mask, keys = drawn
    mine = torch.arange(len(tokens))[rank::world]
    blocks = [block(rows, tokens, mask) for rows in mine.split(chunk) if len(rows)]
    return Side(blocks, keys, None, len(tokens))


@pytest.fixture
def step():
    """7 queries, each with a positive and a hard negative."""
    known = torch.zeros(7, 14, dtype=torch.bool)
    known[torch.arange(7), torch.arange(7)] = True
    return texts(7, 1), texts(14, 2), Targets(torch.arange(7), torch.arange(7), torch.arange(7, 14)[:, None], known)


def pooler():
    made = AttentionPooler(SIZE, WIDTH, seed=3)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    return made


def assert_same_gradients(found, expected):
    """To 1e-6, of the largest gradient where that exceeds 1: float32 sums in another order do not agree further."""
    largest = float(expected.abs().max())
    assert largest > 1e-3
    assert float((found - expected).abs().max()) < 1e-6 * max(1.0, largest)


def gradients(module):
    return torch.cat([parameter.grad.flatten() for parameter in module.parameters()])


@pytest.fixture
def plain(step):
    """The gradients of one graph over everything."""
    queries, passages, targets = step
    module = pooler().train()
    loss = contrastive_loss(module_on(module, queries), module_on(module, passages), targets, CANDIDATE.loss)
    loss.backward()
    return float(loss.detach()), gradients(module)


@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize("recompute", [True, False])
def test_c07_chunked_gradients_with_dropout_are_the_plain_ones(step, plain, chunk, recompute):
    queries, passages, targets = step
    module = pooler()
    trainee = Trainee(CANDIDATE, module, WIDTH, 10, Ranks())
    (loss,) = backward([trainee], 0, (side(queries, chunk), side(passages, chunk)), targets, recompute=recompute)
    assert loss == pytest.approx(plain[0], abs=1e-6)
    assert_same_gradients(gradients(module), plain[1])


class ThreadRanks:
    """Ranks as threads of one process: the sum is taken when all have come."""

    def __init__(self, world):
        self.world = world
        self.barrier = threading.Barrier(world)
        self.given = [None] * world

    def of(self, rank):
        def sum_(tensors):
            tensors = list(tensors)
            self.given[rank] = tensors
            self.barrier.wait(30)
            totals = [sum(parts) for parts in zip(*self.given, strict=True)]
            self.barrier.wait(30)
            for tensor, total in zip(tensors, totals, strict=True):
                tensor.copy_(total)
            self.barrier.wait(30)

        return SimpleNamespace(world=self.world, rank=rank, sum_=sum_)


@pytest.mark.parametrize("world", [2, 9])  # of 9 ranks, two have no query
def test_ranks_see_each_others_negatives_and_get_the_plain_gradients(step, plain, world):
    queries, passages, targets = step
    ranks, modules, losses = ThreadRanks(world), [pooler() for _ in range(world)], [0.0] * world

    def work(rank):
        trainee = Trainee(CANDIDATE, modules[rank], WIDTH, 10, ranks.of(rank))
        sides = (side(queries, 2, rank, world), side(passages, 2, rank, world))
        (losses[rank],) = backward([trainee], 0, sides, targets)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank in range(world):
        assert losses[rank] == pytest.approx(plain[0], abs=1e-6)
        assert_same_gradients(gradients(modules[rank]), plain[1])


def test_slots_of_one_text_give_the_gradients_of_the_text(step):
    """With deduplication off, a text that is encoded three times is still one passage."""
    queries, passages, targets = step
    still = CANDIDATE.__class__(**{**vars(CANDIDATE), "pooler": SIZE.model_copy(update={"dropout": 0.0})})
    found = []
    for slots in (None, torch.tensor([*range(14), 3, 3, 9])):
        module = AttentionPooler(still.pooler, WIDTH, seed=3)
        tokens, mask, keys = passages
        chosen = torch.arange(14) if slots is None else slots
        many = side((tokens[chosen], mask[chosen], keys[chosen.numpy()]), 5)
        many = Side(many.blocks, many.keys, slots, 14)
        (loss,) = backward([Trainee(still, module, WIDTH, 10, Ranks())], 0, (side(queries, 5), many), targets)
        found.append((loss, gradients(module)))
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-6)
    assert_same_gradients(found[1][1], found[0][1])


def test_the_learning_rate_is_a_cosine_from_lr_to_min_lr():
    trainee = Trainee(CANDIDATE, pooler(), WIDTH, 11, Ranks())
    assert [trainee.rate(step) for step in (0, 5, 10)] == pytest.approx([0.01, 0.0055, 0.001])
    assert Trainee(CANDIDATE, pooler(), WIDTH, 1, Ranks()).rate(0) == pytest.approx(0.01)


def test_a_step_is_adamw_at_the_scheduled_rate(step):
    queries, passages, targets = step
    module, reference = pooler(), pooler()
    trainee = Trainee(CANDIDATE, module, WIDTH, 3, Ranks())
    optimiser = torch.optim.AdamW(reference.parameters(), lr=0.01, weight_decay=0.1)
    for number in range(3):
        train_together([trainee], number, (side(queries, 4), side(passages, 4)), targets)
        reference.train()
        embeddings = (module_on(reference, drawn, number) for drawn in (queries, passages))
        contrastive_loss(*embeddings, targets, CANDIDATE.loss).backward()
        optimiser.param_groups[0]["lr"] = trainee.rate(number)
        optimiser.step()
        optimiser.zero_grad()
    for one, other in zip(module.parameters(), reference.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_a_loss_that_is_not_finite_changes_nothing(step):
    (tokens, mask, keys), passages, targets = step
    module = pooler()
    before = [parameter.clone() for parameter in module.parameters()]
    trainee = Trainee(CANDIDATE, module, WIDTH, 10, Ranks())
    (loss,) = train_together([trainee], 0, (side((tokens * torch.nan, mask, keys), 7), side(passages, 7)), targets)
    assert not np.isfinite(loss)
    assert all(torch.equal(one, other) for one, other in zip(module.parameters(), before, strict=True))


@pytest.mark.parametrize("recompute", [True, False])
def test_poolers_that_share_blocks_do_not_touch_each_other(step, recompute):
    """Each of three gets what it gets alone, and a block's features are asked for once, or twice when run again."""
    queries, passages, targets = step
    others = [CANDIDATE.__class__(**{**vars(CANDIDATE), "lr": lr}) for lr in (0.01, 0.1, 0.02)]
    asked = []

    def counted(given):
        return [Block(b.rows, lambda b=b: asked.append(1) or b.features()) for b in given]

    def sides():
        return [Side(counted(s.blocks), s.keys, s.slots, s.distinct) for s in (side(queries, 3), side(passages, 3))]

    together, alone = ([pooler() for _ in others] for _ in range(2))
    trainees = [Trainee(c, m, WIDTH, 10, Ranks()) for c, m in zip(others, together, strict=True)]
    losses = train_together(trainees, 1, sides(), targets, recompute=recompute)
    assert len(asked) == (2 if recompute else 3) * (3 + 5)
    for loss, candidate, module, shared in zip(losses, others, alone, together, strict=True):
        assert train_together([Trainee(candidate, module, WIDTH, 10, Ranks())], 1, sides(), targets) == [loss]
        assert all(
            torch.allclose(a, b, atol=1e-6) for a, b in zip(module.parameters(), shared.parameters(), strict=True)
        )
