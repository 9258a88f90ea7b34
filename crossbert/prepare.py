"""Text -> token ids, once: every document as `<s> ... </s>`, end to end, in files that training maps into memory.

    manifest.json        settings, counts, the shards with their lengths and checksums
    tokenizer/           the tokenizer, saved by Hugging Face's `save_pretrained`
    train-00000.bin ...  uint16 (uint32 above 65,536 ids), little-endian, whole documents
    validation-00000.bin the same, of the documents held out

The folder is made under a temporary name and renamed when it is whole. A killed preparation goes on after the last shard
that was full: documents come in the same order each time, and which of them are held out depends on their content alone,
so that two copies of a document are never on both sides. It goes on with the same settings, text and tokenizer only.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from crossbert.display import Display
from crossbert.prepared import FORMAT, digest_of, digests_of, dtype_of, read_manifest, verify
from crossbert.settings import PrepareSettings
from crossbert.text import builtin_documents, hub_documents, local_documents, local_files
from crossbert.tokenizer import TextTokenizer, fingerprint, load_tokenizer, train_tokenizer
from frozenprobe.errors import DataError, SettingsError
from frozenprobe.files import TEMPORARY, sole_writer, write_atomically
from frozenprobe.settings import differences

DOCUMENTS_AT_ONCE = 512


@dataclass
class Progress:
    """What a preparation has behind it: all that is needed to go on.

    Attributes:
        read: Documents taken from the source.
        documents: Those kept, by split.
        empty: Those dropped for holding nothing but white space.
        characters: Of the kept ones.
        shards: Files of each split: name, tokens, crc32. The last one may still grow.
    """

    read: int = 0
    documents: dict[str, int] = field(default_factory=lambda: {"train": 0, "validation": 0})
    empty: int = 0
    characters: int = 0
    shards: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {"train": [], "validation": []})

    def tokens(self, split: str) -> int:
        """Tokens of a split."""
        return sum(shard["tokens"] for shard in self.shards[split])


def prepare(settings: PrepareSettings, out: Path, display: Display | None = None) -> dict[str, Any]:
    """Tokenises and packs text into a folder.

    Args:
        settings: Which text, which tokenizer.
        out: The folder; must not exist, unless the same settings made it of the same text. It is read through then.
        display: Told how far the work has got.

    Returns:
        The manifest.

    Raises:
        DataError: The text cannot be read, is empty, the folder belongs to something else or is damaged, or the disk is full.
        SettingsError: The tokenizer is unfit, or an option changes nothing for such text.
        RecordError: Another process prepares the same folder.
    """
    display = display or Display()
    identity = _identity(settings)
    if out.exists() or out.is_symlink():
        return _finished(out, identity, display)
    partial = out.absolute().parent / f".{out.name}.preparing"
    with sole_writer(partial):
        try:
            new = _claim(partial, identity)
            if not (partial / "manifest.json").exists():  # else it was killed when all was there but the last name
                try:
                    _fill(settings, partial, identity, display)
                except (DataError, SettingsError):
                    # The input is at fault, and will be another; a hub that breaks off goes on.
                    if new and settings.hub is None and not (partial / "progress.json").exists():
                        shutil.rmtree(partial, ignore_errors=True)
                    raise
            manifest = read_manifest(partial)
            for name in ("identity.json", "progress.json", ".lock"):
                (partial / name).unlink(missing_ok=True)
            os.rename(partial, out)
        except OSError as error:
            raise DataError(f"cannot write {partial}: {error.strerror or error}; the same command goes on") from error
    return manifest


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()


def _identity(settings: PrepareSettings) -> dict[str, Any]:
    """What decides the result: the settings, and local files by name, size and content.

    Raises:
        DataError: A file is missing or cannot be read.
        SettingsError: An option is for another kind of file than there is.
    """
    paths = local_files(settings.text)
    plain = [path.name.endswith((".txt", ".txt.gz")) for path in paths]
    if settings.asks("text_unit") and not any(plain):
        raise SettingsError("--text-unit changes nothing: there is no .txt file in --text")
    if settings.asks("text_column") and paths and all(plain):
        raise SettingsError("--text-column changes nothing: there is no .jsonl or .parquet file in --text")
    files = {str(path): digest_of(path) for path in paths}
    tokenizer = Path(settings.tokenizer)
    return {
        "format": FORMAT,
        "settings": settings.model_dump(mode="json"),
        "files": {path: os.stat(path).st_size for path in files},
        "content": files,
        "tokenizer": digests_of(tokenizer) if settings.train_tokenizer is None and tokenizer.is_dir() else {},
    }


def _changes(old: dict[str, Any], new: dict[str, Any]) -> str:
    """In what two identities differ, in words; an earlier version noted no content, which is not compared then."""
    old = {**old, "files": dict(old["files"])}  # pairs, in that version
    return differences(old, {key: value for key, value in new.items() if key in old})


def _finished(out: Path, identity: dict[str, Any], display: Display) -> dict[str, Any]:
    """The manifest of a folder that the same settings made before, if the folder is whole."""
    if not (out / "manifest.json").is_file():
        raise DataError(f"{out} exists and is not prepared data; choose another --out")
    manifest = read_manifest(out)
    try:
        changes = _changes(manifest["identity"], identity)
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{out / 'manifest.json'} is damaged; choose another --out") from None
    if changes:
        raise DataError(
            f"{out} holds data prepared from other text or with other settings ({changes}); choose another --out"
        )
    display.note(f"{out} was prepared before; comparing its checksums")
    verify(out, manifest)
    return manifest


def _claim(partial: Path, identity: dict[str, Any]) -> bool:
    """Begins a preparation, or finds what a killed one with the same settings left; whether it is a new one.

    Raises:
        DataError: Something else lies there.
    """
    note = partial / "identity.json"
    held = {entry.name for entry in partial.iterdir() if not entry.name.startswith((".lock", TEMPORARY))}
    if held <= {note.name}:  # nothing was done yet
        write_atomically(note, _json(identity))
        return True
    if held.isdisjoint({note.name, "manifest.json"}):
        raise DataError(f"{partial} holds files of no known preparation; delete it, or choose another --out")
    try:
        old = read_manifest(partial)["identity"] if "manifest.json" in held else json.loads(note.read_text())
        changes = _changes(old, identity)
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{note} is damaged; delete {partial} to start anew") from None
    if changes:
        raise DataError(
            f"{partial} holds an unfinished preparation of other text or with other settings ({changes});"
            " delete it to start anew, or choose another --out"
        )
    return False


def _fill(settings: PrepareSettings, partial: Path, identity: dict[str, Any], display: Display) -> None:
    """Makes the tokenizer, the shards and the manifest, as far as they are not there yet."""
    tokenizer = _tokenizer(settings, partial, display)
    progress = _resume(partial, tokenizer)
    if progress.read:
        display.note(f"{progress.read:,} documents were prepared before; going on behind them")
    with display:
        _write_shards(settings, partial, tokenizer, progress, display)
    manifest = _manifest(identity, tokenizer, progress) | {"tokenizer_files": digests_of(partial / "tokenizer")}
    write_atomically(partial / "manifest.json", _json(manifest))


def _tokenizer(settings: PrepareSettings, partial: Path, display: Display) -> TextTokenizer:
    folder = partial / "tokenizer"
    if folder.exists():
        return load_tokenizer(folder)
    making = partial / "tokenizer.making"
    if settings.train_tokenizer is None:
        load_tokenizer(settings.tokenizer).tokenizer.save_pretrained(making)
    else:
        display.note(f"training a tokenizer of {settings.train_tokenizer:,} entries")
        texts = (text for text in islice(_documents(settings), settings.tokenizer_documents) if text.strip())
        train_tokenizer(texts, settings.train_tokenizer, making)
    os.rename(making, folder)
    return load_tokenizer(folder)


def _documents(settings: PrepareSettings, skip: int = 0) -> Iterator[str]:
    """The source's documents from number `skip` on."""
    if settings.builtin is not None:
        documents = builtin_documents(settings.builtin, settings.seed, skip)
    elif settings.hub is not None:
        documents = hub_documents(
            settings.hub, settings.hub_config, settings.hub_split, settings.revision, settings.text_column, skip
        )
    else:
        documents = islice(local_documents(settings.text, settings.text_column, settings.text_unit), skip, None)
    left = None if settings.max_documents is None else max(settings.max_documents - skip, 0)
    return islice(documents, left)


