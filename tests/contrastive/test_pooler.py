"""Poolers: the cheap form of attention is attention, padding does not matter, and sizes are what was asked for."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from frozenprobe.contrastive.pooler import (
    AttentionPooler,
    BaselinePooler,
    CrossAttentionBlock,
    RowDropout,
    build_pooler,
)
from frozenprobe.contrastive.settings import PoolerSettings
from frozenprobe.errors import EncoderError, SettingsError


def drawn(b=4, t=7, d=24, seed=0):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randn(b, t, d, generator=generator)
    lengths = torch.randint(1, t + 1, (b,), generator=generator)
    return tokens, torch.arange(t)[None] < lengths[:, None]


def stirred(pooler, seed=1):
    """The pooler with every weight drawn at random, so that nothing is hidden by a zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in pooler.parameters():
            parameter.normal_(std=0.3, generator=generator)
    return pooler.eval()


def test_a_block_is_multi_head_attention_over_projected_tokens():
    block = stirred(CrossAttentionBlock(width=16, token_width=24, heads=4, dropout=0.0))
    tokens, mask = drawn()
    x = torch.randn(4, 3, 16, generator=torch.Generator().manual_seed(2))
    reference = nn.MultiheadAttention(16, 4, bias=False, kdim=24, vdim=24, batch_first=True)
    with torch.no_grad():
        reference.q_proj_weight.copy_(block.query.weight)
        reference.k_proj_weight.copy_(block.key.weight)
        reference.v_proj_weight.copy_(block.value.weight)
        reference.out_proj.weight.copy_(block.out.weight)
        attended = x + reference(block.attention_norm(x), tokens, tokens, key_padding_mask=~mask)[0]
        expected = attended + block.feed_out(functional.gelu(block.feed_in(block.feed_norm(attended))))
        assert torch.allclose(block(x, tokens, mask), expected, atol=1e-4)


def test_padding_and_neighbours_change_nothing():
    tokens, mask = drawn()
    pooler = stirred(AttentionPooler(PoolerSettings(blocks=2, queries=3, heads=2), 24))
    together = pooler(tokens.masked_fill(~mask[..., None], torch.nan), mask)
    for row in range(len(tokens)):
        length = int(mask[row].sum())
        alone = pooler(tokens[row : row + 1, :length], mask[row : row + 1, :length])
        assert torch.allclose(together[row], alone[0], atol=1e-5)
    left = pooler(tokens.flip(1), mask.flip(1))
    assert torch.allclose(left, together, atol=1e-5)


@pytest.mark.parametrize(
    ("size", "dimensions"),
    [
        ({}, 24),
        ({"queries": 4}, 24),
        ({"width": 12, "heads": 3}, 12),
        ({"width": 12, "dimensions": 5, "queries": 2}, 5),
    ],
)
def test_the_output_has_the_dimensions_asked_for_and_unit_length(size, dimensions):
    pooler = AttentionPooler(PoolerSettings(**size), 24)
    output = pooler(*drawn())
    assert output.shape == (4, dimensions)
    assert torch.allclose(output.norm(dim=1), torch.ones(4), atol=1e-5)
    assert len(pooler.blocks) == 2


def test_a_fresh_pooler_ranks_as_the_mean_of_the_normed_tokens_does():
    tokens, mask = drawn(b=30, t=9, d=64)
    fresh = AttentionPooler(PoolerSettings(blocks=3), 64).eval()(tokens, mask)
    mean = BaselinePooler("mean")(functional.layer_norm(tokens, (64,)), mask)
    similarities = [(vectors @ vectors.T)[torch.triu(torch.ones(30, 30), 1).bool()] for vectors in (fresh, mean)]
    assert torch.corrcoef(torch.stack(similarities))[0, 1] > 0.98


def test_the_seed_decides_the_weights():
    one, same, other = (AttentionPooler(PoolerSettings(), 24, seed) for seed in (1, 1, 2))
    state = one.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in same.state_dict().items())
    assert not torch.equal(one.queries, other.queries)


