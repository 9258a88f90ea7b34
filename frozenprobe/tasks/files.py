"""Reading one table of texts and labels from a local file: Parquet, JSON, JSON lines, CSV or TSV.

Values come back as plain Python lists, exactly as the file holds them: no word such as "null" or "NA" is taken for a
missing value, no row is dropped, and a damaged file is one line that names it. TSV has no quoting, as in GLUE's own
files, where a stray quotation mark must not swallow the rows behind it; CSV quotes in the usual way.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from frozenprobe.errors import DataError

SUFFIXES = (".parquet", ".json", ".jsonl", ".csv", ".tsv")
Columns = dict[str, list[Any]]


def read_columns(paths: Sequence[Path], columns: Sequence[str]) -> Columns:
    """Reads the named columns of one split, whose shards are given in order.

    Args:
        paths: The files of the split.
        columns: Which columns to read; others are left out.

    Returns:
        One list per column, all of the same length.

    Raises:
        DataError: A file is unreadable, damaged, or lacks a column.
    """
    parts = [_read_file(path, columns) for path in paths]
    return {column: [value for part in parts for value in part[column]] for column in columns}


def _read_file(path: Path, columns: Sequence[str]) -> Columns:
    try:
        if path.suffix == ".parquet":
            return _from_parquet(path, columns)
        if path.suffix in (".json", ".jsonl"):
            return _from_json(path, columns)
        if path.suffix in (".csv", ".tsv"):
            return _from_delimited(path, columns)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not valid UTF-8 text") from error
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: cannot be read: {_first_line(error)}") from error
    raise DataError(f"{path}: unknown kind of file; allowed are {', '.join(SUFFIXES)}")


def _from_parquet(path: Path, columns: Sequence[str]) -> Columns:
    with pa.parquet.ParquetFile(path) as file:
        _require(path, columns, file.schema_arrow.names)
        table = file.read(columns=list(columns))
    return {column: table.column(column).to_pylist() for column in columns}


def _from_delimited(path: Path, columns: Sequence[str]) -> Columns:
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty")
    quoted = path.suffix == ".csv"
    # One block, so that no row is too long for one; a header may hold a quoted line break.
    block = pa.csv.ReadOptions(block_size=min(path.stat().st_size + 1, 2**31 - 1))
    header = pa.csv.read_csv(path, read_options=block, parse_options=_parse_options(quoted)).column_names
    _require(path, columns, header)
    table = pa.csv.read_csv(
        path,
        read_options=block,
        parse_options=_parse_options(quoted),
        # Everything stays text: an empty cell is an empty string, and "null" is a word.
        convert_options=pa.csv.ConvertOptions(
            column_types=dict.fromkeys(columns, pa.string()),
            include_columns=list(columns),
            strings_can_be_null=False,
        ),
    )
    return {column: table.column(column).to_pylist() for column in columns}


def _parse_options(quoted: bool) -> pa.csv.ParseOptions:
    return pa.csv.ParseOptions(
        delimiter="," if quoted else "\t",
        quote_char='"' if quoted else False,
        newlines_in_values=quoted,
        ignore_empty_lines=True,
    )


def _from_json(path: Path, columns: Sequence[str]) -> Columns:
    text = path.read_text(encoding="utf-8-sig")
    if not text.strip():
        raise DataError(f"{path}: the file is empty")
    if text.lstrip().startswith("["):
        try:
            rows = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: not valid JSON: {_first_line(error)}") from error
    else:
        rows = []
        # Not splitlines(): U+2028 and its kin may stand inside a JSON string.
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                try:
                    rows.append(json.loads(line))
                except (ValueError, RecursionError) as error:
                    raise DataError(f"{path}: line {number} is not valid JSON: {_first_line(error)}") from error
    result: Columns = {column: [] for column in columns}
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise DataError(f"{path}: row {index} is not an object with the columns {', '.join(columns)}")
        _require(path, columns, list(row), where=f"row {index}: ")
        for column in columns:
            result[column].append(row[column])
    return result


def _require(path: Path, wanted: Sequence[str], found: Sequence[str], where: str = "") -> None:
    missing = [column for column in wanted if column not in found]
    if missing:
        raise DataError(f"{path}: {where}no column {', '.join(missing)}; it has {', '.join(found) or 'none'}")
    doubled = [column for column in wanted if found.count(column) > 1]
    if doubled:
        raise DataError(f"{path}: {where}the column {', '.join(doubled)} appears more than once")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
