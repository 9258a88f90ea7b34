"""`frozenprobe glue --unfrozen`: full finetuning of the same checkpoint on the same tasks, for comparison (the paper's upper rows).

Protocol: dropout and a linear head on the mean over all tokens of the last layer, as the frozen headline has it, every weight trained
by the Hugging Face Trainer (AdamW, linear decay, gradients clipped at 1), several seeds. The score is that of the last epoch, which
chooses nothing; `paper` is the best epoch on the reported split. Both are means over seeds, and their intervals resample seeds and rows.
"""

from __future__ import annotations

import importlib.util
import math
import random
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
import transformers
from jaxtyping import Float, Int, Shaped
from torch import nn
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from frozenprobe.encoders.base import Encoder, Tokenized, Trainable
from frozenprobe.encoders.registry import load_encoder
from frozenprobe.engine.evaluate import HEADLINE_VIEW, facts_of, inputs_of, task_seed, train_rows, unit_key, unit_title
from frozenprobe.engine.run import OnProgress
from frozenprobe.errors import EncoderError, ProbeError, RecordError
from frozenprobe.features.batching import FALLBACK_BUDGET, cut
from frozenprobe.features.pooling import mean
from frozenprobe.metrics import Metric, metrics_of
from frozenprobe.probes.base import ProbePredictions, ProbeResult, ProbeScore
from frozenprobe.probes.selection import best, best_of_each
from frozenprobe.records.schema import Unit
from frozenprobe.records.store import RunStore, differences, read_units
from frozenprobe.settings import EncoderSettings, FinetuneSettings, GlueSettings, ProbeSettings
from frozenprobe.statistics.bootstrap import Bootstrap, interval
from frozenprobe.tasks.base import Split, TaskData, TaskSpec

_FEW_ROWS = 10_000
_MAX_NORM = 1.0


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


def recipe_for(rows: int, settings: FinetuneSettings) -> Recipe:
    """The standard recipe for so many train rows, with what the settings say instead.

    Small tasks (CoLA, MRPC, RTE, STS-B, WNLI) take RoBERTa's (Liu et al. 2019, table 10), large ones BERT's (Devlin et al. 2019,
    appendix A.3), each at its middle learning rate.
    """
    few = rows < _FEW_ROWS
    standard = (
        Recipe(2e-5, 10, 16, 0.06, 0.1, settings.dropout) if few else Recipe(2e-5, 3, 32, 0.1, 0.01, settings.dropout)
    )
    chosen = {name: getattr(settings, name) for name in vars(standard) if getattr(settings, name) is not None}
    return replace(standard, **chosen)


def starting_point(encoder: Encoder, settings: EncoderSettings) -> Encoder:
    """The encoder whose weights are trained: in float32, whatever the precision of the arithmetic.

    Raises:
        EncoderError: Its weights cannot be trained, or its device is not the first GPU.
    """
    if not isinstance(encoder, Trainable):
        raise EncoderError(f"{encoder.info.name} cannot be finetuned: its adapter gives no trainable model")
    if importlib.util.find_spec("accelerate") is None:
        raise EncoderError("finetuning needs accelerate: pip install 'frozenprobe[finetune]'")
    if settings.device not in ("auto", "cpu", "cuda", "cuda:0", "mps"):
        raise EncoderError(
            f"--device {settings.device}: finetuning takes the first GPU; choose with CUDA_VISIBLE_DEVICES"
        )
    if encoder.info.dtype == "fp32" or encoder.info.kind == "module":
        return encoder
    return load_encoder(settings.model_copy(update={"dtype": "fp32"}))


def check_finished(store: RunStore, settings: FinetuneSettings) -> None:
    """Checks that the finetuned units which a folder holds are of these settings.

    Raises:
        RecordError: They are of others.
    """
    for unit in read_units(store.folder)[0]:
        if unit.key.training == "finetuned":
            old = unit.about["finetune"]["settings"]
            different = differences(old, settings.model_dump(mode="json"))
            if different:
                raise RecordError(
                    f"{store.folder} holds {unit.key} with other settings ({different}); choose another --out or --overwrite"
                )


