"""`frozenprobe glue --unfrozen`: full finetuning of the same checkpoint on the same tasks, for comparison (the paper's upper rows).

Protocol: dropout and a linear head on the mean over all tokens of the last layer, as the frozen headline has it, every weight trained
by the Hugging Face Trainer (AdamW, linear decay, gradients clipped at 1), several seeds. The score is that of the last epoch, which
chooses nothing; `paper` is the best epoch on the reported split. Both are means over seeds, and their intervals resample seeds and rows.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import transformers
from jaxtyping import Float, Int, Shaped

from frozenprobe.encoders.base import Encoder, Finetunable, Tokenized
from frozenprobe.encoders.registry import load_encoder
from frozenprobe.engine.evaluate import HEADLINE_VIEW, TaskRows, task_seed
from frozenprobe.engine.run import OnProgress
from frozenprobe.errors import EncoderError, ProbeError, RecordError
from frozenprobe.features.tokens import KeptTokens
from frozenprobe.metrics import Metric, metrics_of
from frozenprobe.probes.base import ProbePredictions, ProbeResult, ProbeScore
from frozenprobe.probes.selection import best
from frozenprobe.records.schema import Unit
from frozenprobe.records.store import RunStore, read_units
from frozenprobe.settings import EncoderSettings, FinetuneSettings, GlueSettings, differences
from frozenprobe.statistics.bootstrap import Bootstrap, interval
from frozenprobe.suites.trainer import MAX_NORM, Recipe, Training
from frozenprobe.tasks.base import TaskSpec

_FEW_ROWS = 10_000


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
    if not isinstance(encoder, Finetunable):
        raise EncoderError(
            f"{encoder.info.name} cannot be finetuned: its adapter gives no trainable model; a Hugging Face "
            "folder can be (--ckpt hf:FOLDER)"
        )
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
    for unit in read_units(store.folder, store.manifest).units:
        if unit.key.training == "finetuned":
            old = unit.about["finetune"]["settings"]
            different = differences(old, settings.model_dump(mode="json"))
            if different:
                raise RecordError(
                    f"{store.folder} holds {unit.key} with other settings ({different}); choose another --out or --overwrite"
                )


def finetune_task(
    encoder: Encoder, rows: TaskRows, settings: GlueSettings, on_progress: OnProgress
) -> tuple[Unit, dict[str, float]]:
    """Finetunes the encoder on a task, once for each seed, and scores it after every epoch.

    Args:
        encoder: Where every training starts; it is not changed.
        rows: The task's rows, a pair as one sequence.
        settings: Recipe, seeds, precision, bootstrap.
        on_progress: Told about steps.

    Returns:
        The finished unit, and its wall time in seconds by phase.

    Raises:
        ProbeError: A training diverged.
    """
    started = time.perf_counter()
    train_labels = rows.splits[0][1]
    recipe = recipe_for(len(train_labels), settings.finetune)
    seeds = settings.finetune.seeds
    tokens = _tokenize(encoder, rows)
    answers: list[list[Shaped[np.ndarray, "epochs m"]]] = []
    for number, seed in enumerate(seeds):
        try:
            training = Training(encoder, rows.spec, recipe, settings.encoder.dtype, seed)
            answers.append(
                training.run(
                    tokens,
                    train_labels,
                    lambda done, total, n=number: on_progress("train", n * total + done, len(seeds) * total),
                )
            )
        except ProbeError as error:
            raise ProbeError(f"{rows.title}, seed {seed}: {error}") from error
    about = {
        **rows.about,
        "finetune": {
            "settings": settings.finetune.model_dump(mode="json"),
            "recipe": vars(recipe),
            "seeds": list(seeds),
            "optimiser": f"AdamW, linear decay, gradient norm at most {MAX_NORM:g}",
            "precision": settings.encoder.dtype,
            "transformers": transformers.__version__,
        },
        "diagnostics": {},
        "warnings": _truncation(tokens, encoder.info.max_length),
    }
    unit = Unit(rows.key, rows.title, about)
    for name, labels in rows.splits[1:]:
        unit.add_labels(name, labels)
    result = _score(rows.spec, rows.splits, answers, settings)
    unit.add_view(HEADLINE_VIEW.layer, HEADLINE_VIEW.pooling, True, result)
    return unit, {"train": time.perf_counter() - started}


def _tokenize(encoder: Encoder, rows: TaskRows) -> list[Tokenized]:
    """The tokens of each split.

    Raises:
        ProbeError: A row has none.
    """
    assert not isinstance(rows.inputs, KeptTokens)  # those are of evaluations that come again and again
    found = []
    for (name, _), inputs in zip(rows.splits, rows.inputs, strict=True):
        tokens = encoder.tokenize(inputs.texts, inputs.pairs)
        empty = np.flatnonzero(tokens.lengths == 0)
        if len(empty):
            raise ProbeError(f"row {empty[0]} of split {name} has no tokens: an empty text cannot be encoded")
        found.append(tokens)
    return found


def _truncation(tokens: Sequence[Tokenized], max_length: int) -> list[str]:
    """A warning where inputs lose tokens, in the words of a frozen unit."""
    truncated = sum(int(part.truncated.sum()) for part in tokens)
    if not truncated:
        return []
    full = sum(int(np.sum(part.full_lengths)) for part in tokens)
    lost = full - sum(int(part.lengths.sum()) for part in tokens)
    return [
        f"{truncated:,} of {sum(map(len, tokens)):,} inputs are longer than {max_length} tokens; "
        f"{lost / full:.1%} of all tokens were cut off"
    ]


def _score(
    spec: TaskSpec,
    splits: Sequence[tuple[str, Shaped[np.ndarray, " n"]]],
    answers: list[list[Shaped[np.ndarray, "epochs m"]]],
    settings: GlueSettings,
) -> ProbeResult:
    """Scores of every seed and epoch, and the two headlines, from names and labels of the splits and the answers by seed."""
    seeds, epochs = settings.finetune.seeds, len(answers[0][0])
    metrics = metrics_of(spec.metrics)
    seed = task_seed(settings.probes.seed, spec)
    drawn = np.random.default_rng([seed, 3]).integers(len(seeds), size=(settings.probes.bootstrap, len(seeds)))
    scores: list[ProbeScore] = []
    predictions: list[ProbePredictions] = []

    def add(
        split: str,
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
                n=len(splits[0][1]),
                draw=draw,
                split=split,
                metric=metric.name,
                value=value,
                low=low,
                high=high,
                n_evaluated=len(labels),
                is_headline=is_headline,
                epoch=epoch,
                replicates=kept,
            )
        )

    for i, (split, labels) in enumerate(splits[1:]):
        bootstrap = Bootstrap(len(labels), settings.probes.bootstrap, seed + i)
        grids = [by_split[i] for by_split in answers]
        values = np.stack([metrics[0].grid(labels, grid) for grid in grids])
        for number, epoch in np.ndindex(values.shape):
            value = float(values[number, epoch])
            add(split, metrics[0], "grid", value, np.empty(0), is_headline=False, draw=seeds[number], epoch=epoch + 1)
        for protocol, chosen in (("honest", [epochs - 1] * len(seeds)), ("paper", [int(best(row)) for row in values])):
            again = [np.full(bootstrap.replicates, epoch) for epoch in chosen]
            for j, metric in enumerate(metrics):
                if protocol == "paper" and j == 0:  # it selects again, by the headline metric, in every resample
                    again = [best(bootstrap.values(metric, labels, grid)) for grid in grids]
                value, replicates = _mean_over_seeds(metric, labels, grids, chosen, again, bootstrap, drawn)
                epoch = epochs if protocol == "honest" else None
                add(split, metric, protocol, value, replicates, is_headline=i == 0 and j == 0, epoch=epoch)
            for number, epoch in enumerate(chosen):
                predictions.append(
                    ProbePredictions("finetune", protocol, split, grids[number][epoch], draw=seeds[number])
                )
    return ProbeResult(scores, predictions, [])


def _mean_over_seeds(
    metric: Metric,
    labels: Shaped[np.ndarray, " m"],
    grids: Sequence[Shaped[np.ndarray, "epochs m"]],
    chosen: Sequence[int],
    again: Sequence[Int[np.ndarray, " b"]],
    bootstrap: Bootstrap,
    drawn: Int[np.ndarray, "b s"],
) -> tuple[float, Float[np.ndarray, " b"]]:
    """The mean over seeds of the chosen epochs, and its replicates, in each of which seeds and rows are drawn anew.

    `again` names, for each seed, the epoch that is chosen in each resample.
    """
    values = [metric(labels, grid[epoch]) for grid, epoch in zip(grids, chosen, strict=True)]
    by_seed = np.stack(
        [bootstrap.chosen(metric, labels, grid, rows) for grid, rows in zip(grids, again, strict=True)], axis=1
    )
    return float(np.mean(values)), np.take_along_axis(by_seed, drawn, axis=1).mean(1)
