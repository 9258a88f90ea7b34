"""Trains and probes the runs of a sweep, each in a folder of its own; see `swept.py` for what it leaves behind.

What is finished is not done again, what was interrupted goes on, and a run that fails is named while the others go on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from crossbert.display import Display
from crossbert.reading import MARKER, step_number, steps_of
from crossbert.settings import SweepSettings, TrainSettings
from crossbert.studies import Member, as_axes, flat, members
from crossbert.swept import MEMBER, RESULT
from frozenprobe.engine.cluster import run_jobs
from frozenprobe.engine.progress import PlainReporter, Reporter
from frozenprobe.errors import FrozenprobeError, RecordError, SettingsError
from frozenprobe.files import TEMPORARY, sole_writer, write_atomically
from frozenprobe.ranks import launched_count, launched_rank
from frozenprobe.settings import GlueSettings, parse

JOBS = "jobs"
Callback = Callable[..., None]


@dataclass(frozen=True)
class Job:
    """One run to be trained and probed.

    Attributes:
        member: What it is.
        folder: Its place.
        probe: Values of `GlueSettings` but for the encoder's name and place.
        checkpoints: Which of its checkpoints are probed.
    """

    member: Member
    folder: Path
    probe: dict[str, Any]
    checkpoints: str

    @property
    def settings(self) -> TrainSettings:
        """What is trained; all checkpoints are kept where all are probed."""
        settings = self.member.settings
        if self.checkpoints != "all":
            return settings
        return settings.model_copy(update={"system": settings.system.model_copy(update={"keep": 0})})

    @property
    def facts(self) -> dict[str, Any]:
        """What decides the result: a finished run with the same facts is not done again."""
        settings = self.settings.model_dump(mode="json", exclude={"system": True})
        return {
            "settings": settings,
            "probe": json.loads(json.dumps(self.probe, default=str)),
            "checkpoints": self.checkpoints,
        }


def plan(settings: SweepSettings, out: Path) -> list[Job]:
    """The runs of a sweep; every impossible one is found before anything is trained.

    Raises:
        SettingsError: Settings are unknown, impossible, or contradict each other.
        DataError: The data's folder is not prepared data.
    """
    fixed, axes = flat(settings.train), as_axes(settings.axes)
    if settings.checkpoints == "all" and "system.keep" in fixed.keys() | axes.keys():
        raise SettingsError(
            "system.keep: all checkpoints are kept while all are probed; --checkpoints last keeps as many as asked"
        )
    jobs = []
    for member in members(settings.study, settings.config, fixed, axes):
        probe = merge(unflat(flat(settings.probe)), member.probe)
        _glue(probe, "-", member.name)
        jobs.append(Job(member, out / member.name, probe, settings.checkpoints))
    return jobs


def run_sweep(
    jobs: Sequence[Job],
    out: Path,
    settings: SweepSettings,
    *,
    display: Callable[[], Display] = Display,
    reporter: Callable[[], Reporter] = PlainReporter,
    tell: Callable[[str], None] = lambda line: None,
    callbacks: Sequence[Callback] = (),
) -> dict[str, str]:
    """Trains and probes.

    Args:
        jobs: The runs; see `plan`.
        out: The sweep's folder.
        settings: How they are launched.
        display: Makes what shows a training that runs here.
        reporter: Makes what shows a probing that runs here.
        tell: Told in a line when a run begins, ends or fails.
        callbacks: For the trainings that run here; see `crossbert.train`.

    Returns:
        The runs that failed, with the reason in one line.

    Raises:
        SettingsError: The launcher cannot be used.
        DataError: What is probed cannot be read.
        RecordError: The folder cannot be written, or another sweep is running there.
    """
    if launched_count() > 1:
        raise SettingsError("a sweep is started without torchrun; --launcher slurm gives each of its runs several GPUs")
    waiting = {job.member.name: job for job in jobs if not is_finished(job)}
    if len(waiting) < len(jobs):
        tell(f"{len(jobs) - len(waiting)} of {len(jobs)} runs were finished before")
    for name, job in waiting.items():
        if lost := _lost(job):
            tell(f"{name}: {lost} of its checkpoints were not kept when it was trained, and are not probed")
    if waiting and settings.checkpoints != "none":
        from frozenprobe.suites.glue import load_tasks

        first = next(iter(waiting.values()))
        load_tasks(_glue(first.probe, "-", first.member.name))  # data at fault is found before anything is trained
    if settings.launcher == "local":
        outcomes = _here(waiting, display, reporter, tell, callbacks)
    else:
        cluster = "slurm" if settings.launcher == "slurm" else "local"
        works = {name: partial(work, job, Display, PlainReporter) for name, job in waiting.items()}
        folder = out.absolute() / JOBS
        outcomes = run_jobs(works, folder, settings.slurm, cluster=cluster, title="crossbert") if works else iter(())
    failed = {}
    # A call that finds the SLURM jobs of another awaits the same ones.
    with nullcontext() if settings.launcher == "slurm" else sole_writer(out):
        for name, error in outcomes:
            if error is not None:
                failed[name] = error
            tell(f"{name} {'is done' if error is None else f'failed: {error}'}")
    return failed


def _here(
    waiting: Mapping[str, Job],
    display: Callable[[], Display],
    reporter: Callable[[], Reporter],
    tell: Callable[[str], None],
    callbacks: Sequence[Callback],
) -> Iterator[tuple[str, str | None]]:
    for number, (name, job) in enumerate(waiting.items(), start=1):
        tell(f"[{number}/{len(waiting)}] {name}")
        yield name, work(job, display, reporter, callbacks)


def work(
    job: Job,
    display: Callable[[], Display],
    reporter: Callable[[], Reporter],
    callbacks: Sequence[Callback] = (),
) -> str | None:
    """Trains and probes one run; gives None, or in one line why it failed."""
    try:
        _train_and_probe(job, display, reporter, callbacks)
    except FrozenprobeError as error:
        return " ".join(str(error).split())
    except Exception as error:  # whatever one run dies of, the others go on
        return " ".join(f"{type(error).__name__}: {error}".split())[:500]
    return None


def _train_and_probe(
    job: Job, display: Callable[[], Display], reporter: Callable[[], Reporter], callbacks: Sequence[Callback]
) -> None:
    import torch

    from crossbert.train import train
    from frozenprobe.suites.glue import run_glue

    first = launched_rank() == 0
    if first:
        _claim(job)
    torch.compiler.reset()  # compiled graphs of the run before are of no use, and their number is limited
    train(job.settings, job.folder / "train", callbacks, display())
    if not first:
        return
    for checkpoint in _probed(job):
        probe = _glue(job.probe, f"crossbert:{checkpoint}", f"{job.member.name}, {checkpoint.name}")
        place = job.folder / "probes"
        try:
            run_glue(probe, place / checkpoint.name, reporter=reporter())
        except RecordError as error:  # a sweep overwrites nothing
            raise RecordError(str(error).replace(" or --overwrite", f", or delete {place}")) from error
    write_atomically(job.folder / RESULT, _json(job.facts))


def _claim(job: Job) -> None:
    """Writes down what the run is.

    Raises:
        RecordError: The folder holds something else, or cannot be written.
    """
    member = job.member
    values = {"config": member.config, "axes": member.axes, "settings": job.settings.model_dump(mode="json")}
    path = job.folder / MEMBER
    held = [entry for entry in job.folder.glob("*") if not entry.name.startswith(TEMPORARY)]
    if held and not path.exists():
        raise RecordError(f"{job.folder} holds other files; choose another --out")
    if (job.folder / "train" / "run.json").exists() and path.exists():
        return  # training itself refuses to go on with other settings
    try:
        job.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(f"cannot write {job.folder}: {error.strerror or error}") from error
    write_atomically(path, _json(values))


def _probed(job: Job) -> list[Path]:
    if job.checkpoints == "none":
        return []
    complete = [folder for folder in steps_of(job.folder / "train") if (folder / MARKER).is_file()]
    return complete if job.checkpoints == "all" else complete[-1:]


def _lost(job: Job) -> int:
    """How many checkpoints of an earlier call are to be probed and were not kept."""
    every, found = job.settings.system.checkpoint_every, [step_number(folder) for folder in _probed(job)]
    if job.checkpoints != "all" or not every or not found:
        return 0
    return len(set(range(every, found[-1], every)) - set(found))


def is_finished(job: Job) -> bool:
    """Whether an earlier call trained and probed this very run."""
    try:
        return json.loads((job.folder / RESULT).read_text()) == job.facts
    except (OSError, ValueError):
        return False


def _glue(probe: Mapping[str, Any], ckpt: str, name: str) -> GlueSettings:
    encoder = probe.get("encoder", {})
    if not isinstance(encoder, Mapping) or {"ckpt", "name", "revision"} & encoder.keys():
        raise SettingsError("--probe encoder: a sweep's own checkpoints are probed, under their own names")
    return parse(GlueSettings, {**probe, "encoder": {**encoder, "ckpt": ckpt, "name": name}})


def unflat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by dotted key as nested tables."""
    tables: dict[str, Any] = {}
    for key, value in values.items():
        *sections, name = key.split(".")
        place: Any = tables
        for section in sections:
            place = place.setdefault(section, {})
            if not isinstance(place, dict):
                raise SettingsError(f"--probe {key}: {section} is no table")
        place[name] = value
    return tables


def merge(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables over others, which fill in what is missing."""
    return {
        key: merge(values[key], defaults[key])
        if isinstance(values.get(key), Mapping) and isinstance(defaults.get(key), Mapping)
        else values.get(key, defaults.get(key))
        for key in [*defaults, *(key for key in values if key not in defaults)]
    }


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
