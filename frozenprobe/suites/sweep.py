"""`frozenprobe sweep`: the same evaluation of many checkpoints, each in a folder of its own; what is finished is never done again.

Here, one after the other with the data read once (under `torchrun` on all ranks), or as jobs of a cluster.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from frozenprobe import ranks
from frozenprobe.encoders.registry import TellsIncomplete, find_adapters
from frozenprobe.engine.cluster import run_jobs
from frozenprobe.engine.evaluate import TaskRows
from frozenprobe.engine.progress import PlainReporter, Reporter, SilentReporter
from frozenprobe.errors import DataError, FrozenprobeError, RankError, RecordError, SettingsError
from frozenprobe.records.reading import Run, read_run
from frozenprobe.reports.sweep import write_sweep
from frozenprobe.settings import GlueSettings, SweepSettings
from frozenprobe.suites.glue import read_tasks, run_glue

JOBS = "jobs"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9_\-]*:")


@dataclass(frozen=True)
class Checkpoint:
    """One of many.

    Attributes:
        name: Its path below the fixed part of the pattern, which is also its folder's below `out`.
        ckpt: As an encoder's setting.
    """

    name: str
    ckpt: str


@dataclass(frozen=True)
class Sweep:
    """What a sweep gave.

    Attributes:
        runs: Runs by the name of their checkpoint, in order of names; those whose checkpoint is gone by now included.
        failed: Checkpoints without scores, with the reason.
    """

    runs: dict[str, Run]
    failed: dict[str, str]


def find_checkpoints(patterns: Sequence[str], tell: Callable[[str], None] = lambda line: None) -> list[Checkpoint]:
    """The folders that match, in natural order: step-9 before step-10.

    Args:
        patterns: See `SweepSettings.ckpts`.
        tell: Told in a line which of them are left out, because a training has not finished writing them.

    Raises:
        SettingsError: A pattern matches no folder, all that match are unfinished, or two checkpoints would have one name.
    """
    found: dict[str, Checkpoint] = {}
    unfinished: dict[str, None] = {}
    judges = [adapter for adapter in find_adapters()[0].values() if isinstance(adapter, TellsIncomplete)]
    for pattern in patterns:
        scheme, path = _split(pattern)
        path = str(Path(path).expanduser())
        folders = [Path(folder) for folder in glob.glob(path) if Path(folder).is_dir()]
        if not folders:
            raise SettingsError(f"--ckpts {pattern}: no folder matches")
        fixed = Path(path).parent
        while glob.has_magic(str(fixed)):
            fixed = fixed.parent
        for folder in folders:
            checkpoint = Checkpoint(folder.relative_to(fixed).as_posix(), f"{scheme}{folder}")
            if any(judge.is_incomplete(str(folder)) for judge in judges):
                unfinished[checkpoint.name] = None
                continue
            other = found.setdefault(checkpoint.name, checkpoint)
            if other != checkpoint:
                raise SettingsError(
                    f"--ckpts: {other.ckpt} and {checkpoint.ckpt} would both be called {checkpoint.name}; sweep them apart"
                )
    if unfinished:
        names = ", ".join(sorted(unfinished, key=natural))
        if not found:
            raise SettingsError(
                f"--ckpts: no checkpoint is complete ({names}): a training was cut off, or is writing them"
            )
        tell(f"note: left out, because incomplete (a training was cut off, or is writing): {names}")
    return [found[name] for name in sorted(found, key=natural)]


def natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts the numbers in names by value."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def run_sweep(
    settings: SweepSettings,
    out: Path,
    *,
    overwrite: bool = False,
    reporter: Callable[[], Reporter] = SilentReporter,
    on_checkpoint: Callable[[str], None] = lambda line: None,
) -> Sweep:
    """Evaluates every checkpoint; one that fails is named, and the others go on. The same call resumes.

    Args:
        settings: What is measured, of which checkpoints.
        out: A folder for each checkpoint is made here, and `sweep.csv` with all of them.
        overwrite: Drop what other runs left in those folders.
        reporter: Makes the reporter of one checkpoint that is evaluated here.
        on_checkpoint: Told in a line when a checkpoint begins, ends, fails or is left out.

    Raises:
        SettingsError: No checkpoint is found, or the launcher cannot be used.
        DataError: The data is at fault, and would be for every checkpoint.
        RankError: Another rank is lost.
    """
    checkpoints = ranks.from_first(lambda: find_checkpoints(settings.ckpts, on_checkpoint))
    if settings.launcher != "local" and ranks.count() > 1:
        raise SettingsError(f"--launcher {settings.launcher} starts processes itself: start it without torchrun")
    if settings.launcher == "local":
        outcomes = _one_by_one(settings, checkpoints, out, overwrite, reporter, on_checkpoint)
    else:
        read_tasks(settings)  # data at fault is found before anything is submitted
        jobs = {
            checkpoint.name: partial(
                _in_job,
                settings.of(_absolute(checkpoint), checkpoint.name),
                out.absolute() / checkpoint.name,
                overwrite,
            )
            for checkpoint in checkpoints
        }
        cluster = "slurm" if settings.launcher == "slurm" else "local"
        outcomes = run_jobs(jobs, out.absolute() / JOBS, settings.slurm, cluster=cluster, title="frozenprobe")
    failed = {}
    for name, error in outcomes:
        if error is not None:
            failed[name] = error
            on_checkpoint(f"{name} failed: {error}")
        elif settings.launcher != "local":
            on_checkpoint(f"{name} is done")
    return ranks.from_first(lambda: _collect(out, failed))


def evaluate_checkpoint(
    settings: GlueSettings,
    out: Path,
    overwrite: bool,
    tasks: Sequence[TaskRows] | None = None,
    reporter: Callable[[], Reporter] = PlainReporter,
) -> str | None:
    """Evaluates one checkpoint; gives None, or in one line why it has no scores.

    Raises:
        DataError: The data is at fault.
        RankError: Another rank is lost.
    """
    try:
        run_glue(settings, out, tasks=tasks, overwrite=overwrite, reporter=reporter())
    except (DataError, RankError):
        raise
    except FrozenprobeError as error:
        return " ".join(str(error).split())
    except Exception as error:  # whatever a checkpoint's code does, the others go on
        return " ".join(f"{type(error).__name__}: {error}".split())[:500]
    return None


def _in_job(settings: GlueSettings, out: Path, overwrite: bool) -> str | None:
    """What a job of a cluster does, on each of its ranks."""
    with ranks.joined():
        return evaluate_checkpoint(settings, out, overwrite)


def _one_by_one(
    settings: SweepSettings,
    checkpoints: Sequence[Checkpoint],
    out: Path,
    overwrite: bool,
    reporter: Callable[[], Reporter],
    on_checkpoint: Callable[[str], None],
) -> Iterator[tuple[str, str | None]]:
    tasks: list[TaskRows] = []
    ranks.from_first(lambda: tasks.extend(read_tasks(settings)))  # data at fault is found on every rank
    for number, checkpoint in enumerate(checkpoints, 1):
        on_checkpoint(f"[{number}/{len(checkpoints)}] {checkpoint.name}")
        one = settings.of(checkpoint.ckpt, checkpoint.name)
        yield checkpoint.name, evaluate_checkpoint(one, out / checkpoint.name, overwrite, tasks, reporter)


def _absolute(checkpoint: Checkpoint) -> str:
    """The setting as a job understands it, wherever it starts."""
    scheme, path = _split(checkpoint.ckpt)
    return f"{scheme}{Path(path).absolute()}"


def _split(ckpt: str) -> tuple[str, str]:
    """A scheme with its colon, if there is one, and the path."""
    match = _SCHEME.match(ckpt)
    return (match[0], ckpt[match.end() :]) if match and not Path(ckpt).exists() else ("", ckpt)


def _collect(out: Path, failed: dict[str, str]) -> Sweep:
    """Reads every run back, and writes the common table."""
    runs = {}
    for manifest in out.rglob("manifest.json"):
        name = manifest.parent.relative_to(out).as_posix()
        try:
            run = read_run(manifest.parent)
        except RecordError as error:
            failed.setdefault(name, str(error))
            continue
        if run.units and name not in failed:
            runs[name] = run
    runs = {name: runs[name] for name in sorted(runs, key=natural)}
    if runs:
        write_sweep(runs, out / "sweep.csv")
    return Sweep(runs, failed)
