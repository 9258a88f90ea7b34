"""What stands below the printed table of a run."""

import pytest

from frozenprobe.cli.main import main
from tests.reports.runs import PROBES, TITLES, finetuned_unit, make_run, make_unit


@pytest.mark.parametrize(
    ("max_train", "seeds", "told"),
    [
        ("all", [0], "every weight trained on all train rows, mean over 1 seed; last epoch: chooses nothing"),
        (640, [3, 5], "every weight trained on at most 640 train rows, mean over 2 seeds; last epoch: chooses nothing"),
    ],
)
def test_the_caption_says_which_rows_were_trained_on_and_scored(tmp_path, capsys, max_train, seeds, told):
    def caption(units):
        folder = make_run(tmp_path / str(len(units)), units, probes={**PROBES, "max_evaluated": 50})
        with pytest.raises(SystemExit):
            main(["show", str(folder)])
        return " ".join(capsys.readouterr().out.split())

    unit = finetuned_unit("cola", 0.9, max_train=max_train, seeds=seeds)
    alone = caption([unit])
    assert f"128 tokens, at most 50 rows scored per split; finetuned: {told}" in alone
    assert "honest: chosen" not in alone
    both = caption([unit, make_unit("cola", 0.8)])
    assert f"per split, at most {PROBES['max_train']} train rows; honest: chosen inside train" in both
    assert told in both


def show(folder):
    with pytest.raises(SystemExit):
        main(["show", str(folder)])


def test_a_run_without_a_finished_task_is_a_line_and_no_table(tmp_path, capsys):
    show(make_run(tmp_path / "mine", []))
    assert capsys.readouterr().out == "mine: no task is finished yet\n"


@pytest.mark.parametrize("width", [60, 80])
def test_headings_are_whole_on_a_narrow_terminal(tmp_path, capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    units = [make(task, 0.8) for task in TITLES for make in (make_unit, finetuned_unit)]
    show(make_run(tmp_path / "mine", units))
    tables, caption = capsys.readouterr().out.split("percent, ±")
    assert max(map(len, tables.splitlines())) <= width
    assert tables.count(" finetuned ┃") == 2
    assert tables.count("mean of 8") > 1  # in every part of the table
    assert "every weight trained" in " ".join(caption.split())
