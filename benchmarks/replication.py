"""BERT, Electra and CrossBERT of one size, on the same text, at the same FLOPs by eq. 7 and 8, over several seeds.

    python -m benchmarks.replication --tasks cola,sst2,mrpc,stsb,mnli,qnli,rte [--minutes 90] [--write]
    python -m benchmarks.replication --config crossbert-62m --prepared data/dclm --held-out data/wikipedia data/books --write

Text is all four parts of `local/english-text` below FROZENPROBE_TEST_DATA, losses are on the validation documents of two of them, scores
are frozen GLUE from the same folder (`--tasks`: those whose validation split is there). The same command goes on where it was; `--minutes` ends a piece of it. `--tiny` tries the program
in about a minute: its figures mean nothing. What comes out is a table and a plot, with `--write` in `results/measured/`.

Fair means here: the same backbone, data, vocabulary, learning rate and positions a step, as in the paper's single-scale runs; steps so
that all cost the same by eq. 7 and 8, which leave the heads out. What they cost with heads stands beside it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.measure import write_down
from benchmarks.replication_report import Report, plot, print_report, report
from crossbert.display import default_display
from crossbert.prepare import prepare
from crossbert.recipes import read_recipe
from crossbert.scaling import flops_per_position, positions_per_sequence
from crossbert.settings import PrepareSettings, SweepSettings
from crossbert.sweep import is_finished, plan, run_sweep
from crossbert.swept import read_sweeps, write_table
from frozenprobe.engine.progress import default_reporter
from frozenprobe.errors import DataError, FrozenprobeError, SettingsError
from frozenprobe.settings import parse

PARTS = ("books", "encyclopedia", "news", "other")
HELD_OUT = ("books", "encyclopedia")  # the most of the text, and Wikipedia, which the paper's figure 5 has too
OBJECTIVES = ("bert", "electra", "crossbert")
SMALL_TASKS = {"glue": "sst2,rte", "builtin": "builtin-sentiment,builtin-acceptability"}  # of a trial
TINY = {
    "model.width": 32,
    "model.layers": 4,
    "model.heads": 2,
    "model.sequence_length": 64,
    "steps": 20,
    "data.batch": 8,
    "optimiser.warmup_steps": 5,
    "system.compile": False,
    "system.validation_sequences": 32,
    "dtype": "fp32",
}


def same_compute(config: str, changes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What each objective changes of a CrossBERT's settings, so that all see as many positions a step and cost the same.

    Raises:
        SettingsError: The configuration is no CrossBERT.
    """
    base = read_recipe(config, changes=changes)
    if base.model.objective != "crossbert":
        raise SettingsError(
            f"--config {config}: a CrossBERT, from which the others follow (it is {base.model.objective})"
        )
    positions = base.data.batch * positions_per_sequence(base.model)
    compute = base.steps * positions * flops_per_position(base.model, "paper")
    found = {}
    for objective in OBJECTIVES:
        model = read_recipe(config, changes={**changes, "model.objective": objective}).model
        found[objective] = {
            "model.objective": objective,
            "data.batch": positions // positions_per_sequence(model),
            "steps": round(compute / positions / flops_per_position(model, "paper")),
        }
    return found


def prepared(data: Path, out: Path, vocabulary: int, tiny: bool, quiet: bool) -> tuple[Path, list[Path]]:
    """Tokenised text of all parts, and of the validation documents of two.

    Raises:
        DataError: A part is missing.
    """
    if data == Path():
        raise DataError("set FROZENPROBE_TEST_DATA, or give --data or --prepared: there is no text")
    place = data / "local" / "english-text"
    for part in PARTS:
        for split in ("train", "validation"):
            if not (place / part / f"{split}.parquet").is_file():
                raise DataError(f"{place / part / f'{split}.parquet'} is missing; --prepared takes text of your own")
    limit = {"max_documents": 400} if tiny else {}
    words = 400 if tiny else vocabulary
    text = tuple(place / part / "train.parquet" for part in PARTS)
    folder = out / "text"
    display = default_display("documents", quiet)
    prepare(parse(PrepareSettings, {"text": text, "train_tokenizer": words, **limit}), folder, display)
    held_out = []
    for part in HELD_OUT:
        own = {
            "text": (place / part / "validation.parquet",),
            "tokenizer": str(folder / "tokenizer"),
            "validation_share": 1,
        }
        prepare(parse(PrepareSettings, own | limit), out / part, default_display("documents", quiet))
        held_out.append(out / part)
    return folder, held_out


class Deadline:
    """A callback that interrupts training after so many minutes: the step is finished and a checkpoint written."""

    def __init__(self, minutes: float | None) -> None:
        self._end = None if minutes is None else time.monotonic() + 60 * minutes

    def __call__(self, step: int, model: Any, tokenizer: Any) -> None:
        """See `crossbert.train.Callback`."""
        if self._end is not None and time.monotonic() > self._end:
            signal.raise_signal(signal.SIGINT)


