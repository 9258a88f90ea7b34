"""Token features kept on disk, memory-mapped: one growing file of vectors, and an index that is always behind it.

A kill in the middle leaves vectors without an index entry, which the next opening cuts off.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt

from frozenprobe.encoders.base import Role
from frozenprobe.errors import FeatureError

_ENTRY = np.dtype([("key", "<u8"), ("role", "<u1"), ("start", "<u8"), ("length", "<u4")])
_ROLES: tuple[Role, ...] = ("query", "document")


class TokenStore:
    """Token features by role and content of the text; all of one encoder, layer and length limit.

    Attributes:
        full: Whether the limit, or the disk, let no more in.

    Args:
        folder: Where the two files lie; the caller sees to it that it belongs to one encoder and layer.
        width: Width `d`.
        dtype: Of the vectors.
        limit: Bytes beyond which nothing is added.
    """

    def __init__(self, folder: Path, width: int, dtype: torch.dtype, limit: int) -> None:
        self._width, self._dtype, self._limit = width, dtype, limit
        self._size = torch.empty(0, dtype=dtype).element_size()
        self._vectors, self._index = folder / "tokens.bin", folder / "tokens.index"
        self.full = False
        self._places: dict[tuple[int, int], tuple[int, int]] = {}
        self._mapped: torch.Tensor | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._vectors.touch()
            self._index.touch()
            entries: np.ndarray = np.fromfile(self._index, dtype=_ENTRY)
            there = self._vectors.stat().st_size // (self._width * self._size)
            entries = entries[entries["start"] + entries["length"] <= there]
            self._end = int((entries["start"] + entries["length"]).max(initial=0))
            with self._index.open("r+b") as index, self._vectors.open("r+b") as vectors:
                index.truncate(len(entries) * _ENTRY.itemsize)
                vectors.truncate(self._end * self._width * self._size)
        except OSError as error:
            raise FeatureError(f"cannot keep token features in {folder}: {error.strerror or error}") from None
        for key, role, start, length in entries.tolist():
            self._places[role, key] = (start, length)

    def __len__(self) -> int:
        return len(self._places)

    def find(self, role: Role, keys: UInt[np.ndarray, " r"]) -> Bool[np.ndarray, " r"]:
        """Which texts are kept."""
        number = _ROLES.index(role)
        return np.array([(number, key) in self._places for key in keys.tolist()], dtype=bool)

    def buffer(self, tokens: int, device: torch.device) -> Float[torch.Tensor, "tokens d"]:
        """An empty tensor for so many tokens."""
        return torch.empty(tokens, self._width, dtype=self._dtype, device=device)

    def read(self, role: Role, key: int) -> Float[torch.Tensor, "t d"]:
        """The token features of one kept text."""
        start, length = self._places[_ROLES.index(role), key]
        if self._mapped is None or len(self._mapped) < start + length:
            mapped = np.memmap(self._vectors, dtype=np.uint8, mode="c")  # copy on write: torch wants it writable
            self._mapped = torch.from_numpy(mapped).view(self._dtype).view(-1, self._width)
        return self._mapped[start : start + length]

    def add(
        self,
        role: Role,
        keys: UInt[np.ndarray, " b"],
        lengths: Int[np.ndarray, " b"],
        tokens: Float[torch.Tensor, "total d"],
    ) -> None:
        """Appends texts, their tokens one after the other; a full disk or limit ends the keeping and loses nothing."""
        content = tokens.contiguous().view(torch.uint8).cpu().numpy()
        if self.full or (self._end + len(tokens)) * self._width * self._size > self._limit:
            self.full = True
            return
        starts = self._end + np.cumsum(lengths) - lengths
        entries: np.ndarray = np.empty(len(keys), dtype=_ENTRY)
        entries["key"], entries["role"] = keys, _ROLES.index(role)
        entries["start"], entries["length"] = starts, lengths
        try:
            with self._vectors.open("ab") as file:
                file.write(content.data)
            with self._index.open("ab") as file:
                file.write(entries.tobytes())
        except OSError:
            self.full = True
            return
        self._end += len(tokens)
        for key, start, length in zip(keys.tolist(), starts.tolist(), lengths.tolist(), strict=True):
            self._places[_ROLES.index(role), key] = (start, length)
