"""From texts to distinct tokenised inputs, in the background: what is encoded, and which rows share it.

Texts are made distinct before tokenisation, tokenised inputs after it (two texts may give the same ids), so that each is
encoded once. Calls `Encoder.tokenize` (encoders/base.py) in a second thread while the forward pass runs.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise, repeat
from typing import Literal

import numpy as np
from jaxtyping import Int, UInt

from frozenprobe.encoders.base import Encoder, Role, Tokenized
from frozenprobe.errors import FeatureError
from frozenprobe.features.base import ExtractionReport, Inputs

PairForm = Literal["single", "joint"]

FIRST_CHUNK = 1024
CHUNK = 16_384
_AHEAD = 2


@dataclass(frozen=True)
class TextGroup:
    """The distinct texts of all inputs that share a role and a form; rows count through all inputs of the call.

    Attributes:
        role: The role they are encoded in.
        form: `joint` where each is a pair in one sequence.
        texts: First or only text.
        pairs: Second text, or None.
        first_rows: The row where each text occurs first.
        counts: How many rows each text has.
    """

    role: Role | None
    form: PairForm
    texts: list[str]
    pairs: list[str] | None
    first_rows: Int[np.ndarray, " m"]
    counts: Int[np.ndarray, " m"]

    @property
    def characters(self) -> int:
        """Characters of all texts."""
        return sum(map(len, self.texts)) + sum(map(len, self.pairs or ()))


@dataclass(frozen=True)
class Chunk:
    """Some texts of a group, tokenised.

    Attributes:
        group: Their group.
        start: Position of the first text in the group.
        tokens: As tokenised, untouched, so that what an adapter put there reaches its `collate`.
        keys: 128-bit hashes of ids and types, as two words.
    """

    group: TextGroup
    start: int
    tokens: Tokenized
    keys: UInt[np.ndarray, "m 2"]

    @property
    def first_rows(self) -> Int[np.ndarray, " m"]:
        """The row where each text occurs first."""
        return self.group.first_rows[self.start : self.start + len(self.tokens)]

    @property
    def counts(self) -> Int[np.ndarray, " m"]:
        """How many rows each text has."""
        return self.group.counts[self.start : self.start + len(self.tokens)]

    @property
    def characters(self) -> int:
        """Characters of the texts."""
        part = slice(self.start, self.start + len(self.tokens))
        return sum(map(len, self.group.texts[part])) + sum(map(len, (self.group.pairs or [])[part]))


class TextSource:
    """Inputs that are tokenised while they are encoded.

    Attributes:
        sizes: Rows of each input.
        sources: For each row of all inputs, one after the other, the row where its text occurs first.
        characters: Characters of all distinct texts.
    """

    def __init__(self, encoder: Encoder, inputs: Sequence[Inputs]) -> None:
        """Finds the distinct texts; see `group_texts`."""
        self._encoder = encoder
        self._groups, self.sources = group_texts(inputs)
        self.sizes = tuple(map(len, inputs))
        self.characters = sum(group.characters for group in self._groups)

    def chunks(self) -> Generator[Chunk]:
        """The distinct inputs, tokenised in the background; see `tokenize_ahead`."""
        return tokenize_ahead(self._encoder, self._groups)


class KeptTokens:
    """Inputs that were tokenised once, for encoders whose weights change while the rows stay: no text is kept.

    Attributes:
        sizes: See `TextSource`.
        characters: 0: there is nothing left to tokenise.
    """

    characters = 0

    def __init__(self, encoder: Encoder, inputs: Sequence[Inputs]) -> None:
        """Tokenises everything, in the chunks in which it will be encoded."""
        source = TextSource(encoder, inputs)
        self.sizes, self._sources = source.sizes, source.sources
        bare: dict[int, TextGroup] = {}  # chunks of one group go on sharing it
        self._chunks = [
            replace(chunk, group=bare.setdefault(id(chunk.group), replace(chunk.group, texts=[], pairs=None)))
            for chunk in source.chunks()
        ]

    @property
    def sources(self) -> Int[np.ndarray, " n"]:
        """See `TextSource`; a copy, since extraction writes into it."""
        return self._sources.copy()

    @property
    def tokens(self) -> int:
        """Tokens of all distinct inputs."""
        return sum(len(chunk.tokens.ids) for chunk in self._chunks)

    @property
    def nbytes(self) -> int:
        """Memory held, in bytes."""
        arrays = [self._sources]
        for chunk in self._chunks:
            kept = chunk.tokens
            arrays += [
                chunk.keys,
                kept.ids,
                kept.offsets,
                kept.full_lengths,
                chunk.first_rows,
                chunk.counts,
            ]
            arrays += [] if kept.types is None else [kept.types]
        return sum(array.nbytes for array in arrays)

    def chunks(self) -> Generator[Chunk]:
        """The chunks, as often as asked for."""
        yield from self._chunks


def group_texts(inputs: Sequence[Inputs]) -> tuple[list[TextGroup], Int[np.ndarray, " n"]]:
    """Finds the distinct texts of all inputs.

    Returns:
        The groups, and for each row of all inputs, one after the other, the row where its text occurs first.

    Raises:
        FeatureError: Texts and pairs differ in number, or an entry is no string.
    """
    sources = np.arange(sum(map(len, inputs)))
    seen: dict[tuple[Role | None, PairForm], dict[tuple[str, str | None], int]] = {}
    row = 0
    for number, part in enumerate(inputs):
        if part.pairs is not None and len(part.pairs) != len(part.texts):
            raise FeatureError(f"input {number} has {len(part.texts)} texts but {len(part.pairs)} pairs")
        form: PairForm = "single" if part.pairs is None else "joint"
        first = seen.setdefault((part.role, form), {})
        pairs = repeat(None, len(part)) if part.pairs is None else part.pairs
        for position, entry in enumerate(zip(part.texts, pairs, strict=True)):
            for text in entry[: 1 if form == "single" else 2]:
                if not isinstance(text, str):
                    raise FeatureError(f"row {position} of input {number} is no text: {text!r}")
            sources[row] = first.setdefault(entry, row)
            row += 1
    counts = np.bincount(sources, minlength=len(sources))
    groups = []
    for (role, form), first in seen.items():
        rows = np.fromiter(first.values(), dtype=np.int64, count=len(first))
        texts = [text for text, _ in first]
        pairs = [pair for _, pair in first if pair is not None]
        groups.append(TextGroup(role, form, texts, pairs if form == "joint" else None, rows, counts[rows]))
    return groups, sources


def token_keys(tokens: Tokenized) -> UInt[np.ndarray, "m 2"]:
    """blake2b-128 of each row's token ids, and of its type ids where there are any."""
    ids = memoryview(np.ascontiguousarray(tokens.ids, dtype="<i4").tobytes())
    types = None
    if tokens.types is not None:
        types = memoryview(np.ascontiguousarray(tokens.types, dtype="<i4").tobytes())
    digests = []
    ends = (np.asarray(tokens.offsets, dtype=np.int64) * 4).tolist()
    for start, end in pairwise(ends):
        digest = hashlib.blake2b(ids[start:end], digest_size=16)
        if types is not None:
            digest.update(types[start:end])
        digests.append(digest.digest())
    return np.frombuffer(b"".join(digests), dtype="<u8").reshape(-1, 2)


