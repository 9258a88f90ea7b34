"""One training of an encoder on one task, through the Hugging Face Trainer: the encoder with a linear head, every weight trained."""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import transformers
from jaxtyping import Float, Int, Shaped
from torch import nn
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from frozenprobe.encoders.base import Encoder, Finetunable, Tokenized
from frozenprobe.errors import ProbeError
from frozenprobe.features.batching import FALLBACK_BUDGET, cut
from frozenprobe.features.pooling import mean
from frozenprobe.tasks.base import TaskSpec

MAX_NORM = 1.0
"""Gradients are clipped to it."""


@dataclass(frozen=True)
class Recipe:
    """How one task is finetuned.

    Attributes:
        learning_rate: Its peak.
        epochs: Passes over the train rows.
        batch_size: Rows in a step.
        warmup: Share of the steps in which the learning rate rises.
        weight_decay: Of AdamW.
        dropout: Before the head; inside the encoder it is what its config says.
    """

    learning_rate: float
    epochs: int
    batch_size: int
    warmup: float
    weight_decay: float
    dropout: float


class Finetuned(nn.Module):
    """The encoder's model with a linear head on the mean over all tokens of its last layer."""

    def __init__(self, model: nn.Module, width: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.model = model
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, outputs)
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    def forward(
        self,
        ids: Int[torch.Tensor, "b t"],
        mask: torch.Tensor,
        types: Int[torch.Tensor, "b t"] | None = None,
        labels: Shaped[torch.Tensor, " b"] | None = None,
    ) -> dict[str, torch.Tensor]:
        """Outputs `[b, classes]`, or `[b, 1]` for values; with labels also the cross entropy, or the squared error."""
        outputs = self.head(self.dropout(mean(self.model(ids, mask, types), mask)))
        if labels is None:
            return {"outputs": outputs}
        if labels.is_floating_point():
            return {"loss": nn.functional.mse_loss(outputs[:, 0].float(), labels), "outputs": outputs}
        return {"loss": nn.functional.cross_entropy(outputs.float(), labels), "outputs": outputs}


class Training(TrainerCallback):
    """One training, which answers the evaluation splits after every epoch.

    Args:
        encoder: Where it starts; a `Finetunable`, which stays as it is.
        spec: The task.
        recipe: How it is trained.
        dtype: Precision of the arithmetic: `fp32`, `bf16` or `fp16`.
        seed: Of the head, dropout and the order of rows.
    """

    def __init__(self, encoder: Encoder, spec: TaskSpec, recipe: Recipe, dtype: str, seed: int) -> None:
        self._encoder = encoder
        self._outputs = len(spec.classes) or 1
        self._classifies = spec.target == "classification"
        self._recipe, self._dtype, self._seed = recipe, dtype, seed

    def run(
        self, tokens: Sequence[Tokenized], labels: Shaped[np.ndarray, " n"], on_step: Callable[[int, int], None]
    ) -> list[Shaped[np.ndarray, "epochs m"]]:
        """Trains on the first tokens, and answers the others.

        Args:
            tokens: The train split and the evaluation splits.
            labels: Those of the train split.
            on_step: Told about steps done and steps in all.

        Returns:
            The answers to each evaluation split, epoch by epoch.

        Raises:
            ProbeError: The training diverged.
        """
        train, *self._evaluations = tokens
        self._answers: list[list[np.ndarray]] = [[] for _ in self._evaluations]
        self._on_step = on_step
        recipe = self._recipe
        steps = math.ceil(len(train) / recipe.batch_size) * recipe.epochs
        with _own_random_state(self._encoder.info.device), tempfile.TemporaryDirectory(prefix="frozenprobe-") as folder:
            transformers.set_seed(self._seed)
            self._model = Finetuned(
                cast("Finetunable", self._encoder).trainable(),
                self._encoder.info.hidden_size,
                self._outputs,
                recipe.dropout,
            )
            arguments = TrainingArguments(
                output_dir=folder,
                num_train_epochs=recipe.epochs,
                per_device_train_batch_size=recipe.batch_size,
                learning_rate=recipe.learning_rate,
                weight_decay=recipe.weight_decay,
                warmup_steps=round(recipe.warmup * steps),
                lr_scheduler_type="linear",
                max_grad_norm=MAX_NORM,
                bf16=self._dtype == "bf16",
                fp16=self._dtype == "fp16",
                use_cpu=self._encoder.info.device == "cpu",
                seed=self._seed,
                eval_strategy="no",
                save_strategy="no",
                logging_strategy="no",
                report_to="none",
                disable_tqdm=True,
                remove_unused_columns=False,
                dataloader_pin_memory=False,
                label_names=["labels"],
            )
            arguments._n_gpu = min(arguments.n_gpu, 1)  # several GPUs would multiply the batch size
            trainer = Trainer(
                model=self._model,
                args=arguments,
                train_dataset=_Rows(len(train)),
                data_collator=lambda rows: self._collate(train, np.array(rows), labels),
                callbacks=[self],
            )
            trainer.remove_callback(PrinterCallback)
            loss = trainer.train().training_loss
        if not math.isfinite(loss):
            raise ProbeError(f"the training diverged (loss {loss}); a smaller --finetune-learning-rate may help")
        return [np.stack(answers) for answers in self._answers]

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Tells the caller."""
        self._on_step(state.global_step, state.max_steps)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Answers the evaluation splits."""
        self._model.eval()
        for tokens, answers in zip(self._evaluations, self._answers, strict=True):
            outputs = self._predict(tokens)
            if not np.isfinite(outputs).all():
                raise ProbeError("the training diverged; a smaller --finetune-learning-rate may help")
            answers.append(outputs.argmax(1) if self._classifies else outputs[:, 0].astype(np.float64))
        self._model.train()

    @torch.no_grad()
    def _predict(self, tokens: Tokenized) -> Float[np.ndarray, "m o"]:
        outputs = np.empty((len(tokens), self._outputs), dtype=np.float32)
        device = next(self._model.parameters()).device
        precision = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self._dtype)
        order = np.argsort(-tokens.lengths, kind="stable")
        for rows in cut(order, tokens.lengths, FALLBACK_BUDGET):
            batch = {name: part.to(device) for name, part in self._collate(tokens, rows).items()}
            with torch.autocast(device.type, precision, enabled=precision is not None):
                outputs[rows] = self._model(**batch)["outputs"].float().cpu().numpy()
        return outputs

    def _collate(
        self, tokens: Tokenized, rows: Int[np.ndarray, " b"], labels: Shaped[np.ndarray, " n"] | None = None
    ) -> dict[str, torch.Tensor]:
        batch = self._encoder.collate(tokens, rows)
        arguments = {"ids": batch.ids, "mask": batch.mask}
        if batch.types is not None:
            arguments["types"] = batch.types
        if labels is not None:
            chosen = torch.from_numpy(labels[rows])
            arguments["labels"] = (chosen.long() if self._classifies else chosen.float()).to(batch.ids.device)
        return arguments


class _Rows(torch.utils.data.Dataset):
    """Row numbers: the collator knows the rest."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, index: int) -> int:
        return index


@contextmanager
def _own_random_state(device: str) -> Generator[None]:
    """The Trainer seeds Python, NumPy and torch for the whole process; afterwards they are as before."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if device.startswith("cuda") else []):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
