"""Freed memory is kept in a process that trains on a CPU."""

import subprocess
import sys

import pytest

from crossbert.memory import keep_freed_memory

PROGRAM = """
import resource, torch
from crossbert.memory import keep_freed_memory
if {keep}:
    assert keep_freed_memory()
def touch():
    torch.ones(16 * 2**20)  # 64 MiB, freed at once
for _ in range(20):
    touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    touch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(keep):
    program = PROGRAM.format(keep=keep)
    return int(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the C library is not glibc")
def test_a_tensor_takes_the_memory_of_the_one_before():
    assert 10 * page_faults(True) < page_faults(False)


def test_elsewhere_it_says_that_it_can_do_nothing(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not keep_freed_memory()
