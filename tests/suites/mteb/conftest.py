"""Fixtures of the MTEB tests; mteb takes seconds to import, once."""

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.suites.mteb import rows


@pytest.fixture(scope="session")
def copies(tmp_path_factory) -> Path:
    """Local copies, revision unknown, of one task of every kind."""
    return rows.write(tmp_path_factory.mktemp("copies"))


@pytest.fixture(scope="session")
def tiny(tiny_bert):
    """The tiny BERT, loaded."""
    from frozenprobe.encoders.registry import load_encoder
    from frozenprobe.settings import EncoderSettings

    return load_encoder(EncoderSettings(ckpt=str(tiny_bert)))


class TinyPooler(nn.Module):
    """One learned query that attends to the tokens."""

    def __init__(self, width: int, dimensions: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.linspace(-1, 1, width))
        self.project = nn.Linear(width, dimensions, bias=False)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        scores = (tokens @ self.query).masked_fill(~mask, -torch.inf)
        return nn.functional.normalize(self.project((scores.softmax(1)[:, None] @ tokens)[:, 0]), dim=1)


@pytest.fixture
def pooler() -> TinyPooler:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return TinyPooler(32, 12)
