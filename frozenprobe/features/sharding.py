"""One forward pass over several ranks: rank 0 deals out batches by their tokens, the others encode theirs and send vectors back.

Everything else stays on rank 0: texts are made distinct, tokenised and looked up in the cache there, so that each is encoded once
in all and the cache has one writer.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Int

from frozenprobe.encoders.base import Encoder, RunsInStep, Tokenized
from frozenprobe.errors import FrozenprobeError, RankError
from frozenprobe.features.base import View
from frozenprobe.features.batching import TokenBudget
from frozenprobe.features.forward import BatchEncoder, DoesNotFitError, Encoded
from frozenprobe.features.pooling import ViewPooler
from frozenprobe.ranks import Messages

Batches = list[Int[np.ndarray, " b"]]


def deal(batches: Batches, lengths: Int[np.ndarray, " n"], ranks: int) -> list[Batches]:
    """Deals batches out so that every rank has about as many tokens, padding included; rank 0 has one if anybody has.

    Args:
        batches: Rows of each batch, longest first.
        lengths: Tokens of all rows.
        ranks: How many shares to make.

    Returns:
        The share of each rank, its batches in the order given.
    """
    costs = [len(rows) * int(lengths[rows[0]]) for rows in batches]
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [(0, rank) for rank in range(ranks)]
    for number in sorted(range(len(batches)), key=lambda number: -costs[number]):  # each to the rank with the least
        load, rank = loads[0]
        shares[rank].append(number)
        heapq.heapreplace(loads, (load + costs[number], rank))
    return [[batches[number] for number in sorted(share)] for share in shares]


@dataclass(frozen=True)
class Work:
    """What rank 0 asks of another.

    Attributes:
        number: Counts up, so that an answer to work that was given up is told apart.
        tokens: The rows to encode.
        batches: Their numbers in `tokens`, batch by batch.
        fillers: Batches to run and forget, so that every rank runs as many.
        views: What is pooled.
        budget: The token budget that the batches were cut to.
    """

    number: int
    tokens: Tokenized
    batches: Batches
    fillers: Batches
    views: tuple[View, ...]
    budget: int


@dataclass(frozen=True)
class Part:
    """Vectors of a part of the work."""

    number: int
    encoded: Encoded


@dataclass(frozen=True)
class Done:
    """The work is finished; `halved` batches did not fit in memory, and one within `tokens_at_most` did."""

    number: int
    halved: int
    tokens_at_most: int


@dataclass(frozen=True)
class Failed:
    """The work has failed."""

    number: int
    error: Exception


class Team:
    """The other ranks, as rank 0 sees them.

    Attributes:
        ranks: How many ranks there are, this one included.
        in_step: Whether all of them must run as many batches, since the encoder's weights are sharded over them.
    """

    def __init__(self, messages: Messages) -> None:
        self._messages = messages
        self._number = 0
        self._rows: dict[int, np.ndarray] = {}
        self.ranks = messages.count
        self.in_step = False

    def hand_out(
        self, tokens: Tokenized, own: Batches, shares: Sequence[Batches], views: tuple[View, ...], budget: int
    ) -> Batches:
        """Sends every other rank its share.

        Args:
            tokens: The rows that the batches are of.
            own: The share of this rank.
            shares: Those of the others, rank 1 first.
            views: What is pooled.
            budget: The token budget.

        Returns:
            The batches that this rank is to run and forget behind its own.

        Raises:
            RankError: Another rank is lost.
        """
        self._number += 1
        self._rows = {}
        steps = max(len(share) for share in (own, *shares)) if self.in_step else 0
        smallest = own[-1][-1:]
        for rank, share in enumerate(shares, 1):
            missing = max(0, steps - len(share))
            if not share and not missing:
                continue
            rows = np.concatenate([*share, smallest] if missing else share)
            ends = np.cumsum([0, *map(len, share)])
            batches = [np.arange(start, end) for start, end in pairwise(ends)]
            fillers = [np.array([len(rows) - 1])] * missing
            work = Work(self._number, tokens.take(rows), batches, fillers, views, budget)
            self._messages.send(rank, work)
            self._rows[rank] = rows
        return [smallest] * max(0, steps - len(own))

    def collect(self, budget: TokenBudget, *, wait: bool) -> Iterator[Encoded]:
        """What the other ranks have encoded, with the rows' numbers in the tokens that were handed out.

        Args:
            budget: Told where batches did not fit.
            wait: Until all of it is there, or only for what is.

        Raises:
            RankError: A rank is lost.
            FrozenprobeError: A rank failed.
            DoesNotFitError: A batch that cannot be cut does not fit there.
        """
        while self._rows and (wait or self._messages.waiting):
            rank, message = self._messages.receive()
            if getattr(message, "number", None) != self._number:
                continue  # of work that was given up
            if isinstance(message, Part):
                rows = self._rows[rank][message.encoded.rows]
                yield message.encoded._replace(rows=rows)
            elif isinstance(message, Done):
                if message.halved:
                    budget.halved_elsewhere(message.halved, message.tokens_at_most)
                del self._rows[rank]
            elif isinstance(message, Failed):
                if isinstance(message.error, DoesNotFitError):
                    row = int(self._rows[rank][message.error.row])
                    raise DoesNotFitError(row, message.error.rows, message.error.padded)
                raise as_own(message.error, rank)


def do(work: Work, encoder: Encoder, messages: Messages) -> None:
    """Does the work of a rank other than 0 and sends what comes of it; given up when the next message has come."""
    device, dtype = encoder.info.device, encoder.info.dtype
    budget = TokenBudget(device, dtype, work.budget)
    in_step = isinstance(encoder, RunsInStep) and encoder.in_step
    try:
        runner = BatchEncoder(encoder, ViewPooler(encoder, work.views), budget, in_step=in_step)
        finished = runner.run(work.tokens, [*work.batches, *work.fillers], work.budget)
        for count, encoded in enumerate(finished):
            if not in_step and messages.waiting:
                return
            if not in_step or count < len(work.batches):
                messages.send(0, Part(work.number, encoded))
    except RankError:
        raise
    except Exception as error:
        messages.send(0, Failed(work.number, portable(error)))
        return
    messages.send(0, Done(work.number, budget.halved, budget.tokens_at_most))


def portable(error: Exception) -> Exception:
    """The error itself where another process knows it, else a `RuntimeError` with its text."""
    if isinstance(error, FrozenprobeError | DoesNotFitError):
        return error
    return RuntimeError(f"{type(error).__name__}: {error}")


def as_own(error: Exception, rank: int) -> Exception:
    """Another rank's error as one of this process, which says whose it is."""
    return type(error)(f"rank {rank}: {error}")
