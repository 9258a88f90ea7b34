"""A folder that one process at a time writes to."""

from __future__ import annotations

import fcntl
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from frozenprobe.errors import RecordError


@contextmanager
def sole_writer(folder: Path) -> Generator[None]:
    """Holds a folder for this process, which makes it where it is not there; a kill releases it.

    On a file system without locks nobody is kept out.

    Raises:
        RecordError: Another process writes there, or the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise RecordError(f"cannot write {folder}: {error.strerror or error}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RecordError(f"another process is writing to {folder}; wait for it, or choose another --out") from None
        except OSError:  # a file system without locks
            pass
        yield
