"""Is a set of features worth probing? Cheap signs of collapse, from a sample of the rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

SAMPLE = 4096
_PAIRS = 10_000
_SEED = 0


@dataclass(frozen=True)
class Diagnostics:
    """What the features look like as a cloud of points.

    Attributes:
        rows: Rows looked at.
        dimensions: Width `d`.
        effective_rank: Exponential of the entropy of the covariance's normalised eigenvalues (Roy and Vetterli, 2007):
            1 for a line, `d` for a ball; at most `rows - 1`. 0 where all rows are equal.
        top_share: Share of the variance along the largest eigenvector. 1 where all rows are equal.
        mean_cosine: Mean cosine of random pairs of different rows; near 1 for a narrow cone.
        norm_mean: Mean length of a row.
        norm_spread: Standard deviation of the lengths over their mean.
        dead_dimensions: Dimensions that have the same value in every row.
        warnings: What a reader of the scores should know, one line each.
    """

    rows: int
    dimensions: int
    effective_rank: float
    top_share: float
    mean_cosine: float
    norm_mean: float
    norm_spread: float
    dead_dimensions: int
    warnings: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The diagnostics as plain values."""
        return {**vars(self), "warnings": list(self.warnings)}


def diagnose(features: Float[np.ndarray, "n d"]) -> Diagnostics:
    """Looks at `SAMPLE` rows at most, drawn by a fixed seed; fewer than two rows give no warnings."""
    n, d = features.shape
    generator = np.random.default_rng(_SEED)
    sample = features if n <= SAMPLE else features[np.sort(generator.choice(n, SAMPLE, replace=False))]
    rows = np.asarray(sample, dtype=np.float32)
    m = len(rows)
    if m < 2:
        norm = float(np.linalg.norm(rows.astype(np.float64))) if m else 0.0
        return Diagnostics(m, d, 0.0, 1.0, 1.0, norm, 0.0, 0, ())
    dead = int((rows == rows[0]).all(axis=0).sum())
    norms = np.sqrt(np.einsum("nd,nd->n", rows, rows, dtype=np.float64))
    norm_mean = float(norms.mean())
    spread = float(norms.std() / norm_mean) if norm_mean > 0 else 0.0
    rank, top = _spectrum(rows)
    cosine = _mean_cosine(rows, norms, generator)
    return Diagnostics(m, d, rank, top, cosine, norm_mean, spread, dead, _warnings(m, d, rank, top, cosine, dead))


def _spectrum(rows: Float[np.ndarray, "m d"]) -> tuple[float, float]:
    """Effective rank and the share of the largest eigenvalue."""
    # Centred before the product: a common offset would drown the spread in rounding.
    centred = rows - rows.mean(axis=0, dtype=np.float64).astype(np.float32)
    scale = float(np.abs(centred).max())
    if scale <= np.finfo(np.float32).eps * float(np.abs(rows).max()):
        return 0.0, 1.0
    centred /= scale
    gram = centred.T @ centred if rows.shape[1] <= len(rows) else centred @ centred.T
    values = np.clip(np.linalg.eigvalsh(gram), 0, None).astype(np.float64)
    shares = values / values.sum()
    positive = shares[shares > 0]
    return float(np.exp(-(positive * np.log(positive)).sum())), float(shares.max())


def _mean_cosine(
    rows: Float[np.ndarray, "m d"], norms: Float[np.ndarray, " m"], generator: np.random.Generator
) -> float:
    """Mean cosine over random pairs of different rows; a zero row has cosine 0 with everything."""
    m = len(rows)
    left = generator.integers(m, size=_PAIRS if m > 128 else min(_PAIRS, m * m))
    right = (left + generator.integers(1, m, size=len(left))) % m
    unit = rows / np.maximum(norms, np.finfo(np.float32).tiny)[:, None].astype(np.float32)
    return float(np.einsum("pd,pd->p", unit[left], unit[right]).mean(dtype=np.float64))


def _warnings(m: int, d: int, rank: float, top: float, cosine: float, dead: int) -> tuple[str, ...]:
    """Plain words for what probes cannot recover from."""
    if rank == 0:
        return ("every input has the same features: the encoder has collapsed, scores are those of a constant",)
    lines = []
    if min(m - 1, d) >= 32 and rank < 0.02 * min(m - 1, d):
        lines.append(
            f"the features vary in few directions (effective rank {rank:.1f} of {d} dimensions, "
            f"{top:.0%} of the variance along one): the encoder may have collapsed"
        )
    if cosine > 0.99:
        lines.append(f"all inputs point the same way (mean cosine {cosine:.3f}): cosine kNN has little to go by")
    if dead > 0.1 * d:
        lines.append(f"{dead} of {d} dimensions have the same value for every input")
    return tuple(lines)
