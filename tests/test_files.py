import errno
import fcntl
import os
import subprocess
import sys

import pytest

from frozenprobe.errors import RecordError
from frozenprobe.files import sole_writer, write_atomically

HOLD = "import sys; from pathlib import Path; from frozenprobe.files import sole_writer\n"
HOLD += "with sole_writer(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"


def test_a_folder_has_one_writer_and_a_kill_releases_it(tmp_path):
    folder = tmp_path / "new" / "run"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(RecordError, match=r"another process is writing to .*run; wait for it"), sole_writer(folder):
            pytest.fail("two hold it")
        other.kill()
    with sole_writer(folder):
        pass
    with sole_writer(folder):
        pass


def test_a_file_system_without_locks_keeps_nobody_out(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with sole_writer(tmp_path):
        assert (tmp_path / ".lock").exists()


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match=r"cannot write .*: Not a directory"), sole_writer(tmp_path / "file" / "run"):
        pytest.fail("there is no such folder")


def test_a_write_that_fails_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "manifest.json"
    write_atomically(path, b"old")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(5, "I/O error")))
    with pytest.raises(RecordError, match=r"cannot write .*manifest.json: I/O error"):
        write_atomically(path, b"n", b"ew")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["manifest.json"]
