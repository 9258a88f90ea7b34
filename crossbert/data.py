"""Prepared tokens -> the batch of a step.

The global batch is a pure function of (seed, step): which sequences it holds, and how they are masked, depends neither on
the number of ranks nor on workers, nor on where a run was interrupted. A rank takes its slice of it. Each epoch visits
every sequence once, in a new order. Batches are made ahead by a background thread.
"""

from __future__ import annotations

import json
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from crossbert.masking import draw_permutations
from crossbert.prepared import again, dtype_of, read_manifest, verify, verify_tokenizer
from crossbert.tokenizer import TextTokenizer, fingerprint, load_tokenizer
from frozenprobe.errors import DataError, FrozenprobeError

Noise = Callable[[int, int, Sequence[int]], Any]
"""`PretrainingModel.draw_noise`: (seed, step, indices in the global batch) -> what the objective draws besides masks."""


@dataclass(frozen=True)
class PreparedData:
    """A folder that `crossbert prepare` made.

    Attributes:
        folder: Where it is.
        manifest: What it says of itself.
    """

    folder: Path
    manifest: dict[str, Any]

    @classmethod
    def open(cls, folder: Path) -> PreparedData:
        """Reads the manifest.

        Raises:
            DataError: The folder is not prepared data, of another version, or its manifest is damaged.
        """
        return cls(folder, read_manifest(folder))

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""
        return self.manifest["vocabulary"]

    @property
    def digest(self) -> int:
        """Tells two contents apart: a checksum of the shards' checksums."""
        return zlib.crc32(json.dumps(self.manifest["shards"], sort_keys=True).encode())

    def verify(self) -> None:
        """Reads every shard and the tokenizer's files, and compares their checksums.

        Raises:
            DataError: A shard is damaged, or the tokenizer is not the one that made the ids.
        """
        verify(self.folder, self.manifest)

    def load_tokenizer(self) -> TextTokenizer:
        """Loads the tokenizer that made the ids; the hub is never asked.

        Raises:
            DataError: It is missing or damaged, or another lies in its place.
        """
        verify_tokenizer(self.folder, self.manifest)
        try:
            tokenizer = load_tokenizer(self.folder / "tokenizer")
        except FrozenprobeError as error:
            raise DataError(f"{error}; {again(self.folder)}") from error
        if fingerprint(tokenizer.tokenizer) != self.manifest["tokenizer"]:
            raise DataError(
                f"{self.folder / 'tokenizer'} is not the tokenizer that {self.folder} was prepared with;"
                f" {again(self.folder)}"
            )
        return tokenizer

    def split(self, name: str, length: int) -> Sequences:
        """The sequences of a split.

        Raises:
            DataError: A shard is missing or cut short, or there is not a single whole sequence.
        """
        return Sequences(self, name, length)


