"""Batches through the encoder: pooled, brought to host memory, and cut smaller where memory runs out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int

from frozenprobe.encoders.base import Encoder, Tokenized
from frozenprobe.features.batching import TokenBudget, cut, is_out_of_memory
from frozenprobe.features.pooling import ViewPooler

_HELD_BATCHES = 16
"""Batches whose vectors wait on a GPU for a common copy: each copy waits for the device."""


class Encoded(NamedTuple):
    """What came of one batch or of several.

    Attributes:
        rows: The rows encoded.
        vectors: One float32 array for each view.
        padded: Tokens that went through the model, padding included.
    """

    rows: Int[np.ndarray, " k"]
    vectors: list[Float[np.ndarray, "k d"]]
    padded: int


class DoesNotFitError(Exception):
    """Memory ran out over a batch that cannot be cut: a single row, or one that other ranks run at the same time."""

    def __init__(self, row: int, rows: int, padded: int) -> None:
        super().__init__(row, rows, padded)
        self.row, self.rows, self.padded = row, rows, padded


class BatchEncoder:
    """Encodes batches of tokenised rows.

    Args:
        encoder: The encoder.
        pooler: Its views.
        budget: Told where a batch did not fit.
        in_step: Never cut a batch: other ranks run as many.
    """

    def __init__(self, encoder: Encoder, pooler: ViewPooler, budget: TokenBudget, *, in_step: bool = False) -> None:
        self._encoder = encoder
        self._pooler = pooler
        self._budget = budget
        self._in_step = in_step
        self._held_batches = 1 if encoder.info.device == "cpu" or in_step else _HELD_BATCHES

    def run(self, tokens: Tokenized, batches: Sequence[Int[np.ndarray, " b"]], budget: int) -> Iterator[Encoded]:
        """Encodes batches; where one does not fit, it and those after it are cut anew, to at most half of it.

        Args:
            tokens: Tokenised rows.
            batches: The rows of each batch, longest first.
            budget: The token budget that the batches were cut to.

        Raises:
            DoesNotFitError: A batch that cannot be cut does not fit.
        """
        lengths = tokens.lengths
        left = deque(batches)
        held: list[tuple[np.ndarray, list[torch.Tensor]]] = []
        padded = 0
        while left:
            rows = left.popleft()
            size = len(rows) * int(lengths[rows].max())
            vectors = self._encode(tokens, rows)
            if vectors is None:
                if len(rows) == 1 or self._in_step:
                    raise DoesNotFitError(int(rows[0]), len(rows), size)
                self._budget.halve(size)
                left = deque(cut(np.concatenate([rows, *left]), lengths, min(budget, self._budget.tokens_at_most)))
                continue
            held.append((rows, vectors))
            padded += size
            if len(held) >= self._held_batches or not left:
                yield _gather(held, padded)
                held, padded = [], 0

    def _encode(self, tokens: Tokenized, rows: Int[np.ndarray, " b"]) -> list[torch.Tensor] | None:
        """The vectors of one batch by view, or None where memory ran out."""
        try:
            return self._pooler(self._encoder.collate(tokens, rows))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        # Outside of the handler: the traceback would keep the batch's tensors alive.
        if self._encoder.info.device.startswith("cuda"):
            torch.cuda.empty_cache()
        return None


def _gather(held: list[tuple[np.ndarray, list[torch.Tensor]]], padded: int) -> Encoded:
    """The vectors of several batches in host memory."""
    by_view = zip(*(vectors for _, vectors in held), strict=True)
    vectors = [torch.cat(parts).cpu().numpy() for parts in by_view]
    return Encoded(np.concatenate([rows for rows, _ in held]), vectors, padded)
