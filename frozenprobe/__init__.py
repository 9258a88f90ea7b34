"""Trustworthy evaluation of frozen text encoders.

One forward pass over the data, then closed-form ridge sweeps and kNN probes. `evaluate_glue` and `evaluate_mteb` are the
commands `frozenprobe glue` and `frozenprobe mteb` in Python, `train_pooler` is `frozenprobe pool`, `mine_negatives` is
`frozenprobe mine`. Submodules are imported when first used, so that `import frozenprobe` is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from frozenprobe.callbacks.probe import Probe
    from frozenprobe.contrastive.mining import mine_negatives
    from frozenprobe.contrastive.run import train_pooler
    from frozenprobe.contrastive.saving import load_pooler
    from frozenprobe.encoders.module import ModuleEncoder
    from frozenprobe.encoders.registry import load_encoder
    from frozenprobe.records.reading import read_run
    from frozenprobe.reports.comparison import compare_runs
    from frozenprobe.suites.glue import evaluate_glue
    from frozenprobe.suites.mteb.adapter import MtebEncoder
    from frozenprobe.suites.mteb.run import evaluate_mteb

__all__ = [
    "ModuleEncoder",
    "MtebEncoder",
    "Probe",
    "compare_runs",
    "evaluate_glue",
    "evaluate_mteb",
    "load_encoder",
    "load_pooler",
    "mine_negatives",
    "read_run",
    "train_pooler",
]

_HOMES = {
    "ModuleEncoder": "frozenprobe.encoders.module",
    "MtebEncoder": "frozenprobe.suites.mteb.adapter",
    "Probe": "frozenprobe.callbacks.probe",
    "compare_runs": "frozenprobe.reports.comparison",
    "evaluate_glue": "frozenprobe.suites.glue",
    "evaluate_mteb": "frozenprobe.suites.mteb.run",
    "load_encoder": "frozenprobe.encoders.registry",
    "load_pooler": "frozenprobe.contrastive.saving",
    "mine_negatives": "frozenprobe.contrastive.mining",
    "read_run": "frozenprobe.records.reading",
    "train_pooler": "frozenprobe.contrastive.run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
