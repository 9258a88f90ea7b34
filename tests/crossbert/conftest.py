"""Prepared data, a tiny run, and a way to start it in processes of its own."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import crossbert

TINY = """
steps = 20
dtype = "fp32"

[model]
width = 32
layers = 2
heads = 2
sequence_length = 32

[data]
folder = "{data}"
batch = 8

[optimiser]
learning_rate = 1e-2
warmup_steps = 4

[system]
compile = false
peak_tflops = 0.1
validate_every = 10
validation_sequences = 16
checkpoint_every = 10
"""


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory) -> Path:
    """Prepared built-in text with a vocabulary that two ranks cannot share evenly."""
    from crossbert.prepare import prepare
    from crossbert.settings import PrepareSettings

    out = tmp_path_factory.mktemp("prepared") / "builtin"
    prepare(PrepareSettings(builtin=150, train_tokenizer=401, validation_share=0.1), out)
    return out


@pytest.fixture(scope="session")
def tiny_config(tiny_data, tmp_path_factory) -> Path:
    """The settings of a run of 20 steps that takes less than a second."""
    path = tmp_path_factory.mktemp("config") / "tiny.toml"
    path.write_text(TINY.format(data=tiny_data))
    return path


@pytest.fixture
def tiny(tiny_config):
    """Reads the tiny run's settings, with changes."""
    from crossbert.recipes import read_recipe

    return lambda *assignments: read_recipe(tiny_config, assignments)


@pytest.fixture
def processes(tiny_config):
    """Runs `worker.py` as so many ranks; returns their exit codes."""

    def start(out, *assignments, ranks=1, die_at=0):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        environment = {
            **os.environ,
            "PYTHONPATH": str(Path(crossbert.__file__).parent.parent),
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        command = [sys.executable, str(Path(__file__).parent / "worker.py"), str(tiny_config), str(out), str(die_at)]
        started = [
            subprocess.Popen([*command, *assignments], env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in range(ranks)
        ]
        return [process.wait(timeout=120) for process in started]

    return start
