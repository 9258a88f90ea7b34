"""What a replication found: costs, losses, scores with intervals, and paired tests over all seeds at once."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from benchmarks.paper_figures import COLOURS, LINES
from crossbert.data import PreparedData
from crossbert.scaling import count_parameters, positions_per_sequence
from crossbert.swept import TITLES, SweptRun, size
from frozenprobe.errors import SettingsError
from frozenprobe.metrics import METRICS
from frozenprobe.records.reading import read_run
from frozenprobe.reports.comparable import common_answers
from frozenprobe.settings import CompareSettings
from frozenprobe.statistics.paired import holm, mean_contrast, paired_contrasts

REPLICATES = 10_000
BASELINES = ("bert", "electra")


@dataclass(frozen=True)
class Report:
    """What was found.

    Attributes:
        models: One row per objective: cost, losses and scores.
        tests: One row per baseline and task: CrossBERT minus the baseline.
        curves: Validation losses by objective and held-out set: FLOPs by eq. 7 and 8, and the mean over seeds.
        notes: What to know when reading it.
    """

    models: list[dict[str, Any]]
    tests: list[dict[str, Any]]
    curves: dict[tuple[str, str], tuple[np.ndarray, np.ndarray]]
    notes: list[str]


def report(swept: Sequence[SweptRun]) -> Report:
    """Reads the finished runs of a replication.

    Scores are of the linear probe chosen inside train. Intervals and tests resample the examples, the same for all runs, and take the
    mean over seeds in each resample; p-values are corrected by Holm's method for the tasks of a comparison.
    """
    by_objective: dict[str, list[SweptRun]] = {}
    for run in swept:
        by_objective.setdefault(run.model.objective, []).append(run)
    order = [run for runs in by_objective.values() for run in runs]
    answers = common_answers(
        [read_run(run.probe_folders[-1]) for run in order], [run.name for run in order], CompareSettings()
    )
    place = np.array([list(by_objective).index(run.model.objective) for run in order])
    means = np.stack([(place == i) / (place == i).sum() for i in range(len(by_objective))])
    rows = dict(zip(by_objective, means, strict=True))
    wanted = [*means, *(rows["crossbert"] - rows[name] for name in BASELINES if name in rows)]
    contrasts = [
        paired_contrasts(
            METRICS[answer.metric],
            answer.labels,
            answer.predictions,
            np.stack(wanted),
            replicates=REPLICATES,
            seed=zlib.crc32(f"{answer.key.suite}/{answer.key.task}".encode()),
        )
        for answer in answers
    ]
    single = [METRICS[answer.metric].grid(answer.labels, answer.predictions) for answer in answers]

    models = []
    for number, (objective, runs) in enumerate(by_objective.items()):
        row = _cost(objective, runs)
        for name in _losses(runs):
            values = [run.validations[-1][name] for run in runs]
            row |= _spread(_plain(name), values)
        for answer, contrast, values in zip(answers, contrasts, single, strict=True):
            row |= _score(answer.title, contrast[number], values[place == number])
        whole = np.mean(single, axis=0)[place == number]
        row |= _score("mean", mean_contrast([contrast[number] for contrast in contrasts]), whole)
        models.append(row)

    tests = []
    for number, name in enumerate((name for name in BASELINES if name in rows), start=len(means)):
        p = [contrast[number].p for contrast in contrasts]
        for answer, contrast, corrected in zip(answers, contrasts, holm(p), strict=True):
            tests.append(_test(name, answer.title, len(answer.labels), contrast[number], float(corrected)))
        tests.append(_test(name, "mean", None, mean_contrast([contrast[number] for contrast in contrasts]), None))
    return Report(models, tests, _curves(by_objective), _notes(by_objective, [answer.title for answer in answers]))


def _cost(objective: str, runs: Sequence[SweptRun]) -> dict[str, Any]:
    run = runs[0]
    settings, counts = run.settings, count_parameters(run.model)
    sequences = settings.steps * settings.data.batch
    text = PreparedData.open(settings.data.folder).manifest["tokens"]["train"]
    return {
        "what": TITLES[objective],
        "model": size(run.model),
        "parameters": counts.total,
        "parameters_kept": counts.encoder_only,
        "seeds": len(runs),
        "steps": settings.steps,
        "positions": sequences * positions_per_sequence(run.model),
        "epochs": sequences * run.model.sequence_length / text,
        "flops_eq_7_8": run.flops(),
        "flops_with_heads": run.flops(exact=True),
    }


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    """The mean over seeds, and their standard deviation where there are several."""
    found = {name: float(np.mean(values))}
    return found | ({f"{name}_seeds": float(np.std(values, ddof=1))} if len(values) > 1 else {})


def _score(title: str, contrast: Any, values: np.ndarray) -> dict[str, float]:
    low, high = contrast.interval
    return {**_spread(title, 100 * values), f"{title}_low": 100 * low, f"{title}_high": 100 * high}


def _test(baseline: str, task: str, examples: int | None, contrast: Any, corrected: float | None) -> dict[str, Any]:
    low, high = contrast.interval
    row = {"what": f"CrossBERT - {TITLES[baseline]}", "task": task, "examples": examples}
    row |= {"difference": 100 * contrast.value, "low": 100 * low, "high": 100 * high, "p": contrast.p}
    return row | ({} if corrected is None else {"p_holm": corrected})


def _losses(runs: Sequence[SweptRun]) -> list[str]:
    """The validation losses of the runs."""
    last = runs[0].validations[-1]
    return [name for name in last if name.startswith("validation_") and name.endswith("loss")]


def _plain(name: str) -> str:
    return f"loss_{name.removeprefix('validation_').removesuffix('loss').strip('_') or 'validation'}"


def _curves(by_objective: dict[str, list[SweptRun]]) -> dict[tuple[str, str], tuple[np.ndarray, np.ndarray]]:
    curves = {}
    for objective, runs in by_objective.items():
        flops = np.array([runs[0].flops(row["step"]) for row in runs[0].validations])
        for name in _losses(runs):
            values = np.array([[row[name] for row in run.validations] for run in runs])
            curves[objective, _plain(name)] = flops, values.mean(axis=0)
    return curves


def _notes(by_objective: dict[str, list[SweptRun]], tasks: Sequence[str]) -> list[str]:
    ratios = ", ".join(f"{TITLES[name]} {100 * runs[0].model.mask_ratio:g}%" for name, runs in by_objective.items())
    notes = [
        f"losses are of different tasks and compare within an objective only (masked: {ratios}; Electra's is a weighted sum)",
        "equal FLOPs are by eq. 7 and 8, which leave the heads out and so favour CrossBERT; flops_with_heads counts them",
        "the same learning rate for all, as in the paper's single-scale runs: none was tuned",
        "intervals are of the examples and not of the seeds, whose standard deviation stands beside them",
    ]
    if any("(subset)" in task for task in tasks):
        notes.append("tasks marked (subset) are parts of their data: no GLUE scores")
    return notes


def print_report(result: Report, console: Console) -> None:
    """Prints the objectives side by side, the tests, and what to know."""
    table = Table(
        title="by objective; scores in percent with their 95% interval and the spread of seeds", title_justify="left"
    )
    table.add_column("")
    for row in result.models:
        table.add_column(row["what"], justify="right", no_wrap=True)
    for name in result.models[0]:
        if name != "what" and not name.endswith(("_low", "_high", "_seeds")):
            table.add_row(name.replace("_", " "), *(_cell(row, name) for row in result.models))
    console.print(table)
    table = Table(title="paired tests on the same examples, over all seeds; percent", title_justify="left")
    for column in ("comparison", "task", "difference", "95% interval", "p", "p, Holm"):
        table.add_column(column, justify="left" if column in ("comparison", "task") else "right", no_wrap=True)
    for row in result.tests:
        corrected = f"{row['p_holm']:.3g}" if "p_holm" in row else ""
        ends = f"{row['low']:+.2f} ... {row['high']:+.2f}"
        table.add_row(row["what"], row["task"], f"{row['difference']:+.2f}", ends, f"{row['p']:.3g}", corrected)
    console.print(table)
    for note in result.notes:
        console.print(note, style="yellow", highlight=False, soft_wrap=True)


def _cell(row: dict[str, Any], name: str) -> str:
    value = row[name]
    if isinstance(value, str):
        return value
    digits = 1 if f"{name}_low" in row else 4
    spread = f" ± {row[f'{name}_seeds']:.{digits}f}" if f"{name}_seeds" in row else ""
    if f"{name}_low" in row:
        return f"{value:.1f} ({row[f'{name}_low']:.1f} ... {row[f'{name}_high']:.1f}){spread}"
    if name.startswith("loss"):
        return f"{value:.4f}{spread}"
    if name.startswith("flops"):
        return f"{value:.3e}"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def plot(result: Report, path: Path) -> None:
    """Draws losses against compute, and scores with their intervals.

    Raises:
        SettingsError: The file cannot be written.
    """
    titles = {title: objective for objective, title in TITLES.items()}
    count = len(result.models)
    figure = Figure(figsize=(3.4 * count + 6, 4.2), layout="constrained")
    panels = figure.subplots(1, count + 1, width_ratios=[*[1] * count, 1.8])
    for axes, row in zip(panels, result.models, strict=False):  # a panel each: losses of different tasks share no axis
        objective = titles[row["what"]]
        curves = {name: curve for (other, name), curve in result.curves.items() if other == objective}
        for line, (name, (flops, losses)) in zip(LINES, curves.items(), strict=False):
            axes.plot(flops, losses, line, marker="o", ms=3, color=COLOURS[objective], label=name.removeprefix("loss_"))
        axes.set(xlabel="FLOPs (eq. 7 and 8)", ylabel="validation loss", title=row["what"])
        axes.legend(fontsize=8)
    tasks = [name.removesuffix("_low") for name in result.models[0] if name.endswith("_low")]
    for number, row in enumerate(result.models):
        values = np.array([row[task] for task in tasks])
        low, high = (np.array([row[f"{task}_{end}"] for task in tasks]) for end in ("low", "high"))
        x = np.arange(len(tasks)) + 0.2 * (number - (len(result.models) - 1) / 2)
        # A percentile interval need not hold the value itself.
        ends = np.clip([values - low, high - values], 0, None)
        colour = COLOURS[titles[row["what"]]]
        panels[-1].errorbar(x, values, ends, fmt="o", ms=4, capsize=2, color=colour, label=row["what"])
    panels[-1].set_xticks(range(len(tasks)), tasks, rotation=30)
    panels[-1].set(ylabel="percent", title="linear probe chosen inside train, 95% intervals")
    panels[-1].legend(fontsize=8)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {error.strerror or error}") from error
