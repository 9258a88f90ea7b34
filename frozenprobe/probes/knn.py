"""k nearest neighbours, exactly (paper, eq. 4): one search for the largest k serves every k.

Unweighted vote; a tie goes to the tied class with the nearest neighbour. Among rows at the same distance the earlier
train row is the nearer. Values take the mean of the neighbours.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped

from frozenprobe.errors import ProbeError
from frozenprobe.settings import Distance

SPARE = 16  # candidates beyond k, so that float32 rounding or a run of duplicates cannot lose a true neighbour
CHUNK_VALUES = 16 * 2**20


def nearest(
    train: Float[np.ndarray, "n d"],
    queries: Float[np.ndarray, "m d"] | None,
    k: int,
    distance: Distance,
    *,
    backend: str = "torch",
    device: str = "cpu",
) -> Int[np.ndarray, "m k"]:
    """Indices of the k nearest train rows of every query, nearest first.

    Args:
        train: Rows to search in.
        queries: Rows to search for; None searches for every train row among the others (leave-one-out).
        k: Neighbours, at most n (n - 1 for leave-one-out).
        distance: `l2` or `cosine`; a zero vector is as far from everything as an orthogonal one.
        backend: `torch` or `faiss`.
        device: Where torch searches.

    Raises:
        ProbeError: faiss was asked for and is not usable.
    """
    leave_one_out = queries is None
    queries = train if queries is None else queries
    shift = train.mean(0, dtype=np.float64).astype(np.float32)
    base, sought = _prepared(train, distance, shift), _prepared(queries, distance, shift)
    reach = k + leave_one_out
    wanted = min(len(base), reach + SPARE)
    search = {"torch": _search_torch, "faiss": _search_faiss}[backend]
    found, closeness = search(base, sought, wanted, distance, device)
    tolerance = _tolerance(base, sought)
    unsure = (-np.diff(closeness[:, : reach + 1], axis=1) <= tolerance[:, None]).any(axis=1)
    # Where more rows tie than there are candidates, as with many copies of one text, candidates are sought anew.
    crowded = unsure & (closeness[:, reach - 1] - closeness[:, -1] <= tolerance) & (wanted < len(base))
    if crowded.any():
        found[crowded] = _search_in_double(train, queries[crowded], reach, wanted, distance, shift, device)
    found[unsure] = _ranked_exactly(train, queries[unsure], np.sort(found[unsure], axis=1), distance)
    if leave_one_out:
        found = _without_self(found)
    return found[:, :k]


def _tolerance(base: np.ndarray, sought: np.ndarray) -> Float[np.ndarray, " m"]:
    """How close two values of the search may lie for a query before float32 cannot tell them apart.

    A sum of d rounded products is off by less than 4 sqrt(d) u |q| |x| but with negligible probability (u: unit roundoff).
    """
    largest = np.sqrt(np.einsum("nd,nd->n", base, base).max())
    lengths = np.sqrt(np.einsum("md,md->m", sought, sought))
    roundoff = np.finfo(np.float32).eps / 2
    return 8 * np.sqrt(base.shape[1]) * roundoff * largest * (lengths + largest / 2)


def _search_in_double(
    train: np.ndarray,
    queries: np.ndarray,
    reach: int,
    wanted: int,
    distance: Distance,
    shift: Float[np.ndarray, " d"],
    device: str,
) -> Int[np.ndarray, "m w"]:
    """Candidates `[m, wanted]` that hold the nearest `reach` rows; of rows that float64 cannot tell apart, the earliest."""

    def prepared(rows: np.ndarray) -> torch.Tensor:
        exact = torch.from_numpy(np.require(rows, np.float32, ("C", "W"))).to(device, torch.float64)
        if distance == "l2":
            return exact - torch.from_numpy(shift).to(device)
        return torch.nn.functional.normalize(exact, dim=1, eps=1e-300)

    base, sought = prepared(train), prepared(queries)
    half = (base * base).sum(1) / 2 if distance == "l2" else base.new_zeros(len(base))
    longest = base.square().sum(1).max().sqrt()
    number = torch.arange(len(base), device=device)
    found = np.empty((len(queries), wanted), np.int64)
    step = max(1, CHUNK_VALUES // (4 * len(base)))
    for start in range(0, len(queries), step):
        query = sought[start : start + step]
        closeness = torch.addmm(-half, query, base.T)
        edge = torch.topk(closeness, reach, dim=1).values[:, -1:]
        lengths = query.square().sum(1, keepdim=True).sqrt()
        tolerance = 4 * np.sqrt(base.shape[1]) * np.finfo(np.float64).eps * longest * (lengths + longest / 2)
        # Those surely inside come first, then those at the edge, each from the earliest on.
        grade = (closeness > edge + tolerance).long() + (closeness >= edge - tolerance)
        chosen = torch.topk(grade * len(base) - number, wanted, dim=1).indices
        found[start : start + step] = chosen.cpu().numpy()
    return found


def _ranked_exactly(
    train: np.ndarray, queries: np.ndarray, candidates: np.ndarray, distance: Distance
) -> Int[np.ndarray, "m w"]:
    """Candidates in the order of their float64 distances; equal ones stay as given, in the order of the train rows."""
    order = np.empty_like(candidates)
    table = torch.from_numpy(np.require(train, np.float32, ("C", "W")))
    sought = torch.from_numpy(np.require(queries, np.float32, ("C", "W")))
    step = max(1, CHUNK_VALUES // (4 * candidates.shape[1] * train.shape[1]))  # small enough for the processor's cache
    for start in range(0, len(queries), step):
        part = slice(start, start + step)
        picked = torch.from_numpy(np.ascontiguousarray(candidates[part]))
        rows, query = table[picked].double(), sought[part].double()[:, None]
        if distance == "l2":
            apart = rows.sub_(query).square_().sum(2)
        else:
            lengths = (rows.square().sum(2) * query.square().sum(2)).sqrt()
            apart = -torch.where(lengths > 0, rows.mul_(query).sum(2) / lengths, 0.0)
        order[part] = torch.argsort(apart, dim=1, stable=True).numpy()
    return np.take_along_axis(candidates, order, axis=1)


def _without_self(found: Int[np.ndarray, "n w"]) -> Int[np.ndarray, "n w"]:
    """Drops row i from its own candidates; where duplicates crowded it out, the last candidate goes instead."""
    itself = found == np.arange(len(found))[:, None]
    itself[~itself.any(1), -1] = True
    return found[~itself].reshape(len(found), -1)


def vote(neighbours: Shaped[np.ndarray, "m k"], ks: tuple[int, ...], n_classes: int) -> Int[np.ndarray, "ks m"]:
    """Majority class of the first k neighbours' labels, for every k; a tie goes to the class of the nearest of the tied."""
    rows = np.arange(len(neighbours))
    answers = []
    for k in ks:
        labels = neighbours[:, :k]
        counts = np.zeros((len(labels), n_classes), np.int64)
        for column in labels.T:
            counts[rows, column] += 1
        tied = np.take_along_axis(counts, labels, axis=1) == counts.max(1, keepdims=True)
        answers.append(labels[rows, tied.argmax(1)])
    return np.stack(answers)


