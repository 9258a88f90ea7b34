"""Fits the laws of learning rate and batch size to a sweep, as the paper does (section 5.1, appendix H, figure 7).

Of each model, the runs with the lowest loss are kept (the paper keeps three), and a power law y = a C^b is fitted to
all that are kept, by least squares on logarithms.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from crossbert.scaling import PowerLaw
from frozenprobe.errors import DataError, SettingsError

COLUMNS = ("compute", "learning_rate", "batch_tokens", "loss")
_READERS = {".csv": pd.read_csv, ".jsonl": lambda path: pd.read_json(path, lines=True), ".parquet": pd.read_parquet}


@dataclass(frozen=True)
class Fit:
    """A fitted law.

    Attributes:
        law: The law.
        standard_error: Of the exponent; None where two points leave nothing to estimate it from.
        r2: Share of the variance of log y that the law explains; None where y does not vary.
        runs: Points it was fitted to.
    """

    law: PowerLaw
    standard_error: float | None
    r2: float | None
    runs: int


def read_sweep(path: Path) -> pd.DataFrame:
    """Reads the runs of a sweep: csv, jsonl or parquet with the columns of `COLUMNS`, and `model` if there is one.

    Args:
        path: The file. `compute` is in FLOPs, `batch_tokens` in processed positions, `loss` whatever was minimised.

    Returns:
        The runs, with a column `model` that groups them (the compute, where the file names none).

    Raises:
        DataError: The file cannot be read, or lacks a column, or holds an impossible value.
    """
    if path.suffix not in _READERS:
        raise DataError(f"{path}: a sweep is read from {', '.join(_READERS)}")
    try:
        frame = _READERS[path.suffix](path)
    except (OSError, ValueError, pd.errors.ParserError) as error:
        raise DataError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    missing = [column for column in COLUMNS if column not in frame.columns]
    if missing:
        raise DataError(f"{path} lacks the column {missing[0]}; needed are {', '.join(COLUMNS)}, and optionally model")
    for column in COLUMNS:
        values = pd.to_numeric(frame[column], errors="coerce").astype(float)
        # A run that diverged has no loss and is the worst of its model; everything else must be there.
        wrong = ~np.isfinite(values) & (column != "loss") | (values <= 0) & (column != "loss")
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise DataError(f"{path}: {column} of row {row + 1} is {frame[column].iloc[row]!r}, not a positive number")
        frame[column] = values
    by_compute = frame["compute"].map("{:.2e}".format)
    models = frame["model"].astype(object) if "model" in frame.columns else by_compute
    wrong = models.map(lambda model: not pd.api.types.is_scalar(model))
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise DataError(f"{path}: model of row {row + 1} is {models.iloc[row]!r}, not a name")
    frame["model"] = models.where(models.notna() & (models != ""), by_compute)
    return frame


def keep_best(frame: pd.DataFrame, top: int) -> pd.DataFrame:
    """The `top` runs of each model with the lowest loss; those without a finite loss are never kept."""
    finite = frame[np.isfinite(frame["loss"])]
    return finite.sort_values("loss", kind="stable").groupby("model", sort=False).head(top).sort_index()


def fit_power_law(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> Fit:
    """Fits y = a x^b by least squares on logarithms.

    Raises:
        DataError: All x are alike.
    """
    log_x, log_y = np.log(np.asarray(x, dtype=float)), np.log(np.asarray(y, dtype=float))
    centred = log_x - log_x.mean()
    spread = float(centred @ centred)
    if len(log_x) < 2 or spread < 1e-12:
        raise DataError("a power law needs runs of at least two different amounts of compute")
    exponent = float(centred @ log_y) / spread
    intercept = float(log_y.mean() - exponent * log_x.mean())
    residual = float(np.square(log_y - intercept - exponent * log_x).sum())
    total = float(np.square(log_y - log_y.mean()).sum())
    freedom = len(log_x) - 2
    error = float(np.sqrt(residual / freedom / spread)) if freedom else None
    law = PowerLaw(float(np.exp(intercept)), exponent)
    return Fit(law, error, 1 - residual / total if total > 1e-12 else None, len(log_x))


def plot(frame: pd.DataFrame, best: pd.DataFrame, fits: dict[str, Fit], path: Path) -> None:
    """Draws figure 7 into a file; see `draw`.

    Raises:
        SettingsError: matplotlib is not installed, or the file cannot be written.
    """
    try:
        draw(frame, best, fits).savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise SettingsError(f"--plot {path} cannot be written: {error}") from error


def draw(frame: pd.DataFrame, best: pd.DataFrame, fits: dict[str, Fit]) -> Any:
    """Draws figure 7: compute against learning rate, compute against batch size, learning rate against batch size.

    Points are runs, coloured by loss, as large as their compute; the kept ones have a ring, the laws are lines, those of
    `fits` that there are.

    Raises:
        SettingsError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SettingsError("--plot needs matplotlib: pip install 'frozenprobe[plots]'") from error
    labels = {"compute": "compute, FLOPs", "learning_rate": "learning rate", "batch_tokens": "batch, positions"}
    figure = Figure(figsize=(13, 4), layout="constrained")
    FigureCanvasAgg(figure)
    shown = frame[np.isfinite(frame["loss"])]
    sizes = dict(zip(frame.index, 20 + 120 * frame["compute"] / frame["compute"].max(), strict=True))
    points: Any = None
    pairs = (("compute", "learning_rate"), ("compute", "batch_tokens"), ("learning_rate", "batch_tokens"))
    for axes, (x, y) in zip(figure.subplots(1, 3), pairs, strict=True):
        points = axes.scatter(shown[x], shown[y], s=[sizes[i] for i in shown.index], c=shown["loss"], cmap="viridis_r")
        axes.scatter(best[x], best[y], s=[2 * sizes[i] for i in best.index], facecolors="none", edgecolors="black")
        if x == "compute" and y in fits:
            ends = np.geomspace(frame[x].min(), frame[x].max(), 50)
            axes.plot(ends, [fits[y].law(float(end)) for end in ends], color="black", label=str(fits[y].law))
            axes.legend()
        axes.set(xscale="log", yscale="log", xlabel=labels[x], ylabel=labels[y])
        axes.tick_params(axis="x", which="both", labelsize=7, rotation=30)
        if shown[y].max() < 1.01 * shown[y].min():  # a scale of no extent has no ticks that can be read
            axes.set_ylim(shown[y].min() / 2, shown[y].max() * 2)
    figure.colorbar(points, ax=figure.axes, label="loss")
    return figure
