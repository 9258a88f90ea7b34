"""The crash-safe store of a run: a folder that a kill at any moment leaves whole.

    manifest.json            settings, encoder, fingerprint, versions, git state, token budget
    units/<content id>.parquet   one finished unit of work; the content id is the digest of the file's bytes
    timings.jsonl            wall time of each unit; not part of "the same record"

A unit is written to a temporary name and renamed, so that it is there wholly or not at all. Because its name is the digest of its content, a
damaged file betrays itself, and two processes that compute the same unit never meet. It says under which manifest it was written, by `run_id`: one
that was copied from another run, or that a run left which was overwritten meanwhile, is not taken for this run's.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import uuid
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from frozenprobe.errors import RecordError
from frozenprobe.files import TEMPORARY, by_turns, write_atomically
from frozenprobe.records.schema import COLUMNS, SCHEMA_VERSION, Unit, UnitKey
from frozenprobe.settings import differences

METADATA_KEY = b"frozenprobe"
# The headline scores stand in the file's footer too, so that a table over a thousand runs reads footers only.
HEADLINE = "headline"
RUN_ID = "run_id"
OURS = {"manifest.json", "units", "timings.jsonl"}
TABLES = {"scores.csv", "summary.csv", "tasks.csv"}  # beside them, once a run is through
EMPTY_ROW = {**dict.fromkeys(COLUMNS.names), "low": float("nan"), "high": float("nan")}


class _Mark(NamedTuple):
    """Tells a file from what it was before."""

    name: str
    size: int
    changed: int


class RunStore:
    """One run's folder, open for writing.

    Attributes:
        folder: The run's folder.
        damaged: Unit files that were found damaged, by name; their units are computed again.
    """

    def __init__(
        self,
        folder: Path,
        manifest: dict[str, Any],
        *,
        overwrite: bool = False,
        leaves: Collection[str] = (),
        beside: Collection[str] = (),
    ) -> None:
        """Opens a new folder, or resumes one that holds the same run.

        Args:
            folder: Where the run is kept.
            manifest: Facts of the run. Its `identity` entry decides whether an existing folder holds the same run.
            overwrite: Drop what another run left in the folder.
            leaves: Folders that such runs leave there besides their records.
            beside: What the run itself may have put there before; it stays.

        Raises:
            RecordError: The folder belongs to a different run, is not a run at all, or cannot be written.
        """
        self.folder = folder
        self.damaged: list[str] = []
        self._seen: dict[_Mark, Unit | None] = {}
        self.manifest = {"schema_version": SCHEMA_VERSION, RUN_ID: uuid.uuid4().hex, **manifest}
        old = require_free(folder, manifest["identity"], overwrite=overwrite, leaves=leaves, beside=beside)
        with _in_one_line(folder):
            left = set(leaves) - set(beside) if overwrite else ()
            while old is None and not self._begin(overwrite, left):  # another process began a run here meanwhile
                old = require_free(folder, manifest["identity"], leaves=leaves, beside=beside)
            if old is not None:
                self.manifest = old
                self._set_damaged_aside()

    def _begin(self, overwrite: bool, left: Collection[str]) -> bool:
        """Puts the new manifest in place, and drops what an older run left; False where there is one that must stay."""
        if not overwrite:
            return self._write_manifest(replace=False)
        self.folder.mkdir(parents=True, exist_ok=True)
        leftovers = [*self.folder.glob("units/*"), self.folder / "timings.jsonl"]
        # The manifest goes first, so that nobody takes old units for its own, or these for old.
        with by_turns(self.folder):
            self._write_manifest()
        for file in leftovers:
            file.unlink(missing_ok=True)
        for name in left:
            shutil.rmtree(self.folder / name, ignore_errors=True)
        return True

    def _set_damaged_aside(self) -> None:
        """Renames damaged units, so that they are told of once; what they held is computed again."""
        self._look()
        self.damaged = sorted(mark.name for mark, unit in self._seen.items() if unit is None)
        for name in self.damaged:
            with suppress(FileNotFoundError):  # another process was quicker
                (self.folder / "units" / name).replace(self.folder / "units" / f"{name}.damaged")

    def finished(self) -> set[UnitKey]:
        """The units that are done, looked for anew at each call so that a second process is noticed."""
        self._look()
        units = [unit for unit in self._seen.values() if unit is not None]
        return {unit.key for unit in units if not _is_foreign(unit, self.manifest)}

    def _look(self) -> None:
        """Notes which unit each file holds, None where it is damaged; a file is read again only where it has changed."""
        seen: dict[_Mark, Unit | None] = {}
        for file in self.folder.glob("units/*.parquet"):
            try:
                status = file.stat()
                mark = _Mark(file.name, status.st_size, status.st_mtime_ns)
                if mark not in self._seen:
                    self._seen[mark] = _read_unit(file, headline_only=True)
            except FileNotFoundError:  # another process replaced the run meanwhile
                continue
            seen[mark] = self._seen[mark]
        self._seen = seen

    def write(self, unit: Unit, timings: dict[str, float]) -> None:
        """Adds a finished unit.

        Raises:
            RecordError: The disk is full, the folder cannot be written, or another run has taken it over; nothing
                half-written stays.
        """
        lost = f"; {unit.title} is not kept"
        self.require_kept(lost)
        own = {"title": unit.title, "key": asdict(unit.key), RUN_ID: self.manifest.get(RUN_ID)}
        about = {**own, HEADLINE: _headline(unit), **unit.about}
        schema = COLUMNS.with_metadata({METADATA_KEY: json.dumps(about, sort_keys=True).encode()})
        columns = {name: [row.get(name) for row in unit.rows] for name in COLUMNS.names}
        buffer = pa.BufferOutputStream()
        pq.write_table(pa.table(columns, schema=schema), buffer, compression="zstd")
        content = buffer.getvalue().to_pybytes()
        file = self.folder / "units" / f"{_content_id(content)}.parquet"
        try:
            write_atomically(file, content)
        finally:
            try:
                self.require_kept(lost)  # another run may have come while it was written
            except RecordError:
                file.unlink(missing_ok=True)
                raise
        self.add_timings(str(unit.key), timings)

    def require_kept(self, lost: str = "") -> dict[str, Any]:
        """The manifest as it lies there now; another process of the same run may have added to it.

        Raises:
            RecordError: Another run has taken the folder over; `lost` says what comes of it.
        """
        manifest = read_manifest(self.folder)
        if manifest.get(RUN_ID) != self.manifest.get(RUN_ID):
            raise RecordError(f"{self.folder} was overwritten by another run meanwhile{lost}")
        return manifest

    def add_timings(self, what: str, seconds: dict[str, float]) -> None:
        """Notes the wall time of a unit, or of the set-up, by phase."""
        path = self.folder / "timings.jsonl"
        try:
            with open(path, "a") as file:
                file.write(json.dumps({"what": what, "seconds": seconds}) + "\n")
        except OSError as error:
            raise RecordError(f"cannot write {path}: {error.strerror or error}") from error

    def update(self, **facts: Any) -> None:
        """Adds facts to the manifest that were not known at the start, such as the token budget.

        Raises:
            RecordError: The folder cannot be written, or another run has taken it over.
        """
        with _in_one_line(self.folder), by_turns(self.folder):  # nobody's overwriting is undone
            held = self.require_kept()
            self.manifest = {**held, **facts}
            if self.manifest != held:
                self._write_manifest()

    def _write_manifest(self, *, replace: bool = True) -> bool:
        content = json.dumps(self.manifest, indent=2) + "\n"
        return write_atomically(self.folder / "manifest.json", content.encode(), replace=replace)


def require_free(
    folder: Path,
    identity: dict[str, Any],
    *,
    overwrite: bool = False,
    leaves: Collection[str] = (),
    beside: Collection[str] = (),
) -> dict[str, Any] | None:
    """The manifest of the same run that a folder holds, or None where a new one may begin there; writes nothing.

    Args:
        folder: Where a run is to be kept.
        identity: What decides whether another run is the same.
        overwrite: Another run may be dropped.
        leaves: Folders that such runs leave there besides their records.
        beside: What may lie there without a run.

    Raises:
        RecordError: The folder belongs to a different run, is not a run at all, or cannot be used.
    """
    with _in_one_line(folder):
        if folder.exists() and not folder.is_dir():
            raise RecordError(f"{folder} is a file; --out needs a folder")
        # Listed before the manifest is looked for: one that another process creates in between is then found.
        entries = [entry.name for entry in folder.iterdir()] if folder.exists() else []
        if overwrite or not (folder / "manifest.json").exists():
            _require_ours(folder, [name for name in entries if name not in beside], overwrite, leaves)
            return None
        try:
            old = read_manifest(folder)
        except RecordError as error:
            raise RecordError(f"{error}; choose another --out or --overwrite") from None
        if different := differences(old["identity"], identity):
            raise RecordError(f"{folder} holds a different run ({different}); choose another --out or --overwrite")
        return old


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
    except NotADirectoryError:
        raise RecordError(f"{folder} is not a run: it is a file, not a folder") from None
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise RecordError(f"{path} is damaged ({error})") from None
    if not isinstance(manifest, dict) or manifest.get("schema_version") != SCHEMA_VERSION:
        raise RecordError(f"{path} was not written by this version of frozenprobe (schema {SCHEMA_VERSION})")
    encoder = manifest.get("encoder")
    if not (isinstance(manifest.get("identity"), dict) and isinstance(encoder, dict) and "name" in encoder):
        raise RecordError(f"{path} is damaged (it does not say what was run)")
    return manifest


class Held(NamedTuple):
    """What a run's folder holds: its whole units, one per key, and the names of damaged files and of another run's."""

    units: list[Unit]
    damaged: list[str]
    foreign: list[str]


def read_units(folder: Path, manifest: dict[str, Any] | None = None, *, headline_only: bool = False) -> Held:
    """The units of a run.

    Args:
        folder: The run's folder.
        manifest: Its manifest, where that was read before; a folder without one holds no unit that knows its run.
        headline_only: Give units their headline scores only, without replicates.
    """
    if manifest is None:
        try:
            manifest = read_manifest(folder)
        except RecordError:  # whoever opens the folder says so
            manifest = {}
    units: dict[UnitKey, Unit] = {}
    damaged, foreign = [], []
    for file in sorted(folder.glob("units/*.parquet")):
        try:
            unit = _read_unit(file, headline_only=headline_only)
        except FileNotFoundError:  # another process replaced the run meanwhile
            continue
        if unit is None:
            damaged.append(file.name)
        elif _is_foreign(unit, manifest):
            foreign.append(file.name)
        else:
            units.setdefault(unit.key, unit)
    # By key: names of files are digests, which say nothing and change with the run.
    return Held(sorted(units.values(), key=lambda unit: astuple(unit.key)), damaged, foreign)


def _is_foreign(unit: Unit, manifest: dict[str, Any]) -> bool:
    """Whether another run wrote a unit; one that an earlier version wrote does not tell, and is taken as it lies."""
    return unit.run_id not in (None, manifest.get(RUN_ID))


def _is_unit(file: Path) -> bool:
    """Whether a file is a whole unit."""
    try:
        return _read_unit(file, headline_only=True) is not None
    except FileNotFoundError:
        return False


def _read_unit(file: Path, *, headline_only: bool) -> Unit | None:
    """The unit that a file holds, or None where it is damaged."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        raise
    except OSError:  # a folder, or not for us to read
        return None
    if _content_id(content) != file.stem:
        return None
    parquet = pq.ParquetFile(pa.BufferReader(content), pre_buffer=False)
    about = json.loads(parquet.metadata.metadata[METADATA_KEY])
    key, headline = UnitKey(**about.pop("key")), about.pop(HEADLINE, None)
    if headline_only and headline is not None:  # the first records have none in their footer
        rows = [{**EMPTY_ROW, **row} for row in headline]
    else:
        rows = parquet.read(use_threads=False).to_pylist()
    run_id = about.pop(RUN_ID, None)
    return Unit(key, about.pop("title"), about, rows, run_id)


