"""What a run writes down while it goes on: `metrics.jsonl` always, trackers where they are asked for."""

from __future__ import annotations

import hashlib
import json
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import torch

from crossbert.scaling import exact_flops, positions_per_sequence
from crossbert.settings import TrainSettings
from frozenprobe.errors import RecordError, SettingsError
from frozenprobe.files import write_atomically

Row = dict[str, Any]


class Tracker(Protocol):
    """Somewhere metrics go besides the file."""

    def log(self, step: int, row: Row) -> None:
        """Takes the numbers of a step."""
        ...

    def close(self) -> None:
        """The run is over."""
        ...


class _TensorBoard:
    def __init__(self, run: Path, first_step: int, settings: Row) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run / "tensorboard"), purge_step=first_step + 1)

    def log(self, step: int, row: Row) -> None:
        """See `Tracker`."""
        for name, value in row.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """See `Tracker`."""
        self._writer.close()


class _Hosted:
    """wandb, or trackio, which has the same interface."""

    def __init__(self, package: str, run: Path, settings: Row) -> None:
        module = import_module(package)
        # The same folder is the same run, also when it goes on.
        place = hashlib.sha256(str(run.resolve()).encode()).hexdigest()[:12]
        more = {"dir": str(run), "id": f"{run.name}-{place}"} if package == "wandb" else {}
        self._run = module.init(project="crossbert", name=run.name, config=settings, resume="allow", **more)
        self._module = module

    def log(self, step: int, row: Row) -> None:
        """See `Tracker`."""
        self._module.log(row, step=step)

    def close(self) -> None:
        """See `Tracker`."""
        self._module.finish()


def require_trackers(names: Sequence[str]) -> None:
    """Checks that trackers are installed.

    Raises:
        SettingsError: One is not.
    """
    for name in names:
        try:
            import_module(name)
        except ImportError:
            raise _not_installed(name) from None


def _not_installed(name: str) -> SettingsError:
    return SettingsError(f"system.trackers: {name} is not installed; pip install 'frozenprobe[{name}]'")


def _tracker(name: str, run: Path, first_step: int, settings: Row) -> Tracker:
    try:
        return _TensorBoard(run, first_step, settings) if name == "tensorboard" else _Hosted(name, run, settings)
    except ImportError:
        raise _not_installed(name) from None


class MetricsLog:
    """`metrics.jsonl` and the trackers of one run."""

    def __init__(self, run: Path, first_step: int, trackers: Sequence[str], settings: Row) -> None:
        """Opens the file behind the step that the run goes on from; what a killed run wrote beyond it is dropped.

        Raises:
            RecordError: It cannot be written.
            SettingsError: A tracker is not installed.
        """
        self._path = run / "metrics.jsonl"
        kept = [row for row in read_metrics(run) if row["step"] <= first_step]
        write_atomically(self._path, "".join(json.dumps(row) + "\n" for row in kept).encode())
        self._trackers = [_tracker(name, run, first_step, settings) for name in trackers]

    def write(self, step: int, row: Row) -> None:
        """Adds a line.

        Raises:
            RecordError: The disk is full.
        """
        try:
            with self._path.open("a") as file:
                file.write(json.dumps({"step": step, **row}) + "\n")
        except OSError as error:
            raise RecordError(f"cannot write {self._path}: {error.strerror or error}") from error
        numbers = {name: value for name, value in row.items() if isinstance(value, (int, float))}
        for tracker in self._trackers:
            tracker.log(step, numbers)

    def close(self) -> None:
        """Closes the trackers."""
        for tracker in self._trackers:
            tracker.close()


def read_metrics(run: Path) -> Iterator[Row]:
    """The lines of a run's metrics; one that a kill cut short, or that is none of ours, is passed over."""
    path = run / "metrics.jsonl"
    for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            yield row


class Speed:
    """Rates of a step."""

    def __init__(self, settings: TrainSettings, peak: float) -> None:
        """Takes the run's settings and what all its devices reach together, in FLOP/s."""
        model = settings.model
        self._tokens = settings.data.batch * model.sequence_length
        self._positions = settings.data.batch * positions_per_sequence(model)
        self._flops = settings.data.batch * exact_flops(model)
        self._peak = peak
        self.start()

    def start(self) -> None:
        """A step begins."""
        self._started = time.perf_counter()

    def stop(self, waited: float) -> Row:
        """A step is over; its data was waited for so many seconds."""
        seconds = time.perf_counter() - self._started
        return {
            "step_seconds": seconds,
            "positions_per_second": self._positions / seconds,
            "unique_tokens_per_second": self._tokens / seconds,
            "mfu": self._flops / seconds / self._peak,
            "data_share": min(waited / seconds, 1.0),
        }


def memory_bytes(device: torch.device) -> int:
    """The most memory that this process has held: on the GPU, or resident on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def measured_peak(device: torch.device, dtype: torch.dtype, seconds: float = 0.3) -> float:
    """FLOP/s that `torch.matmul` reaches on a large square product: the best of what fits into so many seconds."""
    size = 8192 if device.type == "cuda" else 1024
    left, right = (torch.ones(size, size, device=device, dtype=dtype) for _ in range(2))

    def once() -> float:
        started = time.perf_counter()
        torch.matmul(left, right)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - started

    once()
    end = time.perf_counter() + seconds
    best = once()
    while time.perf_counter() < end:
        best = min(best, once())
    return 2 * size**3 / best


def graphs() -> int:
    """Graphs that torch.compile has made in this process so far."""
    dynamo = sys.modules.get("torch._dynamo.utils")  # not imported before something is compiled: that takes seconds
    return 0 if dynamo is None else dynamo.counters["stats"]["unique_graphs"]
