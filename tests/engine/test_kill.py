"""SIGKILL at random moments of a run, then the same command again: nothing lost, nothing double, the same record."""

import json
import random
import subprocess
import sys
import time

import pytest

from frozenprobe.records.reading import read_run

OPTIONS = [
    "--suite",
    "builtin",
    "--max-train",
    "400",
    "--tokens-per-batch",
    "2048",
    "--draws",
    "2",
    "--quiet",
    "--no-cache",
]


def start(model, out):
    command = [sys.executable, "-m", "frozenprobe.cli.main", "glue", "--ckpt", str(model), "--out", str(out), *OPTIONS]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def record(out):
    return sorted(json.dumps(row, sort_keys=True) for unit in read_run(out).units for row in unit.rows)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_twenty_kills_at_random_moments_lose_and_double_nothing(tiny_bert, tmp_path):
    started = time.perf_counter()
    assert start(tiny_bert, tmp_path / "whole").wait() == 0
    whole = time.perf_counter() - started
    expected = record(tmp_path / "whole")
    dice = random.Random(0)
    kills = 0
    attempt = 0
    while kills < 20:
        attempt += 1
        out = tmp_path / f"killed-{attempt}"
        while True:  # kill the same run again and again until it gets through
            begun = time.perf_counter()
            process = start(tiny_bert, out)
            try:
                code = process.wait(timeout=dice.uniform(0.3, 1.1) * whole)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                kills += 1
                whole *= 1.1  # the machine may have become slower: it must get through in the end
                continue
            whole = time.perf_counter() - begun  # or quicker: it must be killed now and then
            assert code == 0, process.stderr.read().decode()
            break
        assert record(out) == expected
        files = [file.name for file in out.glob("units/*")]
        assert len(files) == len(read_run(out).units)
