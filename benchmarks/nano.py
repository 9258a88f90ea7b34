"""The CrossBERT that ships with the package (`--ckpt crossbert:nano`): how it was trained, and what training was worth.

    crossbert prepare --text BOOKS --train-tokenizer 8192 --out runs/nano/data
    crossbert train --config nano --set data.folder=runs/nano/data --out runs/nano/train
    python -m benchmarks.nano --ship runs/nano/train --write

Fixed before it was trained: SST-2, QNLI and STS-B (`FROZENPROBE_TEST_DATA` names a folder that holds them), ridge chosen inside train,
against its own random initialisation, paired, Holm-corrected. `--ship` exports a finished run into the package first; without it the
one that is there is measured, and its training record is kept. `--tiny` tries the program on the built-in suite: its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import frozenprobe
from benchmarks.measure import RESULTS, print_rows, write_down
from crossbert.data import PreparedData
from crossbert.export import export
from crossbert.metrics import read_metrics
from crossbert.probe import NANO
from crossbert.reading import find_checkpoint, read_config
from crossbert.scaling import exact_flops
from crossbert.settings import TrainSettings
from frozenprobe.settings import parse

TASKS = "sst2,qnli,stsb"
LIMIT = 8_000_000


def ship(run: Path, out: Path = NANO) -> dict[str, Any]:
    """Exports a finished run in bf16, without the source file that this package has itself; gives its training record.

    Raises:
        SystemExit: The run is not finished, or the export is larger than the package takes.
    """
    settings = parse(TrainSettings, json.loads((run / "run.json").read_text())["settings"])
    folder = find_checkpoint(run)
    saved = read_config(folder)
    if saved.step != settings.steps:
        raise SystemExit(f"{run} stands at step {saved.step} of {settings.steps}: train to the end first")
    with tempfile.TemporaryDirectory() as place:
        made = Path(place) / "nano"
        export(run, made, "bf16")
        (made / "modeling_crossbert.py").unlink()
        config = json.loads((made / "config.json").read_text())
        del config["auto_map"]
        (made / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        size = sum(path.stat().st_size for path in made.iterdir())
        if size > LIMIT:
            raise SystemExit(f"the export takes {size:,} bytes, the package has room for {LIMIT:,}")
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(made, out)
    return record(run, settings, saved.training_flops, size)


def record(run: Path, settings: TrainSettings, flops: float | None, size: int) -> dict[str, Any]:
    """What was trained, on what, for how long, and how the loss went."""
    data = PreparedData.open(settings.data.folder)
    tokens = data.manifest["tokens"]["train"]
    steps = {row["step"]: row for row in read_metrics(run) if "loss" in row}
    losses = {row["step"]: row["validation_loss"] for row in read_metrics(run) if "validation_loss" in row}
    return {
        "what": "training",
        "settings": settings.model_dump(mode="json", exclude={"system", "data"}) | {"batch": settings.data.batch},
        "train_tokens": tokens,
        "passes": settings.steps * settings.data.batch * settings.model.sequence_length / tokens,
        "seconds": sum(row["step_seconds"] for row in steps.values()),
        "flops_paper": flops,
        "flops_exact": settings.steps * settings.data.batch * exact_flops(settings.model),
        "skipped_steps": max(row["skipped_steps"] for row in steps.values()),
        "validation_loss": losses,
        "bytes": size,
    }


def measure(tiny: bool) -> list[dict[str, Any]]:
    """The shipped model against its own random initialisation: one row a task, and the mean."""
    options: dict[str, Any] = {
        "suite": "builtin",
        "tasks": "builtin-sentiment",
        "probes": {"max_train": 200, "draws": 1},
    }
    if not tiny:
        options = {"suite": "glue", "tasks": TASKS, "data_dir": os.environ.get("FROZENPROBE_TEST_DATA", "")}
    with tempfile.TemporaryDirectory() as place:
        runs = [Path(place) / name for name in ("random", "trained")]
        for out in runs:
            random = {"encoder": {"random_init": True}} if out.name == "random" else {}
            frozenprobe.evaluate_glue("crossbert:nano", out=out, **options, **random)
        frame = frozenprobe.compare_runs(*runs)
    return [{"what": f"ridge, honest, trained minus random: {row['task']}", **row} for row in frame.to_dict("records")]


def main() -> None:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ship", type=Path, metavar="RUN", help="export this run into the package first")
    parser.add_argument("--write", action="store_true", help="write results/measured/nano.json")
    parser.add_argument("--tiny", action="store_true", help="seconds, to try the program; writes no results")
    arguments = parser.parse_args()
    training = ship(arguments.ship) if arguments.ship else json.loads((RESULTS / "nano.json").read_text())["rows"][0]
    rows = measure(arguments.tiny)
    print_rows(rows)
    if arguments.write and not arguments.tiny:
        print(write_down("nano", "python -m benchmarks.nano --write", [training, *rows]))


if __name__ == "__main__":
    main()
