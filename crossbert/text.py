"""Documents to pre-train on, one string each: from local files, from a hub data set, or from the built-in grammar.

Every source is read as a stream and in an order that is the same each time, so that an interrupted preparation can go on.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import zlib
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import IO, Literal, cast

from frozenprobe.errors import DataError
from frozenprobe.tasks import grammar, lexicon
from frozenprobe.tasks.builtin import BUILTIN, load_builtin

SUFFIXES = (".txt", ".jsonl", ".parquet", ".txt.gz", ".jsonl.gz")
TextUnit = Literal["file", "paragraph", "line"]


def local_documents(sources: Sequence[Path], column: str, text_unit: TextUnit) -> Iterator[str]:
    """Documents of files and folders (searched through, sorted by path).

    Args:
        sources: Files of a kind in `SUFFIXES`, or folders that hold some.
        column: The field with the text in jsonl and parquet files.
        text_unit: What one document is in a .txt file; paragraphs are divided by blank lines.

    Raises:
        DataError: A source is missing, of an unknown kind or damaged, or a row has no text.
    """
    for path in local_files(sources):
        try:
            if path.suffix == ".parquet":
                yield from _parquet(path, column)
            elif ".jsonl" in path.suffixes[-2:]:
                yield from _jsonl(path, column)
            else:
                yield from _plain(path, text_unit)
        except UnicodeDecodeError:
            raise DataError(f"{path}: not valid UTF-8 text") from None
        except (OSError, EOFError, zlib.error) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise DataError(f"{path}: cannot be read: {reason}") from error


def local_files(sources: Sequence[Path]) -> list[Path]:
    """The files that sources stand for, in the order in which they are read.

    Raises:
        DataError: A source is missing, of an unknown kind, or a folder without any text.
    """
    files: list[Path] = []
    for source in sources:
        if source.is_dir():
            inside = sorted(path for path in source.rglob("*") if path.is_file() and path.name.endswith(SUFFIXES))
            if not inside:
                raise DataError(f"{source}: the folder holds no file that ends in {', '.join(SUFFIXES)}")
            files += inside
        elif not source.exists():
            raise DataError(f"{source}: no such file or folder")
        elif not source.name.endswith(SUFFIXES):
            raise DataError(f"{source}: unknown kind of file; allowed are {', '.join(SUFFIXES)}")
        else:
            files.append(source)
    return files


def _open(path: Path) -> IO[str]:
    return cast(
        "IO[str]", gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")
    )


def _plain(path: Path, unit: TextUnit) -> Iterator[str]:
    with _open(path) as file:
        if unit == "file":
            yield file.read()
        elif unit == "line":
            yield from (line.rstrip("\n") for line in file)
        else:
            for blank, lines in groupby(file, key=lambda line: not line.strip()):
                if not blank:
                    yield "".join(lines).rstrip("\n")


def _jsonl(path: Path, column: str) -> Iterator[str]:
    with _open(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path}: line {number} is not valid JSON: {error}") from None
            yield _text_of(row, column, f"{path}: line {number}")


def _parquet(path: Path, column: str) -> Iterator[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            if column not in file.schema_arrow.names:
                raise DataError(f"{path}: no column {column}; it has {', '.join(file.schema_arrow.names)}")
            number = 0
            for batch in file.iter_batches(1024, columns=[column]):
                for text in batch.column(0).to_pylist():
                    yield _text_of({column: text}, column, f"{path}: row {number}")
                    number += 1
    except pa.ArrowException as error:
        raise DataError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from error


def _text_of(row: object, column: str, where: str) -> str:
    if not isinstance(row, dict) or column not in row:
        raise DataError(
            f"{where} has no field {column}" + (f"; it has {', '.join(row)}" if isinstance(row, dict) else "")
        )
    text = row[column]
    if text is None:
        return ""  # dropped and counted like every other empty document
    if not isinstance(text, str):
        raise DataError(f"{where}: the field {column} is not text but {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON can hold half of a surrogate pair, which is no character and no UTF-8
        text = re.sub("[\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", text)
    return text


def hub_documents(
    name: str, config: str | None, split: str, revision: str | None, column: str, skip: int = 0
) -> Iterator[str]:
    """Documents of a data set on the hub, streamed: nothing is kept on the disk.

    Args:
        name: Its id, `owner/name`.
        config: Its configuration, where it has several.
        split: Which split.
        revision: Branch, tag or commit.
        column: The field with the text.
        skip: Documents to pass over, which `datasets` does without decoding them where it can.

    Raises:
        DataError: The hub cannot be reached, has no such data set, or breaks off.
    """
    import datasets

    try:
        stream = datasets.load_dataset(name, config, split=split, revision=revision, streaming=True)
        for number, row in enumerate(stream.skip(skip), start=skip):
            yield _text_of(row, column, f"{name}, row {number}")
    except DataError:
        raise
    except Exception as error:  # the errors of these libraries have no common base, and all of them mean: no data
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(
            f"cannot stream {name} from the hub: {reason}; the same command goes on where it broke off"
        ) from error


def builtin_documents(count: int, seed: int, skip: int = 0) -> Iterator[str]:
    """Documents from the built-in suite's grammar, each a function of the seed and of its number alone.

    A document holds together: remarks of one opinion, events told twice in other words, statements with what follows
    from them, or plain well-formed sentences. Every word of the lexicon occurs, and no validation text of the
    built-in suite does.

    Args:
        count: How many in all.
        seed: Chooses every sentence.
        skip: Number of the first one.
    """
    words = grammar.Vocabulary(
        list(lexicon.PEOPLE), list(lexicon.THINGS), list(lexicon.VERBS), list(lexicon.GOOD), list(lexicon.BAD)
    )
    held_out = _validation_texts()
    for number in range(skip, count):
        rng = random.Random(f"document/{seed}/{number}")  # a text seeds through SHA-512: the same on every machine
        generate, label = rng.choice(_GENRES)
        sentences: list[str] = []
        length = rng.randrange(4, 17)
        while len(sentences) < length:
            texts, found = generate(rng, words)
            if found == label and held_out.isdisjoint(texts):
                sentences += texts
        yield " ".join(sentences)


# Which generator a document is drawn from, and the label that its examples must have.
_GENRES = (
    (grammar.sentiment, 0.0),
    (grammar.sentiment, 1.0),
    (grammar.paraphrase, 1.0),
    (grammar.inference, 0.0),
    (grammar.acceptability, 1.0),
)


def _validation_texts() -> set[str]:
    texts: set[str] = set()
    for name in BUILTIN:
        for split in load_builtin(name).evaluations:
            texts.update(split.texts)
            texts.update(split.pairs or ())
    return texts
