"""Files that are there wholly or not at all and can be told from damaged ones, and folders that one process at a time writes to."""

from __future__ import annotations

import fcntl
import os
import uuid
import zlib
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from frozenprobe.errors import RecordError

TEMPORARY = ".writing-"  # how the names of unfinished files begin


def write_whole(path: Path, *parts: bytes | memoryview, replace: bool = True, durable: bool = False) -> bool:
    """Writes a file under a temporary name beside it and renames it, so that nobody ever sees a part of it.

    Args:
        path: The file, in a folder that is there.
        *parts: What it is to hold, one after the other.
        replace: Take the place of a file that is there already.
        durable: Return when it is on the disk, so that a loss of power leaves it whole too.

    Returns:
        Whether it was written.

    Raises:
        OSError: The folder cannot be written or the disk is full; nothing is left behind.
    """
    temporary = path.with_name(f"{TEMPORARY}{uuid.uuid4().hex}")
    try:
        with temporary.open("wb") as file:
            for part in parts:
                file.write(part)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        if replace:
            os.replace(temporary, path)
        return replace or _put_new(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _put_new(temporary: Path, path: Path) -> bool:
    """Gives a file its name unless another has it already."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links; there, two steps must do
        if path.exists():
            return False
        os.replace(temporary, path)
    return True


def write_atomically(path: Path, *parts: bytes | memoryview, replace: bool = True) -> bool:
    """The same for results: makes the folder, waits for the disk, and says in one line what is wrong.

    Raises:
        RecordError: The disk is full or the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return write_whole(path, *parts, replace=replace, durable=True)
    except OSError as error:
        raise RecordError(f"cannot write {path}: {error.strerror or error}") from error


def checksum(path: Path) -> int:
    """CRC-32 of a file's bytes.

    Raises:
        OSError: It cannot be read.
    """
    found = 0
    with path.open("rb") as file:
        while block := file.read(1 << 24):
            found = zlib.crc32(block, found)
    return found


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


@contextmanager
def by_turns(folder: Path) -> Generator[None]:
    """Waits until no other process is in such a block of the folder; on a file system without locks nobody waits.

    Raises:
        OSError: The folder cannot be opened.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
