"""Many checkpoints in one command: a folder each, failures named, resumed; and the same as jobs of a stand-in for submitit."""

import os
import shutil
import signal
import subprocess
import sys
import time
import types
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest

from frozenprobe.cli.main import main
from frozenprobe.errors import DataError, SettingsError
from frozenprobe.records.reading import read_run
from frozenprobe.settings import SweepSettings, parse
from frozenprobe.suites import sweep as sweeping
from frozenprobe.suites.sweep import find_checkpoints, run_sweep
from tests.jobs import Job

QUICK = [
    "--suite",
    "builtin",
    "--tasks",
    "builtin-sentiment,builtin-acceptability",
    "--max-train",
    "50",
    "--draws",
    "1",
]
QUICK += ["--regimes", "10", "--bootstrap", "20", "--no-cache", "--tokens-per-batch", "2048"]


@pytest.fixture
def training(tiny_bert, tmp_path):
    """A training's folder with checkpoints of different weights."""
    from transformers import AutoModel, AutoTokenizer

    model, tokenizer = AutoModel.from_pretrained(tiny_bert), AutoTokenizer.from_pretrained(tiny_bert)
    for step in (9, 10, 100):
        folder = tmp_path / "runs" / "a" / f"step-{step}"
        model.embeddings.word_embeddings.weight.data += 0.1
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return tmp_path / "runs"


def sweep(*argv):
    with pytest.raises(SystemExit) as exit_:
        main(["sweep", *QUICK, *map(str, argv)])
    return exit_.value.code


def settings(training, **more):
    values = {
        "ckpts": str(training / "*" / "step-*"),
        "encoder": {"ckpt": "-"},
        "suite": "builtin",
        "tasks": "builtin-sentiment",
        "features": {"cache": False, "tokens_per_batch": 2048},
        "probes": {"max_train": 50, "regimes": "10", "draws": 1, "bootstrap": 20},
    }
    return parse(SweepSettings, values | more)


def test_one_folder_and_one_line_for_each_checkpoint_in_natural_order(training, tmp_path, capsys):
    out = tmp_path / "scores"
    assert sweep("--ckpts", training / "*" / "step-*", "--out", out) == 0
    output = capsys.readouterr()
    lines = [line for line in output.out.splitlines() if "step-" in line]
    assert [line.split("│")[1].strip() for line in lines[:3]] == ["a/step-9", "a/step-10", "a/step-100"]
    assert "linear, honest" in output.out
    assert "[2/3] a/step-10" in output.err
    table = pd.read_csv(out / "sweep.csv")
    assert list(dict.fromkeys(table["checkpoint"])) == ["a/step-9", "a/step-10", "a/step-100"]
    for name in ("a/step-9", "a/step-100"):
        run = read_run(out / name)
        assert run.name == name
        own = pd.read_csv(out / name / "summary.csv")
        of_sweep = table[table["checkpoint"] == name]
        assert of_sweep["B-Sent"].tolist() == own["B-Sent"].tolist()
        assert of_sweep["mean of 2"].tolist() == own["mean of 2"].tolist()


def test_the_data_is_read_once(training, tmp_path, monkeypatch):
    calls = []
    original = sweeping.read_tasks
    monkeypatch.setattr(sweeping, "read_tasks", lambda settings: calls.append(1) or original(settings))
    assert not run_sweep(settings(training), tmp_path / "scores").failed
    assert len(calls) == 1


def test_a_checkpoint_that_fails_is_named_and_the_others_go_on(training, tmp_path, capsys):
    (training / "a" / "step-10" / "model.safetensors").write_bytes(b"damaged")
    out = tmp_path / "scores"
    assert sweep("--ckpts", training / "*" / "step-*", "--out", out, "--quiet") == 2
    output = capsys.readouterr()
    assert output.err.count("\n") == 1
    assert "1 of 3 checkpoints failed (a/step-10)" in output.err
    assert "a/step-10 failed: " in output.out
    assert "weights file is damaged" in output.out
    assert set(pd.read_csv(out / "sweep.csv")["checkpoint"]) == {"a/step-9", "a/step-100"}


