"""An encoder that costs nothing, one that brings a pooler, and rows whose positives share words with the query."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

from tests.features.conftest import WIDTH, FakeEncoder


class TokenGate(nn.Module):
    """A pooler that an encoder might bring: a weighted mean of the tokens."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(3)
            self.gate = nn.Linear(WIDTH, 1)

    def forward(self, tokens, mask):
        weights = self.gate(tokens)[..., 0].masked_fill(~mask, -torch.inf).softmax(1)
        return (weights[:, None] @ tokens)[:, 0]


class WarmFake(FakeEncoder):
    """A fake encoder that brings a pooler."""

    def warm_pooler(self):
        return TokenGate()


def make_rows(n, queries=None, negatives=2, seed=0):
    """Rows whose query and positive share two rare words; negatives share one of them."""
    random = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        number = i % (queries or n)
        filler = [f"w{w}" for w in random.integers(40, size=6)]
        rows.append(
            {
                "query": f"a{number} b{number} what",
                "positive": f"a{number} b{number} {' '.join(filler[:4])} {i // (queries or n)}",
                "negatives": [f"a{number} {' '.join(filler[2 + k :])} n{i} k{k}" for k in range(negatives)],
            }
        )
    return rows


@pytest.fixture
def fake():
    return FakeEncoder


@pytest.fixture
def warm_fake():
    return WarmFake


@pytest.fixture
def write_rows(tmp_path):
    """Writes rows as JSON lines and gives the path."""

    def write(rows, name="rows.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


@pytest.fixture
def rows():
    return make_rows
