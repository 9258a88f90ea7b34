"""The feature cache: vectors by content, so that a new task, run or encoder name reuses what was encoded before.

A store holds what one encoder gave under one set of circumstances; every circumstance that changes a vector is part of its
key, and no name is. Inside it each view has its segments (segments.py), whose rows are keyed by a hash of the token ids.
Segments are only ever added whole or removed whole, so that any number of processes may share a folder. The cache
never stops a run: what is damaged or cannot be read or written gives one warning, and is computed again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import os
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int, UInt

from frozenprobe.encoders.base import Encoder, EncoderInfo, Role
from frozenprobe.errors import FeatureError
from frozenprobe.features.base import View
from frozenprobe.features.segments import (
    SUFFIX,
    DamagedSegmentError,
    Segment,
    read_header,
    write_segment,
)
from frozenprobe.features.tokens import PairForm
from frozenprobe.files import TEMPORARY, write_whole

_TREE = "features-v1"
_ABOUT = "store.json"
_LIBRARIES = ("torch", "transformers", "tokenizers")
_ABANDONED_SECONDS = 3600

Found = tuple[Int[np.ndarray, " k"], Float[np.ndarray, "k d"]]


class CacheWarning(UserWarning):
    """Something of the cache is lost, and nothing else."""


@dataclass(frozen=True)
class StoreKey:
    """Everything that decides a vector besides the token ids and the view."""

    fingerprint: str
    max_length: int
    dtype: str
    attention: str
    device: str
    role: Role | None
    pair_form: PairForm
    padding_side: str
    libraries: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, encoder: Encoder, role: Role | None, pair_form: PairForm, fingerprint: str | None = None) -> StoreKey:
        """The key for an encoder as it is now; without its fingerprint it is asked, which may read all its weights."""
        info = encoder.info
        libraries = tuple((name, importlib.metadata.version(name)) for name in _LIBRARIES)
        return cls(
            fingerprint or encoder.fingerprint(),
            info.max_length,
            info.dtype,
            info.attention,
            info.device.partition(":")[0],
            role,
            pair_form,
            info.padding_side,
            libraries,
        )

    @property
    def digest(self) -> str:
        """Name of the store's folder."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class StoredView:
    """One line of what a cache holds.

    Attributes:
        encoder: Name of the encoder that first filled the store.
        view: The view, as `last/mean`.
        rows: Vectors.
        bytes: Size on disk.
        used: When it was last read or written.
    """

    encoder: str
    view: str
    rows: int
    bytes: int
    used: datetime


def default_cache_dir() -> Path:
    """`$FROZENPROBE_CACHE`, else `~/.cache/frozenprobe`."""
    return Path(os.environ.get("FROZENPROBE_CACHE") or Path.home() / ".cache" / "frozenprobe")


class FeatureCache:
    """A folder of stores under a size limit; the least recently used segments go first."""

    def __init__(self, root: Path, limit_bytes: int | None = None) -> None:
        """Names the folder; nothing is created or read before it is used. None means no limit."""
        self._tree = Path(root) / _TREE
        self._limit = limit_bytes
        self._size: int | None = None
        self._fingerprint: str | None = None
        self._writable = True
        self._reported: set[Path] = set()

    def pin(self, fingerprint: str) -> None:
        """Takes the fingerprint of the one encoder that this cache serves from now on as known, and never asks for it again."""
        self._fingerprint = fingerprint

    def open(self, encoder: Encoder, role: Role | None, pair_form: PairForm) -> FeatureStore:
        """The store of an encoder as it is now, for inputs of a role and a pair form."""
        return FeatureStore(self, StoreKey.of(encoder, role, pair_form, self._fingerprint), encoder.info)

    def size(self) -> int:
        """Bytes on disk."""
        return sum(size for _, size, _ in self._files())

    def stores(self) -> list[StoredView]:
        """What is held, most recently used first."""
        held: dict[Path, list[tuple[int, int, float]]] = {}
        for path, size, used in self._files():
            if path.suffix == SUFFIX:
                try:
                    rows = read_header(path)[0]
                except (OSError, DamagedSegmentError):
                    rows = 0
                held.setdefault(path.parent, []).append((rows, size, used))
        lines = []
        for folder, segments in held.items():
            rows, sizes, used = zip(*segments, strict=True)
            lines.append(
                StoredView(
                    _encoder_name(folder.parent),
                    folder.name.replace("~", "/"),
                    sum(rows),
                    sum(sizes),
                    datetime.fromtimestamp(max(used)).astimezone(),
                )
            )
        return sorted(lines, key=lambda line: line.used, reverse=True)

    def prune(self, limit_bytes: int) -> None:
        """Removes the least recently used segments until at most `limit_bytes` are left, and what killed runs left.

        Raises:
            FeatureError: Something cannot be removed.
        """
        files = sorted(self._files(), key=lambda entry: entry[2])
        now = time.time()
        total = sum(size for _, size, _ in files)
        for path, size, used in files:
            abandoned = _is_unfinished(path) and now - used > _ABANDONED_SECONDS
            if abandoned or (total > limit_bytes and path.suffix == SUFFIX):
                # A process that reads it keeps its mapping: the bytes go when it is done.
                _remove(path)
                total -= size
        self._size = total

    def clear(self) -> None:
        """Removes every store, and nothing else that may lie in the folder.

        Raises:
            FeatureError: Something cannot be removed.
        """
        for path, _, _ in list(self._files()):
            _remove(path)
        self._size = 0

    def _files(self) -> Iterator[tuple[Path, int, float]]:
        """Every segment and unfinished file with its size and time of last use."""
        for path in self._tree.rglob("*"):
            if path.suffix == SUFFIX or _is_unfinished(path):
                try:
                    status = path.stat()
                except OSError:  # another process removed it
                    continue
                yield path, status.st_size, status.st_mtime

    def _store(self, store: Path, about: dict[str, object], view: View, keys: np.ndarray, rows: np.ndarray) -> None:
        """Adds a segment, and stays under the limit."""
        if not self._writable:
            return
        try:
            if self._size is None:
                self._size = self.size()
            try:
                self._size += _add(store, about, view, keys, rows)
            except FileNotFoundError:  # another process removed the folder, empty as it still was
                self._size += _add(store, about, view, keys, rows)
            if self._limit is not None and self._size > self._limit:
                self.prune(self._limit)
        except (OSError, FeatureError) as error:
            self._writable = False
            _warn(f"{self._tree.parent} cannot be written ({error}); going on without keeping features")

    def _damaged(self, path: Path, error: Exception) -> None:
        """Reports a segment once, and drops it so that no later run meets it again."""
        if path in self._reported:
            return
        self._reported.add(path)
        _warn(f"{path} is damaged ({error}); its features are computed again")
        try:
            path.unlink(missing_ok=True)
        except OSError:
            return  # not ours to remove; it is never trusted either way


