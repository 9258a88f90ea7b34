"""Which rows train and which are held out, in which order, and what a step asks to be encoded.

The order is a pure function of (seed, epoch), so a resume needs no state. Rows of one query are dealt to different
batches as long as there are any. Held-out queries, and the passages that answer them, are never seen in training in
any role.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt

from frozenprobe.contrastive.data import Row, TrainingRows
from frozenprobe.contrastive.loss import Targets
from frozenprobe.errors import DataError

_LARGEST_SHARE = 10  # at most one in so many queries is held out


@dataclass(frozen=True)
class TextTable:
    """The distinct texts of one role, in the order in which they are met, with the slots that ask for them."""

    texts: list[str]
    keys: UInt[np.ndarray, " m"]
    slots: Int[np.ndarray, " n"]


@dataclass(frozen=True)
class Step:
    """What one step trains on."""

    queries: TextTable
    passages: TextTable
    targets: Targets


@dataclass(frozen=True)
class HeldOut:
    """A small retrieval task: `u` held-out queries over all passages of their rows."""

    queries: list[str]
    passages: list[str]
    relevant: Bool[np.ndarray, "u m"]


class TrainingSet:
    """The rows, split into those that train and those that are held out.

    Attributes:
        rows: All rows.
        train: Numbers of the rows that train.
        held_out: Numbers of the rows of held-out queries.
        notes: What a reader of the scores should know of the split.
    """

    def __init__(self, rows: TrainingRows, held_out: int = 0) -> None:
        """Splits. The held-out queries are those with the smallest hashes: the same for every seed and order of the rows.

        Args:
            rows: All rows.
            held_out: How many queries to hold out; a tenth of the distinct ones at most.

        Raises:
            DataError: Nothing is left to train on.
        """
        self.rows = rows
        query, self._known = _by_query(rows)
        queries = np.unique(rows.query_keys) if held_out else rows.query_keys[:0]
        chosen = queries[: min(held_out, len(queries) // _LARGEST_SHARE)]
        held = _among(rows.query_keys, chosen)
        self._answers = np.unique(rows.positive_keys[held])
        self._hidden = frozenset(self._answers.tolist())
        spoiled = _among(rows.positive_keys, self._answers) & ~held
        self.train = np.flatnonzero(~held & ~spoiled).astype(np.uint32)  # as few bytes a row as can be
        self.held_out = np.flatnonzero(held)
        if not len(self.train):
            raise DataError(
                f"{rows.report.source}: no row is left to train on beside the held-out queries; --held-out 0"
            )
        self.notes = self._describe(len(chosen), int(spoiled.sum()))
        self._query = _dense(query[self.train])

    def _describe(self, queries: int, spoiled: int) -> list[str]:
        if not queries:
            return []
        trains = np.zeros(len(self.rows), dtype=bool)
        trains[self.train] = True
        negatives = sum(
            int(_among(keys[trains[rows]], self._answers).sum()) for rows, keys in self.rows.negative_keys()
        )
        lines = [f"held out: {queries:,} queries with {len(self._answers):,} passages that answer them"]
        if spoiled or negatives:
            lines.append(
                f"{spoiled:,} rows and {negatives:,} negatives of other queries hold such a passage: not trained on"
            )
        return lines

    def steps(self, batch_size: int) -> int:
        """Steps of one epoch."""
        return -(-len(self.train) // batch_size)

    def batch(self, batch_size: int, seed: int, epoch: int) -> list[Int[np.ndarray, " b"]]:
        """The row numbers of every step of an epoch."""
        return [self.train[part] for part in deal(self._query, batch_size, seed, epoch)]

    def assemble(self, numbers: Int[np.ndarray, " b"]) -> Step:
        """Reads the rows of a step and finds its distinct texts.

        Hard negatives that answer a held-out query are left out.
        """
        return self._assemble(self.rows.read(numbers), self._hidden)

    def retrieval(self) -> HeldOut | None:
        """The held-out task, or None where nothing is held out."""
        if not len(self.held_out):
            return None
        step = self._assemble(self.rows.read(self.held_out), frozenset())
        return HeldOut(step.queries.texts, step.passages.texts, step.targets.known.numpy())

    def _assemble(self, rows: list[Row], hidden: frozenset[int]) -> Step:
        negatives = [
            [(key, text) for key, text in zip(row.negative_keys, row.negatives, strict=True) if key not in hidden]
            for row in rows
        ]
        queries = _table([(row.query_key, row.query) for row in rows])
        positives = [(row.positive_key, row.positive) for row in rows]
        passages = _table(positives + [entry for entries in negatives for entry in entries])
        own = np.full((len(rows), max(map(len, negatives), default=0)), -1)
        own[np.arange(own.shape[1])[None] < np.array([[len(entries)] for entries in negatives])] = passages.slots[
            len(rows) :
        ]
        known = self._known_among(queries.keys, passages.keys)
        known[queries.slots, passages.slots[: len(rows)]] = True
        return Step(
            queries,
            passages,
            Targets(
                query=torch.from_numpy(queries.slots),
                positive=torch.from_numpy(passages.slots[: len(rows)]),
                own=torch.from_numpy(own),
                known=torch.from_numpy(known),
            ),
        )

    def _known_among(
        self, queries: UInt[np.ndarray, " u"], passages: UInt[np.ndarray, " m"]
    ) -> Bool[np.ndarray, "u m"]:
        """Which passages are a known positive of a query that has several, in the whole data."""
        known = np.zeros((len(queries), len(passages)), dtype=bool)
        starts = np.searchsorted(self._known[:, 0], queries, side="left")
        counts = np.searchsorted(self._known[:, 0], queries, side="right") - starts
        rows = np.repeat(np.arange(len(queries)), counts)
        places = np.repeat(starts - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))
        answers = self._known[places, 1]
        order = np.argsort(passages)
        found = np.minimum(np.searchsorted(passages[order], answers), len(passages) - 1)
        hit = passages[order][found] == answers
        known[rows[hit], order[found[hit]]] = True
        return known


def deal(query: Int[np.ndarray, " n"], batch_size: int, seed: int, epoch: int) -> list[Int[np.ndarray, " b"]]:
    """Deals rows to batches of nearly equal size, at most `batch_size`, in an order that seed and epoch decide.

    Rows are sorted by query, queries in random order, and dealt in turn like cards: a query's rows meet in a batch only
    where it has more rows than there are batches.

    Args:
        query: Which query each row has, counted from 0 without gaps.
        batch_size: The most rows of a batch.
        seed: Of the run.
        epoch: Counted from 0.
    """
    random = np.random.default_rng([seed, epoch])
    steps = -(-len(query) // batch_size)
    shuffled = random.permutation(len(query)).astype(query.dtype)
    place = random.permutation(int(query.max()) + 1).astype(query.dtype)
    hands = shuffled[np.argsort(place[query[shuffled]], kind="stable")]
    return [hands[first::steps] for first in random.permutation(steps)]


def _by_query(rows: TrainingRows) -> tuple[Int[np.ndarray, " n"], UInt[np.ndarray, "p 2"]]:
    """The number of each row's query, and the pairs of query and positive keys, sorted, of queries with several positives."""
    order = np.lexsort((rows.positive_keys, rows.query_keys))
    queries, positives = rows.query_keys[order], rows.positive_keys[order]
    opens = np.append(True, queries[1:] != queries[:-1])
    number = np.empty(len(order), dtype=np.int32)
    number[order] = np.cumsum(opens, dtype=np.int32) - 1
    differs = opens | np.append(True, positives[1:] != positives[:-1])
    queries, positives = queries[differs], positives[differs]
    same = queries[1:] == queries[:-1]
    several = np.append(same, False) | np.append(False, same)
    return number, np.stack([queries[several], positives[several]], axis=1)


