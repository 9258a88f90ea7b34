"""What a prepared folder says of itself, and whether it is true."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from frozenprobe.errors import DataError
from frozenprobe.files import checksum

FORMAT = 1
PIECE, PIECES = 1 << 20, 64  # of a large file's content that tell it from another


class _Noted(BaseModel):
    """What a manifest holds for certain, of the type that is stated."""

    model_config = ConfigDict(strict=True)


class _Shard(_Noted):
    """A file of token ids."""

    file: str
    tokens: int
    crc32: int


class _Splits(_Noted):
    """The files of each split, in order."""

    train: list[_Shard]
    validation: list[_Shard]


class _Manifest(_Noted):
    """The whole; checked when it is read."""

    identity: dict[str, Any]
    vocabulary: int = Field(ge=2)
    start: int = Field(ge=0)
    tokenizer: str
    tokenizer_files: dict[str, str] = {}  # an earlier version did not note them
    documents: dict[str, int]
    empty_documents: int
    tokens: dict[str, int]
    characters_per_token: float
    shards: _Splits


def read_manifest(folder: Path) -> dict[str, Any]:
    """What a prepared folder says of itself.

    Raises:
        DataError: The folder is not prepared data, of another version, or its manifest is damaged.
    """
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text())
        version = manifest["identity"]["format"]
        if version == FORMAT:
            _Manifest.model_validate(manifest)
    except FileNotFoundError:
        raise DataError(f"{folder} is not prepared data: it has no manifest.json; see `crossbert prepare`") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise DataError(f"{path} is damaged: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path} is damaged: {error!r}") from None
    if version != FORMAT:
        raise DataError(f"{folder} was prepared by another version of crossbert (format {version}, not {FORMAT})")
    return manifest


def verify(folder: Path, manifest: dict[str, Any]) -> None:
    """Reads all that was prepared and compares checksums.

    Raises:
        DataError: A shard is damaged, or the tokenizer is not the one that made the ids.
    """
    verify_tokenizer(folder, manifest)
    for shards in manifest["shards"].values():
        for shard in shards:
            path = folder / shard["file"]
            try:
                found = checksum(path)
            except OSError as error:
                raise DataError(f"{path}: cannot be read: {error.strerror or error}; {again(folder)}") from error
            if found != shard["crc32"]:
                raise DataError(f"{path} is damaged: its checksum is not the one noted; {again(folder)}")


def verify_tokenizer(folder: Path, manifest: dict[str, Any]) -> None:
    """Compares the checksums of the tokenizer's files, as far as the manifest notes them.

    Raises:
        DataError: The tokenizer is missing or damaged, or another lies in its place.
    """
    place = folder / "tokenizer"
    if not place.is_dir():
        raise DataError(f"{place} is missing; {again(folder)}")
    found = digests_of(place)
    for name, digest in manifest.get("tokenizer_files", {}).items():
        if found.get(name) != digest:
            raise DataError(
                f"{place / name} is {'damaged or of another tokenizer' if name in found else 'missing'}; {again(folder)}"
            )


def again(folder: Path) -> str:
    """What helps when prepared data is damaged."""
    return f"delete {folder} and prepare it again"


def digests_of(folder: Path) -> dict[str, str]:
    """Of the files in a folder, but for weights: a tokenizer may lie beside a model."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.suffix not in (".safetensors", ".bin"))
    return {path.name: digest_of(path) for path in files}


def digest_of(path: Path) -> str:
    """Of a file's size and content; of the content of one above 64 MiB, of 64 pieces from its beginning to its end.

    Raises:
        DataError: The file cannot be read.
    """
    try:
        size = path.stat().st_size
        digest = hashlib.blake2b(size.to_bytes(8, "little"), digest_size=8)
        with path.open("rb") as file:
            for place in range(0, size, max(-((PIECE - size) // (PIECES - 1)), PIECE)):
                file.seek(place)
                digest.update(file.read(PIECE))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    return digest.hexdigest()


def dtype_of(vocabulary: int) -> np.dtype:
    """The type in which ids of a vocabulary are stored."""
    return np.dtype("<u2" if vocabulary <= 1 << 16 else "<u4")
