"""`crossbert sweep`: many runs that differ in some settings, each trained and probed, and one table of them."""

from __future__ import annotations

import argparse
import sys
import tomllib
from functools import partial
from pathlib import Path
from typing import Any, get_args

from crossbert.settings import SweepSettings
from frozenprobe.errors import FrozenprobeError, SettingsError
from frozenprobe.settings import parse


class SweepError(FrozenprobeError):
    """Runs of a sweep failed; the others are kept."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument(
        "sweep",
        nargs="?",
        metavar="STUDY|FILE",
        help="a study of the paper (table1, table2, table3, table4, table5, table6, table9, scaling, figure7), or a sweep in "
        "TOML with config, [train], [axes], [probe] and [slurm]; options override it",
    )
    parser.add_argument("--config", metavar="FILE", help="what all runs start from; as of crossbert train")
    parser.add_argument("--out", type=Path, metavar="DIR", help="a folder for each run; the same command goes on there")

    def assignments(option: str, example: str) -> None:
        parser.add_argument(option, action="extend", nargs="+", default=[], metavar="KEY=VALUE", help=example)

    assignments("--set", "settings of training; several values, key=a,b,c, are an axis")
    assignments("--probe", "options of frozenprobe glue, as in suite=builtin probes.max_train=1000 features.layers=all")
    assignments("--slurm", "what each run asks of SLURM, as in partition=gpu gpus=8 minutes=600")
    for option in ("checkpoints", "launcher"):
        field = SweepSettings.model_fields[option]
        choices = ",".join(get_args(field.annotation))
        parser.add_argument(
            f"--{option}", metavar=f"{{{choices}}}", help=f"{field.description} (default {field.default})"
        )
    parser.add_argument("--dry-run", action="store_true", help="list the runs and what they cost; train nothing")
    parser.add_argument("--quiet", action="store_true", help="print nothing but the table")


def run(arguments: argparse.Namespace) -> None:
    """Runs the command.

    Raises:
        FrozenprobeError: Wrong input, or a run that failed; the table of the others is printed first.
    """
    settings = read_settings(arguments)
    if arguments.out is None and not arguments.dry_run:
        raise SettingsError(
            "--out DIR is required: every run has a folder there, and an interrupted sweep goes on from there"
        )

    from crossbert.display import default_display
    from crossbert.sweep import plan, run_sweep
    from crossbert.swept import differently_probed, read_sweeps, write_table
    from frozenprobe.engine.progress import default_reporter
    from frozenprobe.reports.console import terminal

    console = terminal(room=180)
    jobs = plan(settings, arguments.out or Path("."))
    if arguments.dry_run:
        _print_plan(jobs, console)
        return

    def tell(line: str) -> None:
        if not arguments.quiet:
            print(line, file=sys.stderr, flush=True)

    failed = run_sweep(
        jobs,
        arguments.out,
        settings,
        display=partial(default_display, "step", arguments.quiet),
        reporter=partial(default_reporter, arguments.quiet),
        tell=tell,
    )
    runs = read_sweeps([arguments.out])
    _print_table(write_table(arguments.out, runs), console)
    for line in differently_probed(runs):
        console.print(line, style="yellow", soft_wrap=True, highlight=False)
    if failed:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in failed.items())
        raise SweepError(f"{len(failed)} of {len(jobs)} runs failed, the others are kept: {reasons}")


def read_settings(arguments: argparse.Namespace) -> SweepSettings:
    """The sweep that a file, a study and the options make together.

    Raises:
        SettingsError: The file cannot be read, or a setting is unknown or impossible.
    """
    from crossbert.recipes import read_assignment
    from crossbert.studies import STUDIES, as_axes, flat, read_axes

    values: dict[str, Any] = {}
    if arguments.sweep in STUDIES:
        values["study"] = arguments.sweep
    elif arguments.sweep is not None:
        try:
            values = tomllib.loads(Path(arguments.sweep).read_text())
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"{arguments.sweep} is no study ({', '.join(STUDIES)}), and as a file: {error}"
            ) from None
    for option in ("config", "checkpoints", "launcher"):
        if (typed := getattr(arguments, option)) is not None:
            values[option] = typed
    if arguments.probe and values.get("checkpoints") == "none":
        raise SettingsError("--probe: nothing is probed with --checkpoints none")
    for section in ("train", "axes", "probe", "slurm"):
        if not isinstance(values.setdefault(section, {}), dict):
            raise SettingsError(f"{arguments.sweep}: {section} must be a table")
    fixed, axes = read_axes(arguments.set)
    of_file = as_axes(values["axes"])
    # What is typed takes the place of what the file says of the same setting, be it one value or an axis.
    values["train"] = {key: value for key, value in flat(values["train"]).items() if key not in axes} | fixed
    values["axes"] = {name: axis for name, axis in of_file.items() if name not in fixed} | axes
    for section, typed in (("probe", arguments.probe), ("slurm", arguments.slurm)):
        values[section] = flat(values[section]) | dict(map(read_assignment, typed))
    return parse(SweepSettings, values)


def _print_plan(jobs: list, console: Any) -> None:
    from rich.table import Table

    from crossbert.scaling import count_parameters, paper_flops, positions_per_sequence
    from crossbert.swept import size
    from frozenprobe.reports.console import print_whole

    table = Table(title=f"{len(jobs)} runs", title_justify="left")
    for column in ("run", "model"):
        table.add_column(column)
    for column in ("parameters, M", "steps", "positions a step", "learning rate", "FLOPs, eq. 7 and 8"):
        table.add_column(column, justify="right")
    for job in jobs:
        settings = job.settings
        table.add_row(
            job.member.name,
            size(settings.model),
            f"{count_parameters(settings.model).total / 1e6:.2f}",
            f"{settings.steps:,}",
            f"{settings.data.batch * positions_per_sequence(settings.model):,}",
            f"{settings.optimiser.learning_rate:.2e}",
            f"{settings.steps * settings.data.batch * paper_flops(settings.model):.2e}",
        )
    print_whole(table, console)


def _print_table(frame: Any, console: Any) -> None:
    from rich.table import Table

    from frozenprobe.reports.console import print_whole

    if frame.empty:
        return
    scores = {"ridge_honest": "linear, honest", "ridge_paper": "linear, paper", "knn_honest": "kNN, honest"}
    table = Table(title="validation loss, and the mean over the probed tasks in percent", title_justify="left")
    table.add_column("run")
    columns = {"model": "model", "compute": "FLOPs, eq. 7 and 8", "loss": "loss"}
    columns |= {name: title for name, title in scores.items() if name in frame}
    for title in columns.values():
        table.add_column(title, justify="left" if title == "model" else "right")
    for _, row in frame.iterrows():
        cells = [
            f"{row['compute']:.2e}"
            if name == "compute"
            else f"{row[name]:.4f}"
            if name == "loss"
            else f"{100 * row[name]:.1f}"
            for name in columns
            if name != "model"
        ]
        table.add_row(row["run"], row["model"], *cells)
    print_whole(table, console)
