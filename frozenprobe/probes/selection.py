"""Choosing one point of a grid: `honest` inside train, `paper` on the reported split."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float


def best(values: Float[np.ndarray, "... g"]) -> np.ndarray:
    """Index of the largest value; ties go to the last, so grids are ordered from the weaker to the stronger regularisation."""
    return values.shape[-1] - 1 - np.argmax(values[..., ::-1], axis=-1)


def best_of_each(values: Float[np.ndarray, "b g"]) -> Float[np.ndarray, " b"]:
    """What the paper's choice gives when it is made anew in every resample."""
    return values.max(axis=1) if len(values) else np.empty(0)
