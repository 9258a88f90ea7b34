"""Who a probed encoder is to mteb, and what it was trained on, on which mteb's word for zero-shot rests."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from mteb.models.model_implementations import MODEL_REGISTRY
from mteb.models.model_meta import ModelMeta, ScoringFunction

from frozenprobe.encoders.base import EncoderInfo
from frozenprobe.suites.mteb.adapter import Backbone, MtebEncoder
from frozenprobe.suites.mteb.settings import MtebSettings

_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
_MSMARCO = "MSMARCO"


@dataclass(frozen=True)
class TrainingData:
    """What encoder and pooler were trained on.

    Attributes:
        names: By mteb's names; None where nothing is known.
        complete: Whether that is all, so that other tasks are zero-shot.
    """

    names: frozenset[str] | None
    complete: bool


def training_data(settings: MtebSettings, info: EncoderInfo, rows: str | None) -> TrainingData:
    """What the settings name, what mteb knows of the checkpoint, and what the pooler's rows are.

    Args:
        settings: The run's settings; what they name is taken for all that nothing else tells of.
        info: The encoder's.
        rows: Where a trained pooler's rows came from; None where the pooler was not trained.
    """
    stated = None if settings.training_data is None else frozenset(settings.training_data)
    known = None if settings.encoder.random_init else MODEL_REGISTRY.get(info.name)
    encoder = stated
    if known is not None:
        inherited = known.training_datasets
        encoder = None if inherited is None else (stated or frozenset()) | inherited
    if rows is None:
        return TrainingData(encoder, encoder is not None)
    named = frozenset({_MSMARCO}) if is_msmarco(rows) else stated
    if named is None:  # to name the encoder's data only would pass off the rows' as unseen
        return TrainingData(None, complete=False)
    return TrainingData(named | (encoder or frozenset()), encoder is not None)


def is_msmarco(source: str) -> bool:
    """Whether a hub id or a path says that it holds MS MARCO, as the default training set does."""
    return "msmarco" in re.sub(r"[^a-z]", "", source.lower())


def model_name(settings: MtebSettings, name: str, pooling: str, backbone: Backbone = "frozen") -> str:
    """OWNER/NAME of a model of its own.

    Args:
        settings: The run's settings.
        name: What the encoder is called in tables.
        pooling: What the pooling is called.
        backbone: Whether the encoder was trained with it.
    """
    owner, _, rest = name.rpartition("/")
    suffix = " unfrozen" if backbone == "unfrozen" else ""
    clean = "-".join(f"{rest} {pooling}{suffix}".split())
    return settings.model_name or f"{owner or 'frozenprobe'}/{clean}"


def model_meta(settings: MtebSettings, model: MtebEncoder, name: str, rows: str | None = None) -> ModelMeta:
    """Who the model is to mteb.

    A hub model measured as its authors mean it is itself, at its commit; anything else is a model of its own, whose revision is
    a digest of its weights. Where nothing is known of its training data, mteb calls no task zero-shot.

    Args:
        settings: The run's settings.
        model: The encoder with its pooling.
        name: What the encoder is called in tables.
        rows: Where a trained pooler's rows came from; see `training_data`.
    """
    info = model.encoder.info
    changed = settings.encoder.random_init or settings.encoder.max_length or model.prompts
    as_published = model.pooler == "own" and info.revision is not None and not changed
    known = MODEL_REGISTRY.get(info.name)
    names = training_data(settings, info, rows).names
    own_name = model_name(settings, name, model.pooling, model.backbone)
    return ModelMeta.create_empty(
        overwrites={
            "name": info.name if as_published and "/" in info.name and not settings.model_name else own_name,
            "revision": info.revision
            if as_published
            else hashlib.sha256(model.fingerprint().encode()).hexdigest()[:40],
            "languages": ["eng-Latn"],
            "n_parameters": info.parameters,
            "n_embedding_parameters": info.parameters - info.parameters_without_embeddings,
            "memory_usage_mb": round(info.parameters * _BYTES.get(info.dtype, 4) / 2**20, 1),
            "max_tokens": info.max_length,
            "embed_dim": model.width(),
            "framework": ["Sentence Transformers", "PyTorch", "safetensors"],
            "similarity_fn_name": ScoringFunction.COSINE,
            "use_instructions": model.uses_prompts,
            "training_datasets": None if names is None else set(names),
            "adapted_from": info.name if known is not None and not as_published else None,
        }
    )
