"""The siamese pair form: both texts of a pair encoded apart, and their features composed."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from frozenprobe.errors import FeatureError

_ROWS = 4096


def siamese(u: Float[np.ndarray, "n d"], v: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n 4d"]:
    """Composes [u, v, |u - v|, u * v] in float32, some thousand rows at a time, so that nothing but the result is held.

    Raises:
        FeatureError: The two sides differ in shape.
    """
    if u.shape != v.shape or u.ndim != 2:
        raise FeatureError(f"the two sides of a pair differ: {u.shape} and {v.shape}")
    n, d = u.shape
    out = np.empty((n, 4 * d), dtype=np.float32)
    for start in range(0, n, _ROWS):
        rows = slice(start, start + _ROWS)
        block, left, right = out[rows], u[rows], v[rows]
        block[:, :d] = left
        block[:, d : 2 * d] = right
        difference = block[:, 2 * d : 3 * d]
        np.subtract(block[:, :d], block[:, d : 2 * d], out=difference)
        np.abs(difference, out=difference)
        np.multiply(block[:, :d], block[:, d : 2 * d], out=block[:, 3 * d :])
    return out
