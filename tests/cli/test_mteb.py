"""`frozenprobe mteb` as a person runs it."""

import json
import os
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest

from frozenprobe.cli.main import main
from frozenprobe.records.reading import read_run
from tests.contrastive.conftest import make_rows
from tests.suites.mteb import rows

TASKS = "BIOSSES,AskUbuntuDupQuestions,SciFact,Banking77Classification"


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    return rows.write(tmp_path_factory.mktemp("copies"))


def mteb(*argv):
    with pytest.raises(SystemExit) as exit_:
        main(["mteb", *map(str, argv)])
    return exit_.value.code


@pytest.mark.parametrize("columns", [80, 160])
def test_dry_run_lists_tasks_with_category_and_main_score_and_writes_nothing(
    tiny_bert, copies, tmp_path, capsys, monkeypatch, columns
):
    monkeypatch.setenv("COLUMNS", str(columns))
    options = ["--tasks", TASKS, "--data-dir", copies, "--no-cache", "--out", tmp_path / "run"]
    assert mteb("--ckpt", tiny_bert, *options, "--dry-run") == 0
    output = capsys.readouterr().out
    order = [output.index(name) for name in ("BIOSSES", "AskUbuntuDupQuestions", "Banking77Classification", "SciFact")]
    assert order == sorted(order)
    for word in ("Reranking", "map_at_1000", "cosine_spearman", "4 tasks", "7,798,"):
        assert word in output
    assert "…" not in output
    assert max(map(len, output.splitlines())) <= columns
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("frozen", [False, True])
def test_dry_run_knows_what_is_finished_and_refuses_the_folder_of_another_run(
    tiny_bert, copies, tmp_path, capsys, frozen
):
    training = tmp_path / "triples.jsonl"
    training.write_text("".join(json.dumps(row) + "\n" for row in make_rows(20)))
    options = ["--data-dir", copies, "--no-cache", "--out", tmp_path / "run"]
    if frozen:
        options += ["--frozen", "--train-data", training, "--batch-size", "8", "--heads", "2", "--held-out", "2"]
    assert mteb("--ckpt", tiny_bert, *options, "--tasks", "BIOSSES", "--quiet") == 0
    capsys.readouterr()
    assert mteb("--ckpt", tiny_bert, *options, "--tasks", "BIOSSES,SciFact", "--dry-run") == 0
    output = capsys.readouterr().out
    assert "the 1 left of 2" in output
    assert ["finished" in line for line in output.splitlines() if "BIOSSES" in line or "SciFact" in line] == [
        True,
        False,
    ]
    assert mteb("--ckpt", tiny_bert, *options, "--tasks", "BIOSSES", "--dry-run") == 0
    assert "the 0 left of 1" in capsys.readouterr().out
    assert mteb("--ckpt", tiny_bert, *options, "--tasks", "BIOSSES", "--layer", "0", "--dry-run") == 2
    assert "holds a different run (layer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tasks", "Biosess"], "BIOSSES"),
        (["--task-types", "Retrievals"], "--task-types"),
        (["--benchmark", "MTEB(eng, v9)"], "MTEB(eng, v2)"),
        (["--tasks", "STS12"], "STS12 (mteb/sts12-sts)"),
        (["--pooler", "own", "--tasks", "BIOSSES"], "own"),
        (["--pooler", "max"], "--pooler"),
        (["--layer", "9", "--tasks", "BIOSSES"], "out of range"),
        (["--layer", "1,2"], "--layer"),
        (["--model-name", "nameless"], "--model-name"),
        (["--data-dir", "/nowhere"], "/nowhere"),
        (["--ckpt", "/nowhere", "--tasks", "BIOSSES"], "/nowhere"),
        (["--lr", "1e-3"], "--lr is for the training of a pooler"),
        (["--frozen", "--unfrozen"], "--frozen excludes unfrozen"),
        (["--frozen", "--pooler", "cls"], "--pooler cls excludes frozen"),
        (["--pooler", "/nowhere"], "--pooler: allowed are auto, mean, cls, last, own, and the folder"),
        (["--frozen", "--tasks", "BIOSSES", "--train-data", "nowhere.jsonl", "--heads", "2"], "no such file"),
        (["--frozen", "--tasks", "BIOSSES", "--warm-start"], "offers no pooler"),
    ],
)
def test_wrong_input_is_one_line_and_exit_2_before_anything_is_written(
    tiny_bert, copies, tmp_path, capsys, options, message
):
    assert mteb("--ckpt", tiny_bert, "--data-dir", copies, "--out", tmp_path / "run", *options) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("frozenprobe: ")
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_an_output_folder_is_needed(tiny_bert, capsys):
    assert mteb("--ckpt", tiny_bert) == 2
    assert "--out DIR is required" in capsys.readouterr().err


def test_show_prints_the_run_again(tiny_bert, copies, tmp_path, capsys):
    options = ["--tasks", "BIOSSES", "--data-dir", copies, "--no-cache", "--out", tmp_path / "run", "--quiet"]
    assert mteb("--ckpt", tiny_bert, *options, "--name", "tiny") == 0
    first = capsys.readouterr()
    assert "BIOSSES (subset)" in first.out
    assert "test 32 of 100 rows" in first.out
    assert first.err == ""
    with pytest.raises(SystemExit):
        main(["show", str(tmp_path / "run")])
    assert capsys.readouterr().out == first.out
    assert (tmp_path / "run/model/modules.json").is_file()
    assert json.loads((tmp_path / "run/manifest.json").read_text())["encoder"]["name"] == "tiny"