def neighbour_mean(neighbours: Float[np.ndarray, "m k"], ks: tuple[int, ...]) -> Float[np.ndarray, "ks m"]:
    """Mean of the first k neighbours' values, for every k."""
    return np.stack([neighbours[:, :k].mean(1) for k in ks])


def _prepared(rows: np.ndarray, distance: Distance, shift: np.ndarray) -> Float[np.ndarray, "n d"]:
    """Rows for the float32 search: centred for L2, as that cancels less, and of unit length for cosine."""
    rows = np.asarray(rows, dtype=np.float32)
    if distance == "l2":
        return rows - shift
    norms = np.sqrt(np.einsum("nd,nd->n", rows, rows))[:, None]
    return np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)


def _search_torch(
    base: np.ndarray, sought: np.ndarray, k: int, distance: Distance, device: str
) -> tuple[np.ndarray, np.ndarray]:
    """Candidates `[m, k]`, nearest first, and q.x - |x|^2 / 2 (L2) or q.x (cosine), up to float32 rounding."""
    rows, queries = torch.from_numpy(base).to(device), torch.from_numpy(sought).to(device)
    half = (rows * rows).sum(1) / 2 if distance == "l2" else torch.zeros(len(rows), device=device)
    step = max(1, CHUNK_VALUES // len(rows))
    found = [
        torch.topk(torch.addmm(-half, queries[start : start + step], rows.T), k, dim=1)
        for start in range(0, len(queries), step)
    ]
    indices, values = (torch.cat([part[i] for part in found]).cpu().numpy() for i in (1, 0))
    return indices, values


def _search_faiss(
    base: np.ndarray, sought: np.ndarray, k: int, distance: Distance, device: str
) -> tuple[np.ndarray, np.ndarray]:
    """The same by faiss."""
    faiss = _import_faiss()
    index = (faiss.IndexFlatL2 if distance == "l2" else faiss.IndexFlatIP)(base.shape[1])
    if device.startswith("cuda") and hasattr(faiss, "StandardGpuResources"):
        index = faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), 0, index)
    index.add(base)
    values, indices = index.search(sought, k)
    return indices, -values / 2 if distance == "l2" else values


def _import_faiss():
    """faiss-cpu and faiss-gpu own the same import name and break each other, so exactly one must be there."""
    present = [name for name in ("faiss-cpu", "faiss-gpu") if _is_installed(name)]
    if len(present) == 2:
        raise ProbeError("faiss-cpu and faiss-gpu are both installed and break each other; pip uninstall one of them")
    try:
        import faiss
    except ImportError:
        raise ProbeError("--knn-backend faiss needs: pip install 'frozenprobe[faiss]' (or [faiss-gpu])") from None
    return faiss


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True
