"""`frozenprobe report` as a person runs it."""

import pytest

from frozenprobe.cli.main import main
from tests.reports.runs import glue_run


def report(*argv):
    with pytest.raises(SystemExit) as exit_:
        main(["report", *map(str, argv)])
    return exit_.value.code


def test_a_page_is_written(tmp_path, capsys):
    runs = [glue_run(tmp_path / name, 0.5, ["rte", "cola"]) for name in "ab"]
    assert report(*runs, "--html", tmp_path / "out" / "report.html", "--title", "Two of them", "--with-published") == 0
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<title>Two of them</title>" in page
    assert "CrossBERT" in page
    assert "report.html: 2 runs" in capsys.readouterr().out


def test_wrong_input_is_one_line_and_exit_2(tmp_path, capsys):
    run = glue_run(tmp_path / "a", 0.5, ["rte"])
    for argv, message in (
        ([tmp_path / "nothing", "--html", tmp_path / "x.html"], "is not a run"),
        ([run, "--html", "/proc/none/x.html"], "cannot write /proc/none/x.html"),
        ([run, "--html", tmp_path / "x.html", "--costs", tmp_path / "none.toml"], "none.toml"),
        ([run], "--html"),
    ):
        assert report(*argv) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "x.html").exists()