def read_timings(folder: Path) -> Iterator[dict[str, Any]]:
    """The lines of the timings file; one that a kill cut short is passed over."""
    path = folder / "timings.jsonl"
    for line in path.read_text(errors="replace").splitlines() if path.is_file() else ():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and isinstance(entry.get("seconds"), dict) and "what" in entry:
            yield entry


def _headline(unit: Unit) -> list[dict[str, Any]]:
    """The headline scores as plain values; replicates stay in the table, and NaN, which is no JSON, is left out."""
    return [
        {name: value for name, value in row.items() if name != "values" and not _is_nan(value)}
        for row in unit.rows
        if row["kind"] == "score" and row["is_headline"]
    ]


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _content_id(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def _require_ours(folder: Path, entries: Sequence[str], overwrite: bool, leaves: Collection[str]) -> None:
    """Refuses a folder that holds anything but a run of ours that may be dropped."""
    held = [name for name in entries if not name.startswith(TEMPORARY)]
    if not held:
        return
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text()) if path.exists() else {}
    except (OSError, ValueError):
        manifest = {}  # damaged; what else lies there decides
    # Folders beside the records may be anybody's, unless a unit of ours says that a run was here.
    known = OURS | TABLES | (set(leaves) if any(map(_is_unit, folder.glob("units/*.parquet"))) else set())
    looks_ours = bool(OURS & set(held)) and set(held) <= known
    ours = isinstance(manifest, dict) and ("schema_version" in manifest or (not manifest and looks_ours))
    if not ours:
        raise RecordError(f"{folder} holds other files; choose an empty or new folder for --out")
    if not overwrite:
        raise RecordError(
            f"{folder} has lost its manifest.json; choose another --out, or --overwrite to drop its units"
        )


@contextmanager
def _in_one_line(folder: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise RecordError(f"{folder} cannot be used for --out: {error.strerror or error}") from error
