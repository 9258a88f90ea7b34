"""Runs batches through the encoder: sorted by length, cut to the token budget, halved where memory runs out."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Int

from frozenprobe.encoders.base import Encoder
from frozenprobe.errors import FeatureError
from frozenprobe.features.base import ExtractionReport
from frozenprobe.features.batching import TokenBudget, is_out_of_memory, rows_within
from frozenprobe.features.output import Output
from frozenprobe.features.pooling import ViewPooler
from frozenprobe.features.tokens import Chunk

_HELD_BATCHES = 16
"""Batches whose vectors wait on a GPU for a common copy: each copy waits for the device."""


class BatchRunner:
    """Encodes rows of chunks into an output, and counts what it did."""

    def __init__(
        self, encoder: Encoder, pooler: ViewPooler, budget: TokenBudget, output: Output, report: ExtractionReport
    ) -> None:
        self._encoder = encoder
        self._pooler = pooler
        self._budget = budget
        self._output = output
        self._report = report
        self._held_batches = 1 if encoder.info.device == "cpu" else _HELD_BATCHES

    def run(self, chunk: Chunk, positions: Int[np.ndarray, " m"]) -> Iterator[Int[np.ndarray, " k"]]:
        """Encodes some rows of a chunk; yields their positions as their vectors reach the output.

        Raises:
            FeatureError: A row has no tokens, does not fit in memory even alone, or has a non-finite feature.
        """
        lengths = chunk.tokens.lengths
        empty = positions[lengths[positions] == 0]
        if len(empty):
            raise FeatureError(f"{self._name(chunk, empty[0])} has no tokens: an empty text cannot be encoded")
        rest = positions[np.argsort(-lengths[positions], kind="stable")]
        while len(rest):
            stretch = _stretch(lengths[rest], *self._budget.trial[1:]) if self._budget.searching else None
            if stretch is None:
                yield from self._run(chunk, rest, None)
                return
            tokens = self._budget.trial[0]
            rows, rest = rest[stretch], np.delete(rest, stretch)
            started = time.perf_counter()
            done = list(self._run(chunk, rows, tokens))
            self._budget.measured(tokens, int(lengths[rows].sum()), time.perf_counter() - started)
            yield from done

    def _run(self, chunk: Chunk, rows: Int[np.ndarray, " m"], tokens: int | None) -> Iterator[Int[np.ndarray, " k"]]:
        """Encodes rows sorted longest first in batches of `tokens`, or of the budget in use."""
        lengths = chunk.tokens.lengths
        held: list[tuple[np.ndarray, list[torch.Tensor]]] = []
        while len(rows):
            count = rows_within(lengths[rows], min(tokens or self._budget.tokens, self._budget.tokens_at_most))
            batch_rows, padded = rows[:count], count * int(lengths[rows[0]])
            vectors = self._encode(chunk, batch_rows)
            if vectors is None:
                if count == 1:
                    raise FeatureError(
                        f"{self._name(chunk, rows[0])}, of {padded} tokens, does not fit in memory on "
                        f"{self._encoder.info.device} even alone; choose a smaller maximum length or another dtype"
                    )
                self._budget.halve(padded)
                continue
            held.append((batch_rows, vectors))
            rows = rows[count:]
            self._report.encoded += count
            self._report.tokens += int(lengths[batch_rows].sum())
            self._report.padded_tokens += padded
            if len(held) >= self._held_batches or not len(rows):
                yield self._write(chunk, held)
                held = []

    def _encode(self, chunk: Chunk, rows: Int[np.ndarray, " b"]) -> list[torch.Tensor] | None:
        """The vectors of one batch by view, or None where memory ran out."""
        try:
            return self._pooler(self._encoder.collate(chunk.tokens, rows))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        # Outside of the handler: the traceback would keep the batch's tensors alive.
        if self._encoder.info.device.startswith("cuda"):
            torch.cuda.empty_cache()
        return None

    def _write(self, chunk: Chunk, held: list[tuple[np.ndarray, list[torch.Tensor]]]) -> Int[np.ndarray, " k"]:
        positions = np.concatenate([rows for rows, _ in held])
        rows = chunk.first_rows[positions]
        for view, parts in zip(self._output.views, zip(*(vectors for _, vectors in held), strict=True), strict=True):
            vectors = torch.cat(parts).cpu().numpy()
            finite = np.isfinite(vectors).all(axis=1)
            if not finite.all():
                worst = positions[~finite][np.argmin(rows[~finite])]
                raise FeatureError(
                    f"{self._name(chunk, worst)} has a non-finite feature in view {view} ({self._encoder.info.dtype}); "
                    f"check the weights, or use fp32"
                )
            self._output.put(view, rows, vectors)
        return positions

    def _name(self, chunk: Chunk, position: int) -> str:
        number, row = self._output.locate(int(chunk.first_rows[position]))
        return f"row {row} of input {number}"


def _stretch(lengths: Int[np.ndarray, " m"], tokens: int, place: float) -> slice | None:
    """About `tokens` tokens of neighbouring rows around a place (0 to 1), or None where there are not so many."""
    ends = np.cumsum(lengths)
    if ends[-1] < tokens:
        return None
    latest = int(np.searchsorted(ends, ends[-1] - tokens, side="right"))
    start = min(int(place * len(lengths)), latest)
    before = ends[start] - lengths[start]
    return slice(start, min(len(lengths), int(np.searchsorted(ends, before + tokens)) + 1))
