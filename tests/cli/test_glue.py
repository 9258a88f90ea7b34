"""`frozenprobe glue` as a person runs it: a checkpoint folder in, tables, records and exit codes out."""

import json
import shutil
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest

from frozenprobe.cli.main import main
from frozenprobe.records.reading import read_run
from frozenprobe.reports.summary import summarise

QUICK = [
    "--suite",
    "builtin",
    "--max-train",
    "200",
    "--regimes",
    "10",
    "--draws",
    "1",
    "--bootstrap",
    "50",
    "--no-cache",
]


def glue(*argv):
    with pytest.raises(SystemExit) as exit_:
        main(["glue", *QUICK, *map(str, argv)])
    return exit_.value.code


@pytest.fixture(scope="module")
def finished(tiny_bert, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "tiny"
    assert glue("--ckpt", tiny_bert, "--out", out) == 0
    return out


def same_record(left, right):
    """Scores and predictions of two runs, compared without their order."""

    def rows(folder):
        return sorted(json.dumps(row, sort_keys=True) for unit in read_run(folder).units for row in unit.rows)

    return rows(left) == rows(right)


def test_a_run_leaves_manifest_units_and_csv(finished, tiny_bert):
    run = read_run(finished)
    assert run.manifest["encoder"]["name"] == tiny_bert.name
    assert run.manifest["encoder"]["fingerprint"]
    assert run.manifest["tokens_per_batch"] > 0
    assert {unit.key.suite for unit in run.units} == {"built-in"}
    scores = pd.read_csv(finished / "scores.csv")
    assert {"honest", "paper", "baseline", "grid"} == set(scores["protocol"])
    assert {"ridge", "knn", "majority"} == set(scores["probe"])
    chosen = scores[scores["protocol"].isin(["honest", "paper"])]
    assert chosen[["low", "high"]].notna().all().all()
    summary = pd.read_csv(finished / "summary.csv")
    assert len(summary) == 5


def test_the_table_never_calls_the_built_in_suite_glue(finished, capsys):
    with pytest.raises(SystemExit):
        main(["show", str(finished)])
    output = capsys.readouterr().out
    assert "on built-in, frozen" in output
    assert "GLUE" not in output
    assert "wall time: " in output


@pytest.mark.parametrize("columns", [50, 80, 200])
def test_no_number_of_the_table_is_cut_off(finished, capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit):
        main(["show", str(finished)])
    output = capsys.readouterr().out
    assert "…" not in output
    for row in summarise(read_run(finished)):
        for cell in (*row.cells.values(), row.mean):
            assert f"{100 * cell.value:.1f}" in output


def test_square_brackets_in_names_are_no_markup(tiny_bert, tmp_path, capsys):
    out = tmp_path / "r[v1]" / "x[b]"
    assert glue("--ckpt", tiny_bert, "--out", out, "--name", "[/x]", "--tasks", "builtin-sentiment") == 0
    output = capsys.readouterr().out
    assert "[/x] on built-in" in output
    assert str(out) in output.replace("\n", "")


def test_an_output_that_is_full_is_one_line(finished):
    command = [sys.executable, "-m", "frozenprobe.cli.main", "show", finished]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "frozenprobe: output: No space left on device\n"


def test_the_same_settings_give_the_same_scores_and_predictions(finished, tiny_bert, tmp_path):
    budget = read_run(finished).manifest["tokens_per_batch"]
    assert glue("--ckpt", tiny_bert, "--out", tmp_path / "a", "--tokens-per-batch", budget) == 0
    assert glue("--ckpt", tiny_bert, "--out", tmp_path / "b", "--tokens-per-batch", budget) == 0
    assert same_record(tmp_path / "a", tmp_path / "b")


def test_a_second_run_computes_nothing_and_a_missing_unit_is_made_up(finished, tiny_bert, tmp_path, capsys):
    again = tmp_path / "again"
    shutil.copytree(finished, again)
    first = sorted(again.glob("units/*"))
    first[0].unlink()
    assert glue("--ckpt", tiny_bert, "--out", again) == 0
    assert "4 of 5 tasks were finished before" in capsys.readouterr().err
    assert len(list(again.glob("units/*"))) == len(first)
    assert same_record(finished, again)


def test_a_changed_weight_is_another_run(finished, tiny_bert, tmp_path, capsys):
    from safetensors.torch import load as load_weights
    from safetensors.torch import save_file

    model = tmp_path / tiny_bert.name
    shutil.copytree(tiny_bert, model)
    weights = load_weights((model / "model.safetensors").read_bytes())
    weights["encoder.layer.0.output.dense.bias"] += 1
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    assert glue("--ckpt", model, "--out", finished) == 2
    assert "holds a different run (fingerprint was" in capsys.readouterr().err


def test_dry_run_lists_tasks_rows_and_tokens_and_writes_nothing(tiny_bert, tmp_path, capsys):
    assert glue("--ckpt", tiny_bert, "--out", tmp_path / "run", "--dry-run") == 0
    output = capsys.readouterr().out
    assert "distinct tokens" in output
    assert not (tmp_path / "run").exists()


def test_dry_run_estimates_only_what_is_not_finished(finished, tiny_bert, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = tmp_path / "part"
    shutil.copytree(finished, out)
    units = {unit.key.task: unit for unit in read_run(out).units}
    (lost,) = [file for file in out.glob("units/*") if b'"task": "builtin-sentiment"' in file.read_bytes()]
    lost.unlink()
    before = sorted(out.rglob("*"))

    def lines(*options):
        assert glue("--ckpt", tiny_bert, "--out", out, "--dry-run", *options) == 0
        output = capsys.readouterr().out
        return {line.split()[1]: line for line in output.splitlines() if line.startswith("│")}, output

    told, output = lines()
    assert {task for task in units if "finished" in told[task]} == set(units) - {"builtin-sentiment"}
    assert "the 1 left of 5" in output
    total = output.splitlines()[-2].split()
    assert told["builtin-sentiment"].split()[3:6:2] == total[7:10:2]  # rows and tokens
    assert "finished" not in lines("--overwrite")[1]
    assert sorted(out.rglob("*")) == before
    assert glue("--ckpt", tiny_bert, "--out", finished, "--dry-run") == 0
    assert "the 0 left of 5" in capsys.readouterr().out


def test_dry_run_refuses_the_folder_that_a_run_would_refuse(finished, tiny_bert, capsys):
    assert glue("--ckpt", tiny_bert, "--out", finished, "--dry-run", "--seed", "9") == 2
    assert "holds a different run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tasks", "colla"], "colla"),
        (["--layers", "7"], "7"),
        (["--poolings", "own"], "own"),
        (["--max-length", "4000"], "4000"),
        (["--device", "cuda:9"], "cuda"),
        (["--config", "/nowhere.toml"], "/nowhere.toml"),
        (["--ridge-lambda-max", "inf"], "--ridge-lambda-max"),
        (["--ridge-lambdas", "1"], "one lambda"),
        (["--cache-limit-gb", "inf"], "--cache-limit-gb"),
        (["--name", "a\udcff"], "--name"),
        (["--layers", "1.5"], "1.5"),
    ],
)
def test_wrong_input_is_one_line_and_exit_2_before_anything_is_written(tiny_bert, tmp_path, capsys, options, message):
    assert glue("--ckpt", tiny_bert, "--out", tmp_path / "run", *options) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("frozenprobe: ")
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_missing_checkpoint_is_one_line(tmp_path, capsys):
    assert glue("--ckpt", tmp_path / "nothing", "--out", tmp_path / "run") == 2
    error = capsys.readouterr().err
    assert "nothing" in error
    assert error.count("\n") == 1


