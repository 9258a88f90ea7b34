"""The vocabulary of feature extraction: views, inputs, results."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from frozenprobe.encoders.base import Layer, Role
from frozenprobe.settings import Pooling


@dataclass(frozen=True, order=True)
class View:
    """One way to turn hidden states into a vector: a layer and a pooling."""

    layer: Layer
    pooling: Pooling

    def __str__(self) -> str:
        return f"{self.layer}/{self.pooling}"


@dataclass(frozen=True)
class Inputs:
    """What is encoded: texts, or joint sequences of texts with pairs."""

    texts: list[str]
    pairs: list[str] | None = None
    role: Role | None = None

    def __len__(self) -> int:
        return len(self.texts)


@dataclass
class ExtractionReport:
    """What one extraction did.

    Attributes:
        rows: Inputs asked for.
        distinct: Distinct tokenised inputs among them.
        encoded: Distinct inputs that went through the model; the rest came from the cache.
        tokens: Non-padding tokens that went through the model.
        padded_tokens: The same with padding.
        truncated: Rows (of `rows`) that lost tokens.
        lost_tokens: Tokens cut from those rows.
        total_tokens: Tokens of all rows before truncation.
        tokens_per_batch: The token budget in use at the end.
        halved: How often a batch was halved because memory ran out.
        seconds: Wall time of the caller by phase: `tokenize` (what the forward pass waited for; the rest of it is hidden
            behind the forward pass), `forward` (pooling included), `cache`.
    """

    rows: int = 0
    distinct: int = 0
    encoded: int = 0
    tokens: int = 0
    padded_tokens: int = 0
    truncated: int = 0
    lost_tokens: int = 0
    total_tokens: int = 0
    tokens_per_batch: int = 0
    halved: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The report as plain values."""
        return dict(vars(self))


@dataclass(frozen=True)
class Features:
    """Pooled vectors in input order, float32, one array per view, with the report of how they were made."""

    by_view: dict[View, Float[np.ndarray, "n d"]]
    report: ExtractionReport
