"""From mteb's result of a task to a unit of records, and from records to mteb's own results folder.

The records are the truth; the folder `results/OWNER__NAME/REVISION/TASK.json` is a view of them, in mteb's layout, that can be
written again at any time. mteb writes it with a plain open(); here every file is renamed into its place.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mteb
from mteb.models.model_meta import ModelMeta
from mteb.results.task_result import TaskResult

from frozenprobe.encoders.base import EncoderInfo
from frozenprobe.files import write_atomically
from frozenprobe.records.schema import Unit, UnitKey
from frozenprobe.suites.mteb.adapter import MtebEncoder

OUTSIDE = "mteb"
"""The suite of tasks that were asked for beside the benchmark."""


@dataclass(frozen=True)
class Filing:
    """Where a unit is filed: its suite, which is the benchmark's name or `OUTSIDE`, and whether its main score counts there."""

    suite: str
    is_headline: bool


def unit_of(
    result: TaskResult,
    task: Any,
    model: MtebEncoder,
    filing: Filing,
    *,
    source: str,
    subset: str | None,
    n_evaluated: int,
) -> Unit:
    """A finished task as a unit: every number that mteb gives, and mteb's own result whole.

    Args:
        result: mteb's result.
        task: The task.
        model: The encoder, with its reports.
        filing: Where the unit belongs.
        source: Where the rows came from.
        subset: What the rows lack of the published ones; such a task is filed under a name of its own, and is in no mean.
        n_evaluated: Rows scored; recorded with the main score only.
    """
    metadata = task.metadata
    name = metadata.name + ("-subset" if subset else "")
    key = UnitKey(filing.suite, name, "single")
    unit = Unit(
        key,
        metadata.name + (" (subset)" if subset else ""),
        {
            "category": metadata.type,
            "backbone": model.backbone,
            "metrics": [metadata.main_score],
            "source": source,
            "revision": metadata.dataset["revision"],
            "subset": subset,
            "mteb": mteb.__version__,
            "extraction": _summed(model),
            "warnings": _warnings(model),
            "result": _as_json(result),
        },
    )
    # A leaderboard tells rows apart by probe and protocol: here the pooling, and nothing to choose.
    common: dict[str, Any] = {
        "layer": str(model.layer),
        "pooling": model.pooling,
        "probe": model.pooling,
        "protocol": "",
    }
    common |= {**vars(key), "kind": "score", "low": math.nan, "high": math.nan}  # mteb gives no intervals
    entries = [(split, scores) for split, subsets in result.scores.items() for scores in subsets]
    for split, scores in entries:
        part = split if scores["hf_subset"] == "default" else f"{split}/{scores['hf_subset']}"
        for metric, value in scores.items():
            if metric != "main_score" and isinstance(value, int | float) and not isinstance(value, bool):
                unit.rows.append(
                    {**common, "split": part, "metric": metric, "value": float(value), "is_headline": False}
                )
    main = [row for row in unit.rows if row["metric"] == metadata.main_score]
    if len(main) > 1:
        main = [{**common, "split": "all", "metric": metadata.main_score, "value": float(result.get_score())}]
        unit.rows += main
    main[0] |= {"is_headline": filing.is_headline, "n_evaluated": n_evaluated}
    return unit


def refiled(unit: Unit, key: UnitKey, filing: Filing) -> Unit:
    """The same unit under another key."""
    rows = [
        {**row, "suite": key.suite, "is_headline": filing.is_headline and row["n_evaluated"] is not None}
        for row in unit.rows
    ]
    return Unit(key, unit.title, unit.about, rows)


def task_result(unit: Unit) -> TaskResult:
    """The result as mteb has it, back from a unit."""
    return TaskResult.model_validate(unit.about["result"])


def write_results(folder: Path, units: Sequence[Unit], meta: ModelMeta) -> Path:
    """Writes mteb's results folder for all units whose rows are whole.

    Args:
        folder: Where `results/` begins: the cache path of an `mteb.ResultCache`.
        units: Finished units.
        meta: Who the model is.

    Returns:
        The folder of this model and revision.

    Raises:
        RecordError: The disk is full or the folder cannot be written.
    """
    place = folder / "results" / meta.model_name_as_path() / str(meta.revision)
    training = None if meta.training_datasets is None else sorted(meta.training_datasets)
    write_atomically(place / "model_meta.json", _dump({**meta.to_dict(), "training_datasets": training}))
    for unit in units:
        path = place / f"{unit.key.task}.json"
        if not unit.about["subset"] and not path.exists():
            write_atomically(path, _dump(unit.about["result"]))
    return place


def _as_json(result: TaskResult) -> dict[str, Any]:
    """As `TaskResult.to_disk` writes it."""
    values = result.model_dump()
    values["date"] = result.date.timestamp() if result.date else None
    for name in ("evaluation_time", "kg_co2_emissions"):  # not known for an aggregate of parts that lack them
        if values[name] is not None and math.isnan(values[name]):
            values[name] = None
    result._round_scores(values["scores"], 6)
    return json.loads(json.dumps(values, default=str))


def _dump(values: dict[str, Any]) -> bytes:
    return (json.dumps(values, indent=2, default=str) + "\n").encode()


def _summed(model: MtebEncoder) -> dict[str, int]:
    """What all encodings of the task did together."""
    names = (
        "rows",
        "distinct",
        "encoded",
        "tokens",
        "padded_tokens",
        "truncated",
        "lost_tokens",
        "total_tokens",
        "halved",
    )
    return {name: sum(getattr(report, name) for report in model.reports) for name in names}


def _warnings(model: MtebEncoder) -> list[str]:
    counted = _summed(model)
    if not counted["truncated"]:
        return []
    share = counted["lost_tokens"] / counted["total_tokens"]
    info: EncoderInfo = model.encoder.info
    return [
        f"{counted['truncated']:,} of {counted['rows']:,} texts are longer than {info.max_length} tokens; "
        f"{share:.1%} of all tokens were cut off"
    ]
