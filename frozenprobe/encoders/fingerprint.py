"""A digest of everything that decides an encoder's vectors, so that nothing is ever keyed by a name.

Serves `Encoder.fingerprint` (`base.py`). The weights are hashed as they lie in memory, so it does not matter which
file they came from, and one changed weight is another encoder.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

ADAPTER_VERSION = "1"  # raise it when the same weights and text would give other vectors
_NOT_IDENTITY = ("_name_or_path", "name_or_path", "transformers_version", "_commit_hash")


def fingerprint(model: nn.Module, config: Any, tokenizer_digest: str, *extra: str) -> str:
    """SHA-256 over weights, buffers, config, tokenizer, model code outside transformers, and the adapter's version.

    Args:
        model: The encoder; its pooler is left out, since no hidden state depends on it.
        config: A transformers config, or None.
        tokenizer_digest: Digest of the tokenizer.
        extra: What else decides the vectors.

    Returns:
        64 hexadecimal digits.
    """
    return digest(ADAPTER_VERSION, weights_digest(model), _config(config), _code(model), tokenizer_digest, *extra)


def weights_digest(model: nn.Module) -> str:
    """SHA-256 over names, dtypes, shapes and bytes of all parameters and buffers, poolers left out."""
    total = hashlib.sha256()
    for name, tensor in sorted([*model.named_parameters(), *model.named_buffers()], key=lambda item: item[0]):
        if is_pooler(name):
            continue
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        total.update(memoryview(tensor_bytes(tensor)))
    return total.hexdigest()


def weights_sample(model: nn.Module) -> str:
    """A digest of up to 64 elements, evenly spread, of every parameter: tells one training step from another at once."""
    total = hashlib.sha256()
    for name, tensor in sorted(model.named_parameters(), key=lambda item: item[0]):
        flat = (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach().reshape(-1)
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        total.update(memoryview(tensor_bytes(flat[:: max(1, len(flat) // 64)])))
    return total.hexdigest()[:16]


def is_pooler(name: str) -> bool:
    """True for a parameter of a model's own pooling head, which no hidden state depends on."""
    return name.split(".", 1)[0] == "pooler"


def tensor_bytes(tensor: torch.Tensor) -> Any:
    """The bytes of a tensor as a flat uint8 array, whatever its dtype or device."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy() if flat.numel() else memoryview(b"")


def _config(config: Any) -> str:
    if config is None:
        return ""
    values = {key: value for key, value in config.to_dict().items() if key not in _NOT_IDENTITY}
    return json.dumps(values, sort_keys=True, default=str)


def _code(model: nn.Module) -> str:
    """The class, and for classes outside transformers the text of the file that defines it."""
    cls = type(model)
    if cls.__module__.startswith("transformers.models."):
        return cls.__name__
    try:
        source = Path(inspect.getfile(cls)).read_text(encoding="utf-8")
    except (OSError, TypeError):  # a class typed into a console has no file
        source = ""
    return f"{cls.__name__}\n{source}"


def digest(*parts: str) -> str:
    """SHA-256 of the parts, each with its length, so that no two lists of parts run together alike."""
    total = hashlib.sha256()
    for part in parts:
        total.update(f"{len(part)}:".encode() + part.encode())
    return total.hexdigest()
