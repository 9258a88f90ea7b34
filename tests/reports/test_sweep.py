"""The table of a sweep whose folder holds runs of several settings."""

import csv

import pytest

from frozenprobe.records.reading import read_run
from frozenprobe.reports.console import terminal
from frozenprobe.reports.sweep import print_sweep, write_sweep
from tests.reports.runs import PROBES, glue_run


@pytest.mark.parametrize("other", [100, 50])
def test_other_train_rows_are_marked_and_stand_in_the_csv(tmp_path, capsys, other):
    sizes = {"step-1": 100, "step-2": other}
    runs = {
        name: read_run(glue_run(tmp_path / name, 0.5, ["rte"], probes={**PROBES, "max_train": size}))
        for name, size in sizes.items()
    }
    print_sweep(runs, {}, terminal())
    note = "not measured alike: train rows 100 (step-1), 50 (step-2)"
    assert (note in capsys.readouterr().out) == (other == 50)
    write_sweep(runs, tmp_path / "sweep.csv")
    with open(tmp_path / "sweep.csv") as file:
        assert {(line["checkpoint"], line["max_train"]) for line in csv.DictReader(file)} == {
            (name, str(size)) for name, size in sizes.items()
        }
