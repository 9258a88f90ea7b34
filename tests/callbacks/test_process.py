"""Evaluation in a separate process: the same scores, a bounded queue, and a crash that training survives."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
import torch
from torch import nn

import frozenprobe
from frozenprobe.callbacks import Probe
from frozenprobe.callbacks.background import Background
from frozenprobe.callbacks.evaluation import Outcome
from frozenprobe.callbacks.snapshot import take
from frozenprobe.encoders.module import ModuleEncoder, bare_encoder
from frozenprobe.errors import EncoderError, EvaluationError
from frozenprobe.settings import CallbackSettings
from tests.callbacks.conftest import FAST, assert_same, make_model, train
from tests.encoders import tiny

PROCESS = FAST | {"mode": "process"}


def without_seconds(scores):
    return {name: value for name, value in scores.items() if name != "frozen_seconds"}


def test_scores_and_losses_are_those_of_blocking_mode_and_of_no_probe(tmp_path, probe_log):
    blocking = []
    with Probe(**FAST, every=3, log=lambda *entry: blocking.append(entry)) as probe:
        first = train(probe)
    with Probe(**PROCESS, every=3, queue=4, log=probe_log.write, out=tmp_path / "frozen") as probe:
        second = train(probe)
    assert_same(first, train())
    assert_same(first, second)
    assert [step for step, _ in probe_log.entries] == [3, 6]
    for (_, one), (_, other) in zip(blocking, probe_log.entries, strict=True):
        assert without_seconds(one) == without_seconds(other)
    assert frozenprobe.read_run(tmp_path / "frozen/step-00000006").name == "model step 6"
    assert not list((tmp_path / "frozen").glob(".snapshots-*"))


def test_a_killed_process_costs_one_evaluation_and_one_line(tmp_path, caplog, probe_log):
    model, tokenizer = make_model(), tiny.wordpiece()
    with Probe(**PROCESS, log=probe_log.write, at_end=False, out=tmp_path / "frozen") as probe:
        probe(model, tokenizer, step=1)
        while probe._background.pid is None:
            time.sleep(0.01)
        first = probe._background.pid
        os.kill(first, signal.SIGKILL)
        probe.wait()
        assert caplog.messages == [
            "frozenprobe: evaluation at step 1 failed: the evaluating process was killed by SIGKILL; see "
            f"{tmp_path}/frozen/worker.log; training goes on"
        ]
        probe(model, tokenizer, step=2)
        probe.wait()
        assert probe._background.pid != first
    assert [step for step, _ in probe_log.entries] == [2]
    assert len(caplog.messages) == 1


def test_a_failure_in_the_process_stops_training_where_asked(monkeypatch):
    probe = Probe(**PROCESS, on_failure="stop", part="bert")
    monkeypatch.setattr(Background, "submit", lambda *_: None)
    probe(make_model(), tiny.wordpiece(), step=1)
    probe._background._outcomes.append(Outcome.failed(1, OSError("no\nspace"), 0.0))
    with pytest.raises(EvaluationError, match="evaluation at step 1 failed: OSError: no space"):
        probe(make_model(), tiny.wordpiece(), step=2)
    probe.abort()


TRAINING = """
import sys, time
from frozenprobe.callbacks import Probe
from tests.callbacks.conftest import FAST, make_model
from tests.encoders import tiny
probe = Probe(**FAST, mode="process", queue=3, out=sys.argv[1])
model, tokenizer = make_model(), tiny.wordpiece()
for step in (1, 2, 3):
    probe(model, tokenizer, step=step)
while probe._background.pid is None:
    time.sleep(0.01)
