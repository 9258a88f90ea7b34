"""What a sweep leaves behind, and reading it back.

sweeps/x/
sweep.csv                one line for each finished run; `crossbert fit` reads it
mask_ratio=0.2/
member.json            the values of its axes, and its settings
train/                 its training run
probes/step-100/ ...   what `frozenprobe glue` leaves, of each checkpoint
result.json            written last
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from crossbert.config import ModelConfig
from crossbert.metrics import Row, read_metrics
from crossbert.reading import step_number
from crossbert.scaling import count_parameters, exact_flops, paper_flops, positions_per_sequence
from crossbert.settings import TrainSettings
from frozenprobe.errors import RecordError
from frozenprobe.files import write_atomically
from frozenprobe.records.reading import Run, read_run
from frozenprobe.reports.conditions import Conditions, conditions, unlike
from frozenprobe.reports.summary import summarise
from frozenprobe.settings import parse

MEMBER, RESULT, TABLE = "member.json", "result.json", "sweep.csv"
PROBES = ("ridge", "knn")
TITLES = {"crossbert": "CrossBERT", "bert": "BERT", "electra": "Electra"}


@dataclass(frozen=True)
class SweptRun:
    """One run of a sweep, read back.

    Attributes:
        folder: Where it lies.
        config: What it started from.
        axes: The value of each axis, as printed.
        settings: What was trained.
    """

    folder: Path
    config: str
    axes: dict[str, str]
    settings: TrainSettings

    @property
    def name(self) -> str:
        """Its folder's name."""
        return self.folder.name

    @property
    def model(self) -> ModelConfig:
        """What was trained."""
        return self.settings.model

    @property
    def is_finished(self) -> bool:
        """Whether it was trained and probed to the end."""
        return (self.folder / RESULT).is_file()

    @cached_property
    def metrics(self) -> list[Row]:
        """The lines of its `metrics.jsonl`."""
        return list(read_metrics(self.folder / "train"))

    @property
    def validations(self) -> list[Row]:
        """Those of them that are of a validation."""
        return [row for row in self.metrics if "validation_loss" in row]

    @cached_property
    def probes(self) -> list[Run]:
        """Its checkpoints as they were probed, from the first step to the last, headline scores only."""
        return [read_run(folder, headline_only=True) for folder in self.probe_folders]

    @property
    def probe_folders(self) -> list[Path]:
        """Where its checkpoints' scores are, from the first step to the last."""
        found = [manifest.parent for manifest in (self.folder / "probes").glob("step-*/manifest.json")]
        return sorted(found, key=step_number)

    def flops(self, step: int | None = None, *, exact: bool = False) -> float:
        """What so many steps cost (None: all): by eq. 7 and 8, or exactly with heads."""
        count = exact_flops if exact else paper_flops
        return (self.settings.steps if step is None else step) * self.settings.data.batch * count(self.model)


def size(model: ModelConfig) -> str:
    """A model in a few words: `CrossBERT 8 x 128 + 2 x 128`."""
    extra = ""
    if model.objective == "crossbert":
        extra = f" + {model.predictor_layers} x {model.predictor_width}"
    elif model.objective == "electra":
        extra = f", generator {model.generator_layers} x {model.generator_width}"
    return f"{TITLES[model.objective]} {model.layers} x {model.width}{extra}"


def read_swept(folder: Path) -> SweptRun:
    """Reads one run of a sweep.

    Raises:
        RecordError: It is missing or damaged.
    """
    path = folder / MEMBER
    try:
        values = json.loads(path.read_text())
        settings = parse(TrainSettings, values["settings"])
        return SweptRun(folder, str(values["config"]), dict(values["axes"]), settings)
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{path} is damaged: {type(error).__name__}: {error}") from error


def read_sweeps(folders: Sequence[Path]) -> list[SweptRun]:
    """The runs of sweeps, finished or not, in order of their folders.

    Raises:
        RecordError: One is damaged.
    """
    found = {path.parent for folder in folders for path in folder.rglob(MEMBER)}
    return [read_swept(folder) for folder in sorted(found)]


def mean_score(run: Run, probe: str = "ridge", protocol: str = "honest") -> float | None:
    """The plain mean over a run's tasks as a fraction, or None where there is no such row, or a task is missing from it."""
    rows = [row for row in summarise(run) if (row.probe, row.protocol) == (probe, protocol)]
    return rows[0].mean.value if rows and rows[0].mean is not None else None


def table(runs: Sequence[SweptRun]) -> pd.DataFrame:
    """One line for each finished run, with the columns that `crossbert fit` needs, its axes and its scores.

    `compute` is by eq. 7 and 8, `batch_tokens` in processed positions; scores are fractions, means over tasks.
    """
    rows: list[dict[str, Any]] = []
    for run in runs:
        if not run.is_finished:
            continue
        settings, last = run.settings, run.validations[-1] if run.validations else {}
        rows.append(
            {
                "run": run.name,
                **run.axes,
                "model": size(run.model),
                "parameters": count_parameters(run.model).total,
                "steps": settings.steps,
                "compute": run.flops(),
                "compute_exact": run.flops(exact=True),
                "learning_rate": settings.optimiser.learning_rate,
                "batch_tokens": settings.data.batch * positions_per_sequence(run.model),
                "loss": _finite(last.get("validation_loss")),
                **{name: _finite(value) for name, value in last.items() if name.startswith("validation_")},
            }
        )
        if run.probes:
            for probe in PROBES:
                for protocol in ("honest", "paper"):
                    rows[-1][f"{probe}_{protocol}"] = mean_score(run.probes[-1], probe, protocol)
    return pd.DataFrame(rows).drop(columns="validation_loss", errors="ignore")


def differently_probed(runs: Sequence[SweptRun]) -> list[str]:
    """In a line, what differs between how the runs' last checkpoints were probed; none where nothing does."""
    rows = []
    for run in (run for run in runs if run.is_finished and run.probes):
        probed = run.probes[-1]
        rows.append((run.name, Conditions({"tasks": " + ".join(unit.title for unit in probed.units)})))
        for probe in PROBES:
            scored = [(unit, row) for unit in probed.units for row in unit.rows if row["probe"] == probe]
            headline = [(unit, row) for unit, row in scored if row["kind"] == "score" and row["is_headline"]]
            rows.append((run.name, conditions(probed, probe, headline)))
    return unlike(rows)


def write_table(folder: Path, runs: Sequence[SweptRun]) -> pd.DataFrame:
    """Writes `sweep.csv` of the finished ones of a sweep's runs, and returns it."""
    frame = table(runs)
    if len(frame):
        write_atomically(folder / TABLE, frame.to_csv(index=False).encode())
    return frame


def _finite(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) else np.nan