def finetune_task(
    encoder: Encoder, data: TaskData, settings: GlueSettings, on_progress: OnProgress
) -> tuple[Unit, dict[str, float]]:
    """Finetunes the encoder on a task, once for each seed, and scores it after every epoch.

    Args:
        encoder: Where every training starts; it is not changed.
        data: The task.
        settings: Recipe, seeds, precision, bootstrap.
        on_progress: Told about steps.

    Returns:
        The finished unit, and its wall time in seconds by phase.

    Raises:
        ProbeError: A training diverged.
    """
    started = time.perf_counter()
    rows = ProbeSettings(max_train=settings.finetune.max_train, seed=settings.probes.seed)
    splits = [train_rows(data.train, rows), *data.evaluations]
    recipe = recipe_for(len(splits[0]), settings.finetune)
    seeds = settings.finetune.seeds
    tokens = [_tokenize(encoder, split) for split in splits]
    answers: list[list[Shaped[np.ndarray, "epochs m"]]] = []
    for number, seed in enumerate(seeds):
        try:
            training = _Training(encoder, data.spec, recipe, settings.encoder.dtype, seed)
            answers.append(
                training.run(
                    tokens,
                    splits[0].labels,
                    lambda done, total, n=number: on_progress("train", n * total + done, len(seeds) * total),
                )
            )
        except ProbeError as error:
            raise ProbeError(f"{unit_title(data)}, seed {seed}: {error}") from error
    about = {
        **facts_of(data, splits),
        "finetune": {
            "settings": settings.finetune.model_dump(mode="json"),
            "recipe": vars(recipe),
            "seeds": list(seeds),
            "optimiser": f"AdamW, linear decay, gradient norm at most {_MAX_NORM:g}",
            "precision": settings.encoder.dtype,
            "transformers": transformers.__version__,
        },
        "diagnostics": {},
        "warnings": [],
    }
    unit = Unit(unit_key(data, "joint", "finetuned"), unit_title(data), about)
    for split in data.evaluations:
        unit.add_labels(split.name, split.labels)
    result = _score(data, answers, len(splits[0]), settings)
    unit.add_view(HEADLINE_VIEW.layer, HEADLINE_VIEW.pooling, True, result)
    return unit, {"train": time.perf_counter() - started}


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