class Sequences:
    """A split cut into sequences of one length, mapped from the disk; what is left over at a shard's end is not used."""

    def __init__(self, data: PreparedData, split: str, length: int) -> None:
        """Maps the shards; see `PreparedData.split`."""
        dtype = dtype_of(data.vocabulary)
        self.length = length
        self.vocabulary = data.vocabulary
        self.start = data.manifest["start"]
        self._paths = [data.folder / shard["file"] for shard in data.manifest["shards"][split]]
        self._shards: list[np.ndarray] = []
        for path, shard in zip(self._paths, data.manifest["shards"][split], strict=True):
            try:
                tokens = np.memmap(path, dtype, mode="r")
            except (OSError, ValueError) as error:
                raise DataError(f"{path}: cannot be read: {error}") from None
            if len(tokens) != shard["tokens"]:
                raise DataError(
                    f"{path} is damaged: {len(tokens):,} tokens, not {shard['tokens']:,}; {again(data.folder)}"
                )
            self._shards.append(tokens[: len(tokens) // length * length].reshape(-1, length))
        self._ends = np.cumsum([len(shard) for shard in self._shards])
        if not len(self):
            raise DataError(
                f"{data.folder}: the {split} split ({data.manifest['tokens'][split]:,} tokens) holds no whole sequence of {length}"
            )

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def take(self, indices: Int[np.ndarray, " n"]) -> Int[Tensor, "n s"]:
        """The sequences of these numbers, as int64.

        Raises:
            DataError: A shard holds an id outside the vocabulary.
        """
        rows = np.empty((len(indices), self.length), np.int64)
        shards = np.searchsorted(self._ends, indices, side="right")
        for row, (shard, index) in enumerate(zip(shards, indices, strict=True)):
            rows[row] = self._shards[shard][index - (self._ends[shard - 1] if shard else 0)]
        if rows.max() >= self.vocabulary:
            bad = self._paths[shards[int(rows.max(axis=1).argmax())]]
            raise DataError(f"{bad} is damaged: it holds an id outside the vocabulary of {self.vocabulary:,}")
        return torch.from_numpy(rows)


class Order:
    """Which sequences each step takes: all of them once an epoch, in an order drawn anew from (seed, epoch)."""

    def __init__(self, sequences: int, batch: int, seed: int) -> None:
        """Takes the number of sequences, those of a step over all ranks, and the seed."""
        self._sequences, self._batch, self._seed = sequences, batch, seed
        self._epochs: dict[int, np.ndarray] = {}

    def __call__(self, step: int) -> Int[np.ndarray, " batch"]:
        """Numbers of the sequences in the global batch of a step."""
        epochs, places = np.divmod(np.arange(step * self._batch, (step + 1) * self._batch), self._sequences)
        wanted = np.unique(epochs).tolist()
        for epoch in wanted:
            if epoch not in self._epochs:
                drawn = np.random.default_rng([self._seed, epoch]).permutation(self._sequences)
                self._epochs[epoch] = drawn.astype(np.uint32 if self._sequences < 1 << 32 else np.int64)
        self._epochs = {epoch: self._epochs[epoch] for epoch in wanted}
        numbers = np.empty(self._batch, np.int64)
        for epoch in wanted:
            inside = epochs == epoch
            numbers[inside] = self._epochs[epoch][places[inside]]
        return numbers


@dataclass(frozen=True)
class Batch:
    """What a model is given in one forward pass.

    Attributes:
        ids: Token ids, `[b, s]`.
        permutations: For each sequence the order from which its masks are taken, `[b, s]`.
        documents: For each token the number of its document within the sequence, `[b, s]`, with a document mask only.
        noise: What the objective draws besides, or None.
    """

    ids: Tensor
    permutations: Tensor
    documents: Tensor | None
    noise: Tensor | None

    def arguments(self, device: torch.device) -> list[Tensor | None]:
        """The arguments of the model's `forward`, on its device."""
        parts = (self.ids, self.permutations, self.documents, self.noise)
        return [None if part is None else part.to(device, non_blocking=True) for part in parts]


@dataclass(frozen=True)
class Share:
    """A rank's part of every global batch, in so many pieces: a contiguous slice for each rank, cut into pieces."""

    rank: int = 0
    ranks: int = 1
    pieces: int = 1

    def slices(self, batch: int) -> list[slice]:
        """The pieces of this rank.

        Raises:
            DataError: The batch cannot be divided so.
        """
        if batch % (self.ranks * self.pieces):
            raise DataError(
                f"data.batch ({batch}) must be divisible by ranks ({self.ranks}) x system.accumulation ({self.pieces})"
            )
        size = batch // (self.ranks * self.pieces)
        first = self.rank * self.pieces
        return [slice(piece * size, (piece + 1) * size) for piece in range(first, first + self.pieces)]


class BatchMaker:
    """Makes this rank's batches of any step."""

    def __init__(
        self,
        sequences: Sequences,
        order: Callable[[int], Int[np.ndarray, " batch"]],
        share: Share,
        seed: int,
        *,
        in_any_batch: bool = False,
        document_mask: bool = False,
        noise: Noise | None = None,
        pin: bool = False,
    ) -> None:
        """Prepares to make batches.

        Args:
            sequences: Where they come from.
            order: Step -> numbers of the sequences in the global batch.
            share: Which part of it this rank takes.
            seed: Of the masks.
            in_any_batch: Draw the masks of a sequence by its number, not by its step and its place in the batch.
            document_mask: Number the documents too.
            noise: The model's `draw_noise`.
            pin: Put the tensors in page-locked memory, for a GPU.
        """
        self._sequences, self._order, self._share, self._seed = sequences, order, share, seed
        self._in_any_batch, self._document_mask, self._noise, self._pin = in_any_batch, document_mask, noise, pin

    def __call__(self, step: int) -> list[Batch]:
        """The pieces of a step, in order."""
        numbers = self._order(step)
        return [self._piece(step, numbers, piece) for piece in self._share.slices(len(numbers))]

    def _piece(self, step: int, numbers: np.ndarray, piece: slice) -> Batch:
        indices = list(range(piece.start, piece.stop))  # in the global batch: what masks are drawn from
        if self._in_any_batch:
            step, indices = 0, numbers[piece].tolist()
        ids = self._sequences.take(numbers[piece])
        batch = Batch(
            ids=ids,
            permutations=draw_permutations(self._seed, step, indices, self._sequences.length),
            # Tokens before the first start belong to a document that began in the sequence before.
            documents=(ids == self._sequences.start).cumsum(1) if self._document_mask else None,
            noise=None if self._noise is None else self._noise(self._seed, step, indices),
        )
        if not self._pin:
            return batch
        return Batch(*(part if part is None else part.pin_memory() for part in vars(batch).values()))


class Loader:
    """Makes batches ahead of their use, in a thread of its own.

    Attributes:
        waited: Seconds that the last step waited for its data.
    """

    def __init__(self, make: Callable[[int], list[Batch]], first: int, last: int, ahead: int = 2) -> None:
        """Begins to make the batches of the steps `first` ... `last - 1`, at most `ahead` of them before they are asked for."""
        self._make, self._next, self._last, self._ahead = make, first, last, ahead
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="data")
        self._coming: deque[Future[list[Batch]]] = deque()
        self.waited = 0.0

    def __iter__(self) -> Iterator[list[Batch]]:
        self._submit()
        while self._coming:
            started = time.perf_counter()
            batches = self._coming.popleft().result()
            self.waited = time.perf_counter() - started
            self._submit()
            yield batches

    def _submit(self) -> None:
        while self._next < self._last and len(self._coming) < self._ahead:
            self._coming.append(self._thread.submit(self._make, self._next))
            self._next += 1

    def close(self) -> None:
        """Ends the thread."""
        self._thread.shutdown(wait=True, cancel_futures=True)
