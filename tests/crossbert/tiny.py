"""Tiny models of every objective, with weights wide enough that attention matters, and batches for them."""

from __future__ import annotations

from typing import Any

import torch

from crossbert.config import ModelConfig
from crossbert.masking import draw_permutations
from crossbert.model import PretrainingModel, build_model
from frozenprobe.settings import parse

VOCABULARY = 300
LENGTH = 24


def config(**changes: Any) -> ModelConfig:
    shape = {"vocabulary": VOCABULARY, "width": 32, "layers": 2, "heads": 2, "sequence_length": LENGTH, "init_std": 0.2}
    return parse(ModelConfig, shape | changes)


def model(**changes: Any) -> PretrainingModel:
    return build_model(config(**changes))


def batch(rows: int = 3, length: int = LENGTH, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and permutations."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, VOCABULARY, (rows, length), generator=generator)
    return ids, draw_permutations(seed, 0, range(rows), length)
