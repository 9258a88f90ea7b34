"""The replication: a fair plan, a trial run of it that is resumed, and tests over all seeds at once."""

import argparse
import json

import numpy as np
import pandas as pd
import pytest

from benchmarks import replication
from benchmarks.replication import Deadline, main, same_compute
from benchmarks.replication_report import report
from crossbert.recipes import read_recipe
from crossbert.scaling import flops_per_position, positions_per_sequence
from crossbert.swept import mean_score, read_sweeps
from crossbert.text import builtin_documents
from frozenprobe.records.reading import read_run


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The four parts of the text in their places, with text of the built-in grammar in them."""
    root = tmp_path_factory.mktemp("data")
    for number, part in enumerate(replication.PARTS):
        folder = root / "local" / "english-text" / part
        folder.mkdir(parents=True)
        texts = list(builtin_documents(80, number))
        pd.DataFrame({"text": texts[:60]}).to_parquet(folder / "train.parquet")
        pd.DataFrame({"text": texts[60:]}).to_parquet(folder / "validation.parquet")
    return root


@pytest.mark.parametrize("config", ["pico", "crossbert-62m"])
def test_all_objectives_see_as_much_a_step_and_cost_the_same(config, tiny_data):
    changes = {"data.folder": str(tiny_data)}
    base = read_recipe(config, changes=changes)
    compute = (
        base.steps * base.data.batch * positions_per_sequence(base.model) * flops_per_position(base.model, "paper")
    )
    plans = same_compute(config, changes)
    assert plans["crossbert"] == {
        "model.objective": "crossbert",
        "data.batch": base.data.batch,
        "steps": base.steps,
    }
    for more in plans.values():
        settings = read_recipe(config, changes=changes | more)
        positions = settings.data.batch * positions_per_sequence(settings.model)
        assert positions == base.data.batch * positions_per_sequence(base.model)
        cost = settings.steps * positions * flops_per_position(settings.model, "paper")
        assert cost == pytest.approx(compute, rel=1 / base.steps)
        assert settings.optimiser == base.optimiser


@pytest.fixture(scope="module")
def done(data, tmp_path_factory):
    """A trial, ended in the middle and gone on with; the folder, and what both calls gave."""
    out = tmp_path_factory.mktemp("replication")
    words = ["--tiny", "--quiet", "--suite", "builtin", "--seeds", "2", "--data", str(data), "--out", str(out)]
    return out, main([*words, "--minutes", "0"]), main(words)


def test_a_trial_goes_on_where_a_piece_of_it_ended(done, capsys):
    out, first, second = done
    assert (first, second) == (130, 0)
    runs = read_sweeps([out / "tiny" / "runs"])
    assert [run.name for run in runs] == [
        f"seed={seed},objective={name}" for seed in (0, 1) for name in ("bert", "crossbert", "electra")
    ]
    assert all(run.is_finished for run in runs)
    for run in runs:
        assert [row["step"] for row in run.metrics if "learning_rate" in row] == list(range(1, run.settings.steps + 1))
        assert {"validation_books_loss", "validation_encyclopedia_loss"} <= run.validations[-1].keys()
    held_out = json.loads((out / "tiny" / "data" / "books" / "manifest.json").read_text())
    assert held_out["documents"] == {"train": 0, "validation": 20}
    assert (out / "tiny" / "replication.svg").read_text().startswith("<?xml")


def test_the_report_is_of_all_seeds(done):
    runs = read_sweeps([done[0] / "tiny" / "runs"])
    found = report(runs)
    rows = {row["what"]: row for row in found.models}
    assert set(rows) == {"BERT", "CrossBERT", "Electra"}
    scores = {
        name: [mean_score(run.probes[-1]) for run in runs if run.model.objective == name]
        for name in ("bert", "crossbert")
    }
    assert rows["BERT"]["mean"] == pytest.approx(100 * np.mean(scores["bert"]))
    assert rows["BERT"]["mean_seeds"] == pytest.approx(100 * np.std(scores["bert"], ddof=1))
    assert rows["BERT"]["seeds"] == 2
    assert rows["CrossBERT"]["flops_with_heads"] > rows["CrossBERT"]["flops_eq_7_8"]
    difference = next(row for row in found.tests if (row["what"], row["task"]) == ("CrossBERT - BERT", "mean"))
    assert difference["difference"] == pytest.approx(100 * (np.mean(scores["crossbert"]) - np.mean(scores["bert"])))
    single = [row for row in found.tests if row["what"] == "CrossBERT - BERT" and row["task"] != "mean"]
    assert all(row["low"] <= row["difference"] <= row["high"] for row in single)
    assert all(row["p_holm"] >= row["p"] for row in single)
    examples = {
        unit.title: len(next(r for r in unit.rows if r["kind"] == "label")["values"])
        for unit in read_run(runs[0].probe_folders[-1]).units
    }
    assert {row["task"]: row["examples"] for row in single} == examples
    losses = [run.validations[-1]["validation_books_loss"] for run in runs if run.model.objective == "electra"]
    assert rows["Electra"]["loss_books"] == pytest.approx(np.mean(losses))
    assert found.curves["electra", "loss_books"][1][-1] == pytest.approx(np.mean(losses))


def test_results_are_written_without_the_paths_of_this_machine(done, tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.measure.RESULTS", tmp_path)
    asked = argparse.Namespace(config="/home/me/own.toml", seeds=2, tasks="cola,rte", prepared=done[0])
    place = replication.write(report(read_sweeps([done[0] / "tiny" / "runs"])), asked)
    assert place == tmp_path / "replication.svg"
    written = (tmp_path / "replication.json").read_text()
    rows = json.loads(written)["rows"]
    assert {"BERT", "CrossBERT", "Electra", "CrossBERT - BERT", "CrossBERT - Electra"} <= {
        row.get("what") for row in rows
    }
    assert "--config own.toml --seeds 2 --tasks cola,rte --prepared DATA" in written
    assert "/home/me" not in written
    assert str(done[0]) not in written


def test_a_deadline_interrupts_and_none_does_not():
    Deadline(None)(1, None, None)
    Deadline(60)(1, None, None)
    with pytest.raises(KeyboardInterrupt):
        Deadline(0)(1, None, None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "absent"], "train.parquet is missing"),
        (["--seeds", "0"], "--seeds"),
        (["--held-out", "x"], "--held-out goes with --prepared"),
        (["--tiny", "--write"], "the figures of --tiny mean nothing"),
        ([], "FROZENPROBE_TEST_DATA"),
    ],
)
def test_wrong_input_is_one_line(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("FROZENPROBE_TEST_DATA", raising=False)
    assert main([*words, "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_configuration_that_is_no_crossbert_is_refused(tiny_data, tmp_path, capsys):
    assert main(["--config", "bert-77m", "--prepared", str(tiny_data), "--out", str(tmp_path)]) == 2
    assert "a CrossBERT, from which the others follow" in capsys.readouterr().err
