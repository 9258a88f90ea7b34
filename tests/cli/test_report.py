"""`frozenprobe report` and `frozenprobe plot` as a person runs them."""

import pytest

from frozenprobe.cli.main import main
from tests.reports.runs import glue_run, make_run


def run(command, *argv):
    with pytest.raises(SystemExit) as exit_:
        main([command, *map(str, argv)])
    return exit_.value.code


def report(*argv):
    return run("report", *argv)


def test_a_page_is_written(tmp_path, capsys):
    runs = [glue_run(tmp_path / name, 0.5, ["rte", "cola"]) for name in "ab"]
    assert report(*runs, "--html", tmp_path / "out" / "report.html", "--title", "Two of them", "--with-published") == 0
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<title>Two of them</title>" in page
    assert "CrossBERT" in page
    assert "report.html: 2 runs" in capsys.readouterr().out


def test_wrong_input_is_one_line_and_exit_2(tmp_path, capsys):
    folder = glue_run(tmp_path / "a", 0.5, ["rte"])
    for argv, message in (
        ([tmp_path / "nothing", "--html", tmp_path / "x.html"], "is not a run"),
        ([folder, "--html", "/proc/none/x.html"], "cannot write /proc/none/x.html"),
        ([folder, "--html", tmp_path / "x.html", "--costs", tmp_path / "none.toml"], "none.toml"),
        ([folder], "--html"),
    ):
        assert report(*argv) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "x.html").exists()


def test_runs_are_counted_once_and_only_where_a_task_is_finished(tmp_path, capsys):
    folder, empty = glue_run(tmp_path / "a", 0.5, ["rte"]), make_run(tmp_path / "empty", [])
    assert report(folder, folder, empty, tmp_path / "." / "a", "--html", tmp_path / "x.html") == 0
    output = capsys.readouterr()
    assert "x.html: 1 run, " in output.out
    assert output.err == f"{empty}: no task is finished; left out\n"
    page = (tmp_path / "x.html").read_text()
    assert "1 run, 1 finished task; GLUE." in page
    assert f"{empty}: no task is finished; left out" in page
    assert page.count('<button type="button" data-legend=') == 1


@pytest.mark.parametrize("argv", [["plot", "--out", "out"], ["report", "--html", "out.html"]])
def test_damaged_files_are_named_on_the_terminal(tmp_path, capsys, monkeypatch, argv):
    monkeypatch.chdir(tmp_path)
    folder = glue_run(tmp_path / "a", 0.5, ["rte", "cola"])
    file = next(iter(folder.glob("units/*.parquet")))
    file.write_bytes(file.read_bytes()[:-3])
    assert run(argv[0], folder, *argv[1:]) == 0
    assert capsys.readouterr().err == f"{folder}: {file.name} is damaged and left out\n"


def test_plots_are_files_in_the_theme_asked_for(tmp_path, capsys):
    folder = glue_run(tmp_path / "a", 0.5, ["rte"])
    assert run("plot", folder, "--out", tmp_path / "plots", "--theme", "dark") == 0
    files = list((tmp_path / "plots").iterdir())
    assert f"{len(files)} plots" in capsys.readouterr().out
    assert all("#14171b" not in file.read_text() and "#62b0ff" in file.read_text() for file in files)
    assert run("plot", folder, "--out", tmp_path / "png", "--format", "png") == 0
    assert {file.suffix for file in (tmp_path / "png").iterdir()} == {".png"}
    assert run("plot", folder, "--out", "/proc/none") == 2
    assert run("plot", folder, "--out", tmp_path, "--suite", "mine") == 2
    assert "unknown suite" in capsys.readouterr().err
