"""`frozenprobe report` and `frozenprobe plot` as a person runs them."""

import pytest

from frozenprobe.cli.main import main
from tests.reports.runs import glue_run


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
