"""`Probe` in a plain loop: what it gives, when, and that training does not notice."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

import frozenprobe
from frozenprobe.callbacks import Probe
from frozenprobe.callbacks.evaluation import Evaluator, Outcome
from frozenprobe.callbacks.undisturbed import undisturbed
from frozenprobe.encoders.module import ModuleEncoder
from frozenprobe.errors import DataError, EvaluationError, RecordError, SettingsError
from frozenprobe.settings import CallbackSettings
from tests.callbacks.conftest import FAST, STEPS, assert_same, make_model, seed_everything, train
from tests.encoders import tiny

NAMES = {f"frozen_{task}_{probe}" for task in ("builtin-sentiment", "builtin-similarity") for probe in ("ridge", "knn")}
NAMES |= {"frozen_mean_ridge", "frozen_mean_knn", "frozen_seconds"}


# Training is as without


@pytest.mark.parametrize("autocast", [False, True])
def test_losses_and_weights_are_bit_for_bit_those_of_a_run_without(autocast, tmp_path):
    probe = Probe(**FAST, every=2, out=tmp_path / "frozen")
    seen = []
    modes = []

    def after(step, model, tokenizer):
        model.bert.encoder.layer[1].eval()  # a frozen block stays one
        if step == 1:
            model.cls.train(False)
        before = [module.training for module in model.modules()]
        if probe is not None:
            seen.append(probe(model, tokenizer, step=step))
        modes.append(before == [module.training for module in model.modules()])

    with_it = train(after, autocast=autocast)
    probe = None
    assert_same(with_it, train(after, autocast=autocast))
    assert all(modes)
    assert [bool(scores) for scores in seen] == [False, True] * 3


@pytest.mark.gpu
def test_nor_does_training_on_a_gpu_notice_and_no_memory_is_kept_there():
    kept = []

    def after(step, model, tokenizer):
        before = torch.cuda.memory_allocated()
        probe(model, tokenizer, step=step)
        kept.append(torch.cuda.memory_allocated() - before)

    probe = Probe(**FAST)
    with_it = train(after, autocast=True, device="cuda")
    assert_same(with_it, train(autocast=True, device="cuda"))
    assert kept[1:] == [0] * (STEPS - 1)  # the first pass may set up a workspace of the linear algebra


def test_compiled_graphs_are_not_touched():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    def compiled(model):
        model.bert.encoder.layer[0].compile(backend=backend)  # in place, so that the probe meets it
        return model

    torch.compiler.reset()
    without = train(step_model=compiled, steps=3)
    count = len(graphs)
    assert count > 0
    torch.compiler.reset()
    with Probe(**FAST, every=1) as probe:
        assert_same(without, train(probe, step_model=compiled, steps=3))
    assert len(graphs) == 2 * count


def test_random_states_and_autocast_are_put_back():
    seed_everything(3)
    expected = random.random(), np.random.rand(), torch.rand(1).item()
    seed_everything(3)
    with torch.autocast("cpu", torch.bfloat16), undisturbed():
        assert not torch.is_autocast_enabled("cpu")
        seed_everything(4)
        assert torch.mm(torch.rand(2, 2), torch.rand(2, 2)).dtype == torch.float32
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == expected


def test_gradients_stay_what_they_were():
    model, tokenizer = make_model().train(), tiny.wordpiece()
    ids = torch.randint(5, 80, (2, 8))
    model(input_ids=ids, labels=ids).loss.backward()
    gradients = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    assert Probe(**FAST)(model, tokenizer, step=3)
    for name, weight in model.named_parameters():
        assert (weight.grad is None) == (name not in gradients)
        assert weight.grad is None or torch.equal(weight.grad, gradients[name])


# The scores


def test_scores_are_those_of_evaluate_glue_and_the_records_can_be_read(tmp_path, probe_log):
    model, tokenizer = make_model(), tiny.wordpiece()
    scores = Probe(**FAST, out=tmp_path, name="mine", log=probe_log.write)(model, tokenizer, step=7)
    assert set(scores) == NAMES
    assert probe_log.entries == [(7, scores)]
    frame = frozenprobe.evaluate_glue(
        ModuleEncoder(model, tokenizer, name="mine", step=7),
        suite="builtin",
        tasks=FAST["tasks"],
        probes={"max_train": 40, "regimes": (), "bootstrap": 0},
        features={"cache": False},
    )
    headline = frame[frame.is_headline & (frame.protocol == "honest")]
    for row in headline.itertuples():
        assert scores[f"frozen_{row.task}_{row.probe}"] == row.value
    assert scores["frozen_mean_knn"] == pytest.approx(np.mean(headline[headline.probe == "knn"].value))
    run = frozenprobe.read_run(tmp_path / "step-00000007")
    assert run.name == "mine step 7"
    assert set(run.scores().value) == set(frame.value)


def test_rows_and_scores_are_the_same_every_time_and_texts_are_not_kept():
    model, tokenizer = make_model(), tiny.wordpiece()
    evaluator = Evaluator(CallbackSettings(**FAST))
    assert evaluator.tokens == 0
    first = evaluator.evaluate(model, tokenizer, 1)
    kept = evaluator.nbytes
    again = evaluator.evaluate(model, tokenizer, 2)
    assert first.scores == again.scores
    assert evaluator.nbytes == kept
    assert 0 < kept < 40 * evaluator.tokens  # a few bytes per token, ids, keys and lengths together

    class CalledError(Exception):
        pass

    class Refusing(ModuleEncoder):
        def tokenize(self, texts, pairs=None, role=None):
            if len(texts) > 10:  # the checks of the contract are allowed
                raise CalledError
            return super().tokenize(texts, pairs, role)

    encoder = Refusing(model, tokenizer, name="mine", step=3)
    evaluator._tokenized_for = (None, encoder.info.max_length)
    assert evaluator.evaluate(encoder, None, 3).scores == first.scores
    with pytest.raises(CalledError):
        Evaluator(CallbackSettings(**FAST)).evaluate(encoder, None, 3)


def test_fewer_scored_rows_are_a_subset_and_named_so():
    scores = Probe(**FAST, max_evaluated=60)(make_model(), tiny.wordpiece(), step=1)
    assert "frozen_builtin-sentiment-subset_ridge" in scores
    assert "frozen_builtin-sentiment_ridge" not in scores
    assert "frozen_mean_ridge" in scores


def test_another_tokenizer_means_other_tokens():
    model = make_model()
    evaluator = Evaluator(CallbackSettings(**FAST))
    evaluator.evaluate(model, tiny.wordpiece(), 1)
    long = evaluator.tokens
    evaluator.evaluate(model, tiny.wordpiece(max_length=48), 2)
    assert evaluator.tokens < long


def test_a_changed_model_has_other_scores_at_the_same_step(tmp_path):
    model, tokenizer = make_model(), tiny.wordpiece()
    first = Probe(**FAST, out=tmp_path)(model, tokenizer, step=1)
    other = make_model(seed=1)
    again = Probe(**FAST, out=tmp_path)(other, tokenizer, step=1)  # training was started again in the same folder
    assert first["frozen_mean_ridge"] != again["frozen_mean_ridge"]
    values = set(frozenprobe.read_run(tmp_path / "step-00000001").scores().value)
    assert again["frozen_builtin-sentiment_ridge"] in values


def test_a_part_of_a_model_can_be_measured():
    class Wrapper(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = make_model()

        def forward(self, nothing):
            raise NotImplementedError

    tokenizer = tiny.wordpiece()
    inside = Probe(**FAST)(make_model(), tokenizer, step=1)
    outside = Probe(**FAST, part="encoder")(Wrapper(), tokenizer, step=1)
    del inside["frozen_seconds"], outside["frozen_seconds"]
    assert inside == outside
    with pytest.raises(EvaluationError, match="has no part 'body'; its parts are encoder"):
        Probe(**FAST, part="body", on_failure="stop")(Wrapper(), tokenizer, step=1)


# When


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ({}, [1, 2, 3, 4, 5, 6]),
        ({"every": 4}, [4, 6]),
        ({"every": 4, "at_end": False}, [4]),
        ({"every": 3}, [3, 6]),
        ({"at": (2, 5), "at_end": False}, [2, 5]),
        ({"at": "2", "every": 4, "on_start": True}, [1, 2, 4, 6]),
    ],
)
def test_schedule(schedule, expected, probe_log, monkeypatch):
    monkeypatch.setattr(Evaluator, "evaluate", lambda self, model, tokenizer, step: Outcome(step, {}, 0.0))
    model = make_model()
    with Probe(**FAST, **schedule, log=probe_log.write) as probe:
        for step in range(1, STEPS + 1):
            probe(step, model, None)  # as crossbert's loop calls it
    assert [step for step, _ in probe_log.entries] == expected


def test_a_loop_that_fails_is_not_evaluated_at_its_end(probe_log):
    def loop(probe):
        with probe:
            probe(make_model(), tiny.wordpiece(), step=1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        loop(Probe(**FAST, every=10, log=probe_log.write))
    assert not probe_log.entries


# What can go wrong


class Broken(torch.nn.Linear):
    def forward(self, input_ids, attention_mask):
        raise ValueError("two\nlines")


def test_a_failed_evaluation_is_one_line_and_training_goes_on(caplog):
    probe = Probe(**FAST)
    assert probe(Broken(2, 2), tiny.wordpiece(), step=5) == {}
    (line,) = caplog.messages
    assert line.startswith("frozenprobe: evaluation at step 5 failed: model: Broken cannot be run on token ids")
    assert line.endswith("ValueError: two lines); training goes on")
    assert set(probe(make_model(), tiny.wordpiece(), step=6)) == NAMES


def test_a_failure_of_any_kind_stops_where_asked(monkeypatch):
    def fail(self, model, tokenizer, step):
        raise OSError("the disk\nis full")

    monkeypatch.setattr(Evaluator, "evaluate", fail)
    with pytest.raises(EvaluationError, match=r"^evaluation at step 5 failed: OSError: the disk is full$"):
        Probe(**FAST, on_failure="stop")(make_model(), tiny.wordpiece(), step=5)


def test_the_time_limit_leaves_tasks_out_and_names_them(monkeypatch, caplog, tmp_path):
    model, tokenizer = make_model(), tiny.wordpiece()
    clock = [0.0]
    monkeypatch.setattr("frozenprobe.callbacks.evaluation.time.perf_counter", lambda: clock[0])
    forward = ModuleEncoder.forward

    def slow(self, batch, layers, visit):
        clock[0] += 1.0
        forward(self, batch, layers, visit)

    monkeypatch.setattr(ModuleEncoder, "forward", slow)
    options = FAST | {"tokens_per_batch": 1_000_000, "out": tmp_path}
    assert set(Probe(**options, max_seconds=6.5)(model, tokenizer, step=1)) == NAMES  # 4 checks, a batch per task
    probe = Probe(**options, max_seconds=5.5)
    scores = probe(model, tokenizer, step=2)
    assert set(scores) == {"frozen_builtin-sentiment_ridge", "frozen_builtin-sentiment_knn", "frozen_seconds"}
    assert caplog.messages[-1] == "frozenprobe: step 2: no time was left for builtin-similarity (joint)"
    assert len(frozenprobe.read_run(tmp_path / "step-00000002").units) == 1


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"tasks": "cola"}, DataError, "is a task of the suite glue"),
        ({"every": 0}, SettingsError, "every: "),
        ({"evry": 1}, SettingsError, "unknown setting evry"),
        ({"suite": "glue", "tasks": "cola", "data_dir": "/nowhere"}, DataError, "/nowhere does not exist"),
    ],
)
def test_wrong_input_is_found_before_training(options, error, words):
    with pytest.raises(error, match=words) as caught:
        Probe(**FAST | options)
    assert "\n" not in str(caught.value)


def test_a_folder_belongs_to_one_run(tmp_path):
    Probe(**FAST, out=tmp_path / "a")
    Probe(**FAST, out=tmp_path / "a", every=5)  # a schedule decides no score
    with pytest.raises(RecordError, match="holds scores of another run \\(max_train was 40, is 50\\)"):
        Probe(**FAST | {"max_train": 50}, out=tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b/thesis.txt").write_text("mine")
    with pytest.raises(RecordError, match="holds other files"):
        Probe(**FAST, out=tmp_path / "b")
    with pytest.raises(SettingsError, match="is called with"):
        Probe(**FAST)(make_model(), tiny.wordpiece())
