"""The callback for transformers' `Trainer` and whatever inherits from it, sentence-transformers' trainer among them.

Scores reach the trainer's own log as `eval_frozen_...`, and with it every tracker that it reports to; where the trainer evaluates,
they are part of its metrics, so that `metric_for_best_model` and `load_best_model_at_end` can go by them.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from frozenprobe.callbacks.probe import Probe, Scores
from frozenprobe.errors import SettingsError
from frozenprobe.settings import CallbackSettings, parse

PREFIX = "eval_"  # what metric_for_best_model expects, and what puts a score into TensorBoard's group eval


class FrozenProbeCallback(TrainerCallback):
    """Frozen scores while a `Trainer` trains.

        Trainer(..., processing_class=tokenizer, callbacks=[FrozenProbeCallback(tasks="cola,rte", every=500)])

    Without `every` and `at` it evaluates whenever the trainer does. `out` defaults to the folder `frozenprobe` in the trainer's
    `output_dir`, `name` to its `run_name` or the name of that directory.

    Args:
        tokenizer: The model's, where the trainer was given no `processing_class`.
        **options: Fields of `CallbackSettings`.

    Raises:
        SettingsError: An option is unknown or impossible.
    """

    def __init__(self, *, tokenizer: Any = None, **options: Any) -> None:
        self._settings = parse(CallbackSettings, options)
        self._options = options
        self._tokenizer = tokenizer
        self._with_trainer = self._settings.every is None and not self._settings.at
        self._probe: Probe | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **context: Any
    ) -> None:
        """Reads the tasks, and evaluates the model as it comes where `on_start` asks for it.

        Raises:
            FrozenprobeError: A task or its data is at fault, there is no tokenizer, nothing would ever be evaluated, or
                the best checkpoint cannot be chosen by these scores.
        """
        output = Path(args.output_dir or "trainer_output")
        options = {"out": output / "frozenprobe", "name": args.run_name or output.name} | self._options
        if self._tokenizer_in(context) is None:
            raise SettingsError(
                "give the trainer its tokenizer as processing_class, or FrozenProbeCallback(tokenizer=...)"
            )
        if self._with_trainer and args.eval_strategy == "no":
            raise SettingsError("the trainer has eval_strategy no, so FrozenProbeCallback needs every=... or at=...")
        if self._settings.mode == "process" and _best_metric(args):
            raise SettingsError(
                f"metric_for_best_model {args.metric_for_best_model} needs mode blocking: scores of another process come later"
            )
        self._probe = Probe(log=_log, **options)
        if self._probe.settings.on_start:
            self._probe.evaluate(context["model"], self._tokenizer_in(context), step=state.global_step)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **context: Any
    ) -> None:
        """Evaluates what is due, and logs what came back from the evaluating process."""
        if self._probe is None:
            return
        is_last = state.global_step >= state.max_steps or control.should_training_stop
        self._probe.deliver()
        if (not self._with_trainer and self._probe.due(state.global_step)) or (is_last and self._probe.settings.at_end):
            self._evaluate(state, context)
        if is_last:
            self._probe.wait()  # while the trackers are still open

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **context: Any,
    ) -> None:
        """Evaluates with the trainer, and adds the scores of this step to its metrics."""
        if self._probe is None or metrics is None:
            return
        wanted = _best_metric(args)
        if self._with_trainer or wanted:
            self._evaluate(state, context)
        metrics.update(_prefixed(self._probe.scores(state.global_step)))
        if wanted:
            metrics.setdefault(wanted, math.nan)  # an evaluation that failed is never the best one

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **context: Any
    ) -> None:
        """Evaluates the last step where training ended early, and waits for what is under way."""
        if self._probe is None:
            return
        probe, self._probe = self._probe, None
        try:
            # With load_best_model_at_end the model is no longer that of the last step.
            if probe.settings.at_end and not args.load_best_model_at_end:
                probe.evaluate(context["model"], self._tokenizer_in(context), step=state.global_step)
            probe.wait()
        finally:
            probe.abort()

    def _evaluate(self, state: TrainerState, context: dict[str, Any]) -> Scores:
        assert self._probe is not None
        return self._probe.evaluate(context["model"], self._tokenizer_in(context), step=state.global_step)

    def _tokenizer_in(self, context: dict[str, Any]) -> Any:
        given = context.get("processing_class") if self._tokenizer is None else self._tokenizer
        return getattr(context["model"], "tokenizer", None) if given is None else given


def _log(step: int, scores: Scores) -> None:
    """Hands scores to the trainer whose event is being handled.

    A trainer gives its callbacks no reference to itself, but its `log` is the one door to its history and all its trackers.
    """
    frame = sys._getframe()
    while frame is not None:
        trainer = frame.f_locals.get("self")
        if isinstance(trainer, Trainer):
            late = {"frozen_step": float(step)} if trainer.state.global_step != step else {}
            should_log = trainer.control.should_log
            trainer.log(_prefixed(scores | late))
            trainer.control.should_log = should_log  # the loss of this step is still to be logged
            return
        frame = frame.f_back


def _prefixed(scores: Scores) -> Scores:
    return {f"{PREFIX}{name}": value for name, value in scores.items()}


def _best_metric(args: TrainingArguments) -> str | None:
    """The trainer's name for the frozen score that decides on the best checkpoint, if one does."""
    name = (args.metric_for_best_model or "").removeprefix(PREFIX)
    return f"{PREFIX}{name}" if name.startswith("frozen_") else None
