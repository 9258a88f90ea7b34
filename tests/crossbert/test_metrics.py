"""The metrics file outlives kills, and trackers get the same numbers."""

import sys
import types

import pytest
import torch

from crossbert.metrics import MetricsLog, measured_peak, read_metrics
from crossbert.train import train
from frozenprobe.errors import RecordError, SettingsError


def test_what_lies_beyond_the_checkpoint_is_dropped_and_a_torn_line_too(tmp_path):
    log = MetricsLog(tmp_path, 0, (), {})
    for step in range(1, 6):
        log.write(step, {"loss": 1 / step})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "lo')
    MetricsLog(tmp_path, 3, (), {}).write(4, {"loss": 9.0})
    assert list(read_metrics(tmp_path)) == [
        {"step": 1, "loss": 1.0},
        {"step": 2, "loss": 0.5},
        {"step": 3, "loss": 1 / 3},
        {"step": 4, "loss": 9.0},
    ]


def test_lines_that_are_none_of_ours_are_passed_over(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'5\n\xff\xfe\n[]\n{"loss": 1}\n{"step": 3, "loss": 2.0}\n')
    assert list(read_metrics(tmp_path)) == [{"step": 3, "loss": 2.0}]


def test_a_full_disk_is_one_line(tmp_path):
    log = MetricsLog(tmp_path, 0, (), {})
    (tmp_path / "metrics.jsonl").unlink()
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(RecordError, match="cannot write"):
        log.write(1, {})


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
def test_a_tracker_that_is_not_installed_is_one_line(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SettingsError, match=rf"pip install 'frozenprobe\[{name}\]'"):
        MetricsLog(tmp_path, 0, (name,), {})


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_tracker_gets_every_number_of_every_step(name, tiny, tmp_path, monkeypatch):
    calls = []
    fake = types.ModuleType(name)
    fake.init = lambda **options: calls.append(("init", options))
    fake.log = lambda row, step: calls.append((step, row))
    fake.finish = lambda: calls.append(("finish", None))
    monkeypatch.setitem(sys.modules, name, fake)
    train(tiny(f"system.trackers={name}"), tmp_path / "run")
    assert calls[0][1]["name"] == "run"
    assert calls[0][1]["config"]["data"]["batch"] == 8
    assert calls[-1] == ("finish", None)
    rows = [{"step": step, **row} for step, row in calls[1:-1]]
    assert rows == list(read_metrics(tmp_path / "run"))


def test_tensorboard_gets_every_number_of_every_step(tiny, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(tiny("system.trackers=tensorboard"), tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    seen = {event.step: event.value for event in events.Scalars("loss")}
    logged = {row["step"]: row["loss"] for row in read_metrics(tmp_path / "run") if "loss" in row}
    assert seen == pytest.approx(logged)


def test_the_peak_of_the_machine_is_measured():
    peak = measured_peak(torch.device("cpu"), torch.float32, seconds=0.05)
    assert 1e8 < peak < 1e15
