"""A user's own task, described in a small TOML file and scored under the suite name `custom`.

    name = "ticket-urgency"
    train = "train.csv"                   # .parquet .json .jsonl .csv .tsv, relative to this file
    evaluation = "dev.csv"                # or { matched = "a.csv", mismatched = "b.csv" }; the first is the headline
    columns = ["subject", "body"]         # one text, or the two of a pair
    label_column = "urgent"
    label_type = "classification"         # or "regression"
    classes = ["no", "yes"]               # optional: else the distinct labels of the train file, sorted
    metrics = ["accuracy", "f1"]          # optional; the first is the headline

The rows are checked exactly as those of a published task are.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from frozenprobe.errors import DataError
from frozenprobe.tasks.base import TaskData, TaskSpec
from frozenprobe.tasks.builtin import BUILTIN
from frozenprobe.tasks.files import Columns, read_columns
from frozenprobe.tasks.glue import GLUE
from frozenprobe.tasks.rows import build_split, infer_classes

SUITE = "custom"
CLASSIFICATION_METRICS = ("accuracy", "f1", "matthews")
REGRESSION_METRICS = ("pearson", "spearman")

_Word = Annotated[str, Field(min_length=1, pattern=r"^[^\x00]+$")]


class CustomTask(BaseModel):
    """The TOML file of a custom task, key by key."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")
    title: _Word | None = None
    train: _Word
    evaluation: _Word | dict[_Word, _Word]
    columns: list[_Word] = Field(min_length=1, max_length=2)
    label_column: _Word
    label_type: Literal["classification", "regression"]
    classes: list[_Word] | None = Field(None, min_length=2)
    metrics: list[str] | None = Field(None, min_length=1)

    @model_validator(mode="after")
    def _consistent(self) -> CustomTask:
        taken = {name.casefold() for spec in (*GLUE.values(), *BUILTIN.values()) for name in (spec.name, spec.title)}
        for value in (self.name, self.title or self.name):
            if value.casefold() in taken:
                raise ValueError(f"{value!r} is the name of a published task; choose another name")
        texts = (*self.columns, self.label_column)
        if len(set(texts)) < len(texts):
            raise ValueError("columns and label_column must all be different")
        if not self.evaluation:
            raise ValueError("evaluation names no file")
        if isinstance(self.evaluation, dict) and "train" in self.evaluation:
            raise ValueError("an evaluation split cannot be called train")
        if self.classes is not None and self.label_type == "regression":
            raise ValueError("a regression task has no classes")
        if self.classes is not None and len(set(self.classes)) < len(self.classes):
            raise ValueError("a class is named twice")
        allowed = CLASSIFICATION_METRICS if self.label_type == "classification" else REGRESSION_METRICS
        for metric in self.metrics or ():
            if metric not in allowed:
                raise ValueError(f"unknown metric {metric!r} for {self.label_type}; allowed are {', '.join(allowed)}")
        if len(set(self.metrics or ())) < len(self.metrics or ()):
            raise ValueError("a metric is named twice")
        return self


def load_custom(path: Path) -> TaskData:
    """Loads a user's own task.

    Args:
        path: The TOML file; the files that it names are relative to it.

    Returns:
        The checked rows, with the SHA-256 of the data files as their revision.

    Raises:
        DataError: The description or the data is wrong.
    """
    task = _read_description(path)
    evaluation = {"validation": task.evaluation} if isinstance(task.evaluation, str) else task.evaluation
    files = {"train": path.parent / task.train} | {name: path.parent / file for name, file in evaluation.items()}
    doubled = [name for name, file in files.items() if name != "train" and file.resolve() == files["train"].resolve()]
    if doubled:
        raise DataError(
            f"{path}: the split {doubled[0]} is the train file itself; a probe must be scored on other rows"
        )
    raw = {name: _read(task, name, file) for name, file in files.items()}
    where = {name: f"{task.name}, split {name} ({file})" for name, file in files.items()}
    spec = _spec_of(task, tuple(evaluation), raw["train"], where["train"])
    train, *evaluations = (build_split(spec, name, columns, where[name]) for name, columns in raw.items())
    return TaskData(
        spec=spec,
        train=train,
        evaluations=tuple(evaluations),
        source=str(path),
        revision=_digest(list(files.values())),
    )


def _read_description(path: Path) -> CustomTask:
    try:
        description = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise DataError(f"{path}: not a valid TOML file: {error}") from error
    try:
        return CustomTask.model_validate(description)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            allowed = ", ".join(CustomTask.model_fields)
            raise DataError(f"{path}: unknown key {key}; allowed are {allowed}") from error
        message = first["msg"].removeprefix("Value error, ")
        raise DataError(f"{path}: {key + ': ' if key else ''}{message}") from error


def _read(task: CustomTask, split: str, file: Path) -> Columns:
    if not file.is_file():
        raise DataError(f"{task.name}, split {split}: no file {file}")
    return read_columns([file], (*task.columns, task.label_column))


def _spec_of(task: CustomTask, evaluations: tuple[str, ...], train: Columns, where: str) -> TaskSpec:
    if task.label_type == "regression":
        classes: tuple[str, ...] = ()
        metrics: Sequence[str] = task.metrics or REGRESSION_METRICS
    else:
        classes = tuple(task.classes) if task.classes else infer_classes(train[task.label_column], where)
        metrics = task.metrics or ("accuracy",)
        if "f1" in metrics and len(classes) != 2:
            raise DataError(f"{task.name}: f1 is defined for two classes, this task has {len(classes)}")
    return TaskSpec(
        name=task.name,
        title=task.title or task.name,
        suite=SUITE,
        target=task.label_type,
        columns=tuple(task.columns),
        label_column=task.label_column,
        classes=classes,
        train_split="train",
        evaluation_splits=evaluations,
        metrics=tuple(metrics),
        config=task.name,
    )


def _digest(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return f"sha256:{digest.hexdigest()}"
