"""Which tokens are masked: a pure function of the seed, the step and a sequence's place in the global batch.

So resuming needs no random state, and neither the number of ranks nor of data workers changes a mask (SPEC: fixed
count per sequence, 100% `<MASK>`). The counter-based generator Philox gives every sequence a stream of its own; only
its raw bits are used, which NumPy promises never to change.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int

_MASKS, _SAMPLES = 0, 1  # independent streams of one seed


def draw_permutations(
    seed: int, step: int, indices: Sequence[int] | Int[torch.Tensor, " n"], length: int
) -> Int[torch.Tensor, "n length"]:
    """A random order of the positions of each sequence: the first are visible, the last are predicted.

    Args:
        seed: Of the run.
        step: Of the run.
        indices: Places of the sequences in the global batch.
        length: Positions of a sequence, S.

    Returns:
        One permutation of 0 ... S - 1 a row, on the CPU.
    """
    raw = _draw(_MASKS, seed, step, indices, length)
    return torch.from_numpy(np.argsort(raw, axis=1, kind="stable"))


def draw_uniform(
    seed: int, step: int, indices: Sequence[int] | Int[torch.Tensor, " n"], count: int
) -> Float[torch.Tensor, "n count"]:
    """Uniform numbers in [0, 1) with 24 bits, for sampling from Electra's generator; arguments as above."""
    raw = _draw(_SAMPLES, seed, step, indices, count)
    return torch.from_numpy((raw >> np.uint64(40)).astype(np.float32) / np.float32(2**24))


def _draw(
    stream: int, seed: int, step: int, indices: Sequence[int] | Int[torch.Tensor, " n"], count: int
) -> Int[np.ndarray, "n count"]:
    """Raw 64-bit words, one generator per sequence."""
    key = np.array([seed, stream], dtype=np.uint64)  # a list of large numbers would be taken for floats
    rows = [np.random.Philox(key=key, counter=[0, 0, int(i), step]).random_raw(count) for i in indices]
    return np.stack(rows) if rows else np.zeros((0, count), dtype=np.uint64)
