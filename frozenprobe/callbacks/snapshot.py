"""A module as it is at one moment, on its way to another process: its structure through a pipe, its tensors through a file.

The structure is a pickle without tensors, made and read by processes of one run; the tensors are a safetensors file, so that
no weight is copied more often than once.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from frozenprobe.errors import EncoderError


@dataclass(frozen=True)
class Snapshot:
    """A module on its way.

    Attributes:
        step: The training step.
        structure: The module without its tensors.
        tensors: The file with them, by number.
    """

    step: int
    structure: bytes
    tensors: Path

    def load(self, device: str) -> nn.Module:
        """The module again, in eval mode."""
        tensors = load_file(self.tensors, device=device)
        return _Reader(io.BytesIO(self.structure), tensors).load().eval()

    def delete(self) -> None:
        """Removes the file."""
        self.tensors.unlink(missing_ok=True)


def take(module: nn.Module, step: int, folder: Path) -> Snapshot:
    """Writes down a module; it may change as soon as this returns.

    Raises:
        EncoderError: A part of it cannot be sent to another process.
        OSError: The folder cannot be written.
        safetensors.SafetensorError: The disk is full.
    """
    buffer = io.BytesIO()
    writer = _Writer(buffer)
    try:
        writer.dump(module)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise EncoderError(f"{type(module).__name__} cannot be sent to another process ({error})") from None
    path = folder / f"step-{step}.safetensors"
    copies = [_on_cpu(tensor) for tensor in writer.tensors]
    seen: set[int] = set()
    for number, tensor in enumerate(copies):
        memory = tensor.untyped_storage().data_ptr()
        if memory in seen or not tensor.is_contiguous():  # the file wants each tensor in memory of its own
            copies[number] = tensor.clone(memory_format=torch.contiguous_format)
        seen.add(memory)
    try:
        save_file({str(number): tensor for number, tensor in enumerate(copies)}, path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return Snapshot(step, buffer.getvalue(), path)


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor on the CPU, whole where it is sharded (a DTensor, whose pieces all ranks bring together)."""
    whole = getattr(tensor, "full_tensor", None)
    return (tensor if whole is None else whole()).detach().to("cpu")


class _Writer(pickle.Pickler):
    """Leaves tensors out, and what only the training process can call."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.tensors: list[torch.Tensor] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> tuple[int, bool] | None:
        if not isinstance(obj, torch.Tensor):
            return None
        if id(obj) not in self._numbers:  # a tied weight is one tensor
            self._numbers[id(obj)] = len(self.tensors)
            self.tensors.append(obj)
        return self._numbers[id(obj)], isinstance(obj, nn.Parameter)

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type | FunctionType) and obj.__module__ == "__main__":
            raise pickle.PicklingError(f"{obj.__name__} is defined in the script itself: move it into a module")
        if isinstance(obj, nn.Module) and "_original_forward" in vars(obj):
            # accelerate's mixed precision: it wraps `forward` on the object, and has kept what was there.
            constructor, arguments, state = obj.__reduce_ex__(2)[:3]
            kept = {name: value for name, value in state.items() if name not in ("forward", "_original_forward")}
            return constructor, arguments, kept
        return NotImplemented


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: dict[str, torch.Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors
        self._parameters: dict[int, nn.Parameter] = {}

    def persistent_load(self, pid: Any) -> torch.Tensor:
        number, is_parameter = pid
        tensor = self._tensors[str(number)]
        if not is_parameter:
            return tensor
        return self._parameters.setdefault(number, nn.Parameter(tensor, requires_grad=False))
