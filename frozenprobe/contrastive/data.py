"""Training rows from the hub or from local files, checked once and kept as one memory-mapped file.

A row is a query, a positive and any number of hard negatives (`negative`, `negative_1` ..., or a list `negatives`).
What is unfit is counted and reported, never mended silently. Texts are told apart by a 64-bit hash of their content.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Int, UInt

from frozenprobe.contrastive.settings import TRAIN_DATA, PairSettings
from frozenprobe.errors import DataError
from frozenprobe.files import TEMPORARY

SUFFIXES = (".jsonl", ".json", ".parquet")
_QUERY_NAMES = ("query", "anchor")
_ROWS_PER_BATCH = 1024
_SCHEMA = pa.schema(
    [
        ("query", pa.string()),
        ("positive", pa.string()),
        ("negatives", pa.list_(pa.string())),
        ("query_key", pa.uint64()),
        ("positive_key", pa.uint64()),
        ("negative_keys", pa.list_(pa.uint64())),
    ]
)

Fields = tuple[Any, Any, list[Any]]


@dataclass
class DataReport:
    """What the rows were like.

    Attributes:
        source: Path, or hub id with configuration and split.
        revision: The hub's commit, or a digest of the local files.
        rows: Rows kept.
        without_query: Rows dropped, because their query is missing, blank or no text.
        without_positive: Rows dropped, because their positive is.
        positive_among_negatives: Rows whose positive was among its own negatives, from which it was taken out.
        bad_negatives: Negatives dropped, because they are missing, blank or no text.
        without_negatives: Rows kept that have no hard negative.
    """

    source: str
    revision: str
    rows: int = 0
    without_query: int = 0
    without_positive: int = 0
    positive_among_negatives: int = 0
    bad_negatives: int = 0
    without_negatives: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The report as plain values."""
        return asdict(self)

    def lines(self) -> list[str]:
        """What a reader of the scores should know of it."""
        found = [
            (self.without_query, "rows without a query were left out"),
            (self.without_positive, "rows without a positive were left out"),
            (self.positive_among_negatives, "rows had their positive among their negatives, where it was taken out"),
            (self.bad_negatives, "negatives were no text and were left out"),
            (self.without_negatives, "rows have no hard negative"),
        ]
        return [f"{self.source}: {self.rows:,} rows", *(f"{count:,} {what}" for count, what in found if count)]


@dataclass(frozen=True)
class Row:
    """A training row with the keys of its texts."""

    query: str
    positive: str
    negatives: list[str]
    query_key: int
    positive_key: int
    negative_keys: list[int]