def _among(keys: UInt[np.ndarray, " n"], few: UInt[np.ndarray, " k"]) -> Bool[np.ndarray, " n"]:
    """Which keys are among a few sorted ones; `np.isin` would sort all of them, and hold several copies."""
    if not len(few):
        return np.zeros(len(keys), dtype=bool)
    places = np.searchsorted(few, keys)
    return few[np.minimum(places, len(few) - 1, out=places)] == keys


def _dense(numbers: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """The same numbers without gaps, in the same order."""
    used = np.bincount(numbers) > 0
    return (np.cumsum(used, dtype=numbers.dtype) - 1)[numbers]


def _table(entries: list[tuple[int, str]]) -> TextTable:
    places: dict[int, int] = {}
    texts: list[str] = []
    slots = np.empty(len(entries), dtype=np.int64)
    for slot, (key, text) in enumerate(entries):
        place = places.setdefault(key, len(texts))
        if place == len(texts):
            texts.append(text)
        slots[slot] = place
    return TextTable(texts, np.array(list(places), dtype=np.uint64), slots)


def noise_of(seed: int, step: int, keys: UInt[np.ndarray, " m"]) -> Int[torch.Tensor, " m"]:
    """A number for each text of a step, from which its dropout follows: of seed, step and content only."""
    salt = np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0]
    return torch.from_numpy((keys ^ salt).view(np.int64))


def mean_by_slot(
    vectors: Float[torch.Tensor, "n e"], slots: Int[torch.Tensor, " n"], count: int
) -> Float[torch.Tensor, "m e"]:
    """The vector of each distinct text where every slot was encoded by itself."""
    sums = vectors.new_zeros(count, vectors.shape[1]).index_add(0, slots, vectors)
    return sums / torch.bincount(slots, minlength=count)[:, None]
