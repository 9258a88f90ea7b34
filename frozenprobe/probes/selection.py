"""Choosing one point of a grid: `honest` inside train, `paper` on the reported split."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float


def best(values: Float[np.ndarray, "... g"]) -> np.ndarray:
    """Index of the largest value; ties go to the last, so grids are ordered from the weaker to the stronger regularisation."""
    return values.shape[-1] - 1 - np.argmax(values[..., ::-1], axis=-1)
