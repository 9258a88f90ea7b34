"""A trained pooler as a folder: `pooler.safetensors`, and a `config.json` that names the encoder it belongs to.

The encoder's fingerprint stands there, so that a pooler is never put on features it was not trained on.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from frozenprobe.contrastive.pooler import build_pooler
from frozenprobe.contrastive.settings import PoolerSettings
from frozenprobe.encoders.base import Encoder, HasWarmPooler, Layer, device_of
from frozenprobe.errors import EncoderError, RecordError
from frozenprobe.files import TEMPORARY
from frozenprobe.settings import parse

FORMAT = 1
WEIGHTS, CONFIG = "pooler.safetensors", "config.json"


def encoder_facts(encoder: Encoder, layer: Layer, fingerprint: str | None = None) -> dict[str, Any]:
    """What a pooler's folder says of its encoder."""
    info = encoder.info
    return {
        "name": info.name,
        "kind": info.kind,
        "revision": info.revision,
        "dtype": info.dtype,
        "max_length": info.max_length,
        "hidden_size": info.hidden_size,
        "layer": layer,
        "fingerprint": fingerprint or encoder.fingerprint(),
    }


def save_pooler(
    folder: Path, pooler: nn.Module, settings: PoolerSettings, encoder: dict[str, Any], training: dict[str, Any]
) -> None:
    """Writes a pooler's folder; it appears whole or not at all, in the place of an older one.

    Args:
        folder: Where.
        pooler: The module.
        settings: Its size.
        encoder: See `encoder_facts`.
        training: What it was trained on and how, for the reader.

    Raises:
        RecordError: The disk is full or the folder cannot be written.
    """
    config = {"format": FORMAT, "settings": settings.model_dump(mode="json"), "encoder": encoder, "training": training}
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=folder.parent))
        try:
            tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in pooler.state_dict().items()}
            save_file(tensors, temporary / WEIGHTS)
            (temporary / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
            temporary.chmod(0o755)
            if folder.exists():
                shutil.rmtree(folder)
            os.replace(temporary, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        raise RecordError(f"cannot write {folder}: {getattr(error, 'strerror', None) or error}") from None


def read_config(folder: Path) -> dict[str, Any]:
    """The config of a saved pooler.

    Raises:
        RecordError: There is none, or it is damaged.
    """
    path = folder / CONFIG
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError:
        raise RecordError(f"{folder} holds no pooler: it has no {CONFIG}") from None
    except (OSError, ValueError) as error:
        raise RecordError(f"{path} is damaged ({error})") from None
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise RecordError(f"{path} was not written by this version of frozenprobe (format {FORMAT})")
    return config


def load_pooler(
    folder: str | Path, encoder: Encoder, *, fingerprint: str | None = None, origin: Encoder | None = None
) -> nn.Module:
    """Loads a pooler for the encoder that it was trained on, in eval mode, on that encoder's device.

    Args:
        folder: What `save_pooler` wrote.
        encoder: The encoder.
        fingerprint: Of the encoder, if it is known already.
        origin: The encoder whose own pooler it started from, where `encoder` is what became of it in training end to end.

    Returns:
        A module `(token features [b, t, d], mask [b, t]) -> [b, e]`, for the layer that `read_config` names.

    Raises:
        RecordError: The folder is damaged.
        EncoderError: It was trained on another encoder, dtype or length limit.
    """
    folder = Path(folder)
    config = read_config(folder)
    trained, here = config["encoder"], encoder_facts(encoder, config["encoder"]["layer"], fingerprint)
    for name, option in (("dtype", "--dtype"), ("max_length", "--max-length")):
        if trained[name] != here[name]:
            raise EncoderError(
                f"{folder} was trained with {option} {trained[name]} and the encoder runs with {here[name]}: "
                f"add {option} {trained[name]}"
            )
    if trained["fingerprint"] != here["fingerprint"]:
        raise EncoderError(
            f"{folder} was trained on the features of {trained['name']} ({trained['fingerprint']:.12}), not on those of "
            f"{here['name']} ({here['fingerprint']:.12}): a pooler belongs to one encoder"
        )
    size = parse(PoolerSettings, config["settings"])
    if size.warm_start and origin is None and not isinstance(encoder, HasWarmPooler):
        raise EncoderError(
            f"{folder} started from the pooler of another encoder: load that one too, and give it as origin"
        )
    pooler = build_pooler(size, origin or encoder)
    try:
        pooler.load_state_dict(load_file(folder / WEIGHTS))
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise RecordError(f"{folder / WEIGHTS} is damaged: {reason:.160}") from None
    return pooler.to(device_of(encoder)).eval().requires_grad_(False)