def test_data_at_fault_stops_the_sweep_at_once(training, tmp_path):
    with pytest.raises(DataError, match="colla"):
        run_sweep(settings(training, tasks="colla"), tmp_path / "scores")
    assert not (tmp_path / "scores").exists()


def test_a_second_sweep_computes_what_is_missing_and_keeps_what_is_gone(training, tmp_path):
    out = tmp_path / "scores"
    run_sweep(settings(training), out)
    files = {path: path.stat().st_mtime_ns for path in out.rglob("units/*")}
    shutil.rmtree(training / "a" / "step-9")  # a training drops its old checkpoints
    next((out / "a" / "step-100" / "units").iterdir()).unlink()
    again = run_sweep(settings(training), out)
    assert list(again.runs) == ["a/step-9", "a/step-10", "a/step-100"]
    now = {path: path.stat().st_mtime_ns for path in out.rglob("units/*")}
    assert set(now) == set(files)
    assert sum(now[path] != files[path] for path in files) == 1


@pytest.mark.slow
def test_a_killed_sweep_goes_on_where_it_was(training, tmp_path):
    out = tmp_path / "scores"
    command = [sys.executable, "-m", "frozenprobe", "sweep", *QUICK, "--ckpts", training / "*" / "step-*", "--out", out]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)
    while not list((out / "a" / "step-9").glob("units/*")):
        assert process.poll() is None, process.stderr.read().decode()
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = set(out.rglob("units/*.parquet"))
    assert sweep("--ckpts", training / "*" / "step-*", "--out", out) == 0
    after = set(out.rglob("units/*.parquet"))
    assert before <= after
    assert len(after) == 6


def test_names_that_would_collide_and_patterns_without_a_match_are_refused(training, tmp_path):
    shutil.copytree(training, tmp_path / "more")
    patterns = (f"{training}/*/step-*", f"{tmp_path / 'more'}/*/step-*")
    with pytest.raises(SettingsError, match="would both be called a/step-"):
        find_checkpoints(patterns)
    with pytest.raises(SettingsError, match="no folder matches"):
        find_checkpoints([f"{training}/*/nothing-*"])


def test_a_scheme_stands_before_each_checkpoint(training):
    found = find_checkpoints([f"hf:{training}/a/step-1*"])
    assert [(one.name, one.ckpt) for one in found] == [
        (name, f"hf:{training}/a/{name}") for name in ("step-10", "step-100")
    ]


def test_a_step_that_a_training_has_not_finished_is_named_and_left_out(training, tmp_path):
    shutil.rmtree(training / "a" / "step-9")
    for name in ("step-20", "step-30"):  # a training's own; its marker is written last
        (training / "b" / name / "state").mkdir(parents=True)
        (training / "b" / name / "COMPLETE").touch()
    (training / "b" / "step-30" / "COMPLETE").unlink()
    shutil.rmtree(training / "b" / "step-30" / "state")
    (training / "b" / "step-40" / "state").mkdir(parents=True)
    lines = []
    found = find_checkpoints([f"{training}/*/step-*"], lines.append)
    assert [one.name for one in found] == ["a/step-10", "a/step-100", "b/step-20"]
    (line,) = lines
    assert line.endswith("is writing): b/step-30, b/step-40")
    with pytest.raises(SettingsError, match=r"no checkpoint is complete \(step-40\)"):
        find_checkpoints([f"crossbert:{training}/b/step-4*"])
    told = []
    result = run_sweep(
        settings(training, ckpts=f"{training}/*/step-[134]0*"), tmp_path / "out", on_checkpoint=told.append
    )
    assert list(result.runs) == ["a/step-10", "a/step-100"]
    assert not result.failed
    assert "b/step-30, b/step-40" in told[0]


