"""A sweep: a folder for each run, resumed, failures named, jobs through a stand-in for submitit or the real one."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pandas as pd
import pytest

import crossbert
from crossbert.cli import main
from crossbert.fit import read_sweep
from crossbert.reading import find_checkpoint
from crossbert.scaling import paper_flops
from crossbert.settings import SlurmSettings
from crossbert.swept import differently_probed, read_sweeps, size
from frozenprobe.engine.cluster import run_jobs
from frozenprobe.files import sole_writer
from frozenprobe.records.reading import read_run
from tests.jobs import Job

SHORT = ["steps=4", "optimiser.warmup_steps=1", "system.checkpoint_every=2"]
PROBE = ["suite=builtin", "tasks=builtin-sentiment", "features.cache=false", "features.tokens_per_batch=2048"]
PROBE += ["probes.max_train=50", "probes.draws=1", "probes.regimes=[10]", "probes.bootstrap=20"]


def sweep(*argv):
    with pytest.raises(SystemExit) as exit_:
        main(["sweep", *map(str, argv)])
    return exit_.value.code


@pytest.fixture
def command(tiny_config, tmp_path):
    """A sweep of two masking ratios, and where it goes."""
    out = tmp_path / "sweep"
    return out, ["--config", tiny_config, "--set", *SHORT, "model.mask_ratio=0.25,0.5", "--probe", *PROBE, "--out", out]


def without_probe(words):
    return [*words[: words.index("--probe")], *words[words.index("--out") :], "--checkpoints", "none"]


def files(out):
    return {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file() and path.name != ".lock"}


def test_a_sweep_trains_probes_and_leaves_records(command, capsys):
    out, words = command
    assert sweep(*words) == 0
    printed = capsys.readouterr()
    assert "[1/2] mask_ratio=0.25" in printed.err
    assert "CrossBERT 2 x 32 + 1 x 32" in printed.out
    runs = read_sweeps([out])
    assert [(run.name, run.axes) for run in runs] == [
        (f"mask_ratio={ratio}", {"model.mask_ratio": ratio}) for ratio in ("0.25", "0.5")
    ]
    for run in runs:
        assert run.is_finished
        assert [probe.step for probe in run.probes] == [2, 4]
        assert [row["step"] for row in run.validations] == [4]
        assert find_checkpoint(run.folder / "train").name == "step-4"
        assert run.flops() == 4 * 8 * paper_flops(run.model)
        assert run.flops(2) == run.flops() / 2
    table = pd.read_csv(out / "sweep.csv", float_precision="round_trip")
    assert table["model"].tolist() == [size(run.model) for run in runs]
    assert table["loss"].tolist() == [run.validations[-1]["validation_loss"] for run in runs]
    scores = read_run(runs[1].probe_folders[-1]).scores()
    honest = scores[scores.is_headline & (scores.probe == "ridge") & (scores.protocol == "honest")]
    assert table["ridge_honest"][1] == honest["value"].item()
    assert len(read_sweep(out / "sweep.csv")) == 2  # what `crossbert fit` reads


def test_what_is_finished_is_not_done_again(command, capsys):
    out, words = command
    assert sweep(*words, "--quiet") == 0
    before = files(out)
    shutil.rmtree(out / "mask_ratio=0.5" / "probes" / "step-4")
    (out / "mask_ratio=0.5" / "result.json").unlink()
    assert sweep(*words) == 0
    assert "1 of 2 runs were finished before" in capsys.readouterr().err
    after = files(out)
    assert set(after) >= {path for path in before if path.suffix != ".parquet"}
    assert all(after[path] == before[path] for path in before if "mask_ratio=0.25" in str(path))
    assert len(read_sweeps([out])[1].probes) == 2
    assert sweep(*words, "--probe", "probes.max_train=40", "--quiet") == 2  # other records than those that are there
    told = capsys.readouterr().err
    assert "2 of 2 runs failed" in told
    probes = out / "mask_ratio=0.5" / "probes"
    assert f"; choose another --out, or delete {probes}" in told
    assert "--overwrite" not in told  # which a sweep does not have


def test_checkpoints_that_were_not_kept_are_told(command, capsys):
    words = command[1]
    words[words.index("system.checkpoint_every=2")] = "system.checkpoint_every=1"
    assert sweep(*without_probe(words), "--quiet") == 0
    assert capsys.readouterr().err == ""
    assert sweep(*words) == 0
    told = capsys.readouterr().err
    for ratio in ("0.25", "0.5"):
        assert f"mask_ratio={ratio}: 2 of its checkpoints were not kept when it was trained, and are not probed" in told


def test_runs_that_were_probed_otherwise_are_named_below_the_table(tiny_config, tmp_path, capsys):
    out = tmp_path / "sweep"
    for ratio, rows in (("0.25", 50), ("0.5", 40)):
        file = tmp_path / "axes.toml"
        file.write_text(f'checkpoints = "last"\naxes.model.mask_ratio = [{ratio}]\n')
        probe = ["--probe", *PROBE, f"probes.max_train={rows}"]
        assert sweep(file, "--config", tiny_config, "--set", *SHORT, *probe, "--out", out, "--quiet") == 0
        told = capsys.readouterr().out.splitlines()[-1]
    assert told == "not measured alike: train rows 50 (mask_ratio=0.25), 40 (mask_ratio=0.5)"


def test_other_tasks_and_settings_of_knn_are_named_too(tiny_config, tmp_path, capsys):
    out = tmp_path / "sweep"
    more = ["tasks=builtin-sentiment,builtin-paraphrase", "probes.knn.distances=l2"]
    for rate, probe in (("1e-3", []), ("2e-3", more)):
        axes = ["--set", *SHORT, f"optimiser.learning_rate={rate}", "seed=1,2"]
        words = ["--config", tiny_config, *axes, "--probe", *PROBE, *probe]
        assert sweep(*words, "--out", out / rate, "--checkpoints", "last", "--quiet") == 0
        assert "not measured alike" not in capsys.readouterr().out
    (told,) = differently_probed(read_sweeps([out]))
    assert "tasks B-Sent (seed=1, seed=2), B-Para + B-Sent (seed=1, seed=2)" in told
    assert "knn distances" in told


def test_a_run_that_fails_is_named_and_the_others_go_on(command, capsys):
    out, words = command
    (out / "mask_ratio=0.25").mkdir(parents=True)
    (out / "mask_ratio=0.25" / "thesis.txt").write_text("mine")
    assert sweep(*words, "--quiet") == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert "1 of 2 runs failed" in printed.err
    assert "mask_ratio=0.25: " in printed.err
    assert "holds other files" in printed.err
    assert [run.name for run in read_sweeps([out])] == ["mask_ratio=0.5"]
    assert (out / "mask_ratio=0.25" / "thesis.txt").read_text() == "mine"
    assert "mask_ratio=0.5" in printed.out


def test_one_sweep_at_a_time_in_a_folder(command, submitit, capsys):
    out, words = command
    words = without_probe(words)
    with sole_writer(out):
        for launcher in ("local", "submitit-local"):
            assert sweep(*words, "--launcher", launcher) == 2
            printed = capsys.readouterr()
            assert printed.err.startswith(f"crossbert: another process is writing to {out}; ")
            assert printed.err.count("\n") == 1
            assert read_sweeps([out]) == []
        assert sweep(*words, "--launcher", "slurm", "--slurm", "gpus=0") == 0  # awaits the same jobs
    assert sweep(*words) == 0


@pytest.mark.slow
def test_a_killed_sweep_goes_on_where_it_was(command):
    out, words = command
    code = "from crossbert.cli import main; main()"
    environment = os.environ | {"PYTHONPATH": str(Path(crossbert.__file__).parent.parent), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", code, "sweep", *map(str, words)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    while not (out / "mask_ratio=0.25" / "train" / "step-2" / "COMPLETE").exists():
        assert process.poll() is None, process.stderr.read().decode()
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stderr.close()
    assert sweep(*words, "--quiet") == 0
    runs = read_sweeps([out])
    assert all(run.is_finished for run in runs)
    steps = [row["step"] for row in runs[0].metrics if "learning_rate" in row]
    assert steps == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nonsense"], "nonsense is no study (table1, "),
        (["table2", "--set", "model.mask_ratio=0.3"], "table2 decides model.mask_ratio"),
        (["--set", "model.mask_ratio=0.5,1.5"], "mask_ratio=1.5: model.mask_ratio"),
        (["--set", "system.keep=3"], "system.keep"),
        (["--probe", "encoder.ckpt=x"], "a sweep's own checkpoints are probed"),
        (["--probe", "probes.draws=0"], "probes.draws"),
        (["--probe", "suite=builtin", "tasks=nonsense"], "nonsense"),
        (["--probe", "probes.draws=2", "--checkpoints", "none"], "--probe: nothing is probed with --checkpoints none"),
        (["--slurm", "queue=x"], "unknown setting slurm.queue"),
        (["--checkpoints", "best"], "checkpoints: "),
        (["--launcher", "slurm", "--checkpoints", "none"], "submitit is not installed"),
    ],
)
def test_wrong_input_is_one_line_and_nothing_is_trained(words, message, tiny_config, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert sweep(*words, "--config", tiny_config, "--out", tmp_path / "out") == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert not (tmp_path / "out").exists()
    assert sweep("--config", tiny_config) == 2
    assert "--out DIR is required" in capsys.readouterr().err


def test_options_of_a_file_are_checked_even_where_nothing_is_probed(tiny_config, tmp_path, capsys):
    file = tmp_path / "mine.toml"
    file.write_text(f'config = "{tiny_config}"\n[probe]\nfoo = 1\n')
    assert sweep(file, "--checkpoints", "none", "--out", tmp_path / "out") == 2
    assert "unknown setting foo" in capsys.readouterr().err


def test_a_sweep_from_a_file_and_what_is_typed_over_it(tiny_config, tmp_path, capsys, monkeypatch):
    file = tmp_path / "mine.toml"
    file.write_text(
        f'config = "{tiny_config}"\ncheckpoints = "none"\n[train]\nsteps = 5\noptimiser.warmup_steps = 1\n'
        "[axes]\nmodel.mask_ratio = [0.25, 0.5]\n[axes.rate]\nlow = {optimiser.learning_rate = 1e-4}\nsame = {}\n"
    )
    monkeypatch.setenv("COLUMNS", "60")
    assert sweep(file, "--dry-run") == 0
    printed = capsys.readouterr().out
    assert "4 runs" in printed
    assert "FLOPs, eq. 7 and 8" in printed
    assert "…" not in printed
    out = tmp_path / "out"
    assert sweep(file, "--set", "steps=3", "model.mask_ratio=0.4", "--out", out, "--quiet") == 0
    runs = read_sweeps([out])
    assert [run.axes for run in runs] == [{"rate": "low"}, {"rate": "same"}]
    assert [run.settings.optimiser.learning_rate for run in runs] == [1e-4, 1e-2]
    assert {(run.settings.steps, run.model.mask_ratio) for run in runs} == {(3, 0.4)}
    assert not any(run.probes for run in runs)


def test_another_objective_drops_what_belongs_to_the_one_before(tiny):
    settings = tiny("model.mask_ratio=0.3", "model.objective=bert")
    assert (settings.model.objective, settings.model.mask_ratio) == ("bert", 0.3)
    settings = tiny("model.name=crossbert-62m", "model.objective=electra", "model.layers=3")
    assert (settings.model.mask_ratio, settings.model.predictor_layers, settings.model.generator_layers) == (0.15, 0, 1)


@pytest.fixture
def submitit(monkeypatch):
    """A stand-in that remembers what was asked for, and knows a job `7` of an earlier call that is still running."""
    seen = types.SimpleNamespace(parameters=[], submitted=0, attached=[])

    class AutoExecutor:
        def __init__(self, folder, cluster):
            self.cluster = cluster

        def update_parameters(self, **parameters):
            seen.parameters.append(parameters)

        def batch(self):
            return pytest.MonkeyPatch.context()

        def submit(self, function, *arguments):
            seen.submitted += 1
            return Job(str(seen.submitted), lambda: function(*arguments))

    class SlurmJob(Job):
        def __init__(self, folder, job_id, tasks):
            super().__init__(job_id, lambda: None)
            self.state = "RUNNING" if job_id == "7" else "COMPLETED"
            seen.attached.append(job_id)

    helpers = types.SimpleNamespace(as_completed=lambda jobs, poll_frequency: jobs)
    module = types.SimpleNamespace(AutoExecutor=AutoExecutor, SlurmJob=SlurmJob, helpers=helpers)
    monkeypatch.setitem(sys.modules, "submitit", module)
    return seen


def test_runs_are_jobs_of_a_cluster(command, submitit, capsys):
    out, words = command
    assert sweep(*words, "--launcher", "slurm", "--slurm", "gpus=0", "partition=long", "minutes=60") == 0
    assert submitit.submitted == 2
    (asked,) = submitit.parameters
    assert (asked["slurm_partition"], asked["timeout_min"], asked["tasks_per_node"]) == ("long", 60, 1)
    assert all(run.is_finished for run in read_sweeps([out]))
    assert len(pd.read_csv(out / "sweep.csv")) == 2
    assert sweep(*words, "--launcher", "slurm") == 0
    assert submitit.submitted == 2


def _fail():
    raise RuntimeError("out of time\nand more")


def test_a_job_under_way_is_awaited_and_one_that_fails_is_named(submitit, tmp_path):
    (tmp_path / "jobs.json").write_text(json.dumps({"a": "7", "b": "8"}))
    works = {"a": lambda: None, "b": lambda: "no data", "c": _fail}
    outcomes = dict(run_jobs(works, tmp_path, SlurmSettings(gpus=0), cluster="slurm", title="crossbert"))
    assert outcomes == {"a": None, "b": "no data", "c": "job 2: out of time; its logs are in logs"}
    assert submitit.submitted == 2
    assert submitit.attached == ["7", "8"]
    assert json.loads((tmp_path / "jobs.json").read_text()) == {"a": "7", "b": "1", "c": "2"}


def test_a_sweep_is_not_started_under_torchrun(command):
    launcher = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    launcher["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    words = [sys.executable, "-m", "crossbert", "sweep", *map(str, command[1])]
    done = subprocess.run(words, env=os.environ | launcher, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "without torchrun" in done.stderr


def test_processes_through_submitit_itself(command):
    pytest.importorskip("submitit", reason="submitit is not installed")
    out, words = command
    assert sweep(*words, "--launcher", "submitit-local", "--slurm", "gpus=0") == 0
    assert all(run.is_finished for run in read_sweeps([out]))
