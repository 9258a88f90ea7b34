"""Functions as jobs of a SLURM cluster, through submitit: submitted as one array, awaited, and found again by a later call.

Knows nothing of what the functions do. A job with several GPUs is as many ranks, as under torchrun.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from frozenprobe.errors import RecordError, SettingsError
from frozenprobe.files import write_atomically
from frozenprobe.settings import SlurmSettings

_POLL_SECONDS = 5.0
_UNDER_WAY = ("PENDING", "RUNNING", "REQUEUED", "COMPLETING", "CONFIGURING", "SUSPENDED")

Function = Callable[[], str | None]


def run_jobs(
    functions: Mapping[str, Function], folder: Path, settings: SlurmSettings, *, cluster: str, title: str
) -> Iterator[tuple[str, str | None]]:
    """Runs functions as jobs; a name whose job of an earlier call is still under way is not submitted again.

    Args:
        functions: The functions by name. Each must be picklable, and returns None or what went wrong, in one line.
        folder: For submitit's files and logs, and the list of jobs; seen by the cluster's machines too.
        settings: What each job asks for.
        cluster: `slurm`, or `local` for processes on this machine.
        title: What the jobs are called in the cluster's queue.

    Yields:
        Names, as their jobs end, with None or what went wrong.

    Raises:
        SettingsError: submitit is missing, or the cluster refuses the jobs.
        RecordError: The folder cannot be written.
    """
    try:
        submitit: Any = import_module("submitit")
    except ImportError:
        raise SettingsError("submitit is not installed: pip install 'frozenprobe[slurm]'") from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(f"cannot write {folder}: {error.strerror or error}") from error
    register = folder / "jobs.json"
    tasks = max(1, settings.gpus)
    jobs = _found_again(submitit, folder, register, functions, tasks) if cluster == "slurm" else {}
    new = [name for name in functions if name not in jobs]
    try:
        executor = submitit.AutoExecutor(folder=folder / "logs", cluster=cluster)
        executor.update_parameters(**_parameters(settings, tasks, cluster, title))
        with executor.batch():
            submitted = {name: executor.submit(_in_job, functions[name], tasks) for name in new}
    except Exception as error:
        raise SettingsError(f"the jobs were not accepted: {' '.join(str(error).split())[:300]}") from error
    jobs |= submitted
    write_atomically(register, json.dumps({name: job.job_id for name, job in jobs.items()}, indent=1).encode())
    names = {id(job): name for name, job in jobs.items()}
    for job in submitit.helpers.as_completed(list(jobs.values()), poll_frequency=_POLL_SECONDS):
        yield names[id(job)], _outcome(job)


def _in_job(function: Function, tasks: int) -> str | None:
    """What runs on the cluster: the function, on every rank of the job."""
    if tasks > 1:
        helpers: Any = import_module("submitit.helpers")
        helpers.TorchDistributedEnvironment().export(set_cuda_visible_devices=False)
    return function()


def _parameters(settings: SlurmSettings, tasks: int, cluster: str, title: str) -> dict[str, Any]:
    parameters: dict[str, Any] = {
        "name": title,
        "nodes": 1,
        "tasks_per_node": tasks,
        "gpus_per_node": settings.gpus,
        "cpus_per_task": max(1, settings.cpus // tasks),
        "mem_gb": settings.memory_gb,
        "timeout_min": settings.minutes,
    }
    if cluster == "slurm":
        parameters["slurm_array_parallelism"] = settings.parallel
        if settings.partition is not None:
            parameters["slurm_partition"] = settings.partition
        if settings.account is not None:
            parameters["slurm_additional_parameters"] = {"account": settings.account}
    return parameters


def _found_again(submitit: Any, folder: Path, register: Path, names: Mapping[str, Function], tasks: int) -> dict:
    """Jobs of an earlier call that wait or run."""
    try:
        known = json.loads(register.read_text())
    except (OSError, ValueError):
        return {}
    found = {}
    for name, job_id in known.items():
        if name in names:
            job = submitit.SlurmJob(folder=folder / "logs", job_id=job_id, tasks=tuple(range(tasks)))
            if job.state.upper() in _UNDER_WAY:
                found[name] = job
    return found


def _outcome(job: Any) -> str | None:
    """None, or what went wrong in a job."""
    try:
        return next((line for line in job.results() if line is not None), None)
    except Exception as error:  # submitit's own kinds: killed, out of time, a traceback
        lines = [line for line in str(error).splitlines() if line.strip()]
        return f"job {job.job_id}: {lines[0] if lines else type(error).__name__}; its logs are in {job.paths.folder}"