@dataclass
class TrainingRows:
    """All rows, memory-mapped: only their query and positive keys are held in memory.

    Attributes:
        report: What they were like before they were checked.
    """

    path: Path
    report: DataReport = field(init=False)
    query_keys: UInt[np.ndarray, " n"] = field(init=False)
    positive_keys: UInt[np.ndarray, " n"] = field(init=False)

    def __post_init__(self) -> None:
        try:
            self._file = pa.ipc.open_file(pa.memory_map(str(self.path)))
            self.report = DataReport(**json.loads(self._file.schema.metadata[b"report"]))
            batches = [self._file.get_batch(number) for number in range(self._file.num_record_batches)]
        except (OSError, pa.ArrowException, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{self.path} is damaged ({error}); delete it, and it is made again") from None
        columns = ("query_key", "positive_key")
        self.query_keys, self.positive_keys = (
            np.concatenate([batch.column(name).to_numpy() for batch in batches]) for name in columns
        )

    def __len__(self) -> int:
        return len(self.query_keys)

    def read(self, rows: Int[np.ndarray, " b"]) -> list[Row]:
        """Some rows, in the order asked for."""
        found: dict[int, Row] = {}
        numbers = np.asarray(rows) // _ROWS_PER_BATCH
        for number in np.unique(numbers):
            chosen = np.asarray(rows)[numbers == number]
            part = self._file.get_batch(int(number)).take(pa.array(chosen % _ROWS_PER_BATCH)).to_pylist()
            found.update(zip(chosen.tolist(), (Row(**values) for values in part), strict=True))
        return [found[row] for row in np.asarray(rows).tolist()]

    def negative_keys(self) -> Iterator[tuple[Int[np.ndarray, " k"], UInt[np.ndarray, " k"]]]:
        """The keys of all hard negatives, some thousand rows at a time, with the row of each."""
        for number in range(self._file.num_record_batches):
            lists = self._file.get_batch(number).column("negative_keys")
            counts = np.diff(lists.offsets.to_numpy())
            rows = np.repeat(np.arange(len(counts)) + number * _ROWS_PER_BATCH, counts)
            yield rows, lists.flatten().to_numpy()


def prepare(settings: PairSettings, folder: Path) -> TrainingRows:
    """Checks all rows and writes them into `folder`, unless they are there already.

    Args:
        settings: Which rows, and how many hard negatives of each.
        folder: Where the checked rows are kept.

    Raises:
        DataError: The data cannot be found or read, has other columns, or no usable row.
    """
    source = settings.train_data
    files = local_files(Path(source).expanduser(), settings.train_split)
    if files:
        name, revision, rows = source, _digest_of(files), (row for file in files for row in read_file(file))
    elif Path(source).suffix in SUFFIXES or source.count("/") > 1 or source.startswith((".", "~")):
        raise DataError(f"--train-data {source}: there is no such file or folder")
    else:
        name, revision, rows = _hub_rows(settings)
    content = f"{'' if files else name} {revision} {settings.hard_negatives}"
    path = folder / f"rows-{hashlib.sha256(content.encode()).hexdigest()[:16]}.arrow"
    if path.exists():
        return TrainingRows(path)
    _write(path, rows, DataReport(name, revision), settings.hard_negatives)
    return TrainingRows(path)


def local_files(path: Path, split: str | None = None) -> list[Path]:
    """The data files that a path stands for: itself, or a folder's; none where it does not exist.

    Args:
        path: A file or a folder.
        split: Where a folder holds several splits, the files whose names begin so.

    Raises:
        DataError: A file of another kind, or a folder without fitting files.
    """
    if path.is_file():
        if path.suffix not in SUFFIXES:
            raise DataError(f"{path}: unknown kind of file; allowed are {', '.join(SUFFIXES)}")
        return [path]
    if not path.is_dir():
        return []
    files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and file.is_file())
    fitting = [file for file in files if split is None or file.name.startswith(split)]
    if not fitting:
        there = ", ".join(file.name for file in files[:5]) or "none of " + ", ".join(SUFFIXES)
        wanted = f" whose name begins with {split}" if files else ""
        raise DataError(f"{path}: no data file{wanted} in the folder ({there}); name a file, or --train-split")
    return fitting


def read_file(path: Path) -> Iterator[Fields]:
    """The rows of one local file: query, positive, negatives, as they stand there.

    Raises:
        DataError: It cannot be read, is damaged, or lacks a column.
    """
    for where, values in read_objects(path):
        yield _fields(values, where)


