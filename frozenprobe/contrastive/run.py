"""`frozenprobe pool` and `frozenprobe.train_pooler`: from names to trained poolers in a folder.

training.json          what is trained, on what, by what; decides whether the folder is the same training
rows-....arrow         the checked training rows
checkpoint.safetensors where the training stands; gone when it is done
history.jsonl          losses of every step, held-out scores
poolers/NAME/          the trained poolers (saving.py)
held_out.parquet       held-out score of every query
results.json           scores with intervals; written last
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from frozenprobe.contrastive import checkpoint, results
from frozenprobe.contrastive.batches import TrainingSet
from frozenprobe.contrastive.data import prepare
from frozenprobe.contrastive.distributed import Ranks
from frozenprobe.contrastive.features import FeatureSource
from frozenprobe.contrastive.pooler import build_pooler
from frozenprobe.contrastive.saving import encoder_facts
from frozenprobe.contrastive.settings import PoolSettings
from frozenprobe.contrastive.store import TokenStore
from frozenprobe.contrastive.sweep import Candidate, candidates
from frozenprobe.contrastive.train import PoolerTraining, TrainingProgress
from frozenprobe.encoders.base import Encoder, Trainable
from frozenprobe.encoders.contract import check_padding
from frozenprobe.encoders.fingerprint import digest
from frozenprobe.encoders.given import given_encoder
from frozenprobe.encoders.prompts import require_no_prompts
from frozenprobe.encoders.registry import load_encoder
from frozenprobe.encoders.transformer import DTYPES
from frozenprobe.errors import EncoderError, FrozenprobeError, RecordError
from frozenprobe.features.extract import resolve_layer
from frozenprobe.files import sole_writer
from frozenprobe.ranks import TRAINING_TIMEOUT, joined
from frozenprobe.settings import parse

ABOUT = "training.json"
Note = Callable[[str], None]


def train_pooler(
    ckpt: str | Path | Encoder,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    on_progress: Callable[[TrainingProgress], None] | None = None,
    **settings: Any,
) -> results.TrainingResult:
    """Trains a pooler, or a sweep of them, on an encoder's token features.

    Args:
        ckpt: Hub id, folder, `scheme:path`, or a loaded encoder (which `unfrozen` trains where it is).
        out: Folder for poolers and checkpoints, where the same call resumes; None keeps nothing.
        overwrite: Drop what another training left in `out`.
        on_progress: Called after every step.
        **settings: Fields of `PoolSettings`, sections as dictionaries: `data={"train_data": "triples.jsonl"}`,
            `training={"epochs": 2}`, `sweep="lr=5e-5,1e-4"`.

    Raises:
        FrozenprobeError: Wrong input, explained in one line.
    """
    encoder, section = given_encoder(ckpt, settings.get("encoder"))
    checked = parse(PoolSettings, {**settings, "encoder": section})
    with tempfile.TemporaryDirectory(prefix="frozenprobe-") as temporary:
        folder = Path(out) if out is not None else Path(temporary) / "pool"
        return run_pooling(checked, folder, encoder=encoder, overwrite=overwrite, on_progress=on_progress)


def run_pooling(
    settings: PoolSettings,
    out: Path,
    *,
    encoder: Encoder | None = None,
    overwrite: bool = False,
    on_sound: Callable[[], None] = lambda: None,
    on_progress: Callable[[TrainingProgress], None] | None = None,
    note: Note = lambda line: None,
) -> results.TrainingResult:
    """Trains what `settings` ask for into a folder; the same call resumes, or reads what is finished.

    Args:
        settings: Everything.
        out: The training's folder.
        encoder: A loaded encoder instead of the one that `settings.encoder` names.
        overwrite: Drop what another training left in the folder.
        on_sound: Called when the input is known to be sound, before anything is dropped or trained.
        on_progress: Called after every step.
        note: Told what a reader of the scores should know.

    Raises:
        FrozenprobeError: Wrong input; found before any training wherever it can be.
    """
    with joined(TRAINING_TIMEOUT, nccl=torch.cuda.is_available()):
        ranks = Ranks()
        if not ranks.leads:
            on_progress, note = None, lambda line: None
        wanted = candidates(settings)
        _require_usable(out)
        encoder = encoder or load_encoder(settings.encoder)
        layer = resolve_layer(settings.layer, encoder.info)
        require_no_prompts(encoder, settings.prompts)
        trainable = _trainable(encoder) if settings.training.unfrozen else None
        poolers: dict[str, tuple[Candidate, nn.Module]] = {
            candidate.name: (candidate, build_pooler(candidate.pooler, encoder, candidate.seed)) for candidate in wanted
        }
        check_padding(encoder)
        facts = encoder_facts(encoder, layer)
        data = _training_set(settings, out, ranks)
        for line in (*data.rows.report.lines(), *data.notes):
            note(line)
        _require_negatives(wanted, data)
        identity = _identity(settings, wanted, facts, data)
        with sole_writer(out) if ranks.leads else nullcontext():
            if ranks.leads:
                on_sound()
            if overwrite and ranks.leads:
                _clear(out, keep=data.rows.path)
            ranks.wait()
            _claim(out, settings, identity, ranks)
            if (out / results.FILE).exists():
                note(f"{out} is finished: its poolers are read, nothing is trained")
                return results.read(out, encoder, settings, facts["fingerprint"])
            source = FeatureSource(
                encoder,
                layer,
                tokens=settings.training.token_budget,
                chunk=settings.training.chunk,
                store=_store(settings, out, facts, encoder, ranks),
                prompts=settings.prompts,
            )
            training = PoolerTraining(data, poolers, settings.training, source, ranks, trainable)
            saved = checkpoint.read(out, identity)
            if saved is not None:
                training.restore(*saved)
                note(f"going on after step {training.state.step} of {training.steps}")

            def save() -> None:
                if ranks.leads:
                    checkpoint.write(out, identity, training.state, training.tensors())
                    results.write_history(out, training)

            training.run(checkpoint=save, on_progress=on_progress, note=note)
            for line in source.notes():
                note(line)
            scores = training.held_out_scores()
            if ranks.leads:
                results.finish(out, settings, training, scores, facts, identity, trainable)
            ranks.wait()
            return results.read(out, encoder, settings, facts["fingerprint"])


def _require_usable(out: Path) -> None:
    """Refuses a folder that holds something else."""
    if out.exists() and not out.is_dir():
        raise RecordError(f"{out} is a file; --out needs a folder")
    if out.is_dir() and not (out / ABOUT).exists():
        foreign = [entry.name for entry in out.iterdir() if not entry.name.startswith(("rows-", "."))]
        if foreign:
            raise RecordError(f"{out} holds other files ({foreign[0]}); choose an empty or new folder for --out")


def _clear(out: Path, keep: Path) -> None:
    """Drops what a training left, and nothing else, except for the rows of the new one."""
    for name in ("poolers", "features", "encoder"):
        shutil.rmtree(out / name, ignore_errors=True)
    for name in (results.FILE, "held_out.parquet", "history.jsonl", checkpoint.FILE, ABOUT):
        (out / name).unlink(missing_ok=True)
    for file in out.glob("rows-*"):
        if file != keep:
            file.unlink()


def _trainable(encoder: Encoder) -> Trainable:
    if not isinstance(encoder, Trainable):
        hint = "; name it hf:FOLDER" if encoder.info.kind == "st" else ""
        raise EncoderError(f"{encoder.info.name} ({encoder.info.kind}) cannot be trained end to end{hint}")
    if encoder.info.dtype != "fp32":
        raise EncoderError(f"--unfrozen needs weights in fp32: {encoder.info.dtype} is too coarse for small steps")
    encoder.trained_module()
    return encoder


def _training_set(settings: PoolSettings, out: Path, ranks: Ranks) -> TrainingSet:
    """The rows; one rank checks and writes them, all read them."""
    if ranks.leads:
        prepare(settings.data, out)
    ranks.wait()
    return TrainingSet(prepare(settings.data, out), settings.data.held_out)


def _require_negatives(wanted: list[Candidate], data: TrainingSet) -> None:
    report = data.rows.report
    if report.without_negatives == report.rows and any(c.loss.negatives == "hard-only" for c in wanted):
        raise FrozenprobeError(
            f"{report.source} has no hard negatives, so --negatives hard-only leaves nothing to train on; "
            "mine some with `frozenprobe mine`, or use in-batch"
        )


def _identity(
    settings: PoolSettings, wanted: list[Candidate], facts: dict[str, Any], data: TrainingSet
) -> dict[str, Any]:
    """What must be the same for a resume."""
    training = settings.training.model_dump(mode="json")
    poolers = {
        candidate.name: {
            **vars(candidate),
            "pooler": candidate.pooler.model_dump(mode="json"),
            "loss": candidate.loss.model_dump(mode="json"),
        }
        for candidate in wanted
    }
    names = ("epochs", "batch_size", "seed", "unfrozen", "token_budget", "chunk", "deduplicate")
    return {
        "encoder": {**facts, "attention": settings.encoder.attn, "prompts": settings.prompts},
        "data": {
            "revision": data.rows.report.revision,
            "hard_negatives": settings.data.hard_negatives,
            "held_out": settings.data.held_out,
        },
        "training": {name: training[name] for name in names},
        "poolers": poolers,
    }


def _claim(out: Path, settings: PoolSettings, identity: dict[str, Any], ranks: Ranks) -> None:
    """Writes down what this folder is for, or checks that it is the same; before a first checkpoint nothing can be lost."""
    path = out / ABOUT
    begun = (out / checkpoint.FILE).exists() or (out / results.FILE).exists()
    if path.exists() and begun:
        checkpoint.require_same(out, results.read_json(path)["identity"], identity)
    elif ranks.leads:
        about = {"identity": identity, "settings": settings.model_dump(mode="json")}
        results.write_json(path, about)
    ranks.wait()


def _store(
    settings: PoolSettings, out: Path, facts: dict[str, Any], encoder: Encoder, ranks: Ranks
) -> TokenStore | None:
    if not settings.training.keep_features:
        return None
    # Each rank keeps what it encodes; the shares of a step move between ranks, so some texts are kept by several.
    content = digest(facts["fingerprint"], json.dumps(settings.prompts))
    folder = out / "features" / f"{content:.16}-{facts['layer']}-{facts['max_length']}-{ranks.rank}"
    limit = int(settings.training.keep_features_gb * 1e9 / ranks.world)
    return TokenStore(folder, encoder.info.hidden_size, DTYPES[encoder.info.dtype], limit)
