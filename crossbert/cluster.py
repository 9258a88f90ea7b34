"""Runs of a sweep as jobs of a SLURM cluster, through submitit: submitted as one array, awaited, found again by a later call.

A job with several GPUs is as many ranks, as under torchrun.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from crossbert.settings import SlurmSettings
from frozenprobe.errors import RecordError, SettingsError
from frozenprobe.records.store import write_atomically

POLL_SECONDS = 5.0
UNDER_WAY = {"PENDING", "RUNNING", "REQUEUED", "COMPLETING", "CONFIGURING", "SUSPENDED"}

Work = Callable[[], str | None]
"""What a job does; picklable. Returns what went wrong in one line, or None."""


def run_jobs(
    works: Mapping[str, Work], folder: Path, settings: SlurmSettings, cluster: str
) -> Iterator[tuple[str, str | None]]:
    """Submits works and yields each one's name as it ends, with None or what went wrong.

    Args:
        works: By name. One whose job of an earlier call is still under way is awaited, not submitted again.
        folder: For submitit's logs and the list of jobs; the cluster's machines see it too.
        settings: What each job asks for.
        cluster: `slurm`, or `local` for processes on this machine.

    Raises:
        SettingsError: submitit is not installed, or the jobs are refused.
        RecordError: The folder cannot be written.
    """
    try:
        submitit: Any = import_module("submitit")
    except ImportError:
        raise SettingsError("--launcher: submitit is not installed; pip install 'frozenprobe[slurm]'") from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(f"cannot write {folder}: {error.strerror or error}") from error
    known, ranks = folder / "jobs.json", max(1, settings.gpus)
    jobs = _under_way(submitit, known, works.keys(), ranks) if cluster == "slurm" else {}
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
        executor.update_parameters(**_parameters(settings, ranks, cluster))
        with executor.batch():
            new = {name: executor.submit(in_job, work, ranks) for name, work in works.items() if name not in jobs}
    except Exception as error:  # submitit's own, and those of the cluster's commands
        raise SettingsError(f"--launcher {cluster}: jobs are refused: {' '.join(str(error).split())}") from error
    jobs |= new
    write_atomically(known, json.dumps({name: job.job_id for name, job in jobs.items()}, indent=2).encode())
    names = {id(job): name for name, job in jobs.items()}
    for job in submitit.helpers.as_completed(list(jobs.values()), poll_frequency=POLL_SECONDS):
        yield names[id(job)], _outcome(job)


def in_job(work: Work, ranks: int) -> str | None:
    """What runs on the cluster, on every rank."""
    if ranks > 1:
        import_module("submitit.helpers").TorchDistributedEnvironment().export(set_cuda_visible_devices=False)
    return work()


def _parameters(settings: SlurmSettings, ranks: int, cluster: str) -> dict[str, Any]:
    asked = {
        "name": "crossbert",
        "nodes": 1,
        "tasks_per_node": ranks,
        "gpus_per_node": settings.gpus,
        "cpus_per_task": max(1, settings.cpus // ranks),
        "mem_gb": settings.memory_gb,
        "timeout_min": settings.minutes,
    }
    if cluster == "slurm":
        asked["slurm_array_parallelism"] = settings.parallel
        if settings.partition is not None:
            asked["slurm_partition"] = settings.partition
        if settings.account is not None:
            asked["slurm_additional_parameters"] = {"account": settings.account}
    return asked


def _under_way(submitit: Any, known: Path, names: Any, ranks: int) -> dict[str, Any]:
    """Jobs of an earlier call that wait or run."""
    try:
        ids = json.loads(known.read_text())
    except (OSError, ValueError):
        return {}
    jobs = {
        name: submitit.SlurmJob(folder=known.parent, job_id=ids[name], tasks=tuple(range(ranks)))
        for name in names
        if name in ids
    }
    return {name: job for name, job in jobs.items() if job.state.upper() in UNDER_WAY}


def _outcome(job: Any) -> str | None:
    """None, or in one line what went wrong in a job."""
    try:
        return next((line for line in job.results() if line is not None), None)
    except Exception as error:  # submitit's own: killed, out of time, a traceback
        line = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        return f"job {job.job_id}: {line}; its logs are in {job.paths.folder}"
