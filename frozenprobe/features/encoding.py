"""The forward pass over the rows of a chunk: sorted by length, cut to the token budget, shared with other ranks if there are any."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
from jaxtyping import Int

from frozenprobe.encoders.base import Encoder
from frozenprobe.errors import FeatureError
from frozenprobe.features.base import ExtractionReport
from frozenprobe.features.batching import TokenBudget, cut
from frozenprobe.features.forward import BatchEncoder, DoesNotFitError, Encoded
from frozenprobe.features.output import Output
from frozenprobe.features.pooling import ViewPooler
from frozenprobe.features.sharding import Team, deal
from frozenprobe.features.tokens import Chunk


class BatchRunner:
    """Encodes rows of chunks into an output, and counts what it did."""

    def __init__(
        self,
        encoder: Encoder,
        pooler: ViewPooler,
        budget: TokenBudget,
        output: Output,
        report: ExtractionReport,
        team: Team | None = None,
    ) -> None:
        self._encoder = encoder
        self._budget = budget
        self._output = output
        self._report = report
        self._team = team
        self._in_step = team is not None and team.in_step
        self._batches = BatchEncoder(encoder, pooler, budget, in_step=self._in_step)

    def run(self, chunk: Chunk, positions: Int[np.ndarray, " m"]) -> Iterator[Int[np.ndarray, " k"]]:
        """Encodes some rows of a chunk; yields their positions as their vectors reach the output.

        Raises:
            FeatureError: A row has no tokens, does not fit in memory even alone, or has a non-finite feature.
            RankError: Another rank is lost.
        """
        lengths = chunk.tokens.lengths
        empty = positions[lengths[positions] == 0]
        if len(empty):
            raise FeatureError(f"{self._name(chunk, empty[0])} has no tokens: an empty text cannot be encoded")
        rows = positions[np.argsort(-lengths[positions], kind="stable")]
        try:
            if self._team is None:
                yield from self._run_alone(chunk, rows)
            elif len(rows):
                yield from self._run_shared(chunk, rows, self._team)
        except DoesNotFitError as error:
            what = f"{self._name(chunk, error.row)}, of {error.padded} tokens, does not fit in memory on"
            advice = "even alone; choose a smaller maximum length or another dtype"
            if error.rows > 1:
                what = f"a batch of {error.padded} tokens does not fit in memory on"
                advice = "and ranks in step cannot cut it; choose a smaller --tokens-per-batch"
            raise FeatureError(f"{what} {self._encoder.info.device} {advice}") from None

    def _run_alone(self, chunk: Chunk, rest: Int[np.ndarray, " m"]) -> Iterator[Int[np.ndarray, " k"]]:
        """Encodes rows sorted longest first, searching for the best budget on the way."""
        lengths = chunk.tokens.lengths
        while len(rest):
            stretch = _stretch(lengths[rest], *self._budget.trial[1:]) if self._budget.searching else None
            if stretch is None:
                yield from self._run_batches(chunk, rest, self._budget.tokens)
                return
            tokens = self._budget.trial[0]
            rows, rest = rest[stretch], np.delete(rest, stretch)
            started = time.perf_counter()
            done = list(self._run_batches(chunk, rows, tokens))
            self._budget.measured(tokens, int(lengths[rows].sum()), time.perf_counter() - started)
            yield from done

    def _run_batches(self, chunk: Chunk, rows: Int[np.ndarray, " m"], budget: int) -> Iterator[Int[np.ndarray, " k"]]:
        batches = cut(rows, chunk.tokens.lengths, min(budget, self._budget.tokens_at_most))
        for encoded in self._batches.run(chunk.tokens, batches, budget):
            yield self._write(chunk, encoded)

    def _run_shared(self, chunk: Chunk, rows: Int[np.ndarray, " m"], team: Team) -> Iterator[Int[np.ndarray, " k"]]:
        """Encodes a share of the rows here and lets the other ranks encode theirs.

        The batches are those of one process with the same budget, so that its vectors are the same to the bit. While a budget is
        being searched for, it is searched for in the share of this rank.
        """
        budget = self._budget.tokens
        own, *others = deal(cut(rows, chunk.tokens.lengths, budget), chunk.tokens.lengths, team.ranks)
        if self._in_step:
            # Nothing may go wrong between two batches, since the other ranks would wait in the next one for ever.
            fillers = team.hand_out(chunk.tokens, own, others, self._output.views, budget)
            together = list(self._batches.run(chunk.tokens, [*own, *fillers], budget))
            for encoded in together[: len(own)]:
                yield self._write(chunk, encoded)
        else:
            team.hand_out(chunk.tokens, own, others, self._output.views, budget)
            if self._budget.searching:
                finished = self._run_alone(chunk, np.concatenate(own))
            else:
                finished = (self._write(chunk, part) for part in self._batches.run(chunk.tokens, own, budget))
            for positions in finished:
                yield positions
                for encoded in team.collect(self._budget, wait=False):
                    yield self._write(chunk, encoded)
        for encoded in team.collect(self._budget, wait=True):
            yield self._write(chunk, encoded)

    def _write(self, chunk: Chunk, encoded: Encoded) -> Int[np.ndarray, " k"]:
        positions = encoded.rows
        rows = chunk.first_rows[positions]
        self._report.encoded += len(positions)
        self._report.tokens += int(chunk.tokens.lengths[positions].sum())
        self._report.padded_tokens += encoded.padded
        for view, vectors in zip(self._output.views, encoded.vectors, strict=True):
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
