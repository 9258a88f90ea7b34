"""From raw columns to a checked split: every text present, every label usable, or one line that says which is not.

Rows are never dropped or mended (case C05): a split with some labels missing would give a score over other rows than
the published ones. Row numbers in messages count from 0. An empty text is kept (it still has its special tokens), a
missing one is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from frozenprobe.errors import DataError
from frozenprobe.tasks.base import Split, TaskSpec
from frozenprobe.tasks.files import Columns

UNLABELLED = -1


def build_split(spec: TaskSpec, name: str, columns: Columns, where: str) -> Split:
    """Checks the raw columns of one split and turns them into texts and labels.

    Args:
        spec: The task; `spec.classes` must be known.
        name: Name of the split.
        columns: Raw values of `spec.columns` and `spec.label_column`.
        where: What messages begin with: the task, the split, the file.

    Returns:
        The split, its labels as int64 class ids or float64 values.

    Raises:
        DataError: There are no rows, a text is missing, a label is missing, not a number, out of range or of an unknown
            class, or all labels are the same.
    """
    raw_labels = columns[spec.label_column]
    if not raw_labels:
        raise DataError(f"{where}: no rows")
    texts = [_checked_texts(columns[column], column, where) for column in spec.columns]
    if spec.target == "classification":
        labels: np.ndarray = _class_ids(raw_labels, spec.classes, where)
    else:
        labels = _values(raw_labels, spec.label_range, where)
    if (labels == labels[0]).all():
        only = spec.classes[int(labels[0])] if spec.classes else float(labels[0])
        raise DataError(f"{where}: every label is {only}; at least two different ones are needed to score it")
    return Split(name=name, texts=texts[0], pairs=texts[1] if spec.is_pair else None, labels=labels)


def infer_classes(raw_labels: Sequence[Any], where: str) -> tuple[str, ...]:
    """The distinct labels as class names, numbers in numeric order, words in alphabetical order.

    Raises:
        DataError: A label is missing, or is -1, which marks an unlabelled row unless it is declared as a class.
    """
    refuse_unlabelled([_is_unlabelled(value) for value in raw_labels], where)
    names = {_name_of(value) for value in raw_labels}
    if all(_is_integer_name(name) for name in names):
        return tuple(sorted(names, key=int))
    return tuple(sorted(names))


def _checked_texts(values: list[Any], column: str, where: str) -> list[str]:
    for row, value in enumerate(values):
        if value is None:
            raise DataError(f"{where}: row {row}: no text in column {column}")
        if not isinstance(value, str):
            raise DataError(f"{where}: row {row}: column {column} holds a {type(value).__name__}, not a text")
    try:
        "".join(values).encode()
    except UnicodeEncodeError as error:  # JSON can spell half of a surrogate pair, which no tokenizer takes
        row = next(row for row, value in enumerate(values) if any("\ud800" <= char <= "\udfff" for char in value))
        raise DataError(f"{where}: row {row}: column {column} holds broken Unicode (half a surrogate pair)") from error
    return values


def refuse_unlabelled(unlabelled: Sequence[bool], where: str) -> None:
    """Refuses a split in which any row has no label (case C05)."""
    count = sum(unlabelled)
    if count == len(unlabelled):
        raise DataError(
            f"{where}: the split has no labels (all of them are {UNLABELLED} or missing); choose another split"
        )
    if count:
        raise DataError(
            f"{where}: {count:,} of {len(unlabelled):,} rows have no label ({UNLABELLED} or missing), the first is row"
            f" {list(unlabelled).index(True)}; label them or take them out of the file, no row is dropped silently"
        )


def _class_ids(raw: Sequence[Any], classes: tuple[str, ...], where: str) -> Int[np.ndarray, " n"]:
    """Labels may be class names or ids, but where the names are themselves numbers only names count."""
    names = {name: index for index, name in enumerate(classes)}
    numeric_names = any(_is_integer_name(name) for name in classes)
    refuse_unlabelled([_is_unlabelled(value) and _name_of(value) not in names for value in raw], where)
    ids = np.empty(len(raw), dtype=np.int64)
    for row, value in enumerate(raw):
        name = _name_of(value)
        if name in names:
            ids[row] = names[name]
        elif not numeric_names and _is_integer_name(name) and 0 <= int(name) < len(classes):
            ids[row] = int(name)
        else:
            allowed = ", ".join(classes) + ("" if numeric_names else f", or 0 to {len(classes) - 1}")
            raise DataError(f"{where}: row {row}: {value!r} is not a label; allowed are {allowed}")
    return ids


def _values(raw: Sequence[Any], label_range: tuple[float, float] | None, where: str) -> Float[np.ndarray, " n"]:
    low, high = label_range or (-math.inf, math.inf)
    values = np.empty(len(raw), dtype=np.float64)
    for row, value in enumerate(raw):
        try:
            values[row] = math.nan if value is None or value == "" else float(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise DataError(f"{where}: row {row}: {value!r} is not a number") from error
    # -1 marks an unlabelled row only where it cannot be a value of the task.
    refuse_unlabelled((np.isnan(values) | ((values == UNLABELLED) & (low > UNLABELLED))).tolist(), where)
    wrong = np.flatnonzero(~np.isfinite(values) | (values < low) | (values > high))
    if len(wrong):
        row = int(wrong[0])
        limits = "a finite number" if label_range is None else f"between {low:g} and {high:g}"
        raise DataError(f"{where}: row {row}: the label {values[row]:g} is not {limits}")
    return values


def _is_unlabelled(value: Any) -> bool:
    return value is None or value == "" or value in (UNLABELLED, str(UNLABELLED)) or value != value


def _name_of(value: Any) -> str:
    """A label as the name of its class: 2, 2.0 and "2" are one class, True and 1 are one class."""
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        return str(int(value))
    return str(value)


def _is_integer_name(name: str) -> bool:
    digits = name.removeprefix("-")
    return digits.isascii() and digits.isdigit()
