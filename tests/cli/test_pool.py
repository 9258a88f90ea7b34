"""`frozenprobe pool` and `frozenprobe mine` as a person runs them, killed, on two ranks, and off a hub."""

import json
import os
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from frozenprobe.cli.main import main
from tests.contrastive.conftest import make_rows
from tests.hub import COMMIT, serve_hub

OPTIONS = ["--batch-size", "16", "--lr", "1e-3", "--blocks", "1", "--heads", "2", "--held-out", "4"]


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def run(command, *argv):
    with pytest.raises(SystemExit) as exit_:
        main([command, *map(str, argv)])
    return exit_.value.code


@pytest.fixture
def triples(tmp_path):
    path = tmp_path / "triples.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in make_rows(80)))
    return path


def weights(out, name="pooler"):
    return load_file(out / "poolers" / name / "pooler.safetensors")


def same(left, right, tolerance=0.0):
    return all(torch.allclose(left[name], right[name], rtol=0, atol=tolerance) for name in left)


def test_pool_trains_prints_a_table_and_resumes(tiny_bert, triples, tmp_path, capsys):
    argv = ["--ckpt", tiny_bert, "--train-data", triples, *OPTIONS, "--out", tmp_path / "out"]
    assert run("pool", *argv) == 0
    output = capsys.readouterr()
    assert "mean pooling" in output.out
    assert "note: held out: 4 queries" in output.err
    assert "[1/1] pooler: " in output.err
    assert run("pool", *argv) == 0
    assert "is finished: its poolers are read" in capsys.readouterr().err
    assert run("pool", *argv, "--temperature", "0.1") == 2
    assert "loss.temperature was 0.05, is 0.1" in capsys.readouterr().err
    assert run("pool", *argv, "--temperature", "0.1", "--overwrite", "--quiet") == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_half_precision_features_are_pooled_in_float32(tiny_bert, triples, tmp_path, dtype):
    out = tmp_path / "out"
    argv = [
        "--ckpt",
        tiny_bert,
        "--train-data",
        triples,
        *OPTIONS,
        "--dtype",
        dtype,
        "--keep-features",
        "--epochs",
        "2",
    ]
    assert run("pool", *argv, "--out", out, "--quiet") == 0
    assert all(tensor.dtype == torch.float32 for tensor in weights(out).values())
    assert (out / "features").is_dir()


def test_a_sweep_names_its_best_and_says_that_it_was_chosen(tiny_bert, triples, tmp_path, capsys):
    out = tmp_path / "out"
    argv = ["--ckpt", tiny_bert, "--train-data", triples, *OPTIONS, "--sweep", "lr=1e-3,1e-4,seed=0,1", "--out", out]
    assert run("pool", *argv) == 0
    assert "which chose it: its score here is optimistic" in capsys.readouterr().out.replace("\n", " ")
    assert len(list((out / "poolers").iterdir())) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--train-data", "nowhere.jsonl"], "no such file"),
        (["--lr", "0"], "--lr"),
        (["--sweep", "depth=3"], "cannot be swept"),
        (["--layer", "x"], "--layer"),
        (["--warm-start"], "offers no pooler"),
        (["--heads", "5"], "do not divide"),
        (["--layer", "7"], "layer 7 is out of range"),
    ],
)
def test_wrong_input_is_one_line_and_exit_2(tiny_bert, triples, tmp_path, capsys, options, message):
    options = options if "--heads" in options or "--warm-start" in options else ["--heads", "2", *options]
    code = run("pool", "--ckpt", tiny_bert, "--train-data", triples, "--out", tmp_path / "out", *options, "--quiet")
    error = capsys.readouterr().err
    assert code == 2
    assert message in error
    assert error.startswith("frozenprobe: ")
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_mine_writes_rows_that_pool_reads(tiny_bert, triples, tmp_path, capsys):
    mined = tmp_path / "mined.jsonl"
    argv = ["--ckpt", tiny_bert, "--pairs", triples, "--out", mined, "--negatives", "3"]
    assert run("mine", *argv) == 0
    assert "80 pairs with" in capsys.readouterr().out
    assert run("mine", *argv) == 2
    assert "is there already" in capsys.readouterr().err
    assert run("mine", *argv, "--overwrite", "--quiet") == 0
    assert run("pool", "--ckpt", tiny_bert, "--train-data", mined, *OPTIONS, "--out", tmp_path / "out", "--quiet") == 0


def test_help_needs_no_torch():
    code = "import sys, frozenprobe.cli.pool, frozenprobe.cli.mine; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, check=True)


