"""One file of cached vectors: keys, float32 rows and the checksums that say whether to believe them.

Layout, little-endian: magic, rows `n`, width `d`, checksum of the keys, checksum of the rows (56 bytes), then `n` keys of
16 bytes, then `n x d` float32. A segment is written under a temporary name and renamed to a digest of its content.
"""

from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int, UInt

from frozenprobe.files import write_whole

SUFFIX = ".segment"
_MAGIC = b"FPVECS01"
_HEADER = struct.Struct("<8sQQ16s16s")


class DamagedSegmentError(Exception):
    """A segment is not what was written; its rows are to be computed again."""


def _digest(*parts: bytes | memoryview) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.digest()


def _keys_digest(n: int, d: int, keys: np.ndarray) -> bytes:
    return _digest(struct.pack("<QQ", n, d), keys.data)


def write_segment(folder: Path, keys: UInt[np.ndarray, "n 2"], rows: Float[np.ndarray, "n d"]) -> int:
    """Writes a segment into an existing folder, atomically, and returns its size in bytes.

    Raises:
        OSError: The folder cannot be written or the disk is full; nothing is left behind.
    """
    keys = np.ascontiguousarray(keys, dtype="<u8")
    rows = np.ascontiguousarray(rows, dtype="<f4")
    n, d = rows.shape
    header = _HEADER.pack(_MAGIC, n, d, _keys_digest(n, d, keys), _digest(rows.data))
    write_whole(folder / f"{_digest(header).hex()}{SUFFIX}", header, keys.data, rows.data)
    return len(header) + keys.nbytes + rows.nbytes


def read_header(path: Path) -> tuple[int, int]:
    """Rows and width of a segment, by its header and size alone.

    Raises:
        DamagedSegmentError: The header is none, or the file has another size than it says.
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        header = file.read(_HEADER.size)
    n, d, _, _ = _unpack(header, path.stat().st_size)
    return n, d


def _unpack(header: bytes, size: int) -> tuple[int, int, bytes, bytes]:
    if len(header) < _HEADER.size:
        raise DamagedSegmentError("it is cut off")
    magic, n, d, keys_digest, rows_digest = _HEADER.unpack(header)
    if magic != _MAGIC:
        raise DamagedSegmentError("it is no segment of this format")
    if size != _HEADER.size + 16 * n + 4 * n * d:
        raise DamagedSegmentError("its size is not what its header says")
    return n, d, keys_digest, rows_digest


class Segment:
    """A segment open for reading; its keys are checked at once, its rows before the first of them is used."""

    def __init__(self, path: Path) -> None:
        """Opens a segment.

        Raises:
            DamagedSegmentError: The header or the keys are damaged.
            OSError: The file is gone or cannot be read.
        """
        self.path = path
        # Mapped and checked by one open file: another process may replace or evict the name meanwhile.
        with path.open("rb") as file:
            header = file.read(_HEADER.size)
            n, self.width, keys_digest, self._rows_digest = _unpack(header, os.fstat(file.fileno()).st_size)
            self.keys = np.frombuffer(file.read(16 * n), dtype="<u8").reshape(n, 2)
            if _keys_digest(n, self.width, self.keys) != keys_digest:
                raise DamagedSegmentError("the checksum of its keys is wrong")
            shape = (n, self.width)
            offset = _HEADER.size + 16 * n
            self._rows = np.memmap(file, dtype="<f4", mode="r", offset=offset, shape=shape) if n else np.empty(shape)
        self._checked = False

    def __len__(self) -> int:
        return len(self.keys)

    def rows(self, indices: Int[np.ndarray, " m"]) -> Float[np.ndarray, "m d"]:
        """A copy of some rows.

        Raises:
            DamagedSegmentError: The rows are damaged.
        """
        if not self._checked:
            if _digest(self._rows.data) != self._rows_digest:
                raise DamagedSegmentError("the checksum of its vectors is wrong")
            self._checked = True
        return self._rows[indices]
