"""Speed of the views of records: a leaderboard over 1,000 runs, a report over 50.

    python -m benchmarks.leaderboard [--write]

The runs are made up: 8 tasks with 60 score rows each, 1,000 bootstrap replicates of every headline and 1,000 predictions of every selected probe. 50 of them
are written, and linked 20 times under other names. The page is opened in headless Chromium where there is one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.browser import CHROMIUM, command
from benchmarks.measure import print_rows, write_down
from frozenprobe.probes.base import ProbePredictions, ProbeResult, ProbeScore
from frozenprobe.records.reading import read_run
from frozenprobe.records.schema import Unit, UnitKey
from frozenprobe.records.store import RunStore
from frozenprobe.reports.boards import GLUE_TASKS
from frozenprobe.reports.leaderboard import make_leaderboard, write_leaderboard
from frozenprobe.reports.page import make_page

SIZES = (10, 100, 1000, 10_000)
DISTINCT, COPIES, EXAMPLES, REPLICATES = 50, 20, 1000, 1000


def make_unit(task: str, random: np.random.Generator) -> Unit:
    """A task with 60 score rows: a sweep over 13 lambdas at four sizes, and the selected points."""
    unit = Unit(
        UnitKey("GLUE", task, "joint"),
        task,
        {"subset": None, "metrics": ["accuracy"], "digests": {"validation": "d", "train": "t"}, "warnings": []},
    )
    skill = random.uniform(0.5, 0.9)
    unit.add_labels("validation", random.integers(2, size=EXAMPLES))
    scores, predictions = [], []
    for n in SIZES:
        for lambda_ in np.logspace(0, 4, 13):
            value = skill + random.normal(0, 0.01)
            nan = float("nan")
            scores.append(
                ProbeScore(
                    "ridge", "grid", n, 0, "validation", "accuracy", value, nan, nan, EXAMPLES, False, float(lambda_)
                )
            )
        if n < max(SIZES):
            scores.append(_selected("ridge", "honest", n, skill, None))
    for probe in ("ridge", "knn"):
        for protocol in ("honest", "paper"):
            replicates = random.normal(skill, 0.01, REPLICATES)
            scores.append(_selected(probe, protocol, 10_000, skill, replicates))
            answers = random.integers(2, size=EXAMPLES)
            predictions.append(ProbePredictions(probe, protocol, "validation", answers))
    scores.append(_selected("majority", "baseline", SIZES[-1], 0.5, np.full(REPLICATES, 0.5)))
    unit.add_view("last", "mean", True, ProbeResult(scores, predictions, []))
    return unit


def _selected(probe: str, protocol: Any, n: int, skill: float, replicates: np.ndarray | None) -> ProbeScore:
    return ProbeScore(
        probe,
        protocol,
        n,
        0,
        "validation",
        "accuracy",
        skill,
        skill - 0.02,
        skill + 0.02,
        EXAMPLES,
        replicates is not None,
        lambda_=10.0 if probe == "ridge" else None,
        replicates=replicates,
    )


def make_runs(root: Path) -> list[Path]:
    """Writes the distinct runs, and links their units into the others."""
    random = np.random.default_rng(0)
    folders = []
    for i in range(DISTINCT):
        first = root / f"run-{i}"
        for copy in range(COPIES):
            folder = first if copy == 0 else root / f"run-{i}-{copy}"
            encoder = {
                "name": folder.name,
                "revision": None,
                "parameters": 22_000_000,
                "device": "cpu",
                "dtype": "fp32",
            }
            facts = {"identity": {"fingerprint": folder.name}, "encoder": encoder}
            store = RunStore(folder, {**facts, "run_id": first.name})  # the same, since the units are
            if copy == 0:
                for task in GLUE_TASKS:
                    store.write(make_unit(task, random), {"forward": 1.0})
            else:
                shutil.copytree(first / "units", folder / "units", copy_function=os.link)
                shutil.copy(first / "timings.jsonl", folder)
            folders.append(folder)
    return folders


def seconds(work: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Median wall time, and of the processor's time, which a busy machine does not change."""
    times = []
    for _ in range(rounds):
        started, started_processor = time.perf_counter(), time.process_time()
        work()
        times.append((time.perf_counter() - started, time.process_time() - started_processor))
    wall, processor = (statistics.median(side) for side in zip(*times, strict=True))
    return wall, processor


def measure(root: Path) -> list[dict[str, Any]]:
    """All figures."""
    folders = make_runs(root)
    rows = len(read_run(folders[0]).rows("score"))

    def leaderboard() -> None:
        write_leaderboard(make_leaderboard(folders, with_published=True), root / "wide.csv", root / "long.csv")

    wall, processor = seconds(leaderboard, 3)
    figures = [_figure(f"leaderboard, {len(folders):,} runs x 8 tasks x {rows // 8} score rows", wall, 3.0, "s")]
    figures[0]["processor"] = processor

    def report() -> None:
        (root / "report.html").write_text(make_page([read_run(folder) for folder in folders[::COPIES]]))

    wall, processor = seconds(report, 1)
    size = (root / "report.html").stat().st_size / 1e6
    figures.append({"what": f"report, {DISTINCT} runs, writing it", "ours": wall, "unit": "s", "processor": processor})
    figures.append(_figure(f"report, {DISTINCT} runs, size", size, 5.0, "MB"))
    if CHROMIUM is None:
        figures.append({"what": "report, opening it: not measured, no Chromium is installed"})
        return figures
    open_page = command(root / "profile", "--dump-dom")

    def opening(page: Path) -> Callable[[], object]:
        return lambda: subprocess.run([*open_page, page.as_uri()], check=True, capture_output=True)

    (root / "empty.html").write_text("<!DOCTYPE html>")
    empty, whole = (seconds(opening(root / name), 3)[0] for name in ("empty.html", "report.html"))
    figures.append(_figure("report, opening it, browser's own start taken off", whole - empty, 2.0, "s"))
    return figures


def _figure(what: str, value: float, target: float, unit: str) -> dict[str, Any]:
    return {"what": what, "ours": value, "unit": unit, "target": f"under {target:g} {unit}", "met": value < target}


def main() -> None:
    """Measures, prints and, with `--write`, writes down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write results/measured/leaderboard.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        rows = measure(Path(root))
    print_rows(rows)
    if arguments.write:
        write_down("leaderboard", "python -m benchmarks.leaderboard --write", rows)


if __name__ == "__main__":
    main()
