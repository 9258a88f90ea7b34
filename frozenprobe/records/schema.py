"""The shape of what a run leaves behind: one manifest, one Parquet file per finished unit of work, timings apart.

A unit is one task in one pair form, frozen or finetuned. Its file holds rows of three kinds: `score` (one number of one probe), `prediction` (all
answers of one selected probe on one split) and `label` (the right answers of a split), so that every table, interval
and paired test can be drawn from the file alone. `docs/records.md` explains every column.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from frozenprobe.probes.base import ProbeResult

SCHEMA_VERSION = 1

COLUMNS = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("suite", pa.string(), nullable=False),
        pa.field("task", pa.string(), nullable=False),
        pa.field("pair_form", pa.string(), nullable=False),
        pa.field("layer", pa.string()),
        pa.field("pooling", pa.string()),
        pa.field("split", pa.string(), nullable=False),
        pa.field("probe", pa.string()),
        pa.field("protocol", pa.string()),
        pa.field("n", pa.int64()),
        pa.field("draw", pa.int64()),
        pa.field("metric", pa.string()),
        pa.field("value", pa.float64()),
        pa.field("low", pa.float64()),
        pa.field("high", pa.float64()),
        pa.field("n_evaluated", pa.int64()),
        pa.field("is_headline", pa.bool_()),
        pa.field("lambda", pa.float64()),
        pa.field("k", pa.int64()),
        pa.field("distance", pa.string()),
        pa.field("training", pa.string()),
        pa.field("epoch", pa.int64()),
        pa.field("values", pa.list_(pa.float64())),
    ]
)


@dataclass(frozen=True)
class UnitKey:
    """What a unit measures. `single` is the pair form of a task without pairs; the encoder is `frozen` or `finetuned`."""

    suite: str
    task: str
    pair_form: str
    training: str = "frozen"

    def __str__(self) -> str:
        name = self.task if self.pair_form == "single" else f"{self.task} ({self.pair_form})"
        return name if self.training == "frozen" else f"{name}, {self.training}"


@dataclass
class Unit:
    """A finished unit of work.

    Attributes:
        key: What was measured.
        title: The task's name as printed; says `(subset)` where the data is not whole.
        about: Facts of the unit: target, data source and revision, digests, diagnostics, truncation, warnings.
        rows: Rows with the columns of `COLUMNS`; absent ones are null.
        run_id: The run that its file was written by; None where it is in no file yet, or in one of an earlier version.
    """

    key: UnitKey
    title: str
    about: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)
    run_id: str | None = None

    @property
    def headline_split(self) -> str | None:
        """The split that the headline is of: the first whose right answers were kept; None where none was."""
        return next((row["split"] for row in self.rows if row["kind"] == "label"), None)

    @property
    def headline_metric(self) -> str:
        """The metric that the headline is in."""
        return self.about["metrics"][0]

    def add_labels(self, split: str, labels: np.ndarray) -> None:
        """Adds the right answers of a split."""
        self.rows.append({**asdict(self.key), "kind": "label", "split": split, "values": labels.astype(float)})

    def add_view(self, layer: object, pooling: str, is_headline_view: bool, result: ProbeResult) -> None:
        """Adds everything that the probes gave on one view; only the headline view has headline scores."""
        common = {**asdict(self.key), "layer": str(layer), "pooling": pooling}
        for score in result.scores:
            self.rows.append(
                {
                    **common,
                    "kind": "score",
                    "split": score.split,
                    "probe": score.probe,
                    "protocol": score.protocol,
                    "n": score.n,
                    "draw": score.draw,
                    "metric": score.metric,
                    "value": score.value,
                    "low": score.low,
                    "high": score.high,
                    "n_evaluated": score.n_evaluated,
                    "is_headline": score.is_headline and is_headline_view,
                    "lambda": score.lambda_,
                    "k": score.k,
                    "distance": score.distance,
                    "epoch": score.epoch,
                    "values": score.replicates if is_headline_view else None,
                }
            )
        for prediction in result.predictions:
            self.rows.append(
                {
                    **common,
                    "kind": "prediction",
                    "split": prediction.split,
                    "probe": prediction.probe,
                    "protocol": prediction.protocol,
                    "draw": prediction.draw,
                    "values": prediction.values.astype(float),
                }
            )
