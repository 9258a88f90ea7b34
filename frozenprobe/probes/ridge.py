"""Ridge regression in closed form for a whole grid of lambdas (paper, eq. 2 and 3).

    W(lambda) = (X'X + lambda I)^-1 X'Y

One float64 eigendecomposition serves every lambda: of the d x d Gram matrix, or of the n x n kernel where n < d. It also gives every
leave-one-out prediction: with the hat matrix H = X (X'X + lambda I)^-1 X' + 11'/n, the residual of row i had it been left out is
r_i / (1 - H_ii). On a GPU the systems are solved by a batched `torch.linalg.solve`; both ways give the same scores.

X and Y are centred and the intercept is not penalised; `intercept=False` is eq. 3 exactly as printed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64

from frozenprobe.settings import RidgeSettings

CHUNK_BYTES = 32 * 2**20


@dataclass(frozen=True)
class RidgePath:
    """Ridge regressions of one train set for every lambda.

    Attributes:
        lambdas: The grid, ascending, as applied (scaled with n where asked).
        weights: Coefficients in the space of the raw features.
        intercepts: Intercepts in that space.
        left_out: Leave-one-out predictions of the train rows, or None at n = 1 or where not asked for.
    """

    lambdas: Float64[np.ndarray, " l"]
    weights: Float64[torch.Tensor, "l d c"]
    intercepts: Float64[torch.Tensor, "l c"]
    left_out: Float64[np.ndarray, "l n c"] | None

    def predict(self, features: Float[np.ndarray, "m d"]) -> Float64[np.ndarray, "l m c"]:
        """Predictions of every lambda for every row."""
        count, width, targets = self.weights.shape
        flat = self.weights.permute(1, 0, 2).reshape(width, count * targets)
        parts = [(chunk @ flat).reshape(-1, count, targets) for _, chunk in _chunks(features, self.weights.device)]
        return (torch.cat(parts).permute(1, 0, 2) + self.intercepts[:, None, :]).cpu().numpy()


def fit_ridge(
    features: Float[np.ndarray, "n d"],
    targets: Float64[np.ndarray, "n c"],
    settings: RidgeSettings,
    *,
    device: str = "cpu",
    leave_one_out: bool = True,
) -> RidgePath:
    """Fits every lambda at once.

    Args:
        features: Train rows; float32 is enough, sums are float64. May be a memory map: rows are read in chunks.
        targets: One-hot classes or values.
        settings: Grid, standardisation, solver.
        device: Where the linear algebra runs.
        leave_one_out: Also predict every train row from the others. The scaling stays that of all rows.
    """
    n, d = features.shape
    lambdas = np.geomspace(settings.lambda_min, settings.lambda_max, settings.lambdas)
    if settings.scale_with_n:
        lambdas = lambdas * n
    with _full_precision():
        y = torch.from_numpy(np.ascontiguousarray(targets, dtype=np.float64)).to(device)
        shift, scale = _standardisation(features, settings, y.device)
        y_mean = y.mean(0) if settings.intercept else torch.zeros_like(y[0])
        centred = y - y_mean
        grid = torch.from_numpy(lambdas).to(y.device)
        solver = settings.solver if settings.solver != "auto" else ("solve" if y.is_cuda else "eigh")
        fit = {"eigh": _by_eigh, "solve": _by_solve}[solver]
        dual = n < d
        weights, leverage, fitted = fit(features, shift, scale, centred, grid, dual, leave_one_out and n > 1)
        left_out = None
        if leverage is not None and fitted is not None:
            if settings.intercept:
                leverage += 1 / n
            # y - (y - fitted) / (1 - H), in place: at a million rows every copy counts
            fitted -= centred
            fitted /= (1 - leverage).clamp_min_(1e-12)[..., None]
            left_out = fitted.add_(y).cpu().numpy()
        weights = weights / scale[:, None]
        return RidgePath(lambdas, weights, y_mean - shift @ weights, left_out)


def _by_eigh(features, shift, scale, y, grid, dual, leave_one_out):
    """Weights `[l, d, c]`, leverages `[l, n]` and fitted values `[l, n, c]` from one eigendecomposition."""
    if dual:
        x = _scaled(features, shift, scale, y.device)
        values, vectors = torch.linalg.eigh(x @ x.T)
        values = values.clamp_min(0)
        rotated = vectors.T @ y
        coefficients = vectors @ (rotated / (values + grid[:, None])[..., None])
        weights = x.T @ coefficients
        if not leave_one_out:
            return weights, None, None
        shrink = values / (values + grid[:, None])
        return weights, shrink @ (vectors**2).T, vectors @ (shrink[..., None] * rotated)
    gram, cross = _moments(features, shift, scale, y)
    values, vectors = torch.linalg.eigh(gram)
    inverse = 1 / (values.clamp_min(0) + grid[:, None])
    weights = vectors @ (inverse[..., None] * (vectors.T @ cross))
    if not leave_one_out:
        return weights, None, None
    return weights, *_hat(features, shift, scale, y, vectors, inverse, weights)


def _hat(features, shift, scale, y, vectors, inverse, weights):
    """Leverages and fitted values of every row, read in chunks: h_i = sum_j (x_i v_j)^2 / (s_j + lambda)."""
    count, d, targets = weights.shape
    leverage = torch.empty(count, len(features), dtype=torch.float64, device=y.device)
    fitted = torch.empty(count, len(features), targets, dtype=torch.float64, device=y.device)
    flat = weights.permute(1, 0, 2).reshape(d, count * targets)
    for rows, chunk in _chunks(features, y.device):
        x = _apply(chunk, shift, scale)
        leverage[:, rows] = ((x @ vectors).square_() @ inverse.T).T
        fitted[:, rows] = (x @ flat).reshape(-1, count, targets).permute(1, 0, 2)
    return leverage, fitted


def _by_solve(features, shift, scale, y, grid, dual, leave_one_out):
    """The same by solving one linear system per lambda: batched on a GPU, one by one on a CPU.

    Batched `solve` hangs on a CPU with several threads (pytorch issues 142815 and 141358).
    """
    if dual:
        x = _scaled(features, shift, scale, y.device)
        gram, right = x @ x.T, y
    else:
        gram, right = _moments(features, shift, scale, y)
    eye = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    right = torch.cat([right, eye], dim=1) if leave_one_out else right
    systems = gram + grid[:, None, None] * eye
    if systems.is_cuda:
        solved = torch.linalg.solve(systems, right.expand(len(grid), -1, -1))
    else:
        solved = torch.stack([torch.linalg.solve(system, right) for system in systems])
    targets = y.shape[1]
    solution, inverse = solved[..., :targets], solved[..., targets:]
    weights = x.T @ solution if dual else solution
    if not leave_one_out:
        return weights, None, None
    if dual:  # H = K (K + lambda I)^-1 = I - lambda (K + lambda I)^-1
        leverage = 1 - grid[:, None] * inverse.diagonal(dim1=1, dim2=2)
        return weights, leverage, gram @ solution
    leverage = torch.empty(len(grid), len(features), dtype=torch.float64, device=y.device)
    fitted = torch.empty(len(grid), *y.shape, dtype=torch.float64, device=y.device)
    for rows, chunk in _chunks(features, y.device):
        x = _apply(chunk, shift, scale)
        for i in range(len(grid)):
            leverage[i, rows] = ((x @ inverse[i]) * x).sum(1)
            fitted[i, rows] = x @ weights[i]
    return weights, leverage, fitted


def _standardisation(features, settings: RidgeSettings, device) -> tuple[torch.Tensor, torch.Tensor]:
    """Shift and scale `[d]` of the features, from these rows only. A constant column keeps scale 1."""
    d = features.shape[1]
    shift = torch.zeros(d, dtype=torch.float64, device=device)
    scale = torch.ones(d, dtype=torch.float64, device=device)
    # With an intercept the regression is the same for any shift, so the rows are centred even where nothing is asked:
    # the intercept then needs no column of its own and stays free of the penalty.
    if settings.standardisation == "none" and not settings.intercept:
        return shift, scale
    for _, chunk in _chunks(features, device):
        shift += chunk.sum(0)
    shift /= len(features)
    if settings.standardisation == "standard":
        variance = torch.zeros_like(shift)
        for _, chunk in _chunks(features, device):
            variance += ((chunk - shift) ** 2).sum(0)
        deviation = (variance / len(features)).sqrt()
        scale = torch.where(deviation > 1e-9 * (1 + shift.abs()), deviation, scale)
    return shift, scale


def _moments(features, shift, scale, y) -> tuple[torch.Tensor, torch.Tensor]:
    """X'X `[d, d]` and X'Y `[d, c]` of the shifted and scaled rows, accumulated in float64."""
    d = features.shape[1]
    block = max(1, -(-d // 4))
    gram = torch.zeros(d, d, dtype=torch.float64, device=y.device)
    cross = torch.zeros(d, y.shape[1], dtype=torch.float64, device=y.device)
    for rows, chunk in _chunks(features, y.device):
        x = _apply(chunk, shift, scale)
        for start in range(0, d, block):  # the upper half is enough, it is symmetric
            gram[start : start + block, start:].addmm_(x[:, start : start + block].T, x[:, start:])
        cross.addmm_(x.T, y[rows])
    return gram.triu() + gram.triu(1).T, cross


def _scaled(features, shift, scale, device) -> torch.Tensor:
    """All rows at once, for the dual form, where there are few."""
    return torch.cat([_apply(chunk, shift, scale) for _, chunk in _chunks(features, device)])


def _apply(chunk: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Standardises rows in place; they are a copy of ours."""
    return chunk.sub_(shift).div_(scale)


def _chunks(features: Float[np.ndarray, "n d"], device) -> Iterator[tuple[slice, torch.Tensor]]:
    """The rows as float64 on the device, in chunks that bound the extra memory."""
    step = max(1, CHUNK_BYTES // (8 * features.shape[1]))
    for start in range(0, len(features), step):
        rows = slice(start, min(start + step, len(features)))
        block = np.require(features[rows], requirements=("C", "W"))  # copies what is mapped read-only, nothing else
        yield rows, torch.from_numpy(block).to(device, torch.float64, copy=True)


@contextmanager
def _full_precision() -> Generator[None]:
    """No TF32 around Gram matrices and solves; the caller's choice is put back."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