def _resume(partial: Path, tokenizer: TextTokenizer) -> Progress:
    """The progress of a killed preparation, with what it wrote after its last note of progress cut off.

    Raises:
        DataError: The note is damaged, or a shard is missing or shorter than was noted.
    """
    note = partial / "progress.json"
    try:
        progress = Progress(**json.loads(note.read_text())) if note.exists() else Progress()
        width = dtype_of(tokenizer.vocabulary).itemsize
        known = {shard["file"]: shard["tokens"] * width for shards in progress.shards.values() for shard in shards}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise DataError(f"{note} is damaged; delete {partial} to start anew") from None
    sizes = {file.name: file.stat().st_size for file in partial.glob("*.bin")}
    for name, size in known.items():
        if sizes.get(name, 0) < size:
            raise DataError(f"{partial / name} is missing or cut short; delete {partial} to start anew")
    for name in sizes:
        if known.get(name):
            os.truncate(partial / name, known[name])
        else:
            (partial / name).unlink()
    return progress


def _write_shards(
    settings: PrepareSettings, partial: Path, tokenizer: TextTokenizer, progress: Progress, display: Display
) -> None:
    """Takes the documents that are left, and notes the progress whenever a shard is full."""
    dtype = dtype_of(tokenizer.vocabulary)
    threshold = int(settings.validation_share * 2**64)
    salt = settings.seed.to_bytes(8, "little")
    tokens = before = sum(map(progress.tokens, progress.shards))
    limit = math.inf if settings.max_tokens is None else settings.max_tokens
    started = time.monotonic()
    for texts in _chunks(_documents(settings, progress.read), DOCUMENTS_AT_ONCE):
        kept = [text for text in texts if text.strip()]
        encoded = iter(tokenizer.encode(kept) if kept else ())
        rows: dict[str, list[list[int]]] = {"train": [], "validation": []}
        for text in texts:
            if tokens >= limit:
                break
            progress.read += 1
            if not text.strip():
                progress.empty += 1
                continue
            ids = next(encoded)
            tokens += len(ids)
            digest = hashlib.blake2b(text.encode(), digest_size=8, salt=salt).digest()
            rows["validation" if int.from_bytes(digest, "little") < threshold else "train"].append(ids)
            progress.characters += len(text)
        current = {split: _open_shard(progress, split, settings.shard_tokens) for split in rows}
        for split, shard in current.items():
            progress.documents[split] += len(rows[split])
            _append(partial / shard["file"], shard, rows[split], dtype)
        rate = (tokens - before) / max(time.monotonic() - started, 1e-9)
        done, total = (
            (tokens, settings.max_tokens)
            if settings.max_tokens
            else (progress.read, settings.builtin or settings.max_documents)
        )
        display.advance(done, total, f"{tokens:,} tokens  {rate:,.0f} tokens/s")
        if tokens >= limit:
            break
        if any(shard["tokens"] >= settings.shard_tokens for shard in current.values()):
            _on_disk(partial, progress)
            write_atomically(partial / "progress.json", _json(asdict(progress)))
    for split in ("train", "validation"):
        progress.shards[split] = [shard for shard in progress.shards[split] if shard["tokens"]]
        if not progress.shards[split] and (split, settings.validation_share) != ("train", 1):
            raise DataError(
                f"no document for {split}: {progress.read:,} documents were read, {progress.empty:,} of them empty;"
                " give more text, or another --validation-share"
            )
    _on_disk(partial, progress)


