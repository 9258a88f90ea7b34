"""Where the pooler of a run comes from: a name, a module, the folder of a trained one, or a training in the run's own folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from frozenprobe import ranks
from frozenprobe.contrastive.pooler import build_pooler
from frozenprobe.contrastive.run import run_pooling
from frozenprobe.contrastive.saving import load_pooler, read_config
from frozenprobe.contrastive.settings import PoolSettings
from frozenprobe.contrastive.sweep import candidates
from frozenprobe.encoders.base import Encoder, Layer, Role
from frozenprobe.encoders.fingerprint import weights_digest
from frozenprobe.engine.progress import Reporter
from frozenprobe.errors import RecordError, SettingsError
from frozenprobe.features.extract import resolve_layer
from frozenprobe.suites.mteb.adapter import Backbone
from frozenprobe.suites.mteb.settings import MtebSettings

FOLDER = "pooler"
"""The training, in the run's folder."""


@dataclass(frozen=True)
class Probed:
    """An encoder with what pools its tokens.

    Attributes:
        encoder: The encoder; after `unfrozen`, the trained one.
        pooler: The pooling's name, or a module.
        layer: Whose tokens it pools.
        prompts: Prefixes by role.
        backbone: Whether the encoder was trained with the pooler.
        rows: Where a trained pooler's rows came from, empty where that is not known; None where nothing was trained.
        about: What the manifest says of a trained pooler.
    """

    encoder: Encoder
    pooler: str | nn.Module
    layer: Layer
    prompts: dict[Role, str]
    backbone: Backbone = "frozen"
    rows: str | None = None
    about: dict[str, Any] = field(default_factory=dict)


def choose(settings: MtebSettings, encoder: Encoder, pooler: nn.Module | None = None) -> Probed:
    """The encoder with the pooler that is there already.

    Raises:
        FrozenprobeError: The pooler's folder is damaged, or belongs to another encoder, layer or prompts.
    """
    if pooler is not None:
        return Probed(encoder, pooler, settings.layer, settings.prompts, rows="")
    if settings.pooler_folder is not None:
        return _saved(settings, settings.pooler_folder, encoder)
    return Probed(encoder, settings.pooler, settings.layer, settings.prompts)


def _saved(settings: MtebSettings, folder: Path, encoder: Encoder) -> Probed:
    """A pooler that an earlier training has saved."""
    if (folder / "poolers").is_dir():
        names = sorted(entry.name for entry in (folder / "poolers").iterdir() if entry.is_dir())
        raise RecordError(f"{folder} holds a training; name one of its poolers: {folder / 'poolers'}/{names[0]}, ...")
    config = read_config(folder)
    layer, training = config["encoder"]["layer"], config["training"]
    if "layer" in settings.model_fields_set and resolve_layer(settings.layer, encoder.info) != layer:
        raise SettingsError(f"--layer {settings.layer}: {folder} was trained on layer {layer}; leave out --layer")
    prompts: dict[Role, str] = training.get("prompts", {})
    if settings.prompts and settings.prompts != prompts:
        raise SettingsError(f"{folder} was trained with the prompts {prompts or 'none'}; leave out yours")
    about = {"name": folder.name, "data": training["data"]}
    return Probed(
        encoder,
        load_pooler(folder, encoder),
        layer,
        prompts,
        backbone="unfrozen" if training["schedule"]["unfrozen"] else "frozen",
        rows=training["data"]["source"],
        about=about,
    )


def require_one_process() -> None:
    """Refuses a training where there are several ranks.

    Raises:
        SettingsError: There are.
    """
    if max(ranks.count(), ranks.launched_count()) > 1:
        raise SettingsError("under torchrun, train with `frozenprobe pool`, then run mteb with --pooler FOLDER")


def fresh(settings: MtebSettings, encoder: Encoder) -> Probed:
    """The encoder with an untrained pooler of the size asked for, to see what a run would cost."""
    pool = _training(settings, encoder)
    pooler = build_pooler(candidates(pool)[0].pooler, encoder)
    return Probed(encoder, pooler, settings.layer, settings.prompts, rows=pool.data.train_data)


def train(
    settings: MtebSettings,
    encoder: Encoder,
    folder: Path,
    *,
    overwrite: bool,
    reporter: Reporter,
    on_sound: Callable[[], None],
) -> Probed:
    """Trains a pooler into a folder, or goes on there, or reads what is finished; of a sweep, the best is taken.

    Args:
        settings: The run's settings.
        encoder: The encoder.
        folder: The training's.
        overwrite: Drop what another training left there.
        reporter: Told about progress.
        on_sound: See `run_pooling`.

    Raises:
        FrozenprobeError: See `run_pooling`.
    """
    reporter.plan(1, 0)
    reporter.start("pooler")
    started = time.perf_counter()
    result = run_pooling(
        _training(settings, encoder),
        folder,
        encoder=encoder,
        overwrite=overwrite,
        on_sound=on_sound,
        on_progress=lambda progress: reporter.advance(progress.facts(), progress.step, progress.steps),
        note=reporter.note,
    )
    reporter.finish("pooler", time.perf_counter() - started)
    pooler = result.pooler
    data, held_out = result.results["data"], result.results["held_out"]
    about = {
        "name": result.best,
        "of": len(result.poolers),
        "data": data,
        "held_out": held_out.get(result.best, {}),
        "weights": weights_digest(pooler),
    }
    unfrozen = settings.contrastive.training.unfrozen
    if unfrozen:  # what was saved in this folder goes by the name of what it was made from
        result.encoder.info = replace(result.encoder.info, name=encoder.info.name)
    return Probed(
        result.encoder,
        pooler,
        settings.layer,
        settings.prompts,
        backbone="unfrozen" if unfrozen else "frozen",
        rows=data["source"],
        about=about,
    )


def _training(settings: MtebSettings, encoder: Encoder) -> PoolSettings:
    """What is trained.

    Raises:
        SettingsError: Nothing would tell which of several poolers is best.
    """
    pool = settings.pooling(settings.encoder.name or encoder.info.name)
    if len(candidates(pool)) > 1 and not pool.data.held_out:
        raise SettingsError("--sweep takes the pooler that is best on held-out queries: leave out --held-out 0")
    return pool