def sweep_settings(arguments: argparse.Namespace, folder: Path, held_out: Sequence[Path]) -> SweepSettings:
    """The sweep: every objective with every seed, one seed after the other."""
    changes = {"data.folder": str(folder), "data.held_out": [str(path) for path in held_out]}
    if arguments.tiny:
        changes |= TINY
    steps = read_recipe(arguments.config, changes=changes).steps
    changes["system.validate_every"] = max(1, steps // (4 if arguments.tiny else 20))
    changes["system.checkpoint_every"] = max(1, steps // 10)
    probe: dict[str, Any] = {"suite": arguments.suite}
    if arguments.suite == "glue":
        probe["data_dir"] = str(arguments.data)
    if arguments.tasks:
        probe["tasks"] = arguments.tasks
    if arguments.tiny:
        probe |= {
            "tasks": SMALL_TASKS[arguments.suite],
            "probes.max_train": 100,
            "probes.draws": 1,
            "probes.regimes": "10",
        }
    axes = {"seed": list(range(arguments.seeds)), "objective": same_compute(arguments.config, changes)}
    values = {"config": arguments.config, "train": changes, "axes": axes, "probe": probe, "checkpoints": "last"}
    return parse(SweepSettings, values)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program; gives its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="pico", help="a CrossBERT, as of crossbert train (default pico)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each objective (default 3)")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/replication"), help="runs and records (default runs/replication)"
    )
    parser.add_argument("--minutes", type=float, help="end this piece after so many minutes of training")
    parser.add_argument(
        "--vocabulary", type=int, default=8192, help="of the tokenizer trained on the text (default 8192)"
    )
    parser.add_argument("--data", type=Path, help="the data's folder (default: $FROZENPROBE_TEST_DATA)")
    parser.add_argument("--prepared", type=Path, help="text of your own, from crossbert prepare")
    parser.add_argument(
        "--held-out", type=Path, nargs="+", default=[], help="with --prepared: what losses are measured on"
    )
    parser.add_argument("--suite", choices=tuple(SMALL_TASKS), default="glue", help="what is probed (default glue)")
    parser.add_argument("--tasks", help="of the suite, separated by commas (default all)")
    parser.add_argument("--tiny", action="store_true", help="about a minute, to try the program; writes no results")
    parser.add_argument("--quiet", action="store_true", help="print nothing but the result")
    parser.add_argument("--write", action="store_true", help="write results/measured/replication.json and .svg")
    arguments = parser.parse_args(argv)
    try:
        return _run(arguments)
    except FrozenprobeError as error:
        print(f"replication: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("replication: this piece is over; the same command goes on", file=sys.stderr)
        return 130


def _run(arguments: argparse.Namespace) -> int:
    if arguments.seeds < 1:
        raise SettingsError(f"--seeds: at least 1 (got {arguments.seeds})")
    if arguments.tiny and arguments.write:
        raise SettingsError("--write: the figures of --tiny mean nothing")
    if arguments.held_out and arguments.prepared is None:
        raise SettingsError("--held-out goes with --prepared")
    if arguments.data is None:
        arguments.data = Path(os.environ.get("FROZENPROBE_TEST_DATA", ""))
    out = arguments.out / "tiny" if arguments.tiny else arguments.out
    if arguments.prepared is None:
        folder, held_out = prepared(arguments.data, out / "data", arguments.vocabulary, arguments.tiny, arguments.quiet)
    else:
        folder, held_out = arguments.prepared, arguments.held_out
    settings = sweep_settings(arguments, folder, held_out)
    jobs = plan(settings, out / "runs")
    failed = run_sweep(
        jobs,
        out / "runs",
        settings,
        display=lambda: default_display("step", arguments.quiet),
        reporter=lambda: default_reporter(arguments.quiet),
        tell=lambda line: None if arguments.quiet else print(line, file=sys.stderr, flush=True),
        callbacks=[Deadline(arguments.minutes)],
    )
    swept = read_sweeps([out / "runs"])
    write_table(out / "runs", swept)
    if failed:
        raise FrozenprobeError("; ".join(f"{name}: {reason}" for name, reason in failed.items()))
    assert all(map(is_finished, jobs))
    names = {job.member.name for job in jobs}
    result = report([run for run in swept if run.name in names])
    console = Console()
    print_report(result, console if console.is_terminal else Console(width=180))
    figure = write(result, arguments) if arguments.write else out / "replication.svg"
    plot(result, figure)
    print(f"drawn in {figure}")
    return 0


def write(result: Report, arguments: argparse.Namespace) -> Path:
    """Writes the figures to `results/measured/`, and gives the place of their plot."""
    own = " --prepared DATA --held-out DATA ..." if arguments.prepared is not None else ""
    name = Path(arguments.config).name
    tasks = f" --tasks {arguments.tasks}" if arguments.tasks else ""
    command = f"python -m benchmarks.replication --config {name} --seeds {arguments.seeds}{tasks}{own} --write"
    rows = [*result.models, *result.tests, *({"note": note} for note in result.notes)]
    return write_down("replication", command, rows).with_suffix(".svg")


if __name__ == "__main__":
    raise SystemExit(main())
