"""One evaluation of a model in training: from the module to its scores, on rows that are tokenised once.

Runs the built `frozenprobe glue` (suites/glue.py) at the headline view with the largest train size only.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from torch import nn

from frozenprobe.callbacks.undisturbed import undisturbed
from frozenprobe.encoders.base import Encoder
from frozenprobe.encoders.module import as_encoder, without_replicas
from frozenprobe.engine.evaluate import TaskRows
from frozenprobe.engine.progress import SilentReporter
from frozenprobe.errors import EncoderError, FrozenprobeError
from frozenprobe.features.tokens import KeptTokens
from frozenprobe.records.reading import Run, read_run
from frozenprobe.reports.csv import write_csv
from frozenprobe.settings import CallbackSettings
from frozenprobe.suites.glue import read_tasks, run_glue


@dataclass(frozen=True)
class Outcome:
    """What came of one evaluation.

    Attributes:
        step: The training step that was measured.
        scores: Honest headline scores as fractions: `frozen_TASK_ridge`, `frozen_TASK_knn`, and `frozen_mean_...`, the plain mean
            over the tasks, where none of them is missing.
        seconds: Wall time.
        left_out: Tasks that did not fit into the time limit.
        failure: Why there are no scores, in one line, or None.
    """

    step: int
    scores: dict[str, float]
    seconds: float
    left_out: tuple[str, ...] = ()
    failure: str | None = None

    @classmethod
    def failed(cls, step: int, error: BaseException, seconds: float) -> Outcome:
        """An evaluation that ended in an exception."""
        kind = "" if isinstance(error, FrozenprobeError) else f"{type(error).__name__}: "
        return cls(step, {}, seconds, failure=f"{kind}{' '.join(str(error).split())}")


class Evaluator:
    """Measures one model again and again. What it keeps in between is the rows as tokens, with their labels."""

    def __init__(self, settings: CallbackSettings) -> None:
        """Reads the tasks, so that data at fault is found before training starts.

        Raises:
            DataError: A task is unknown, missing, damaged, unlabelled or has one class only.
        """
        self._settings = settings
        self._tasks = self._read()
        self._tokenized_for: tuple[Any, int] | None = None
        self._seconds: dict[str, float] = {}
        self._tokens_per_batch = settings.tokens_per_batch

    @property
    def tokens(self) -> int:
        """Tokens of all rows, each distinct input counted once; 0 before the first evaluation."""
        return sum(rows.inputs.tokens for rows in self._tasks if isinstance(rows.inputs, KeptTokens))

    @property
    def nbytes(self) -> int:
        """Memory held by the tokenised rows and their labels, in bytes."""
        tokens = sum(rows.inputs.nbytes for rows in self._tasks if isinstance(rows.inputs, KeptTokens))
        return tokens + sum(labels.nbytes for rows in self._tasks for _, labels in rows.splits)

    def evaluate(self, model: nn.Module | Encoder, tokenizer: Any, step: int) -> Outcome:
        """Measures a model as it is now, without a trace in it or in what its training draws on.

        Args:
            model: The model, or an `Encoder`.
            tokenizer: Its tokenizer; None for an `Encoder` and for a sentence-transformers model, which have their own.
            step: The training step. Records of an earlier evaluation at the same step are replaced.

        Raises:
            FrozenprobeError: It cannot be measured.
        """
        started = time.perf_counter()
        with undisturbed():
            encoder = self._encoder(model, tokenizer, step)
            self._tokenize(encoder, tokenizer)
            with self._folder(step) as folder:
                run = self._run(encoder, step, self._fitting(), folder)
        done = {unit.key for unit in run.units}
        left_out = tuple(str(rows.key) for rows in self._tasks if rows.key not in done)
        order = [rows.key.task for rows in self._tasks]
        return Outcome(step, scores_of(run, order), time.perf_counter() - started, left_out)

    @contextmanager
    def _folder(self, step: int) -> Generator[Path]:
        """Where the records of a step lie; one that goes away again where none are kept."""
        if self._settings.out is not None and is_first_rank():
            yield self._settings.out / f"step-{step:08d}"
        else:
            with tempfile.TemporaryDirectory(prefix="frozenprobe-") as folder:
                yield Path(folder) / "run"

    def _encoder(self, model: nn.Module | Encoder, tokenizer: Any, step: int) -> Encoder:
        name, part = self._settings.name, self._settings.part
        if isinstance(model, nn.Module):
            model = part_of(model, part)
        return as_encoder(model, tokenizer, name=name, step=step, max_length=self._settings.max_length)

    def _read(self) -> list[TaskRows]:
        with undisturbed():
            return read_tasks(self._settings.glue_settings(step=0))

    def _tokenize(self, encoder: Encoder, tokenizer: Any) -> None:
        """Turns the rows into tokens, unless an earlier call did for the same tokenizer and length."""
        wanted = (tokenizer, encoder.info.max_length)
        if self._tokenized_for is not None and self._tokenized_for != wanted:
            self._tasks = self._read()
        self._tokenized_for = wanted
        self._tasks = [rows.tokenized(encoder) for rows in self._tasks]

    def _fitting(self) -> list[TaskRows]:
        """The first tasks that are expected to fit into the time limit by what they cost before; the same on all ranks."""
        chosen, expected = [], 0.0
        for rows in self._tasks:
            expected += self._seconds.get(str(rows.key), 0.0)
            if self._settings.max_seconds is not None and expected >= self._settings.max_seconds:
                break
            chosen.append(rows)
        if ranks() > 1:
            count = [len(chosen)]
            dist.broadcast_object_list(count)
            chosen = self._tasks[: count[0]]
        return chosen

    def _run(self, encoder: Encoder, step: int, tasks: Sequence[TaskRows], folder: Path) -> Run:
        settings = self._settings.glue_settings(step)
        features = settings.features.model_copy(update={"tokens_per_batch": self._tokens_per_batch})
        settings = settings.model_copy(update={"features": features})
        # Ranks that work together must not leave at different moments: there the limit only chooses the tasks.
        limit = self._settings.max_seconds if ranks() == 1 else None
        deadline = _Deadline(limit, self._seconds)
        try:
            run = run_glue(settings, folder, encoder=encoder, tasks=tasks, overwrite=True, reporter=deadline)
        except _OutOfTimeError:
            run = read_run(folder)
            write_csv(run, folder)
        self._tokens_per_batch = run.manifest.get("tokens_per_batch", self._tokens_per_batch)
        return run


class _OutOfTimeError(Exception):
    """The time limit is reached in the middle of a task."""


class _Deadline(SilentReporter):
    """Notes what each task costs, and leaves a task in the middle when time is up."""

    def __init__(self, limit: float | None, seconds: dict[str, float]) -> None:
        self._limit, self._seconds = limit, seconds
        self._started = self._unit_started = time.perf_counter()
        self._unit = ""

    def start(self, unit: str) -> None:
        """See `Reporter`."""
        self._unit, self._unit_started = unit, time.perf_counter()

    def advance(self, phase: str, done: int, total: int) -> None:
        """See `Reporter`; called after every batch.

        Raises:
            _OutOfTimeError: Time is up; what the task would have cost is at least what it had.
        """
        now = time.perf_counter()
        if self._limit is not None and now - self._started > self._limit:
            self._seconds[self._unit] = now - self._unit_started
            raise _OutOfTimeError

    def finish(self, unit: str, seconds: float) -> None:
        """See `Reporter`."""
        self._seconds[unit] = seconds


def scores_of(run: Run, tasks: Sequence[str]) -> dict[str, float]:
    """The honest headline scores of a run under the names that training logs know.

    Args:
        run: The records of one step.
        tasks: All tasks in order; the mean is there only where none of them is missing.
    """
    rows = [row for row in run.headline() if row["protocol"] == "honest"]
    scores = {}
    for probe in ("ridge", "knn"):
        values = {row["task"]: row["value"] for row in rows if row["probe"] == probe}
        scores |= {f"frozen_{task}_{probe}": values[task] for task in tasks if task in values}
        if all(task in values for task in tasks):
            scores[f"frozen_mean_{probe}"] = float(np.mean(list(values.values())))
    return scores


def part_of(model: nn.Module, part: str) -> nn.Module:
    """The submodule of that name, or the model itself for an empty one.

    Raises:
        EncoderError: There is none.
    """
    inner = without_replicas(model)
    try:
        return inner.get_submodule(part) if part else model
    except AttributeError:
        names = ", ".join(name for name, _ in inner.named_children())
        raise EncoderError(f"{type(inner).__name__} has no part {part!r}; its parts are {names}") from None


def ranks() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_first_rank() -> bool:
    """Whether this process is the one that writes and logs."""
    return ranks() == 1 or dist.get_rank() == 0