class FeatureStore:
    """What one encoder gave under one set of circumstances."""

    def __init__(self, cache: FeatureCache, key: StoreKey, info: EncoderInfo) -> None:
        self._cache = cache
        self._folder = cache._tree / key.digest
        self._about = {"encoder": info.name, "architecture": info.architecture, **dataclasses.asdict(key)}
        self._index: dict[View, _Index] = {}

    def read(self, view: View, keys: UInt[np.ndarray, "m 2"]) -> Iterator[Found]:
        """Looks rows up; yields positions in `keys` with the vectors held for them, segment by segment."""
        if view not in self._index:
            self._index[view] = _Index(self._cache, self._folder / _folder_name(view))
        yield from self._index[view].read(keys)

    def write(self, view: View, keys: UInt[np.ndarray, "m 2"], rows: Float[np.ndarray, "m d"]) -> None:
        """Keeps rows; a folder that cannot be written is reported once."""
        if len(keys):
            self._cache._store(self._folder, self._about, view, keys, rows)


class _Index:
    """The keys of a view's segments, sorted, so that thousands of rows are found at once."""

    def __init__(self, cache: FeatureCache, folder: Path) -> None:
        self._cache = cache
        self._segments: list[Segment] = []
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            try:
                self._segments.append(Segment(path))
            except FileNotFoundError:  # another process evicted it
                continue
            except OSError as error:
                if path not in cache._reported:
                    cache._reported.add(path)
                    _warn(f"{path} cannot be read ({error.strerror or error}); its features are computed again")
            except DamagedSegmentError as error:
                cache._damaged(path, error)
        sizes = [len(segment) for segment in self._segments]
        keys = np.concatenate([np.empty((0, 2), dtype="<u8"), *(segment.keys for segment in self._segments)])
        segment_of = np.repeat(np.arange(len(sizes)), sizes)
        row_of = np.concatenate([np.empty(0, dtype=np.int64), *map(np.arange, sizes)])
        order = np.argsort(keys[:, 0], kind="stable")
        self._keys, self._segment_of, self._row_of = keys[order], segment_of[order], row_of[order]

    def read(self, keys: UInt[np.ndarray, "m 2"]) -> Iterator[Found]:
        """See `FeatureStore.read`."""
        if not len(self._keys):
            return
        places = np.minimum(np.searchsorted(self._keys[:, 0], keys[:, 0]), len(self._keys) - 1)
        # Sorted by the first half only; two keys that share it (one in 2^64) cost a second encoding, never a wrong row.
        held = (self._keys[places] == keys).all(axis=1)
        segment_of = np.where(held, self._segment_of[places], -1)
        for number in np.unique(segment_of[held]).tolist():
            segment = self._segments[number]
            positions = np.flatnonzero(segment_of == number)
            try:
                rows = segment.rows(self._row_of[places[positions]])
            except DamagedSegmentError as error:
                self._cache._damaged(segment.path, error)
                continue
            _touch(segment.path)
            yield positions, rows


def _add(store: Path, about: dict[str, object], view: View, keys: np.ndarray, rows: np.ndarray) -> int:
    """Writes a segment, and what the store is about beside the first; returns the bytes."""
    folder = store / _folder_name(view)
    folder.mkdir(parents=True, exist_ok=True)
    description = store / _ABOUT
    if not description.exists():
        write_whole(description, json.dumps(about, indent=1).encode())
    return write_segment(folder, keys, rows)


def _is_unfinished(path: Path) -> bool:
    """Whether a file was never given its name; earlier versions marked such files at the end."""
    return path.name.startswith(TEMPORARY) or path.suffix == ".writing"


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise FeatureError(f"{path} cannot be removed: {error.strerror}") from error
    _remove_empty(path.parent)


def _touch(path: Path) -> None:
    """Marks a segment as used; in a folder that only may be read the time of writing has to do."""
    try:
        os.utime(path)
    except OSError:
        return


def _folder_name(view: View) -> str:
    return str(view).replace("/", "~")


def _encoder_name(store: Path) -> str:
    try:
        return str(json.loads((store / _ABOUT).read_text())["encoder"])
    except (OSError, ValueError, KeyError):
        return store.name


def _remove_empty(folder: Path) -> None:
    """Removes a view's folder once it is empty, and its store with the last of them."""
    try:
        folder.rmdir()
        if not any(entry.is_dir() for entry in folder.parent.iterdir()):
            (folder.parent / _ABOUT).unlink(missing_ok=True)
            folder.parent.rmdir()
    except OSError:
        return  # still in use


def _warn(message: str) -> None:
    warnings.warn(f"feature cache: {message}", CacheWarning, stacklevel=3)