def tokenize_ahead(encoder: Encoder, groups: Sequence[TextGroup]) -> Generator[Chunk]:
    """Yields the groups' texts chunk by chunk, the next ones being tokenised meanwhile in one other thread.

    The first chunk is small, so that the forward pass starts at once. Leaving the iteration early, or an
    exception in it, ends the thread after the chunk it is at.
    """

    def tokenize(group: TextGroup, start: int, end: int) -> Chunk:
        pairs = None if group.pairs is None else group.pairs[start:end]
        tokens = encoder.tokenize(group.texts[start:end], pairs, group.role)
        if len(tokens) != end - start:
            raise FeatureError(
                f"{encoder.info.name} breaks its contract: {end - start} texts gave {len(tokens)} tokenised rows"
            )
        return Chunk(group, start, tokens, token_keys(tokens))

    spans = ((group, start, end) for group in groups for start, end in _spans(len(group.texts)))
    pool = ThreadPoolExecutor(1, thread_name_prefix="tokenize")
    futures: deque[Future[Chunk]] = deque()
    try:
        for span in spans:
            futures.append(pool.submit(tokenize, *span))
            if len(futures) > _AHEAD:
                yield futures.popleft().result()
        while futures:
            yield futures.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _spans(rows: int) -> Iterator[tuple[int, int]]:
    start, size = 0, FIRST_CHUNK
    while start < rows:
        yield start, min(rows, start + size)
        start, size = start + size, CHUNK


def count_truncation(report: ExtractionReport, chunk: Chunk) -> None:
    """Adds what a chunk's rows lost to the length limit."""
    full = np.asarray(chunk.tokens.full_lengths)
    lost = np.maximum(full - chunk.tokens.lengths, 0)
    report.truncated += int(chunk.counts[lost > 0].sum())
    report.lost_tokens += int((lost * chunk.counts).sum())
    report.total_tokens += int((np.maximum(full, chunk.tokens.lengths) * chunk.counts).sum())