print(probe._background.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_a_killed_training_leaves_no_process_and_no_snapshots_behind(tmp_path):
    out = tmp_path / "frozen"
    training = subprocess.Popen([sys.executable, "-c", TRAINING, str(out)], stdout=subprocess.PIPE, text=True)
    worker = psutil.Process(int(training.stdout.readline()))
    assert len(list(out.glob(".snapshots-*/*"))) == 3
    training.kill()
    training.wait()
    worker.wait(timeout=120)  # the evaluation under way is finished first
    assert not list(out.glob(".snapshots-*"))


class Slow:
    """Stands for the process: an evaluation lasts until it is let go."""

    pid = 0

    def __init__(self, monkeypatch):
        self.measured = []
        self.may_go = False
        monkeypatch.setattr("frozenprobe.callbacks.background._Worker", lambda settings, folder: self)

    def evaluate(self, snapshot, tokenizer):
        self.measured.append(snapshot.step)
        while not self.may_go:
            time.sleep(0.001)
        assert snapshot.tensors.exists()
        return Outcome(snapshot.step, {}, 0.0)

    def close(self):
        self.may_go = True


@pytest.mark.parametrize(
    ("policy", "measured", "lines"),
    [
        (
            "skip",
            [1, 2, 3],
            ["step 4 is not evaluated: 2 earlier still wait", "step 5 is not evaluated: 2 earlier still wait"],
        ),
        (
            "merge",
            [1, 2, 5],
            [
                "step 3 is not evaluated: step 4 took its place in the queue",
                "step 4 is not evaluated: step 5 took its place in the queue",
            ],
        ),
    ],
)
def test_a_full_queue_skips_or_merges(monkeypatch, policy, measured, lines, tmp_path):
    slow = Slow(monkeypatch)
    background = Background(CallbackSettings(mode="process", queue=2, when_behind=policy, out=tmp_path))
    model = nn.Linear(2, 2)
    assert background.submit(model, None, 1) is None
    while not slow.measured:
        time.sleep(0.001)
    said = [background.submit(model, None, step) for step in (2, 3, 4, 5)]
    assert [line for line in said if line] == lines
    assert len(list(tmp_path.glob(".snapshots-*/*.safetensors"))) == 3  # the queue bounds the disk, too
    slow.may_go = True
    background.wait()
    assert slow.measured == measured
    assert [outcome.step for outcome in background.outcomes()] == measured
    background.close()
    assert not list(tmp_path.glob(".snapshots-*"))


# Snapshots


@pytest.mark.parametrize("name", [*tiny.ARCHITECTURES])
def test_a_snapshot_gives_the_same_hidden_states(name, tmp_path):
    model, tokenizer = tiny.make(name)
    module = bare_encoder(model)[0]
    before = {key: value.clone() for key, value in module.state_dict().items()}
    snapshot = pickle.loads(pickle.dumps(take(module, 1, tmp_path)))
    with torch.no_grad():
        for weight in module.parameters():
            weight.zero_()  # training goes on at once
    again = snapshot.load("cpu")
    assert all(torch.equal(value, before[key]) for key, value in again.state_dict().items())
    module.load_state_dict(before)

    def vectors(model):
        encoder = ModuleEncoder(model, tokenizer, name="x")
        batch = encoder.collate(encoder.tokenize(["a fox", "the fox jumps"]), np.arange(2))
        kept = []
        encoder.forward(batch, ("last",), lambda _, hidden: kept.append(hidden.clone()))
        return kept[0]

    assert torch.equal(vectors(module), vectors(again))
    snapshot.delete()
    assert not list(tmp_path.iterdir())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(3, 3)
        self.two = nn.Linear(3, 3)
        self.two.weight = self.one.weight
        self.register_buffer("view", torch.arange(6.0).reshape(2, 3).T)
        self.table = torch.ones(4)[:2]  # neither parameter nor buffer


def test_ties_views_and_mixed_precision_wrappers_survive(tmp_path):
    net = Net()
    net._original_forward = net.forward  # what accelerate does
    net.forward = lambda *_: None
    again = take(net, 1, tmp_path).load("cpu")
    assert again.two.weight is again.one.weight
    assert torch.equal(again.view, net.view)
    assert torch.equal(again.table, torch.ones(2))
    assert "forward" not in vars(again)
    assert "forward" in vars(net)


def test_what_cannot_be_sent_is_one_line(tmp_path, caplog):
    class Local(nn.Linear):
        pass

    with pytest.raises(EncoderError, match="Local cannot be sent to another process"):
        take(Local(2, 2), 1, tmp_path)
    Local.__module__ = "__main__"
    with pytest.raises(EncoderError, match="Local is defined in the script itself: move it into a module"):
        take(Local(2, 2), 1, tmp_path)
    with Probe(**PROCESS, at_end=False) as probe:
        assert probe(Local(2, 2), tiny.wordpiece(), step=1) == {}
    assert len(caplog.messages) == 1
    assert "move it into a module" in caplog.messages[0]


def test_a_snapshot_that_does_not_fit_on_the_disk_leaves_nothing_and_is_one_line(monkeypatch, tmp_path, caplog):
    def full(tensors, path):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("frozenprobe.callbacks.snapshot.save_file", full)
    with Probe(**PROCESS, at_end=False, out=tmp_path / "frozen") as probe:
        assert probe(make_model(), tiny.wordpiece(), step=1) == {}
        assert not list(tmp_path.glob("frozen/.snapshots-*/*"))
    (line,) = caplog.messages
    assert line == (
        "frozenprobe: evaluation at step 1 failed: OSError: [Errno 28] No space left on device; training goes on"
    )