@pytest.fixture
def submitit(monkeypatch):
    """A stand-in for submitit: remembers what was asked for, and knows a job `7` of an earlier call that is running."""
    seen = types.SimpleNamespace(parameters=[], submitted=[], attached=[])

    class AutoExecutor:
        def __init__(self, folder, cluster):
            self.cluster = cluster

        def update_parameters(self, **parameters):
            seen.parameters.append((self.cluster, parameters))

        def batch(self):
            return pytest.MonkeyPatch.context()

        def submit(self, function, *arguments):
            seen.submitted.append(arguments)
            return Job(str(len(seen.submitted)), lambda: function(*arguments))

    class SlurmJob(Job):
        def __init__(self, folder, job_id, tasks):
            super().__init__(job_id, lambda: None)
            self.state = "RUNNING" if job_id == "7" else "COMPLETED"
            seen.attached.append(job_id)

    module = types.ModuleType("submitit")
    module.AutoExecutor, module.SlurmJob = AutoExecutor, SlurmJob
    module.helpers = types.SimpleNamespace(as_completed=lambda jobs, poll_frequency: iter(jobs))
    monkeypatch.setitem(sys.modules, "submitit", module)
    return seen


def test_a_job_for_each_checkpoint_on_slurm(training, tmp_path, submitit):
    (training / "a" / "step-10" / "config.json").write_text("no json")
    slurm = {"gpus": 1, "partition": "short", "account": "me", "minutes": 5, "cpus": 4}
    result = run_sweep(settings(training, launcher="slurm", slurm=slurm), tmp_path / "scores")
    assert list(result.runs) == ["a/step-9", "a/step-100"]
    assert list(result.failed) == ["a/step-10"]
    assert "valid JSON" in result.failed["a/step-10"]
    ((cluster, parameters),) = submitit.parameters
    assert cluster == "slurm"
    assert parameters["slurm_partition"] == "short"
    assert parameters["slurm_additional_parameters"] == {"account": "me"}
    assert (parameters["timeout_min"], parameters["gpus_per_node"], parameters["cpus_per_task"]) == (5, 1, 4)
    assert len(submitit.submitted) == 3


def test_a_job_that_is_still_running_is_not_submitted_again(training, tmp_path, submitit):
    register = tmp_path / "scores" / "jobs" / "jobs.json"
    register.parent.mkdir(parents=True)
    register.write_text('{"a/step-9": "7", "a/step-10": "3"}')
    result = run_sweep(settings(training, launcher="slurm"), tmp_path / "scores")
    assert submitit.attached == ["7", "3"]
    assert len(submitit.submitted) == 2
    assert list(result.runs) == ["a/step-10", "a/step-100"]


def test_a_lost_job_is_named(training, tmp_path, submitit, monkeypatch):
    def killed(*_):
        raise RuntimeError("Job 1 has not produced any output (state: OUT_OF_MEMORY)\nmore")

    monkeypatch.setattr(sweeping, "run_glue", killed)
    monkeypatch.setattr(Job, "results", killed)
    result = run_sweep(settings(training, launcher="slurm"), tmp_path / "scores")
    assert result.failed["a/step-9"].startswith("job 1: Job 1 has not produced any output (state: OUT_OF_MEMORY)")


def test_without_submitit_one_line_says_what_to_install(training, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(SettingsError, match=r"pip install 'frozenprobe\[slurm\]'"):
        run_sweep(settings(training, launcher="slurm"), tmp_path / "scores")


@pytest.mark.skipif(find_spec("submitit") is None, reason="submitit is not installed")
def test_submitits_own_local_executor(training, tmp_path):
    slurm = {"gpus": 0, "minutes": 5}
    result = run_sweep(settings(training, launcher="submitit-local", slurm=slurm), tmp_path / "scores")
    assert len(result.runs) == 3
    assert not result.failed
