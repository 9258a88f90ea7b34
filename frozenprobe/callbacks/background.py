"""Evaluation in another process, seen from training: snapshots in, outcomes out, never a wait and never an exception.

A process of its own, not a fork: it is started as `python -m frozenprobe.callbacks.worker`, needs no `__main__` guard in the training
script, and shares neither CUDA context nor locks with it. One thread here feeds it; where it dies, that evaluation
has failed and the next one gets a new process.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from torch import nn

from frozenprobe.callbacks.evaluation import Outcome
from frozenprobe.callbacks.snapshot import Snapshot, take
from frozenprobe.errors import RecordError
from frozenprobe.settings import CallbackSettings

LOG = "worker.log"
_POLL_SECONDS = 0.5
_NOT_INHERITED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Background:
    """A queue of snapshots in front of an evaluating process.

    Args:
        settings: The evaluation. `queue` snapshots may wait besides the one that is being measured.

    Raises:
        RecordError: There is no place for snapshots.
    """

    def __init__(self, settings: CallbackSettings) -> None:
        self._settings = settings
        try:
            self._folder = Path(tempfile.mkdtemp(prefix=".snapshots-", dir=settings.out))
        except OSError as error:
            raise RecordError(f"cannot write snapshots to {settings.out or tempfile.gettempdir()}: {error}") from None
        self._waiting: deque[tuple[Snapshot, bytes]] = deque()
        self._outcomes: deque[Outcome] = deque()
        self._tokenizer: tuple[Any, bytes] | None = None
        self._changed = threading.Condition()
        self._busy = self._closing = False
        self._worker = _Worker(settings, self._folder)
        self._thread = threading.Thread(target=self._feed, name="frozenprobe", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """The evaluating process, once there is one."""
        return self._worker.pid

    def submit(self, module: nn.Module, tokenizer: Any, step: int) -> str | None:
        """Takes a snapshot and queues it.

        Returns:
            What is not evaluated because the queue is full, in words; None where nothing is lost.

        Raises:
            EncoderError: The module cannot be sent to another process.
            OSError: The snapshot cannot be written.
        """
        full = len(self._waiting) >= self._settings.queue
        if full and self._settings.when_behind == "skip":
            return f"step {step} is not evaluated: {self._settings.queue} earlier still wait"
        if self._tokenizer is None or self._tokenizer[0] is not tokenizer:
            self._tokenizer = (tokenizer, pickle.dumps(tokenizer))
        snapshot = take(module, step, self._folder)
        with self._changed:
            merged = self._waiting.pop()[0] if len(self._waiting) >= self._settings.queue else None
            self._waiting.append((snapshot, self._tokenizer[1]))
            self._changed.notify_all()
        if merged is None:
            return None
        merged.delete()
        return f"step {merged.step} is not evaluated: step {step} took its place in the queue"

    def outcomes(self) -> list[Outcome]:
        """What has come back since the last call."""
        return [self._outcomes.popleft() for _ in range(len(self._outcomes))]

    def wait(self) -> None:
        """Returns when nothing waits and nothing is being measured."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._busy)

    def close(self) -> None:
        """Ends the process at once; what waits is dropped. After `wait` nothing is lost."""
        with self._changed:
            self._closing = True
            self._waiting.clear()
            self._changed.notify_all()
        self._worker.close()
        self._thread.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _feed(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if self._closing:
                    return
                snapshot, tokenizer = self._waiting.popleft()
                self._busy = True
            outcome = self._worker.evaluate(snapshot, tokenizer)
            snapshot.delete()
            with self._changed:
                self._outcomes.append(outcome)
                self._busy = False
                self._changed.notify_all()


class _Worker:
    """The process and its pipe; started when first needed, and again after a crash. `evaluate` is for one thread."""

    def __init__(self, settings: CallbackSettings, folder: Path) -> None:
        self._settings, self._folder = settings, folder
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._tokenizer: bytes | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def evaluate(self, snapshot: Snapshot, tokenizer: bytes) -> Outcome:
        """Sends a snapshot and waits for what comes of it."""
        try:
            process, connection = self._start()
            if tokenizer is not self._tokenizer:
                connection.send(tokenizer)
                self._tokenizer = tokenizer
            connection.send(snapshot)
            while not connection.poll(_POLL_SECONDS):
                # Not by the pipe's end alone: a process forked in training may hold the other end too.
                if process.poll() is not None and not connection.poll():
                    raise EOFError
            return connection.recv()
        except (EOFError, OSError) as error:
            return Outcome(snapshot.step, {}, 0.0, failure=self._bury(error))

    def close(self) -> None:
        """Kills the process; none is started any more."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()

    def _start(self) -> tuple[subprocess.Popen[bytes], Connection]:
        with self._lock:
            if self._closed:
                raise EOFError
            if self._process is not None and self._connection is not None:
                return self._process, self._connection
            ours, theirs = Pipe()
            threads = str(self._settings.threads)
            environment = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
            environment |= {"OMP_NUM_THREADS": threads, "RAYON_NUM_THREADS": threads}
            environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
            with theirs, open((self._settings.out or self._folder) / LOG, "ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "frozenprobe.callbacks.worker", str(theirs.fileno()), threads],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    start_new_session=True,  # Ctrl-C is for training; this process ends with the pipe
                )
            self._connection, self._tokenizer = ours, None
        ours.send((self._settings, self._folder))
        return self._process, ours

    def _bury(self, error: Exception) -> str:
        """Clears away a process that has died, or never lived; returns how it ended."""
        with self._lock:
            process, self._process = self._process, None
            if self._connection is not None:
                self._connection.close()
                self._connection = None
        if process is None:
            return f"the evaluating process cannot be started ({error})"
        process.kill()
        code = process.wait()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        where = "" if self._settings.out is None else f"; see {self._settings.out / LOG}"
        return f"the evaluating process {how}{where}"