def command(*argv, launcher=()):
    return [sys.executable, *launcher, "-m", "frozenprobe.cli.main", "pool", *map(str, argv)]


@pytest.mark.slow
def test_sigkill_and_sigint_at_any_moment_lose_nothing(tiny_bert, triples, tmp_path):
    argv = ["--ckpt", tiny_bert, "--train-data", triples, *OPTIONS, "--epochs", "30", "--checkpoint-every", "7"]
    assert run("pool", *argv, "--out", tmp_path / "whole", "--quiet") == 0
    out = tmp_path / "killed"
    kinds = [signal.SIGKILL, signal.SIGINT, signal.SIGKILL]
    codes = []
    while not (out / "results.json").exists():
        process = subprocess.Popen(command(*argv, "--out", out), env=ENVIRONMENT, stderr=subprocess.PIPE)
        if kinds:
            stamp = _stamp(out)
            while process.poll() is None and _stamp(out) == stamp:
                time.sleep(0.005)
            time.sleep(0.05)
            process.send_signal(kinds.pop(0))
        process.communicate(timeout=240)
        codes.append(process.returncode)
    assert codes == [-signal.SIGKILL, 130, -signal.SIGKILL, 0]
    assert same(weights(out), weights(tmp_path / "whole"))
    assert (out / "history.jsonl").read_text() == (tmp_path / "whole/history.jsonl").read_text()


def _stamp(out):
    file = out / "checkpoint.safetensors"
    return file.stat().st_mtime_ns if file.exists() else None


@pytest.mark.slow
def test_two_ranks_give_what_one_gives(tiny_bert, triples, tmp_path):
    argv = ["--ckpt", tiny_bert, "--train-data", triples, *OPTIONS, "--dropout", "0.2", "--device", "cpu"]
    assert run("pool", *argv, "--out", tmp_path / "one", "--quiet") == 0
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python", sys.executable]
    finished = subprocess.run(
        command(*argv, "--out", tmp_path / "two", launcher=torchrun),
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.count("poolers are in") == 1
    assert same(weights(tmp_path / "one"), weights(tmp_path / "two"), 1e-5)
    scores = [json.loads((tmp_path / name / "results.json").read_text())["held_out"] for name in ("one", "two")]
    assert scores[0]["pooler"]["ndcg@10"]["value"] == pytest.approx(scores[1]["pooler"]["ndcg@10"]["value"], abs=1e-6)


CARD = """---
configs:
- config_name: triplet-50
  data_files: [{split: train, path: triplet-50/train-*}]
- config_name: triplet
  data_files: [{split: train, path: triplet/train-*}]
---
"""


def test_rows_come_from_the_hub_by_configuration_and_revision(tmp_path):
    folder = tmp_path / "datasets/sentence-transformers/msmarco-msmarco-distilbert-base-tas-b"
    for config, numbers in (("triplet", [""]), ("triplet-50", [f"_{i}" for i in range(1, 51)])):
        (folder / config).mkdir(parents=True)
        columns = {f"negative{number}": [f"n{number} {i}" for i in range(5)] for number in numbers}
        frame = pd.DataFrame({"query": [f"q{i}" for i in range(5)], "positive": [f"p{i}" for i in range(5)], **columns})
        frame.to_parquet(folder / config / "train-00000-of-00001.parquet")
    (folder / "README.md").write_text(CARD)
    script = """
import json, numpy, pathlib, sys
from frozenprobe.contrastive.data import prepare
from frozenprobe.contrastive.settings import PairSettings
from frozenprobe.errors import DataError
for values in ({}, {"train_config": "triplet-50", "hard_negatives": 3}, {"train_config": "pair"}, {"train_split": "test"},
               {"train_revision": "v9"}):
    try:
        rows = prepare(PairSettings(**values), pathlib.Path(sys.argv[1]))
        print(json.dumps([rows.report.revision, rows.read(numpy.array([2]))[0].negatives]))
    except DataError as error:
        print(json.dumps(str(error)))
"""
    with serve_hub(tmp_path) as hub:
        finished = hub.run_python(f"import sys; sys.argv.append({str(tmp_path / 'out')!r})\n{script}")
    assert finished.returncode == 0, finished.stderr
    default, fifty, config, split, revision = map(json.loads, finished.stdout.splitlines())
    assert default[0] == COMMIT
    assert default[1] == ["n 2"]
    assert fifty[1] == ["n_1 2", "n_2 2", "n_3 2"]
    assert "cannot load" in config
    assert "has no split test; it has train" in split
    assert "at revision v9" in revision
