"""Repairs non-persistent buffers of models whose classes are not part of transformers.

transformers 5 builds a model on the meta device before it loads the weights, so a buffer that such a class computes in
`__init__` and does not save (a table of rotary angles, say) comes back as uninitialised memory.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


def has_unsaved_tensors(model: nn.Module) -> bool:
    """True where some tensor of the model is neither a parameter nor in its state dict."""
    return any(True for module in model.modules() for _ in _unsaved(module))


def repair_unsaved_tensors(model: nn.Module, build: Callable[[], nn.Module]) -> tuple[str, ...]:
    """Copies every tensor that checkpoints do not hold from a freshly built model.

    Args:
        model: The loaded model, changed in place.
        build: Builds the same class from the same config, with its `__init__` run for real.

    Returns:
        Names of the tensors that differed.
    """
    fresh = dict(build().named_modules())
    repaired = []
    for prefix, module in model.named_modules():
        if prefix not in fresh:
            continue
        right = dict(_unsaved(fresh[prefix]))
        for name, value in list(_unsaved(module)):
            if name not in right or _equal(value, right[name]):
                continue
            device = right[name].device if value.is_meta else value.device
            if name in module._buffers:
                module._buffers[name] = right[name].to(device)
            else:
                setattr(module, name, right[name].to(device))
            repaired.append(f"{prefix}.{name}" if prefix else name)
    return tuple(repaired)


def _unsaved(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Non-persistent buffers, and tensors kept as plain attributes."""
    found = [
        (name, buffer)
        for name in sorted(module._non_persistent_buffers_set)
        if (buffer := module._buffers.get(name)) is not None
    ]
    return found + [(name, value) for name, value in vars(module).items() if isinstance(value, torch.Tensor)]


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.is_meta or one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one.cpu(), other.cpu())
