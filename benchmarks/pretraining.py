"""Speed of pre-training, each figure against its peer in the same run.

    python -m benchmarks.pretraining [cms gather utilisation data checkpoint] [--write] [--tiny]

Without names every section runs; on a machine with a GPU, on it. `--tiny` tries the program: its figures mean nothing.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import pretraining_model
from benchmarks.measure import print_rows, write_down
from crossbert.checkpoint import Checkpoints, checkpoints, training_state
from crossbert.distributed import Ranks
from crossbert.metrics import read_metrics
from crossbert.model import build_model
from crossbert.optimiser import Guard, build_optimiser
from crossbert.prepare import prepare
from crossbert.recipes import read_recipe
from crossbert.settings import PrepareSettings, TrainSettings
from crossbert.tokenizer import load_tokenizer
from crossbert.train import train


def _nano(folder: Path, tiny: bool, *changes: str) -> TrainSettings:
    """The nano recipe on built-in text."""
    words = 400 if tiny else 2048
    prepare(PrepareSettings(builtin=500 if tiny else 5000, train_tokenizer=words, validation_share=0.05), folder)
    small = ("model.width=32", "model.layers=2", "data.batch=8", "system.compile=false") if tiny else ()
    return read_recipe("nano", (f"data.folder={folder}", *small, *changes))


def data(tiny: bool = False) -> list[dict[str, Any]]:
    """The share of a step's time that it waits for its batch, in the training loop itself."""
    steps = 12 if tiny else 40
    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "run"
        options = ("system.checkpoint_every=0", "system.validate_every=0", "optimiser.warmup_steps=1")
        train(_nano(Path(place) / "data", tiny, f"steps={steps}", *options), run)
        rows = [row for row in read_metrics(run) if "loss" in row and row["step"] > 2]  # the first steps compile
    waited = sum(row["data_share"] * row["step_seconds"] for row in rows)
    seconds = sum(row["step_seconds"] for row in rows)
    return [
        {
            "what": f"waiting for data / step time, nano recipe, {len(rows)} steps",
            "unit": "s",
            "ours": waited,
            "peer": seconds,
            "ratio": waited / seconds,
            "largest_share": max(row["data_share"] for row in rows),
            "target": "at most 0.02",
            "met": waited / seconds <= 0.02,
        }
    ]


def checkpoint(tiny: bool = False) -> list[dict[str, Any]]:
    """A checkpoint of the nano model: how long training stands still, until it is complete, and steps done meanwhile."""
    import torch

    here = Ranks(0, 1, torch.device(pretraining_model.DEVICE))
    with tempfile.TemporaryDirectory() as place:
        settings = _nano(Path(place) / "data", tiny)
        model = build_model(settings.model)
        step = pretraining_model.train_step(model, settings.data.batch, compiled=not tiny)
        optimiser = build_optimiser(model, settings.optimiser)
        state = training_state(model, optimiser, Guard().as_tensor())
        tokenizer = load_tokenizer(Path(place) / "data" / "tokenizer").tokenizer
        run = Path(place) / "run"
        writer = Checkpoints(run, 2, here, tokenizer, {"model": settings.model.model_dump()})
        step()
        stops, wholes, meanwhile = [], [], []
        for number in range(1, 6):
            started, steps = time.perf_counter(), 0
            writer.save(number, state)
            stops.append(time.perf_counter() - started)
            while not (run / f"step-{number}" / "COMPLETE").exists():
                step()
                steps += 1
            wholes.append(time.perf_counter() - started)
            meanwhile.append(steps)
        writer.wait()
        writer.close()
        size = sum(file.stat().st_size for file in checkpoints(run)[-1].rglob("*") if file.is_file())
    stopped, whole = statistics.median(stops), statistics.median(wholes)
    return [
        {
            "what": f"checkpoint of the nano model, {size / 1e6:.1f} MB: until complete, steps going on",
            "unit": "s",
            "ours": whole,
            "training_stands_still": stopped,
            "steps_meanwhile": statistics.median(meanwhile),
            "target": "under 1 s, training continues",
            "met": whole < 1.0 and statistics.median(meanwhile) >= 1,
        }
    ]


SECTIONS = {
    "cms": pretraining_model.cms,
    "gather": pretraining_model.gather,
    "utilisation": pretraining_model.utilisation,
    "data": data,
    "checkpoint": checkpoint,
}


def main() -> None:
    """Runs the sections asked for, prints their figures and, with `--write`, writes them down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], metavar="SECTION")
    parser.add_argument("--write", action="store_true", help="write results/measured/pretraining-SECTION.json")
    parser.add_argument(
        "--tiny", action="store_true", help="seconds, without compilation, to try the program; writes nothing"
    )
    arguments = parser.parse_args()
    for name in arguments.sections or SECTIONS:
        rows = SECTIONS[name](arguments.tiny)
        print_rows(rows)
        if arguments.write and not arguments.tiny:
            write_down(f"pretraining-{name}", f"python -m benchmarks.pretraining {name} --write", rows)


if __name__ == "__main__":
    main()
