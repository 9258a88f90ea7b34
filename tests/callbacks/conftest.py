"""A tiny training run: a masked-language-model BERT on generated sentences, seeded, with dropout."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers as tf

from tests.encoders import tiny

STEPS = 6
FAST = {"suite": "builtin", "tasks": "builtin-sentiment,builtin-similarity", "max_train": 40, "bootstrap": 0}
"""Two small tasks, one of them on pairs."""


def seed_everything(seed=0):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def make_model(seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = tf.BertConfig(**tiny._COMMON | {"initializer_range": 0.05}, max_position_embeddings=64)
        return tf.BertForMaskedLM(config)


def train(
    after_step=lambda step, model, tokenizer: None, *, steps=STEPS, step_model=None, autocast=False, device="cpu"
):
    """Trains for a few steps; every random source takes part. Returns the losses and the final weights."""
    seed_everything()
    model, tokenizer = make_model().to(device).train(), tiny.wordpiece()
    called = model if step_model is None else step_model(model)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(1, steps + 1):
        lengths = random.randrange(8, 12), int(np.random.randint(8, 12))
        ids = torch.randint(5, 80, (4, max(lengths))).to(device)
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            loss = called(input_ids=ids, labels=ids).loss
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            after_step(step, model, tokenizer)  # inside of autocast: the worst place
        losses.append(loss.item())
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    return SimpleNamespace(losses=losses, weights=weights, model=model, tokenizer=tokenizer)


def assert_same(one, other):
    assert one.losses == other.losses
    assert all(torch.equal(one.weights[name], other.weights[name]) for name in one.weights)


@pytest.fixture
def probe_log():
    """A log that a probe can write to."""
    entries = []
    return SimpleNamespace(entries=entries, write=lambda step, scores: entries.append((step, scores)))