class _Training(TrainerCallback):
    """One training, which answers the evaluation splits after every epoch."""

    def __init__(self, encoder: Encoder, spec: TaskSpec, recipe: Recipe, dtype: str, seed: int) -> None:
        self._encoder = encoder
        self._outputs = len(spec.classes) or 1
        self._classifies = spec.target == "classification"
        self._recipe, self._dtype, self._seed = recipe, dtype, seed

    def run(
        self, tokens: Sequence[Tokenized], labels: Shaped[np.ndarray, " n"], on_step: Any
    ) -> list[Shaped[np.ndarray, "epochs m"]]:
        """Trains on the first tokens; the answers to each of the others, epoch by epoch."""
        train, *self._evaluations = tokens
        self._answers: list[list[np.ndarray]] = [[] for _ in self._evaluations]
        self._on_step = on_step
        recipe = self._recipe
        steps = math.ceil(len(train) / recipe.batch_size) * recipe.epochs
        with _own_random_state(self._encoder.info.device), tempfile.TemporaryDirectory(prefix="frozenprobe-") as folder:
            transformers.set_seed(self._seed)
            self._model = Finetuned(
                cast("Trainable", self._encoder).trainable(),
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
                max_grad_norm=_MAX_NORM,
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


def _tokenize(encoder: Encoder, split: Split) -> Tokenized:
    (inputs,) = inputs_of(split, "joint")
    tokens = encoder.tokenize(inputs.texts, inputs.pairs)
    empty = np.flatnonzero(tokens.lengths == 0)
    if len(empty):
        raise ProbeError(f"row {empty[0]} of split {split.name} has no tokens: an empty text cannot be encoded")
    return tokens


def _score(
    data: TaskData, answers: list[list[Shaped[np.ndarray, "epochs m"]]], n: int, settings: GlueSettings
) -> ProbeResult:
    """Scores of every seed and epoch, and the two headlines, from the answers by seed and split."""
    seeds, epochs = settings.finetune.seeds, len(answers[0][0])
    metrics = metrics_of(data.spec.metrics)
    seed = task_seed(settings.probes.seed, data.spec)
    drawn = np.random.default_rng([seed, 3]).integers(len(seeds), size=(settings.probes.bootstrap, len(seeds)))
    scores: list[ProbeScore] = []
    predictions: list[ProbePredictions] = []

    def add(
        split: Split,
        metric: Metric,
        protocol: Any,
        value: float,
        replicates: np.ndarray,
        *,
        is_headline: bool,
        draw: int = 0,
        epoch: int | None = None,
    ) -> None:
        low, high = interval(replicates)
        kept = replicates if is_headline and len(replicates) else None
        scores.append(
            ProbeScore(
                probe="finetune",
                protocol=protocol,
                n=n,
                draw=draw,
                split=split.name,
                metric=metric.name,
                value=value,
                low=low,
                high=high,
                n_evaluated=len(split),
                is_headline=is_headline,
                epoch=epoch,
                replicates=kept,
            )
        )

    for i, split in enumerate(data.evaluations):
        bootstrap = Bootstrap(len(split), settings.probes.bootstrap, seed + i)
        grids = [by_split[i] for by_split in answers]
        values = np.stack([metrics[0].grid(split.labels, grid) for grid in grids])
        for number, epoch in np.ndindex(values.shape):
            value = float(values[number, epoch])
            add(split, metrics[0], "grid", value, np.empty(0), is_headline=False, draw=seeds[number], epoch=epoch + 1)
        for protocol, chosen in (("honest", [epochs - 1] * len(seeds)), ("paper", [int(best(row)) for row in values])):
            for j, metric in enumerate(metrics):
                reselects = protocol == "paper" and j == 0
                value, replicates = _mean_over_seeds(
                    metric, split.labels, grids, chosen, bootstrap, drawn, reselects=reselects
                )
                epoch = epochs if protocol == "honest" else None
                add(split, metric, protocol, value, replicates, is_headline=i == 0 and j == 0, epoch=epoch)
            for number, epoch in enumerate(chosen):
                predictions.append(
                    ProbePredictions("finetune", protocol, split.name, grids[number][epoch], draw=seeds[number])
                )
    return ProbeResult(scores, predictions, [])


def _mean_over_seeds(
    metric: Metric,
    labels: Shaped[np.ndarray, " m"],
    grids: Sequence[Shaped[np.ndarray, "epochs m"]],
    chosen: Sequence[int],
    bootstrap: Bootstrap,
    drawn: Int[np.ndarray, "b s"],
    *,
    reselects: bool,
) -> tuple[float, Float[np.ndarray, " b"]]:
    """The mean over seeds of the chosen epochs, and its replicates, in each of which seeds and rows are drawn anew."""
    values = [metric(labels, grid[epoch]) for grid, epoch in zip(grids, chosen, strict=True)]
    if reselects:
        resampled = [best_of_each(bootstrap.values(metric, labels, grid)) for grid in grids]
    else:
        resampled = [
            bootstrap.values(metric, labels, grid[epoch][None]).ravel()
            for grid, epoch in zip(grids, chosen, strict=True)
        ]
    by_seed = np.stack(resampled, axis=1)
    return float(np.mean(values)), np.take_along_axis(by_seed, drawn, axis=1).mean(1)


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