def _on_disk(partial: Path, progress: Progress) -> None:
    """Waits until the last file of each split is really written, so that its note is true after a power cut too."""
    for shards in progress.shards.values():
        if shards and shards[-1]["tokens"]:
            with (partial / shards[-1]["file"]).open("rb") as file:
                os.fsync(file.fileno())


def _open_shard(progress: Progress, split: str, limit: int) -> dict[str, Any]:
    """The last shard of a split, or a new one where that is full."""
    shards = progress.shards[split]
    if not shards or shards[-1]["tokens"] >= limit:
        shards.append({"file": f"{split}-{len(shards):05d}.bin", "tokens": 0, "crc32": 0})
    return shards[-1]


def _append(path: Path, shard: dict[str, Any], rows: list[list[int]], dtype: np.dtype) -> None:
    """Adds documents to a file and to its entry."""
    if not rows:
        return
    content = b"".join(np.asarray(row, dtype).tobytes() for row in rows)
    with path.open("ab") as file:
        file.write(content)
    shard["tokens"] += len(content) // dtype.itemsize
    shard["crc32"] = zlib.crc32(content, shard["crc32"])


def _chunks(documents: Iterable[str], size: int) -> Iterator[list[str]]:
    iterator = iter(documents)
    while chunk := list(islice(iterator, size)):
        yield chunk


def _manifest(identity: dict[str, Any], tokenizer: TextTokenizer, progress: Progress) -> dict[str, Any]:
    tokens = {split: progress.tokens(split) for split in progress.shards}
    return {
        "identity": identity,
        "vocabulary": tokenizer.vocabulary,
        "start": tokenizer.start,
        "tokenizer": fingerprint(tokenizer.tokenizer),
        "documents": progress.documents,
        "empty_documents": progress.empty,
        "tokens": tokens,
        "characters": progress.characters,
        # Without <s> and </s>, which stand for no character.
        "characters_per_token": progress.characters
        / max(sum(tokens.values()) - 2 * sum(progress.documents.values()), 1),
        "shards": progress.shards,
    }
