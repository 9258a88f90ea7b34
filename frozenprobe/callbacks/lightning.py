"""The callback for Lightning (`pip install 'frozenprobe[lightning]'`).

Scores go to every logger of the trainer, and to its callback metrics, so that `ModelCheckpoint(monitor="frozen_mean_ridge")` and
`EarlyStopping` can go by them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from frozenprobe.callbacks.probe import Probe, Scores
from frozenprobe.errors import SettingsError
from frozenprobe.settings import CallbackSettings, parse

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback
    except ImportError:
        raise SettingsError("Lightning is not installed: pip install 'frozenprobe[lightning]'") from None


class FrozenProbeLightningCallback(Callback):  # ty: ignore[unsupported-base]
    """Frozen scores while a Lightning `Trainer` trains; steps are its optimiser steps (`global_step`).

        Trainer(..., callbacks=[FrozenProbeLightningCallback(tokenizer, part="model", tasks="cola,rte", every=500)])

    `out` defaults to the folder `frozenprobe` in the trainer's `default_root_dir`.

    Args:
        tokenizer: The model's.
        **options: Fields of `CallbackSettings`; `part` names the attribute of the `LightningModule` that gives hidden states.

    Raises:
        SettingsError: An option is unknown or impossible, or there is no schedule.
    """

    def __init__(self, tokenizer: Any, **options: Any) -> None:
        settings = parse(CallbackSettings, options)
        if settings.every is None and not settings.at:
            raise SettingsError("FrozenProbeLightningCallback needs every=... or at=...")
        self._options, self._tokenizer = options, tokenizer
        self._probe: Probe | None = None
        self._trainer: Any = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Reads the tasks, and evaluates the model as it comes where `on_start` asks for it.

        Raises:
            FrozenprobeError: A task or its data is at fault.
        """
        self._trainer = trainer
        self._probe = Probe(log=self._log, **{"out": Path(trainer.default_root_dir) / "frozenprobe"} | self._options)
        if self._probe.settings.on_start:
            self._probe.evaluate(pl_module, self._tokenizer, step=trainer.global_step)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Evaluates what is due, and logs what came back from the evaluating process."""
        assert self._probe is not None
        scores = self._probe(pl_module, self._tokenizer, step=trainer.global_step)
        if scores:  # for the callbacks that watch a metric; the loggers have them already
            pl_module.log_dict(scores, logger=False, on_step=True, on_epoch=False, batch_size=1)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Evaluates the last step, and waits for what is under way."""
        if self._probe is not None:
            self._probe.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Ends the evaluating process."""
        if self._probe is not None:
            self._probe.abort()

    def _log(self, step: int, scores: Scores) -> None:
        for logger in self._trainer.loggers:
            logger.log_metrics(scores, step=step)
