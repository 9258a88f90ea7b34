"""Full finetuning on tiny models: it learns, its scores follow from its predictions, and it stands beside the frozen ones."""

import random

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, matthews_corrcoef

from frozenprobe.cli.main import main
from frozenprobe.encoders.registry import load_encoder
from frozenprobe.engine.evaluate import task_seed
from frozenprobe.errors import ProbeError, RecordError, SettingsError
from frozenprobe.metrics import METRICS
from frozenprobe.records.reading import read_run
from frozenprobe.settings import EncoderSettings, FinetuneSettings, GlueSettings, parse
from frozenprobe.statistics.bootstrap import Bootstrap
from frozenprobe.suites import finetune
from frozenprobe.suites.finetune import recipe_for
from frozenprobe.suites.glue import evaluate_glue
from frozenprobe.tasks.registry import resolve

PROBES = {"max_train": 60, "regimes": "10", "draws": 1, "bootstrap": 40}
FINETUNE = {"seeds": (3, 5), "epochs": 2, "learning_rate": 3e-3, "max_train": 64}


@pytest.fixture(scope="module")
def easy(tmp_path_factory):
    """A task of one letter to tell from another, in two evaluation rows of three."""
    folder = tmp_path_factory.mktemp("easy")
    for split, rows in (("train", 90), ("dev", 60)):
        lines = [f"{'a' if i % 3 else 'z'} {i % 7},{'many' if i % 3 else 'few'}" for i in range(rows)]
        (folder / f"{split}.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    description = folder / "task.toml"
    description.write_text(
        'name = "letters"\ntrain = "train.csv"\nevaluation = "dev.csv"\ncolumns = ["text"]\n'
        'label_column = "label"\nlabel_type = "classification"\n'
    )
    return description


def evaluate(model, out, *, tasks=None, files=(), unfrozen=True, finetune=None, **more):
    return evaluate_glue(
        model,
        out=out,
        suite="builtin",
        tasks=tasks,
        task_files=files,
        unfrozen=unfrozen,
        probes=PROBES,
        features={"cache": False, "tokens_per_batch": 1024},
        finetune=FINETUNE | (finetune or {}),
        **more,
    )


@pytest.fixture(scope="module")
def finished(tiny_bert, tmp_path_factory):
    """Frozen and finetuned scores of a pair task with two metrics and one with values, in one folder."""
    out = tmp_path_factory.mktemp("runs") / "tiny"
    tasks = "builtin-paraphrase,builtin-similarity"
    evaluate(tiny_bert, out, tasks=tasks, unfrozen=False)
    evaluate(tiny_bert, out, tasks=tasks)
    return out


def test_it_learns(tiny_bert, easy, tmp_path):
    frame = evaluate(
        tiny_bert, tmp_path / "run", files=[easy], finetune={"epochs": 8, "max_train": "all", "seeds": (0,)}
    )
    last = frame[(frame["protocol"] == "honest") & (frame["metric"] == "accuracy")]["value"].item()
    assert last > 0.95
    assert set(frame["n"]) == {90}
    assert set(frame["training"]) == {"finetuned"}


def test_scores_are_means_over_seeds_of_the_stored_predictions(finished):
    run = read_run(finished)
    units = [unit for unit in run.units if unit.key.training == "finetuned"]
    assert {unit.key.task for unit in units} == {"builtin-paraphrase", "builtin-similarity"}
    for unit in units:
        (labels,) = (np.array(row["values"]) for row in unit.rows if row["kind"] == "label")
        for protocol in ("honest", "paper"):
            answers = {
                row["draw"]: np.array(row["values"])
                for row in unit.rows
                if row["kind"] == "prediction" and row["protocol"] == protocol
            }
            assert set(answers) == {3, 5}
            for metric in unit.about["metrics"]:
                (score,) = (
                    row
                    for row in unit.rows
                    if row["kind"] == "score" and row["protocol"] == protocol and row["metric"] == metric
                )
                expected = np.mean([METRICS[metric](labels, values) for values in answers.values()])
                assert score["value"] == pytest.approx(expected)
                assert score["low"] <= score["high"]
        grid = {(row["draw"], row["epoch"]): row["value"] for row in unit.rows if row["protocol"] == "grid"}
        assert set(grid) == {(seed, epoch) for seed in (3, 5) for epoch in (1, 2)}
        headline = {row["protocol"]: row["value"] for row in unit.rows if row["is_headline"]}
        assert headline["honest"] == pytest.approx(np.mean([grid[seed, 2] for seed in (3, 5)]))
        assert headline["paper"] == pytest.approx(np.mean([max(grid[seed, 1], grid[seed, 2]) for seed in (3, 5)]))


def test_the_best_epochs_interval_follows_the_same_choice_in_every_metric():
    """As for the frozen probes: each resample chooses its epoch by the headline metric, and every metric is of that epoch."""
    (spec,) = resolve(["builtin-acceptability"], "builtin")
    dice = np.random.default_rng(0)
    labels = dice.integers(2, size=80)
    # A cautious, a balanced and a bold epoch: which is best by Matthews changes with the resample.
    epochs = np.stack([np.where(dice.random(80) < 0.6, labels, answer) for answer in (0, dice.integers(2, size=80), 1)])
    settings = parse(
        GlueSettings,
        {"encoder": {"ckpt": "x"}, "unfrozen": True, "probes": {"bootstrap": 200}, "finetune": {"seeds": (1,)}},
    )
    result = finetune._score(spec, [("train", labels), ("dev", labels)], [[epochs]], settings)
    low, high = {}, {}
    for score in result.scores:
        if score.protocol == "paper":
            low[score.metric], high[score.metric] = score.low, score.high

    expected, chosen = {"matthews": [], "accuracy": []}, set()
    for weights in np.concatenate(list(Bootstrap(80, 200, task_seed(settings.probes.seed, spec)).weights())):
        rows = np.repeat(np.arange(80), weights.astype(int))
        values = [matthews_corrcoef(labels[rows], answers[rows]) for answers in epochs]
        best = int(np.flatnonzero(np.isclose(values, max(values)))[-1])
        chosen.add(best)
        expected["matthews"].append(values[best])
        expected["accuracy"].append(accuracy_score(labels[rows], epochs[best][rows]))
    assert len(chosen) > 1
    for metric, values in expected.items():
        assert (low[metric], high[metric]) == pytest.approx(tuple(np.quantile(values, [0.025, 0.975])))


def test_the_recipe_is_recorded(finished):
    about = next(unit.about for unit in read_run(finished).units if unit.key.training == "finetuned")
    assert about["finetune"]["recipe"] == {
        "learning_rate": 3e-3,
        "epochs": 2,
        "batch_size": 16,
        "warmup": 0.06,
        "weight_decay": 0.1,
        "dropout": 0.1,
    }
    assert about["finetune"]["seeds"] == [3, 5]
    assert about["train_rows"] == 64
    assert "inputs are longer than 128 tokens" in about["warnings"][0]


def test_frozen_and_finetuned_stand_in_one_table(finished, capsys):
    with pytest.raises(SystemExit):
        main(["show", str(finished)])
    output = capsys.readouterr().out
    assert "frozen and finetuned" in output
    for line in ("linear, honest", "finetuned, last epoch", "finetuned, best epoch"):
        assert line in output
    assert (finished / "summary.csv").read_text().count("finetune") == 2
    caption = " ".join(output.split())
    assert "at most 60 train rows; honest: chosen inside train" in caption
    assert "finetuned: every weight trained on at most 64 train rows, mean over 2 seeds; last epoch: chooses" in caption


def test_a_second_run_trains_nothing_and_another_recipe_is_refused(finished, tiny_bert, monkeypatch):
    files = sorted(finished.glob("units/*"))
    monkeypatch.setattr("frozenprobe.suites.trainer.Trainer", None)
    evaluate(tiny_bert, finished, tasks="builtin-paraphrase,builtin-similarity")
    assert sorted(finished.glob("units/*")) == files
    with pytest.raises(RecordError, match=r"other settings.*epochs was 2, is 3"):
        evaluate(tiny_bert, finished, tasks="builtin-similarity", finetune={"epochs": 3})


def test_the_same_seeds_give_the_same_predictions_and_nothing_outside_changes(tiny_bert, finished, tmp_path):
    encoder = load_encoder(EncoderSettings(ckpt=str(tiny_bert)))
    before = encoder.fingerprint()
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    evaluate(encoder, tmp_path / "again", tasks="builtin-similarity")
    assert states == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    assert encoder.fingerprint() == before
    assert not any(weight.requires_grad for weight in encoder.model.parameters())

    def predictions(folder):
        rows = read_run(folder).rows("prediction")
        return [row["values"] for row in rows if row["task"] == "builtin-similarity" and row["training"] == "finetuned"]

    assert predictions(tmp_path / "again") == predictions(finished)


def test_a_training_that_diverges_is_named(tiny_bert, easy, tmp_path):
    with pytest.raises(ProbeError, match=r"letters, seed 3: the training diverged"):
        evaluate(tiny_bert, tmp_path / "run", files=[easy], finetune={"learning_rate": 1e30})


def test_bf16_trains_weights_of_full_precision(tiny_bert, easy, tmp_path, monkeypatch):
    from frozenprobe.suites import trainer

    seen = []
    original = trainer.Finetuned.__init__

    def record(self, model, *rest):
        original(self, model, *rest)
        seen.append({weight.dtype for weight in self.parameters()})

    monkeypatch.setattr(trainer.Finetuned, "__init__", record)
    evaluate(
        tiny_bert, tmp_path / "run", files=[easy], encoder={"dtype": "bf16"}, finetune={"seeds": (0,), "epochs": 1}
    )
    assert seen == [{torch.float32}]
    unit = read_run(tmp_path / "run").units[0]
    assert unit.about["finetune"]["precision"] == "bf16"


def test_recipes_differ_by_the_number_of_rows():
    assert recipe_for(2_490, FinetuneSettings()).epochs == 10
    assert recipe_for(67_349, FinetuneSettings()).epochs == 3
    assert recipe_for(67_349, FinetuneSettings(epochs=1, batch_size=8)).batch_size == 8


def test_pairs_apart_are_refused():
    with pytest.raises(SettingsError, match="--pair-form joint"):
        parse(GlueSettings, {"encoder": {"ckpt": "x"}, "unfrozen": True, "pair_form": "both"})