@pytest.mark.slow
def test_a_kill_in_the_middle_of_the_list_loses_the_task_in_progress_and_nothing_else(tiny_bert, copies, tmp_path):
    def start(out):
        command = [
            sys.executable,
            "-m",
            "frozenprobe.cli.main",
            "mteb",
            "--ckpt",
            tiny_bert,
            "--out",
            out,
            "--tasks",
            TASKS,
        ]
        command += ["--data-dir", copies, "--no-cache", "--tokens-per-batch", "1024", "--no-export"]
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, **pipes)

    def record(out):
        return sorted(json.dumps(row, sort_keys=True) for unit in read_run(out).units for row in unit.rows)

    assert start(tmp_path / "whole").wait() == 0
    out = tmp_path / "killed"
    process = start(out)
    while len(list(out.glob("units/*.parquet"))) < 2:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    finished = sorted(out.glob("units/*.parquet"))
    assert 2 <= len(finished) < 4
    process = start(out)
    _, error = process.communicate(timeout=600)
    assert process.returncode == 0, error
    assert f"{len(finished)} of 4 tasks were finished before" in error
    assert set(finished) < set(out.glob("units/*.parquet"))
    assert record(out) == record(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_ranks_give_the_scores_of_one_process(tiny_bert, copies, tmp_path):
    tasks = "BIOSSES,SciFact"
    options = ["--ckpt", tiny_bert, "--tasks", tasks, "--data-dir", copies, "--no-cache", "--no-export"]
    options += ["--tokens-per-batch", "1024"]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    outputs = []
    for launcher, out in (([], "one"), (torchrun, "two")):
        command = [sys.executable, *launcher, "-m", "frozenprobe", "mteb", *options, "--out", tmp_path / out]
        done = subprocess.run(list(map(str, command)), env=environment, timeout=550, check=False, **pipes)
        assert done.returncode == 0, done.stderr
        outputs.append(done)
    assert outputs[1].stdout.count("BIOSSES") == outputs[0].stdout.count("BIOSSES") > 0  # one rank speaks
    assert outputs[1].stderr.count("[2/2]") == 1

    def scores(out):
        frame = read_run(out).scores()
        return frame.set_index(["task", "split", "metric"])["value"].sort_index()

    one, two = scores(tmp_path / "one"), scores(tmp_path / "two")
    assert {task for task, *_ in one.index} == {f"{task}-subset" for task in tasks.split(",")}
    pd.testing.assert_series_equal(one, two, rtol=0, atol=1e-6)
    for unit in read_run(tmp_path / "two").units:
        assert unit.about["extraction"]["encoded"] > 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_kill_in_the_training_and_one_in_the_tasks_lose_next_to_nothing(tiny_bert, copies, tmp_path):
    triples = tmp_path / "triples.jsonl"
    triples.write_text("".join(json.dumps(row) + "\n" for row in make_rows(80)))
    options = [
        "--frozen",
        "--train-data",
        triples,
        "--batch-size",
        "16",
        "--lr",
        "1e-3",
        "--blocks",
        "1",
        "--heads",
        "2",
    ]
    options += ["--held-out", "4", "--epochs", "20", "--checkpoint-every", "7", "--evaluate-every", "50"]

    def start(out):
        command = [sys.executable, "-m", "frozenprobe.cli.main", "mteb", "--ckpt", tiny_bert, "--out", out, *options]
        command += ["--tasks", TASKS, "--data-dir", copies, "--no-cache", "--tokens-per-batch", "1024", "--no-export"]
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(list(map(str, command)), env={**os.environ, "OMP_NUM_THREADS": "1"}, **pipes)

    def kill_when(process, reached):
        while not reached():
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def record(out):
        return sorted(json.dumps(row, sort_keys=True) for unit in read_run(out).units for row in unit.rows)

    whole, out = tmp_path / "whole", tmp_path / "killed"
    assert start(whole).wait() == 0
    kill_when(start(out), (out / "pooler/checkpoint.safetensors").exists)
    assert not (out / "pooler/results.json").exists()
    assert not list(out.glob("units/*"))
    kill_when(start(out), lambda: len(list(out.glob("units/*.parquet"))) >= 2)
    finished = set(out.glob("units/*.parquet"))
    trained = (out / "pooler/poolers/pooler/pooler.safetensors").stat().st_mtime_ns
    process = start(out)
    _, error = process.communicate(timeout=600)
    assert process.returncode == 0, error
    assert "nothing is trained" in error
    assert f"{len(finished)} of 4 tasks were finished before" in error
    assert finished < set(out.glob("units/*.parquet"))
    assert (out / "pooler/poolers/pooler/pooler.safetensors").stat().st_mtime_ns == trained
    history = [(folder / "pooler/history.jsonl").read_text() for folder in (whole, out)]
    assert history[0] == history[1]
    assert record(out) == record(whole)
