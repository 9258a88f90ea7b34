"""A row of a leaderboard, and the rows that a run gives."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from frozenprobe.errors import SettingsError
from frozenprobe.records.reading import Run
from frozenprobe.records.schema import Unit
from frozenprobe.reports.boards import CATEGORIES, Board
from frozenprobe.reports.conditions import Conditions, conditions
from frozenprobe.settings import Cost, parse

METHODS = {"ridge": "linear", "knn": "kNN", "finetune": "finetuned"}
LEFT_OUT = {"baseline", "control"}  # protocols that say something of the data, not of the encoder


@dataclass
class Row:
    """One line of a leaderboard.

    Attributes:
        model: What was measured, told apart from others of the same name.
        source: `measured` or `published`.
        method: `linear`, `kNN`, `finetuned` or `contrastive`.
        backbone: `frozen` or `unfrozen`.
        protocol: `honest`, `paper`, or empty where there is no choice.
        pair_form: Of the pair tasks in it.
        run: The run's folder, or the published table.
        scores: Percent by column.
        single: The scores that the columns are made of, one per task, with what the records say of each.
        missing: Columns without a score, with what is known of them.
        printed: Published averages as printed.
        params: Parameters.
        flops: Training FLOPs as printed, empty where unknown.
        tokens_per_s: Training throughput, supplied or published.
        encoding_tokens_per_s: Measured throughput of the frozen forward pass.
        device: What that was measured on.
        encoder: The encoder's own name.
        conditions: What the scores depend on beside the encoder.
    """

    model: str
    source: str
    method: str
    backbone: str
    protocol: str
    pair_form: str
    run: str
    scores: dict[str, float]
    single: list[dict[str, Any]] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    printed: dict[str, float] = field(default_factory=dict)
    params: int | None = None
    flops: str = ""
    tokens_per_s: int | None = None
    encoding_tokens_per_s: int | None = None
    device: str = ""
    encoder: str = ""
    conditions: Conditions = field(default_factory=Conditions)

    @property
    def max_train(self) -> str:
        """Train rows at most: a number, `all`, or empty where that is unknown."""
        return self.conditions.max_train

    @property
    def lacks(self) -> str:
        """What is missing, in words."""
        return ", ".join(self.missing.values())


def run_rows(run: Run, label: str, board: Board) -> list[Row]:
    """The rows that a run puts on a leaderboard: one per probe, protocol and pair form."""
    units = [unit for unit in run.units if unit.key.suite == board.suite]
    groups: dict[tuple[str, str, str, str], list[tuple[Unit, dict[str, Any]]]] = defaultdict(list)
    forms = sorted({unit.key.pair_form for unit in units} - {"single"}) or ["single"]
    for unit in units:
        for score in unit.rows:
            if score["kind"] == "score" and score["is_headline"] and score["protocol"] not in LEFT_OUT:
                for form in forms if unit.key.pair_form == "single" else (unit.key.pair_form,):
                    key = (form, score["probe"], score["protocol"], _backbone(unit))
                    groups[key].append((unit, score))
    speed = throughput(run)
    encoder = run.manifest["encoder"]
    rows = []
    alike: dict[tuple[str, str, str], Conditions] = {}  # both protocols of a probe have the same
    for (form, probe, protocol, backbone), scored in groups.items():
        if (form, probe, backbone) not in alike:
            alike[form, probe, backbone] = conditions(run, probe, scored)
        rows.append(
            row := Row(
                model=label,
                encoder=run.name,
                source="measured",
                method=METHODS.get(probe, probe),
                backbone=backbone,
                protocol=protocol,
                pair_form="" if form == "single" else form,
                run=str(run.folder),
                params=encoder.get("parameters"),
                flops=as_flops(encoder.get("training_flops")),
                encoding_tokens_per_s=speed,
                device=" ".join(filter(None, [encoder.get("device"), encoder.get("dtype")])),
                scores={},
                conditions=alike[form, probe, backbone],
            )
        )
        row.single = [{**score, "title": unit.title, "task": unit.key.task} for unit, score in scored]
        _fill(row, scored, board)
    return rows


def _backbone(unit: Unit) -> str:
    """A finetuned unit trained every weight; of poolers the record says it."""
    return "unfrozen" if unit.key.training == "finetuned" else unit.about.get("backbone", "frozen")


def _fill(row: Row, scored: Sequence[tuple[Unit, dict[str, Any]]], board: Board) -> None:
    """The row's columns: tasks as they are, categories where all their tasks are there."""
    if not board.tasks_per_column:
        row.scores = {unit.key.task: 100 * score["value"] for unit, score in scored}
        return
    tasks: dict[str, list[float]] = {column: [] for column in board.columns}
    for unit, score in scored:
        if not unit.about.get("subset") and unit.about.get("category") in CATEGORIES:
            tasks[CATEGORIES[unit.about["category"]]].append(100 * score["value"])
    for column, wanted in zip(board.columns, board.tasks_per_column, strict=True):
        if len(tasks[column]) == wanted:
            row.scores[column] = float(np.mean(tasks[column]))
        else:
            row.missing[column] = f"{column} {len(tasks[column])} of {wanted}"


def throughput(run: Run) -> int | None:
    """Tokens per second of the run's forward passes, padding not counted; None where everything came from the cache."""
    seconds = {line: phases.get("forward", 0.0) for line, phases in run.timings().items()}
    tokens = spent = 0.0
    for unit in run.units:
        encoded = unit.about.get("extraction", {}).get("tokens", 0)
        if encoded and seconds.get(str(unit.key)):
            tokens, spent = tokens + encoded, spent + seconds[str(unit.key)]
    return round(tokens / spent) if spent else None


def as_flops(flops: float | None) -> str:
    """As the paper prints it: `4.1e19`."""
    return "" if flops is None else f"{flops:.1e}".replace("e+", "e")


def read_costs(path: Path) -> dict[str, Cost]:
    """What encoders cost, from a TOML file with a table per model.

    Raises:
        SettingsError: It cannot be read, or says something that is no cost.
    """
    try:
        tables = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SettingsError(f"--costs {path}: {error}") from None
    costs = {}
    for model, values in tables.items():
        if not isinstance(values, dict):
            raise SettingsError(f'--costs {path}: {model} must be a table, ["{model}"]')
        try:
            costs[model] = parse(Cost, values)
        except SettingsError as error:
            raise SettingsError(f"--costs {path}, {model}: {error}") from None
    return costs


def add_costs(rows: Sequence[Row], costs: dict[str, Cost]) -> list[str]:
    """Fills costs in, and returns the models that no row is of. What the file says wins."""
    for row in rows:
        if cost := costs.get(row.model) or costs.get(row.encoder):
            row.params = row.params if cost.params is None else round(cost.params)
            row.flops = row.flops if cost.flops is None else as_flops(cost.flops)
            row.tokens_per_s = row.tokens_per_s if cost.tokens_per_s is None else round(cost.tokens_per_s)
    return sorted(set(costs) - {name for row in rows for name in (row.model, row.encoder)})
