"""Extraction with a real encoder through the real adapter, against plain transformers, one text at a time (C04)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from frozenprobe.encoders.registry import load_encoder
from frozenprobe.features.base import Inputs, View
from frozenprobe.features.cache import FeatureCache
from frozenprobe.features.extract import extract, resolve_views
from frozenprobe.settings import EncoderSettings, FeatureSettings

WORDS = [
    "the",
    "a",
    "cat",
    "river",
    "sings",
    "quickly",
    "blue",
    "idea",
    "of",
    "under",
    "remembers",
    "nobody",
    "window,",
    "(perhaps)",
    "1984",
    "naïve",
    "!",
]


@pytest.fixture(scope="module")
def encoder(minilm):
    return load_encoder(EncoderSettings(ckpt=f"hf:{minilm}"))


@pytest.fixture(scope="module")
def texts():
    generator = np.random.default_rng(0)
    return [" ".join(generator.choice(WORDS, size=size)) for size in generator.integers(1, 60, size=50)]


@pytest.fixture(scope="module")
def plain(minilm, texts):
    """All hidden states of each text alone, without padding, by plain transformers."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(minilm)
    model = AutoModel.from_pretrained(minilm).eval()
    states = []
    with torch.no_grad():
        for text in texts:
            inputs = tokenizer(text, truncation=True, max_length=512, return_tensors="pt")
            states.append([layer[0] for layer in model(**inputs, output_hidden_states=True).hidden_states])
    return states


@pytest.mark.parametrize("tokens", [1, 7 * 70, 50 * 80, None])
def test_c04_every_layer_equals_one_text_at_a_time(encoder, texts, plain, tokens):
    order = np.random.default_rng(1).permutation(50)
    settings = FeatureSettings(layers="all", tokens_per_batch=tokens)
    shuffled = Inputs([texts[i] for i in order])
    result = extract(encoder, [shuffled], resolve_views(settings, encoder.info), settings)[0]
    for view, vectors in result.by_view.items():
        layer = -1 if view.layer == "last" else view.layer
        expected = np.stack([plain[i][layer].mean(0).numpy() for i in order])
        error = np.linalg.norm(vectors - expected, axis=1) / np.linalg.norm(expected, axis=1)
        assert error.max() < 1e-5, str(view)


def test_other_poolings(encoder, texts, plain):
    views = [View("last", pooling) for pooling in ("cls", "max", "last", "first-last-mean")]
    got = extract(encoder, [Inputs(texts)], views, FeatureSettings())[0].by_view
    last = [states[-1].numpy() for states in plain]
    expected = [
        np.stack([rows[0] for rows in last]),
        np.stack([rows.max(0) for rows in last]),
        np.stack([rows[-1] for rows in last]),
        np.stack([(states[1] + states[-1]).mean(0).numpy() / 2 for states in plain]),
    ]
    for view, vectors in zip(views, expected, strict=True):
        np.testing.assert_allclose(got[view], vectors, rtol=1e-3, atol=2e-5, err_msg=str(view))


def test_a_cache_hit_gives_the_same_bits_and_runs_no_forward(encoder, texts, tmp_path, monkeypatch):
    view = View("last", "mean")
    first = extract(encoder, [Inputs(texts)], [view], FeatureSettings(), cache=FeatureCache(tmp_path))[0]
    monkeypatch.setattr(encoder, "forward", None)
    second = extract(encoder, [Inputs(texts[::-1])], [view], FeatureSettings(), cache=FeatureCache(tmp_path))[0]
    np.testing.assert_array_equal(second.by_view[view], first.by_view[view][::-1])
    assert second.report.encoded == 0


def test_bfloat16_is_pooled_in_float32(minilm, encoder, texts):
    view = View("last", "mean")
    half = load_encoder(EncoderSettings(ckpt=f"hf:{minilm}", dtype="bf16"))
    got = extract(half, [Inputs(texts)], [view], FeatureSettings())[0].by_view[view]
    expected = extract(encoder, [Inputs(texts)], [view], FeatureSettings())[0].by_view[view]
    assert got.dtype == np.float32
    cosine = (got * expected).sum(1) / np.linalg.norm(got, axis=1) / np.linalg.norm(expected, axis=1)
    assert cosine.min() > 0.995
    assert not np.array_equal(got, torch.from_numpy(got).bfloat16().float().numpy()), "rounded to bfloat16"
