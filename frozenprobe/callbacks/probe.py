"""`Probe`: frozen scores of a model in any training loop, when they are due, without touching the training.

`docs/callbacks.md` shows it at work.
"""

from __future__ import annotations

import json
import logging
import operator
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, overload

from torch import nn

from frozenprobe.callbacks.background import Background
from frozenprobe.callbacks.evaluation import Evaluator, Outcome, is_first_rank, part_of
from frozenprobe.encoders.base import Encoder
from frozenprobe.encoders.module import bare_encoder
from frozenprobe.errors import EncoderError, EvaluationError, RecordError, SettingsError
from frozenprobe.files import write_atomically
from frozenprobe.settings import CallbackSettings, differences, parse

Scores = dict[str, float]
Log = Callable[[int, Scores], None]

ABOUT = "callback.json"
_DECISIVE = {"name", "suite", "tasks", "task_files", "pair_form", "data_revision", "max_train", "max_evaluated", "seed"}
_DECISIVE |= {"bootstrap", "part", "max_length"}
"""Settings that one folder of records must have in common."""

_logger = logging.getLogger(__name__)


class Probe:
    """Evaluates a model in training when it is due.

    Called after every step with the steps done; it decides by itself (`every`, `at`, `on_start`, `at_end`). Without a schedule each
    call evaluates. Scores are honest headline scores as fractions, `frozen_TASK_ridge`, `frozen_TASK_knn`,
    `frozen_mean_ridge` and `frozen_mean_knn`, with the wall time as `frozen_seconds`.

    Args:
        log: Called in the thread of training with the step that was measured and its scores; in process mode that is
            some steps later.
        **options: Fields of `CallbackSettings`.

    Raises:
        FrozenprobeError: An option, a task or its data is at fault, or `out` holds another run's scores.
    """

    def __init__(self, *, log: Log | None = None, **options: Any) -> None:
        self.settings = parse(CallbackSettings, options)
        self._log = log
        self._scores: tuple[int, Scores] = (-1, {})
        self._begun = False
        self._seen: tuple[int, Callable[[], Any], Any] | None = None
        evaluator = Evaluator(self.settings)  # also in process mode: data at fault is found now
        self._evaluator = evaluator if self.settings.mode == "blocking" else None
        if self.settings.out is not None and is_first_rank():
            _claim(self.settings.out, self.settings)
        self._background: Background | None = None
        if self.settings.mode == "process" and is_first_rank():
            self._background = Background(self.settings.model_copy(update={"part": ""}))  # it gets the part alone

    @overload
    def __call__(self, model: nn.Module | Encoder, tokenizer: Any = None, /, *, step: int) -> Scores: ...
    @overload
    def __call__(self, model: nn.Module | Encoder, /, *, tokenizer: Any, step: int) -> Scores: ...
    @overload
    def __call__(self, step: int, model: nn.Module | Encoder, tokenizer: Any, /) -> Scores: ...
    def __call__(
        self, first: Any, second: Any = None, third: Any = None, *, tokenizer: Any = None, step: int | None = None
    ) -> Scores:
        """Evaluates if it is due.

        Takes `(model, tokenizer, step=...)`, or `(step, model, tokenizer)` as loops with a list of callbacks pass it. An
        `Encoder` and a sentence-transformers model need no tokenizer.

        Returns:
            The scores of this step; empty where nothing was due, and in process mode.

        Raises:
            SettingsError: No step is given.
            EvaluationError: An evaluation failed and `on_failure` is `stop`.
        """
        if step is None:
            step, model, tokenizer = first, second, third
        else:
            model, tokenizer = first, tokenizer if second is None else second
        try:
            step = operator.index(step)
        except TypeError:
            message = "a probe is called with (model, tokenizer, step=...) or (step, model, tokenizer)"
            raise SettingsError(message) from None
        due = self.due(step)
        self._begun = True
        self._seen = (step, weakref.ref(model), tokenizer)
        self.deliver()
        return self.evaluate(model, tokenizer, step=step) if due else {}

    def due(self, step: int) -> bool:
        """Whether the schedule has an evaluation at this step that was not made yet."""
        settings = self.settings
        if step == self._scores[0]:
            return False
        if settings.every is None and not settings.at:
            return True
        if settings.on_start and not self._begun:
            return True
        return step in settings.at or (settings.every is not None and step > 0 and step % settings.every == 0)

    def evaluate(self, model: nn.Module | Encoder, tokenizer: Any = None, *, step: int) -> Scores:
        """Evaluates now, whatever the schedule says, except a second time at the same step; see `__call__`."""
        if step == self._scores[0]:
            return self._scores[1]
        self._begun, self._scores = True, (step, {})
        started = time.perf_counter()
        try:
            if self._evaluator is None:
                self._send(model, tokenizer, step)
                return {}
            outcome = self._evaluator.evaluate(model, _tokenizer_of(model, tokenizer), step)
        except Exception as error:
            outcome = Outcome.failed(step, error, time.perf_counter() - started)
        self._scores = (step, self._report(outcome))
        return self._scores[1]

    def scores(self, step: int) -> Scores:
        """The scores of a step if it is the last one that was evaluated, else none."""
        return self._scores[1] if step == self._scores[0] else {}

    def deliver(self) -> None:
        """Logs what has come back from the evaluating process.

        Raises:
            EvaluationError: See `__call__`.
        """
        for outcome in self._background.outcomes() if self._background is not None else ():
            self._report(outcome)

    def wait(self) -> None:
        """Waits for the evaluating process, and logs what comes back."""
        if self._background is not None:
            self._background.wait()
        self.deliver()

    def close(self) -> None:
        """Ends: the last step is evaluated if `at_end` asks for it and it was not, and what is under way is waited for."""
        try:
            if self._seen is not None and self.settings.at_end:
                step, model, tokenizer = self._seen
                if (alive := model()) is not None:
                    self.evaluate(alive, tokenizer, step=step)
            self.wait()
        finally:
            self.abort()

    def abort(self) -> None:
        """Ends at once; evaluations under way in the other process are lost."""
        self._seen = None
        if self._background is not None:
            self._background.close()
            self._background = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close() if kind is None else self.abort()

    def _send(self, model: nn.Module | Encoder, tokenizer: Any, step: int) -> None:
        if not isinstance(model, nn.Module):
            raise EncoderError(f"{type(model).__name__} is no torch module, so mode process cannot send it")
        if self._background is None:  # another rank sends
            return
        tokenizer = _tokenizer_of(model, tokenizer)
        lost = self._background.submit(bare_encoder(part_of(model, self.settings.part))[0], tokenizer, step)
        if lost is not None:
            _logger.warning("frozenprobe: %s", lost)

    def _report(self, outcome: Outcome) -> Scores:
        """Logs an outcome; returns its scores as they were logged."""
        if outcome.failure is not None:
            stops = self.settings.on_failure == "stop"
            line = f"evaluation at step {outcome.step} failed: {outcome.failure}"
            if stops:
                raise EvaluationError(line)
            if is_first_rank():
                _logger.warning("frozenprobe: %s; training goes on", line)
            return {}
        if outcome.left_out and is_first_rank():
            names = ", ".join(outcome.left_out)
            _logger.warning("frozenprobe: step %d: no time was left for %s", outcome.step, names)
        scores = {**outcome.scores, "frozen_seconds": outcome.seconds}
        if self._log is not None and is_first_rank():
            self._log(outcome.step, scores)
        return scores


def _tokenizer_of(model: Any, tokenizer: Any) -> Any:
    """The tokenizer given, or the one that a sentence-transformers model brings along."""
    return getattr(model, "tokenizer", None) if tokenizer is None else tokenizer


def _claim(folder: Path, settings: CallbackSettings) -> None:
    """Makes the folder of records this run's own, or finds that it is.

    Raises:
        RecordError: It holds other scores, or cannot be written.
    """
    path = folder / ABOUT
    mine = settings.model_dump(mode="json", include=_DECISIVE)
    if path.exists():
        try:
            found = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise RecordError(f"{path} is damaged ({error}); choose another folder for records") from None
        if different := differences(found, mine):
            raise RecordError(f"{folder} holds scores of another run ({different}); choose another folder for records")
        return
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RecordError(f"{folder} holds other files; choose an empty or new folder for records")
    write_atomically(path, (json.dumps(mine, indent=2) + "\n").encode())
