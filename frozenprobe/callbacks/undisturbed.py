"""What an evaluation in the middle of training must leave as it found it, beyond the model itself.

`ModuleEncoder` looks after the model (modes, gradients, hooks); this page after everything global that training draws on.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch

_KINDS = ("cpu", "cuda", "mps")


@contextmanager
def undisturbed() -> Generator[None]:
    """Runs its body so that the training around it goes on bit for bit as if the body had not run.

    - The random states of Python, NumPy and torch (CPU and every CUDA device in use) are put back.
    - Autocast is off: a weight that is cast here, without a gradient, would stay in autocast's cache and reach the next
      training step without one.
    - Nothing is compiled, and compiled modules run eagerly: the shapes met here would make training's graphs dynamic or
      use up their limit of recompilations.
    """
    python, numpy_state = random.getstate(), np.random.get_state()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=devices))
            for kind in _KINDS:
                if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
                    stack.enter_context(torch.autocast(kind, enabled=False))
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy_state)
