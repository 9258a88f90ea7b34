"""The callback in transformers' and in sentence-transformers' trainer, on the examples."""

from __future__ import annotations

import math

import pytest
import torch

import frozenprobe
from examples import hf_trainer_mlm
from examples import sentence_transformers_trainer as st_trainer
from frozenprobe.callbacks import FrozenProbeCallback
from frozenprobe.callbacks.evaluation import Evaluator
from frozenprobe.errors import EvaluationError, SettingsError

FAST = {"suite": "builtin", "tasks": "builtin-sentiment", "max_train": 40, "bootstrap": 0}
STEPS = {"steps": 6, "logging_steps": 1}


def losses(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def scored(trainer):
    return {e["step"]: e["eval_frozen_mean_ridge"] for e in trainer.state.log_history if "eval_frozen_mean_ridge" in e}


def weights(trainer):
    return {name: weight.clone() for name, weight in trainer.model.state_dict().items()}


def train(module, folder, callbacks, **arguments):
    trainer = module.make_trainer(folder, callbacks, **{**STEPS, "save_strategy": "no"} | arguments)
    trainer.train()
    return trainer


def test_losses_are_those_without_and_the_best_checkpoint_is_chosen_by_the_scores(tmp_path):
    without = train(hf_trainer_mlm, tmp_path / "without", [], save_strategy="steps")
    with_it = train(
        hf_trainer_mlm,
        tmp_path / "with",
        [FrozenProbeCallback(**FAST, on_start=True)],
        save_strategy="steps",
        load_best_model_at_end=True,
        metric_for_best_model="frozen_mean_ridge",
    )
    assert losses(without) == losses(with_it)
    assert len(set(losses(without))) == 6
    scores = scored(with_it)
    assert sorted(scores) == [0, 2, 4, 6]
    best = max((2, 4, 6), key=lambda step: scores[step])
    assert with_it.state.best_metric == scores[best]
    assert with_it.state.best_model_checkpoint.endswith(f"checkpoint-{best}")
    for step, score in scores.items():
        run = frozenprobe.read_run(tmp_path / f"with/frozenprobe/step-{step:08d}")
        assert run.name == f"with step {step}"
        assert score in set(run.scores().value)


def test_by_its_own_schedule_and_into_every_tracker(tmp_path):
    from transformers import TrainerCallback

    seen = []

    class Tracker(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **context):
            seen.append((state.global_step, set(logs)))

    trainer = train(
        hf_trainer_mlm,
        tmp_path,
        [Tracker(), FrozenProbeCallback(**FAST, at="3", on_start=True, name="mine")],
        eval_strategy="no",
    )
    assert sorted(scored(trainer)) == [0, 3, 6]
    assert [step for step, names in seen if "eval_frozen_builtin-sentiment_knn" in names] == [0, 3, 6]
    assert frozenprobe.read_run(tmp_path / "frozenprobe/step-00000003").name == "mine step 3"


@pytest.mark.slow
def test_scores_of_another_process_are_logged_before_training_ends(tmp_path):
    blocking = train(hf_trainer_mlm, tmp_path / "a", [FrozenProbeCallback(**FAST, every=3)], eval_strategy="no")
    process = train(
        hf_trainer_mlm,
        tmp_path / "b",
        [FrozenProbeCallback(**FAST, every=3, mode="process", queue=2)],
        eval_strategy="no",
    )
    assert losses(blocking) == losses(process)
    logged = [entry for entry in process.state.log_history if "eval_frozen_mean_ridge" in entry]
    late = {int(entry.get("eval_frozen_step", entry["step"])): entry["eval_frozen_mean_ridge"] for entry in logged}
    assert late == scored(blocking)


def test_a_failed_evaluation_is_no_best_checkpoint_and_stops_where_asked(tmp_path, monkeypatch, caplog):
    def fail(self, model, tokenizer, step):
        raise ValueError("broken")

    monkeypatch.setattr(Evaluator, "evaluate", fail)
    arguments = {
        "save_strategy": "steps",
        "load_best_model_at_end": True,
        "metric_for_best_model": "eval_frozen_mean_knn",
    }
    trainer = train(hf_trainer_mlm, tmp_path / "a", [FrozenProbeCallback(**FAST)], **arguments)
    assert trainer.state.best_model_checkpoint is None
    assert math.isinf(trainer.state.best_metric)
    lines = [line for line in caplog.messages if line.startswith("frozenprobe")]
    assert lines == [
        f"frozenprobe: evaluation at step {n} failed: ValueError: broken; training goes on" for n in (2, 4, 6)
    ]
    with pytest.raises(EvaluationError, match="at step 2 failed"):
        train(hf_trainer_mlm, tmp_path / "b", [FrozenProbeCallback(**FAST, on_failure="stop")], **arguments)


@pytest.mark.parametrize(
    ("options", "arguments", "words"),
    [
        ({}, {"eval_strategy": "no"}, "needs every=... or at=..."),
        ({"mode": "process"}, {"metric_for_best_model": "frozen_mean_ridge"}, "needs mode blocking"),
        ({"every": 2}, {"processing_class": None}, "give the trainer its tokenizer"),
    ],
)
def test_what_cannot_work_is_said_before_the_first_step(tmp_path, options, arguments, words):
    processing = arguments.pop("processing_class", "keep")
    trainer = hf_trainer_mlm.make_trainer(
        tmp_path, [FrozenProbeCallback(**FAST, **options)], steps=6, save_strategy="no", **arguments
    )
    if processing is None:
        trainer.processing_class = trainer.callback_handler.processing_class = None
    with pytest.raises(SettingsError, match=words):
        trainer.train()
    assert trainer.state.global_step == 0


def test_sentence_transformers(tmp_path):
    without = train(st_trainer, tmp_path / "without", [])
    with_it = train(st_trainer, tmp_path / "with", [FrozenProbeCallback(**FAST, every=2)])
    assert losses(without) == losses(with_it)
    assert len(losses(without)) == 6
    assert sorted(scored(with_it)) == [2, 4, 6]
    one, other = weights(without), weights(with_it)
    assert all(torch.equal(one[name], other[name]) for name in one)
    notes = frozenprobe.read_run(tmp_path / "with/frozenprobe/step-00000002").manifest["encoder"]["notes"]
    assert notes == ["measured at the transformer inside, without its own pooling"]


def test_sentence_transformers_in_another_process(tmp_path):
    callback = FrozenProbeCallback(**FAST, at="6", mode="process")
    trainer = train(st_trainer, tmp_path, [callback])
    assert list(scored(trainer)) == [6]