def test_every_parameter_is_used():
    pooler = stirred(AttentionPooler(PoolerSettings(queries=2, dimensions=8), 24))
    pooler(*drawn()).square().cumsum(1).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in pooler.parameters())


def test_dropout_follows_from_the_number_of_each_text():
    tokens, mask = drawn(b=6)
    noise = torch.arange(6) * 7919 + 13
    pooler = stirred(AttentionPooler(PoolerSettings(dropout=0.4), 24)).train()
    together = pooler(tokens, mask, noise)
    apart = torch.cat([pooler(tokens[i : i + 2], mask[i : i + 2], noise[i : i + 2]) for i in (0, 2, 4)])
    assert torch.allclose(together, apart, atol=1e-6)
    assert not torch.allclose(together, pooler(tokens, mask, noise + 1), atol=1e-2)
    assert torch.allclose(pooler.eval()(tokens, mask, noise), pooler(tokens, mask), atol=0)


def test_dropout_drops_its_share_and_keeps_the_mean():
    ones = torch.ones(200, 1, 500)
    numbers = torch.randint(-(1 << 62), 1 << 62, (200,), generator=torch.Generator().manual_seed(0))
    kept = [RowDropout(0.3, place).train()(ones, numbers) for place in (0, 1)]
    for out in kept:
        assert float((out == 0).float().mean()) == pytest.approx(0.3, abs=0.01)
        assert float(out.mean()) == pytest.approx(1.0, abs=0.02)
    agreement = float(((kept[0] == 0) == (kept[1] == 0)).float().mean())
    assert agreement == pytest.approx(0.3**2 + 0.7**2, abs=0.01)  # independent of one another


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_baselines_pool_without_training(pooling):
    tokens, mask = drawn()
    output = BaselinePooler(pooling)(tokens, mask)
    row, length = 1, int(mask[1].sum())
    expected = {"mean": tokens[row, :length].mean(0), "cls": tokens[row, 0], "last": tokens[row, length - 1]}[pooling]
    assert torch.allclose(output[row], functional.normalize(expected, dim=0), atol=1e-5)
    assert not list(BaselinePooler(pooling).parameters())


def test_a_warm_start_is_the_encoders_own_pooler_normalised(warm_fake):
    encoder = warm_fake()
    tokens, mask = drawn(d=16)
    pooler = build_pooler(PoolerSettings(warm_start=True), encoder)
    expected = functional.normalize(encoder.warm_pooler()(tokens, mask), dim=-1)
    assert torch.allclose(pooler(tokens, mask), expected)
    assert all(parameter.requires_grad for parameter in pooler.parameters())


def test_what_cannot_be_built_is_refused(fake, warm_fake):
    with pytest.raises(EncoderError, match="offers no pooler"):
        build_pooler(PoolerSettings(warm_start=True), fake())
    with pytest.raises(SettingsError, match="leave out its size"):
        build_pooler(PoolerSettings(warm_start=True, blocks=3), warm_fake())
    with pytest.raises(SettingsError, match="do not divide"):
        build_pooler(PoolerSettings(heads=5), fake())
    with pytest.raises(SettingsError, match="allowed are mean"):
        BaselinePooler("median")


@pytest.mark.parametrize("size", [{}, {"queries": 3, "dimensions": 8, "blocks": 3}])
def test_a_pooler_can_be_exported_as_a_graph_for_any_batch_and_length(size):
    pooler = stirred(AttentionPooler(PoolerSettings(**size), 24))
    b, t = torch.export.Dim("b", min=2, max=4096), torch.export.Dim("t", min=2, max=8192)
    program = torch.export.export(pooler, drawn(b=3, t=7), dynamic_shapes=({0: b, 1: t}, {0: b, 1: t}, None)[:2])
    for b_, t_ in ((2, 5), (11, 40)):
        assert torch.allclose(program.module()(*drawn(b=b_, t=t_)), pooler(*drawn(b=b_, t=t_)), atol=1e-5)
