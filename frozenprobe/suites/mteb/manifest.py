"""What a run's folder says of the run: what tells it apart from others, what was asked for, what is known of the training data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from frozenprobe.contrastive.pooler import METHOD
from frozenprobe.encoders.base import Encoder
from frozenprobe.encoders.given import run_facts
from frozenprobe.features.extract import resolve_layer
from frozenprobe.records.provenance import provenance
from frozenprobe.records.store import RunStore
from frozenprobe.suites.mteb.adapter import MtebEncoder
from frozenprobe.suites.mteb.meta import TrainingData, model_meta, model_name
from frozenprobe.suites.mteb.results import OUTSIDE
from frozenprobe.suites.mteb.settings import MtebSettings
from frozenprobe.suites.mteb.units import Plan


def name_of(settings: MtebSettings, encoder: Encoder) -> str:
    """What the encoder is called: as asked, or by its own name."""
    return settings.encoder.name or encoder.info.name


def identity_of(settings: MtebSettings, model: MtebEncoder) -> dict[str, Any]:
    """What must be the same for a resume of a run whose pooler is there at the start."""
    meta = model_meta(settings, model, name_of(settings, model.encoder))
    return {
        "fingerprint": model.fingerprint(),
        "encoder": run_facts(model.encoder),
        "pooling": model.pooling,
        "backbone": model.backbone,
        "layer": model.layer,
        "normalise": model.normalise,
        "prompts": model.prompts,
        "model": {"name": meta.name, "revision": meta.revision},
    }


def identity_before_training(settings: MtebSettings, encoder: Encoder) -> dict[str, Any]:
    """The same of a run that trains its pooler: the encoder and how it is probed.

    The training's own folder sees to it that the same pooler comes out.
    """
    backbone = "unfrozen" if settings.contrastive.training.unfrozen else "frozen"
    return {
        "fingerprint": encoder.fingerprint(),
        "encoder": run_facts(encoder),
        "pooling": METHOD,
        "backbone": backbone,
        "layer": resolve_layer(settings.layer, encoder.info),
        "normalise": settings.normalise,
        "prompts": settings.prompts,
        "model": {"name": model_name(settings, name_of(settings, encoder), METHOD, backbone)},
    }


def manifest_of(settings: MtebSettings, plan: Plan, encoder: Encoder, identity: dict[str, Any]) -> dict[str, Any]:
    """What the folder says of the run."""
    return {
        "suite": OUTSIDE,
        "identity": identity,
        "encoder": {**vars(encoder.info), "name": name_of(settings, encoder), "fingerprint": encoder.fingerprint()},
        "settings": settings.model_dump(mode="json", exclude=None if settings.trains else {"contrastive"}),
        **_asked(plan),
        "training_data": None,
        "zero_shot": None,
        **provenance(),
    }


def _asked(plan: Plan, before: Sequence[str] = ()) -> dict[str, Any]:
    """The benchmark, and the tasks asked for so far."""
    asked = [*before, *(task.metadata.name for task in plan.selection.tasks)]
    return {
        "benchmark": {"name": plan.selection.benchmark, "tasks": [list(row) for row in plan.selection.complete]},
        "asked": list(dict.fromkeys(asked)),
    }


def facts_of(plan: Plan, model: MtebEncoder, store: RunStore, known: TrainingData) -> dict[str, Any]:
    """What a later run in the folder may change without another number: the tasks, and what is said of the training data."""
    facts = _asked(plan, cast("list[str]", store.manifest.get("asked", [])))
    names = dict.fromkeys([*(name for name, *_ in plan.selection.complete), *facts["asked"]])
    trained = model.mteb_model_meta.get_training_datasets()  # with those that mteb holds for similar
    unseen = True if known.complete else None
    return {
        **facts,
        "training_data": None if known.names is None else sorted(known.names),
        "zero_shot": None if trained is None else {name: False if name in trained else unseen for name in names},
    }
