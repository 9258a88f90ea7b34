"""`frozenprobe leaderboard` as a person runs it."""

import re
import subprocess
import sys

import pandas as pd
import pytest

from frozenprobe.cli.main import main
from frozenprobe.reports.leaderboard import read_leaderboard
from tests.reports.runs import TITLES, finetuned_unit, glue_run, make_run, make_unit


def leaderboard(*argv):
    with pytest.raises(SystemExit) as exit_:
        main(["leaderboard", *map(str, argv)])
    return exit_.value.code


def test_runs_and_the_papers_rows_are_printed_and_written(tmp_path, capsys):
    runs = [glue_run(tmp_path / "mine", 0.8), glue_run(tmp_path / "part", 0.5, ["cola"])]
    files = ["--csv", tmp_path / "wide.csv", "--long", tmp_path / "long.csv"]
    assert leaderboard(*runs, "--with-published", *files) == 0
    output = capsys.readouterr().out
    for text in (
        "GLUE, linear, frozen, paper, joint",
        "CrossBERT",
        "STS-B",
        "part: incomplete, lacks mnli",
    ):
        assert text in output
    assert "…" not in output
    wide = read_leaderboard(tmp_path / "wide.csv")
    assert set(wide["source"]) == {"measured", "published"}
    assert len(pd.read_csv(tmp_path / "long.csv")) == 4 * 9 + 8 * 13


@pytest.mark.parametrize("words", [["leaderboard", "--with-published"], ["--version"]])
def test_a_reader_that_has_left_ends_it_as_any_other_tool(words):
    command = [sys.executable, "-m", "frozenprobe", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 141


def test_the_papers_rows_alone_need_no_run(tmp_path, capsys):
    assert leaderboard("--with-published", "--suite", "mteb-v1") == 0
    output = capsys.readouterr().out
    assert "avg printed 46.9, row gives 48.0" in output
    assert "MTEB(eng, v1), contrastive, unfrozen" in output


def test_finetuned_runs_share_a_table_with_the_papers_and_say_their_epoch(tmp_path, capsys):
    folder = make_run(tmp_path / "mine", [finetuned_unit(task, 0.9) for task in TITLES])
    assert leaderboard(folder, "--with-published") == 0
    output = capsys.readouterr().out
    table = output[output.index("GLUE, finetuned, unfrozen, joint") :]
    assert all(name in table for name in ("BERT", "mine, last epoch", "mine, best epoch"))
    assert output.count("finetune") == output.count("finetuned") == 1


def test_a_run_of_mteb_without_a_whole_category_is_a_line_and_no_table(tmp_path, capsys):
    units = [make_unit("sts0", 0.5, suite="MTEB(eng, v2)", form="single", category="STS")]
    assert leaderboard(make_run(tmp_path / "mine", units)) == 0
    output = capsys.readouterr().out
    assert "model" not in output
    assert "mine: not in the table, no category is whole (class 0 of 8, " in output
    assert f"`frozenprobe show {tmp_path / 'mine'}`" in output


@pytest.mark.parametrize("command", [["leaderboard"], ["plot", "--out", "plots"]])
def test_runs_without_a_finished_task_are_named(command, tmp_path, capsys):
    folders = [make_run(tmp_path / name, []) for name in "ab"]
    with pytest.raises(SystemExit) as exit_:
        main([*command, *map(str, folders)])
    assert exit_.value.code == 2
    told = f"there is nothing to show: no task is finished in {folders[0]}, {folders[1]}\n"
    assert capsys.readouterr().err == f"frozenprobe: {told}"


@pytest.mark.parametrize("width", [48, 80, 160])
@pytest.mark.parametrize("suite", ["glue", "mteb-v1"])
def test_nothing_is_cut_off_however_narrow_the_terminal(suite, width, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    assert leaderboard("--with-published", "--suite", suite, "--csv", tmp_path / "all.csv") == 0
    output = capsys.readouterr().out
    assert "…" not in output
    tables = output.split("\n* ")[0].split("\npercent; ")[0]
    assert max(map(len, tables.splitlines())) <= width
    frame = read_leaderboard(tmp_path / "all.csv")
    scores = frame.loc[:, "mnli":"avg"] if suite == "glue" else frame.loc[:, "class":"overall"]
    printed = re.findall(r"\d+\.\d(?![\de])", tables)
    assert sorted(printed) == sorted(f"{value:.1f}" for value in scores.to_numpy().ravel())
    if suite == "mteb-v1":
        assert "Overall" in tables


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "nothing to show"),
        (["nowhere"], "nowhere is not a run"),
        (
            ["--with-published", "--suite", "superglue"],
            "unknown suite 'superglue'; allowed are glue, builtin, mteb-v1, mteb-v2, custom",
        ),
        (["--suite", "custom"], "nothing to show"),
        (["--with-published", "--csv", "/proc/x.csv", "--long", "/proc/../proc/x.csv"], "--csv and --long are both"),
        (["--with-published", "--csv", "/proc/none/x.csv"], "cannot write /proc/none/x.csv"),
        (["--with-published", "--costs", "nowhere.toml"], "--costs nowhere.toml"),
    ],
)
def test_wrong_input_is_one_line_and_exit_2(argv, message, capsys):
    assert leaderboard(*argv) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
