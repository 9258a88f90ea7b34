"""The crash-safe store of a run: a folder that a kill at any moment leaves whole.

    manifest.json            settings, encoder, fingerprint, versions, git state, token budget
    units/<content id>.parquet   one finished unit of work; the content id is the digest of the file's bytes
    timings.jsonl            wall time of each unit; not part of "the same record"

A unit is written to a temporary name and renamed, so that it is there wholly or not at all. Because its name is the digest of its content, two
processes that compute the same unit write the same file, and a damaged file betrays itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from frozenprobe.errors import RecordError
from frozenprobe.records.schema import COLUMNS, SCHEMA_VERSION, Unit, UnitKey

METADATA_KEY = b"frozenprobe"


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file so that readers see the old content or the new, never half of it.

    Raises:
        RecordError: The disk is full or the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=".writing-", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise RecordError(f"cannot write {path}: {error.strerror or error}") from error


class RunStore:
    """One run's folder, open for writing.

    Attributes:
        folder: The run's folder.
        damaged: Unit files that were found damaged, by name; their units are computed again.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any], *, overwrite: bool = False) -> None:
        """Opens a new folder, or resumes one that holds the same run.

        Args:
            folder: Where the run is kept.
            manifest: Facts of the run. Its `identity` entry decides whether an existing folder holds the same run.
            overwrite: Drop what another run left in the folder.

        Raises:
            RecordError: The folder belongs to a different run, is not a run at all, or cannot be written.
        """
        self.folder = folder
        self.damaged: list[str] = []
        path = folder / "manifest.json"
        if folder.exists() and not folder.is_dir():
            raise RecordError(f"{folder} is a file; --out needs a folder")
        if path.exists() and not overwrite:
            old = read_manifest(folder)
            different = differences(old.get("identity", {}), manifest["identity"])
            if different:
                raise RecordError(f"{folder} holds a different run ({different}); choose another --out or --overwrite")
            self.manifest = old
        else:
            if folder.is_dir() and not path.exists() and any(_is_foreign(entry) for entry in folder.iterdir()):
                raise RecordError(f"{folder} holds other files; choose an empty or new folder for --out")
            for file in folder.glob("units/*.parquet"):
                file.unlink()
            (folder / "timings.jsonl").unlink(missing_ok=True)
            self.manifest = {"schema_version": SCHEMA_VERSION, **manifest}
            self._write_manifest()

    def finished(self) -> set[UnitKey]:
        """The units that are done, found anew at each call so that a second process is noticed."""
        units, self.damaged = read_units(self.folder)
        return {unit.key for unit in units}

    def write(self, unit: Unit, timings: dict[str, float]) -> None:
        """Adds a finished unit.

        Raises:
            RecordError: The disk is full or the folder cannot be written; nothing half-written stays.
        """
        about = {"title": unit.title, "key": asdict(unit.key), **unit.about}
        schema = COLUMNS.with_metadata({METADATA_KEY: json.dumps(about, sort_keys=True).encode()})
        columns = {name: [row.get(name) for row in unit.rows] for name in COLUMNS.names}
        buffer = pa.BufferOutputStream()
        pq.write_table(pa.table(columns, schema=schema), buffer, compression="zstd")
        content = buffer.getvalue().to_pybytes()
        write_atomically(self.folder / "units" / f"{_content_id(content)}.parquet", content)
        self.add_timings(str(unit.key), timings)

    def add_timings(self, what: str, seconds: dict[str, float]) -> None:
        """Notes the wall time of a unit, or of the set-up, by phase."""
        path = self.folder / "timings.jsonl"
        try:
            with open(path, "a") as file:
                file.write(json.dumps({"what": what, "seconds": seconds}) + "\n")
        except OSError as error:
            raise RecordError(f"cannot write {path}: {error.strerror or error}") from error

    def update(self, **facts: Any) -> None:
        """Adds facts to the manifest that were not known at the start, such as the token budget."""
        if any(self.manifest.get(name) != value for name, value in facts.items()):
            self.manifest.update(facts)
            self._write_manifest()

    def _write_manifest(self) -> None:
        write_atomically(self.folder / "manifest.json", (json.dumps(self.manifest, indent=2) + "\n").encode())


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a run.

    Raises:
        RecordError: There is none, it is damaged, or a newer version wrote it.
    """
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text())
    except FileNotFoundError:
        raise RecordError(f"{folder} is not a run: it has no manifest.json") from None
    except (OSError, ValueError) as error:
        raise RecordError(f"{path} is damaged ({error}); start again with --overwrite") from None
    if not isinstance(manifest, dict) or manifest.get("schema_version") != SCHEMA_VERSION:
        raise RecordError(f"{path} was not written by this version of frozenprobe (schema {SCHEMA_VERSION})")
    return manifest


def read_units(folder: Path) -> tuple[list[Unit], list[str]]:
    """All whole units of a run, one per key, and the names of the damaged files."""
    units: dict[UnitKey, Unit] = {}
    damaged = []
    for file in sorted(folder.glob("units/*.parquet")):
        try:
            content = file.read_bytes()
        except FileNotFoundError:  # another process replaced the run meanwhile
            continue
        if _content_id(content) != file.stem:
            damaged.append(file.name)
            continue
        table = pq.read_table(pa.BufferReader(content))
        about = json.loads(table.schema.metadata[METADATA_KEY])
        key = UnitKey(**about.pop("key"))
        units.setdefault(key, Unit(key, about.pop("title"), about, table.to_pylist()))
    return list(units.values()), damaged


def read_timings(folder: Path) -> Iterator[dict[str, Any]]:
    """The lines of the timings file; one that a kill cut short is passed over."""
    path = folder / "timings.jsonl"
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def _content_id(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def _is_foreign(entry: Path) -> bool:
    return not (entry.name.startswith(".writing-") or entry.name in ("units", "timings.jsonl"))


def differences(old: dict[str, Any], new: dict[str, Any]) -> str:
    """The first few settings in which two runs differ, in words."""
    old_flat, new_flat = _flatten(old), _flatten(new)
    names = [name for name in sorted(old_flat | new_flat) if old_flat.get(name) != new_flat.get(name)]
    shown = [f"{name} was {old_flat.get(name)}, is {new_flat.get(name)}" for name in names[:3]]
    return ", ".join(shown) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = json.loads(json.dumps(value))
    return flat
