"""Checkpoints of a training: one safetensors file with everything, so that a kill leaves the old one or the new one.

Parameters, optimiser states, and as metadata the step, the settings that must be the same, and the history.
"""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from frozenprobe.contrastive.train import TrainingState
from frozenprobe.errors import RecordError
from frozenprobe.files import TEMPORARY
from frozenprobe.settings import differences

FILE = "checkpoint.safetensors"


def write(folder: Path, identity: dict[str, Any], state: TrainingState, tensors: dict[str, torch.Tensor]) -> None:
    """Replaces the checkpoint.

    Raises:
        RecordError: The disk is full or the folder cannot be written; the old checkpoint stays.
    """
    path = folder / FILE
    temporary = folder / f"{TEMPORARY}{uuid.uuid4().hex}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        save_file(plain, temporary, {"identity": json.dumps(identity), "state": json.dumps(vars(state))})
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, SafetensorError) as error:
        raise RecordError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def read(folder: Path, identity: dict[str, Any]) -> tuple[TrainingState, dict[str, torch.Tensor]] | None:
    """The checkpoint in a folder, or None where there is none.

    Raises:
        RecordError: It is damaged, or belongs to a training with other settings.
    """
    path = folder / FILE
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
            old = json.loads(metadata["identity"])
            state = TrainingState(**json.loads(metadata["state"]))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{path} is damaged ({error}); delete it to start again, or --overwrite") from None
    require_same(folder, old, identity)
    return state, tensors


def require_same(folder: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Refuses a folder that belongs to a training with other settings.

    Raises:
        RecordError: It does; the line names what differs.
    """
    if different := differences(old, new):
        raise RecordError(f"{folder} holds a different training ({different}); choose another --out or --overwrite")
