"""Poolings against plain loops, both padding sides, float32 sums; the siamese composition."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from frozenprobe.encoders.base import Batch
from frozenprobe.errors import FeatureError, SettingsError
from frozenprobe.features.base import Inputs, View
from frozenprobe.features.extract import extract
from frozenprobe.features.pairs import siamese
from frozenprobe.features.pooling import POOLINGS, ViewPooler
from frozenprobe.settings import FeatureSettings

LENGTHS = [5, 1, 3, 5]


def padded(side, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(length, 7, generator=generator).to(dtype) for length in LENGTHS]
    hidden = torch.full((4, 5, 7), 1e4, dtype=dtype)
    mask = torch.zeros(4, 5, dtype=torch.bool)
    for i, row in enumerate(rows):
        place = slice(0, len(row)) if side == "right" else slice(5 - len(row), 5)
        hidden[i, place], mask[i, place] = row, True
    return hidden, mask, [row.double().numpy() for row in rows]


BY_HAND = {
    "mean": lambda row: row.mean(0),
    "cls": lambda row: row[0],
    "max": lambda row: row.max(0),
    "last": lambda row: row[-1],
}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pooling", list(BY_HAND))
def test_poolings_equal_a_plain_loop(pooling, side, dtype):
    hidden, mask, rows = padded(side, dtype)
    before = hidden.clone()
    pooled = POOLINGS[pooling](hidden, mask)
    assert pooled.dtype == torch.float32
    np.testing.assert_allclose(pooled.numpy(), [BY_HAND[pooling](row) for row in rows], rtol=1e-5, atol=1e-5)
    assert torch.equal(hidden, before), "an encoder's activations are not ours to change"


def test_mean_is_summed_in_float32():
    # A running sum in bfloat16 stops growing at 256.
    hidden = torch.ones(1, 2048, 3, dtype=torch.bfloat16)
    mask = torch.ones(1, 2048, dtype=torch.bool)
    assert torch.equal(POOLINGS["mean"](hidden, mask), torch.ones(1, 3))
    hidden[..., 0] = 65_000
    assert POOLINGS["mean"](hidden.to(torch.float16), mask)[0, 0].isfinite()


def test_first_last_mean_is_the_mean_of_layer_1_and_last(fake, words):
    texts = words(12)
    views = [View("last", "first-last-mean"), View(1, "mean"), View("last", "mean")]
    got = extract(fake(), [Inputs(texts)], views, FeatureSettings())[0].by_view
    np.testing.assert_allclose(got[views[0]], (got[views[1]] + got[views[2]]) / 2, rtol=1e-6)
    alone = extract(fake(), [Inputs(texts)], views[:1], FeatureSettings())[0].by_view
    np.testing.assert_array_equal(alone[views[0]], got[views[0]])


def test_each_layer_is_asked_for_once(fake):
    views = [View("last", "mean"), View("last", "max"), View("last", "first-last-mean"), View(2, "cls"), View(1, "cls")]
    assert ViewPooler(fake(), views).layers == ("last", 2, 1)


def test_poolings_of_the_last_layer_are_refused_elsewhere(fake):
    with pytest.raises(SettingsError, match="belongs to the last layer"):
        ViewPooler(fake(), [View(1, "first-last-mean")])


def test_own_pooling_is_copied_out_of_the_encoders_memory(fake_with_pooling):
    encoder = fake_with_pooling()
    encoder.pool = lambda hidden, batch: hidden[:, 0]
    kept = []
    forward = encoder.forward
    encoder.forward = lambda batch, layers, visit: forward(
        batch, layers, lambda layer, hidden: (kept.append(hidden), visit(layer, hidden))
    )
    tokens = encoder.tokenize(["a b", "c"])
    (pooled,) = ViewPooler(encoder, [View("last", "own")])(encoder.collate(tokens, np.arange(2)))
    before = pooled.clone()
    kept[0].zero_()
    assert torch.equal(pooled, before)


def test_layers_are_read_before_the_encoder_goes_on(fake):
    encoder = fake()

    def forward(batch: Batch, layers, visit):
        buffer = torch.ones(*batch.mask.shape, 4)
        for layer in layers:
            visit(layer, buffer)
            buffer.add_(1)

    encoder.forward = forward
    batch = encoder.collate(encoder.tokenize(["a b"]), np.arange(1))
    views = [View(0, "mean"), View(0, "cls"), View(1, "max"), View(2, "last"), View("last", "mean")]
    assert [float(vectors[0, 0]) for vectors in ViewPooler(encoder, views)(batch)] == [1, 1, 2, 3, 4]


def test_siamese_composes_both_sides():
    generator = np.random.default_rng(0)
    u, v = generator.normal(size=(2, 5000, 3)).astype(np.float32)
    composed = siamese(u, v)
    assert composed.dtype == np.float32
    np.testing.assert_array_equal(composed, np.concatenate([u, v, np.abs(u - v), u * v], axis=1))
    assert siamese(u[:0], v[:0]).shape == (0, 12)
    with pytest.raises(FeatureError, match="differ"):
        siamese(u, v[:-1])
