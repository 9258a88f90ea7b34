"""`frozenprobe compare` as a person runs it."""

import shutil

import pandas as pd
import pytest

from frozenprobe.cli.main import main
from frozenprobe.reports.leaderboard import make_leaderboard
from tests.reports.runs import glue_run, make_run, make_unit


def compare(*argv):
    with pytest.raises(SystemExit) as exit_:
        main(["compare", *map(str, argv)])
    return exit_.value.code


def test_two_runs_are_a_table_with_differences_and_p(tmp_path, capsys):
    a, b = glue_run(tmp_path / "a", 0.3, seed=1), glue_run(tmp_path / "b", 0.7, seed=2)
    assert compare(a, b, "--csv", tmp_path / "out.csv") == 0
    output = capsys.readouterr().out
    assert "A: a, B: b; linear, honest" in output
    assert all(name in output for name in ("SST-2", "STS-B", "mean of 8", "<0.001", "McNemar"))
    assert "…" not in output  # everything fits on 80 columns
    frame = pd.read_csv(tmp_path / "out.csv")
    assert len(frame) == 9
    assert frame["difference"].min() > 0


def test_many_runs_are_rows_with_a_trend(tmp_path, capsys):
    runs = [glue_run(tmp_path / f"step-{step}", step / 10, seed=step, name="mine") for step in (2, 4, 6, 8)]
    assert compare(*runs) == 0
    output = capsys.readouterr().out
    assert output.index("step 2") < output.index("step 8") < output.index("trend")
    assert "by training step" in output
    assert "…" not in output


def test_what_is_left_out_is_said(tmp_path, capsys):
    a = glue_run(tmp_path / "a", 0.5, ["rte", "cola", "sst2"])
    b = glue_run(tmp_path / "b", 0.5, ["rte", "mrpc"], seed=1)
    assert compare(a, b) == 0
    output = capsys.readouterr().out
    assert "left out: SST-2, CoLA of a" in output
    assert "left out: MRPC of b" in output
    (file,) = (file for file in a.glob("units/*.parquet") if b"CoLA" in file.read_bytes())
    file.write_bytes(file.read_bytes()[:-1])
    assert compare(a, b) == 0
    output = capsys.readouterr().out
    assert "left out: SST-2 of a" in output
    assert f"a: {file.name} is damaged and left out" in output


def test_a_unit_of_another_run_is_never_taken_for_this_runs(tmp_path, capsys):
    a = glue_run(tmp_path / "a", 0.5, ["rte", "cola"])
    b = glue_run(tmp_path / "b", 0.5, ["rte"], seed=1)
    (file,) = (file for file in a.glob("units/*.parquet") if b"CoLA" in file.read_bytes())
    shutil.copy(file, b / "units")
    assert compare(a, b) == 0
    output = capsys.readouterr().out
    assert "left out: CoLA of a" in output
    assert f"b: {file.name} is of another run and left out" in output
    board = make_leaderboard([b])
    assert board.notes == [f"{b}: {file.name} is of another run and left out"]
    assert board.frame["cola"].isna().all()


def test_a_refusal_is_one_line_and_exit_2(tmp_path, capsys):
    a = make_run(tmp_path / "a", [make_unit("mrpc", 0.5)])
    b = make_run(tmp_path / "b", [make_unit("mrpc", 0.5, form="siamese")])
    assert compare(a, b) == 2
    error = capsys.readouterr().err
    assert error.startswith("frozenprobe: MRPC: no pair form in common")
    assert error.count("\n") == 1
    assert compare(a, tmp_path / "nothing") == 2
    assert "is not a run" in capsys.readouterr().err
    assert compare(a, b, "--replicates", "0") == 2
    assert "--replicates" in capsys.readouterr().err