def test_both_pair_forms_and_all_layers_come_from_one_command(tiny_bert, tmp_path, capsys):
    out = tmp_path / "run"
    tasks = "builtin-paraphrase,builtin-acceptability"
    assert (
        glue(
            "--ckpt",
            tiny_bert,
            "--out",
            out,
            "--tasks",
            tasks,
            "--pair-form",
            "both",
            "--layers",
            "all",
            "--poolings",
            "mean,cls",
        )
        == 0
    )
    scores = read_run(out).scores()
    assert set(scores["pair_form"]) == {"joint", "siamese", "single"}
    assert set(scores["layer"]) == {"0", "1", "last"}
    assert set(scores["pooling"]) == {"mean", "cls"}
    assert scores[scores["is_headline"]][["layer", "pooling"]].drop_duplicates().to_numpy().tolist() == [
        ["last", "mean"]
    ]
    assert "by layer and pooling" in capsys.readouterr().out


def test_ctrl_c_keeps_what_was_finished_and_exits_130(tiny_bert, tmp_path):
    out = tmp_path / "run"
    options = [option for option in QUICK if option != "--no-cache"]
    command = [sys.executable, "-m", "frozenprobe.cli.main", "glue", *options, "--ckpt", tiny_bert]
    process = subprocess.Popen([*command, "--out", out, "--no-cache"], stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    while not list(out.glob("units/*.parquet")):
        assert process.poll() is None, process.stderr.read().decode()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"interrupted; what was finished is kept" in error
    assert b"Traceback" not in error
    assert 1 <= len(read_run(out).units) < 5


def test_a_users_own_task_is_scored_under_its_own_name(tiny_bert, tmp_path, capsys):
    rows = "\n".join(f"{word} thing {i},{word}" for i in range(30) for word in ("good", "bad"))
    for split in ("train", "dev"):
        (tmp_path / f"{split}.csv").write_text(f"text,label\n{rows}\n")
    description = tmp_path / "task.toml"
    description.write_text(
        'name = "things"\ntrain = "train.csv"\nevaluation = "dev.csv"\ncolumns = ["text"]\n'
        'label_column = "label"\nlabel_type = "classification"\n'
    )
    assert glue("--ckpt", tiny_bert, "--out", tmp_path / "run", "--task-files", description) == 0
    assert "on custom, frozen" in capsys.readouterr().out
    scores = read_run(tmp_path / "run").scores()
    assert set(scores["task"]) == {"things"}
    assert scores[scores["is_headline"] & (scores["protocol"] == "honest")]["value"].min() > 0.9


def test_subset_of_published_data_is_never_reported_under_the_tasks_name(real_data, tiny_bert, tmp_path, capsys):
    options = ["--suite", "glue", "--tasks", "qnli", "--data-dir", real_data]
    assert glue("--ckpt", tiny_bert, "--out", tmp_path / "run", *options) == 0
    output = capsys.readouterr()
    assert "QNLI (subset)" in output.out
    assert "not a GLUE score" in output.out
    assert set(read_run(tmp_path / "run").scores()["task"]) == {"qnli-subset"}
