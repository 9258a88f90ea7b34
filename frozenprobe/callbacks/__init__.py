"""Frozen scores inside a training loop: `Probe` for any loop, and callbacks for the trainers that people use.

`docs/callbacks.md` shows one example per trainer. Submodules are imported when first used: a trainer that is not installed
is not missed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from frozenprobe.callbacks.huggingface import FrozenProbeCallback
    from frozenprobe.callbacks.lightning import FrozenProbeLightningCallback
    from frozenprobe.callbacks.probe import Probe

__all__ = ["FrozenProbeCallback", "FrozenProbeLightningCallback", "Probe"]

_HOMES = {
    "FrozenProbeCallback": "frozenprobe.callbacks.huggingface",
    "FrozenProbeLightningCallback": "frozenprobe.callbacks.lightning",
    "Probe": "frozenprobe.callbacks.probe",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