def read_objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of one local file as dictionaries, each with what messages about it begin with; never all at once.

    Raises:
        DataError: It cannot be read or is damaged.
    """
    try:
        if path.suffix == ".parquet":
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(_ROWS_PER_BATCH):
                    yield from ((str(path), values) for values in batch.to_pylist())
        else:
            yield from _json_objects(path)
    except UnicodeDecodeError:
        raise DataError(f"{path}: not valid UTF-8 text") from None
    except (OSError, pa.ArrowException) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(f"{path}: cannot be read: {reason}") from None


def _json_objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    with path.open(encoding="utf-8-sig") as file:
        first = file.read(1)
        file.seek(0)
        if first == "[":
            parts: Iterable[tuple[str, str]] = [(f"{path}", file.read())]
        else:
            parts = ((f"{path}: line {number}", line) for number, line in enumerate(file, start=1))
        for where, text in parts:
            if not text.strip():
                continue
            try:
                values = json.loads(text)
            except ValueError as error:
                raise DataError(f"{where} is not valid JSON: {error}") from None
            for value in values if first == "[" else [values]:
                if not isinstance(value, dict):
                    raise DataError(f"{where}: a row must be an object with query and positive, not {value!r:.60}")
                yield where, value


def _fields(values: dict[str, Any], where: str) -> Fields:
    """Query, positive and negatives of a row, whatever their columns are called."""
    query = next((name for name in _QUERY_NAMES if name in values), None)
    if query is None or "positive" not in values:
        raise DataError(f"{where}: no column query or positive; it has {', '.join(map(str, values)) or 'none'}")
    negatives: list[Any] = []
    for name in _negative_columns(values):
        value = values[name]
        negatives += value if isinstance(value, list) else [] if value is None else [value]
    return values[query], values["positive"], negatives


def _negative_columns(names: Iterable[str]) -> list[str]:
    numbered = [name for name in names if name.startswith("negative_") and name.removeprefix("negative_").isdigit()]
    plain = [name for name in ("negative", "negatives") if name in names]
    return plain + sorted(numbered, key=lambda name: int(name.removeprefix("negative_")))


def _hub_rows(settings: PairSettings) -> tuple[str, str, Iterator[Fields]]:
    """What is read from the hub, its commit, and the rows."""
    from frozenprobe.tasks.hub import load_hub

    hub_id = settings.train_data
    config = settings.train_config or ("triplet" if hub_id == TRAIN_DATA else None)
    splits, commit = load_hub("training data", hub_id, config, settings.train_revision)
    if settings.train_split not in splits:
        raise DataError(f"{hub_id} has no split {settings.train_split}; it has {', '.join(splits)}")
    split = splits[settings.train_split]
    columns = [name for name in (*_QUERY_NAMES, "positive") if name in split.column_names]
    # Numbered columns beyond those that are asked for are never read.
    columns += _negative_columns(split.column_names)[: max(settings.hard_negatives, 1)]
    view = split.select_columns(columns).with_format("arrow")

    def rows() -> Iterator[Fields]:
        for table in view.iter(_ROWS_PER_BATCH):
            yield from (_fields(values, hub_id) for values in table.to_pylist())

    return "/".join(filter(None, (hub_id, config, settings.train_split))), commit, rows()


def _write(path: Path, rows: Iterable[Fields], report: DataReport, hard_negatives: int) -> None:
    """Writes the usable rows under a temporary name, with the report in the schema, and renames."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft, temporary = (path.with_name(f"{TEMPORARY}{uuid.uuid4().hex}") for _ in range(2))
    try:
        with pa.OSFile(str(draft), "wb") as sink, pa.ipc.new_file(sink, _SCHEMA) as writer:
            for part in _batched(_usable(rows, report, hard_negatives)):
                writer.write_batch(part)
        if not report.rows:
            raise DataError(f"{report.source}: no row has both a query and a positive")
        # The counts are known only now, and the schema stands first: the batches are copied behind it.
        schema = _SCHEMA.with_metadata({b"report": json.dumps(report.as_dict()).encode()})
        source = pa.ipc.open_file(pa.memory_map(str(draft)))
        with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for number in range(source.num_record_batches):
                writer.write_batch(source.get_batch(number).replace_schema_metadata(schema.metadata))
        temporary.replace(path)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        draft.unlink(missing_ok=True)
        temporary.unlink(missing_ok=True)
        with suppress(OSError):
            path.parent.rmdir()  # where nothing was written and nothing else was there


def _usable(rows: Iterable[Fields], report: DataReport, hard_negatives: int) -> Iterator[dict[str, Any]]:
    for query, positive, negatives in rows:
        if not is_text(query):
            report.without_query += 1
            continue
        if not is_text(positive):
            report.without_positive += 1
            continue
        texts = [text for text in negatives if is_text(text)]
        report.bad_negatives += len(negatives) - len(texts)
        distinct = [text for text in dict.fromkeys(texts) if text != positive]
        report.positive_among_negatives += positive in texts
        distinct = distinct[:hard_negatives]
        report.without_negatives += not distinct
        report.rows += 1
        yield {
            "query": query,
            "positive": positive,
            "negatives": distinct,
            "query_key": text_key(query),
            "positive_key": text_key(positive),
            "negative_keys": [text_key(text) for text in distinct],
        }


def text_key(text: str) -> int:
    """64 bits that stand for a text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def is_text(value: Any) -> bool:
    """A string that holds something and can be encoded (JSON can spell half of a surrogate pair)."""
    return isinstance(value, str) and bool(value.strip()) and not any("\ud800" <= char <= "\udfff" for char in value)


def _batched(rows: Iterable[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
    held: list[dict[str, Any]] = []
    for row in rows:
        held.append(row)
        if len(held) == _ROWS_PER_BATCH:
            yield pa.RecordBatch.from_pylist(held, schema=_SCHEMA)
            held = []
    if held:
        yield pa.RecordBatch.from_pylist(held, schema=_SCHEMA)


def _digest_of(files: Sequence[Path]) -> str:
    """SHA-256 of the files' bytes."""
    total = hashlib.sha256()
    for file in files:
        try:
            with file.open("rb") as opened:
                total.update(hashlib.file_digest(opened, "sha256").digest())
        except OSError as error:
            raise DataError(f"{file}: cannot be read: {error.strerror or error}") from None
    return total.hexdigest()
