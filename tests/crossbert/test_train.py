"""A run can be killed, resumed, spread over ranks and divided into pieces, and stays the same run (C13, C14)."""

import json
import os
import shutil
import signal
import sys

import pytest
import torch
from safetensors.torch import load_file

from crossbert.checkpoint import checkpoints
from crossbert.metrics import read_metrics
from crossbert.model import build_model
from crossbert.optimiser import Guard, build_optimiser, learning_rate
from crossbert.settings import GuardSettings, OptimiserSettings
from crossbert.train import TrainingError, train
from frozenprobe.errors import DataError, FrozenprobeError, RecordError, SettingsError

OBJECTIVES = ("crossbert", "bert", "electra")


def losses(out):
    """Training loss by step, each step once."""
    rows = [row for row in read_metrics(out) if "loss" in row]
    assert len({row["step"] for row in rows}) == len(rows)
    return {row["step"]: row["loss"] for row in rows}


def weights(out):
    return load_file(checkpoints(out)[-1] / "model.safetensors")


def assert_same_run(out, other, tolerance=0.0):
    assert losses(out).keys() == losses(other).keys()
    for step, loss in losses(out).items():
        assert loss == pytest.approx(losses(other)[step], abs=tolerance, rel=tolerance), step
    ours, theirs = weights(out), weights(other)
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        # Adam divides by the root of the second moment, which makes much of a rounding error in a tiny gradient.
        torch.testing.assert_close(weight, theirs[name], atol=100 * tolerance, rtol=0, msg=name)


@pytest.fixture
def whole(tiny, tmp_path):
    """The run of 20 steps, undisturbed."""
    train(tiny(), tmp_path / "whole")
    return tmp_path / "whole"


def test_a_run_learns_and_leaves_what_it_promises(whole, tiny):
    seen = losses(whole)
    assert list(seen) == list(range(1, 21))
    assert seen[20] < seen[1] - 0.5
    rows = list(read_metrics(whole))
    validation = {row["step"]: row["validation_loss"] for row in rows if "validation_loss" in row}
    assert list(validation) == [10, 20]
    assert validation[20] < validation[10]
    row = next(row for row in rows if row["step"] == 7)
    assert row["positions_per_second"] == pytest.approx(2 * row["unique_tokens_per_second"])  # two views
    assert row["unique_tokens_per_second"] * row["step_seconds"] == pytest.approx(8 * 32)
    assert 0 <= row["data_share"] <= 1
    assert row["mfu"] > 0
    assert row["memory_bytes"] > 1e7
    assert row["gradient_norm"] > 0
    last = checkpoints(whole)[-1]
    assert {path.name for path in last.iterdir()} == {
        "config.json",
        "model.safetensors",
        "tokenizer",
        "state",
        "COMPLETE",
    }
    config = json.loads((last / "config.json").read_text())
    assert config["step"] == 20
    assert config["model"]["vocabulary"] == 401  # the data's
    model = build_model(tiny().model)
    model.load_state_dict(load_file(last / "model.safetensors"))


def test_killed_and_resumed_is_bit_for_bit_the_same(whole, tiny, processes, tmp_path):
    out = tmp_path / "killed"
    assert processes(out, die_at=13) == [-signal.SIGKILL]
    assert [path.name for path in checkpoints(out)] == ["step-10"]
    assert max(losses(out)) == 13
    train(tiny(), out)
    assert_same_run(out, whole)


@pytest.mark.parametrize("objective", ["bert", "electra"])
def test_the_flat_baselines_resume_bit_for_bit_too(objective, tiny, tmp_path):
    settings = tiny(f"model.objective={objective}")

    def breaks(step, model, tokenizer):
        if step == 12:
            raise ZeroDivisionError

    train(settings, tmp_path / "whole")
    with pytest.raises(ZeroDivisionError):
        train(settings, tmp_path / "broken", callbacks=[breaks])
    train(settings, tmp_path / "broken")
    assert_same_run(tmp_path / "broken", tmp_path / "whole")


def test_two_ranks_under_fsdp_equal_one_and_one_goes_on_where_two_were_killed(whole, tiny, processes, tmp_path):
    out = tmp_path / "killed"
    assert processes(out, ranks=2, die_at=13) == [-signal.SIGKILL] * 2
    two, one = losses(out), losses(whole)
    assert list(two) == list(range(1, 14))
    assert all(loss == pytest.approx(one[step], abs=1e-5, rel=0) for step, loss in two.items())
    # One matrix is embedding and head, and is written whole.
    assert set(weights(out)) == set(build_model(tiny().model).state_dict())
    train(tiny(), out)
    assert_same_run(out, whole, tolerance=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("parallel", "objective"), [("ddp", "crossbert"), ("fsdp", "bert"), ("fsdp", "electra")])
def test_two_ranks_with_two_pieces_each_equal_one(parallel, objective, tiny, processes, tmp_path):
    train(tiny(f"model.objective={objective}"), tmp_path / "one")
    options = (f"model.objective={objective}", f"system.parallel={parallel}", "system.accumulation=2")
    assert processes(tmp_path / "two", *options, ranks=2) == [0, 0]
    assert_same_run(tmp_path / "two", tmp_path / "one", tolerance=1e-5)


@pytest.mark.parametrize(
    "change",
    ["system.accumulation=4", "system.activation_checkpointing=true", "system.accumulation=2,document"],
)
def test_how_a_step_is_carried_out_changes_only_the_order_of_sums(change, whole, tiny, tmp_path):
    change, document, _ = change.partition(",document")
    peer = whole
    options = ["model.document_mask=true"] if document else []
    if document:  # the pieces predict different numbers of positions
        peer = tmp_path / "peer"
        train(tiny(*options), peer)
    train(tiny(change, *options), tmp_path / "changed")
    assert_same_run(tmp_path / "changed", peer, tolerance=1e-5)


def test_another_seed_is_another_run(whole, tiny, tmp_path):
    train(tiny("seed=1"), tmp_path / "other")
    assert losses(tmp_path / "other")[1] != losses(whole)[1]


def test_a_finished_run_is_not_trained_again(whole, tiny):
    before = (whole / "metrics.jsonl").read_bytes()
    assert train(tiny(), whole) == whole / "step-20"
    assert (whole / "metrics.jsonl").read_bytes() == before


def test_a_folder_holds_one_run(whole, tiny, tmp_path):
    with pytest.raises(RecordError, match=r"different run \(data.batch was 8, is 16, steps was 20, is 21\)"):
        train(tiny("data.batch=16", "steps=21"), whole)
    train(tiny("system.keep=1", "system.validate_every=0"), whole)  # how it is carried out may differ
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.tex").touch()
    with pytest.raises(RecordError, match="other files"):
        train(tiny(), tmp_path / "foreign")


def test_what_is_refused_leaves_the_folder_free(tiny, tmp_path, monkeypatch):
    out = tmp_path / "run"
    monkeypatch.setitem(sys.modules, "wandb", None)
    wrongs = ("model.sequence_length=100000", "data.held_out=nowhere", "system.device=tpu", "system.trackers=wandb")
    for wrong in wrongs:
        with pytest.raises(FrozenprobeError):
            train(tiny(wrong, "seed=5"), out)
    train(tiny(), out)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"identity": null}', '{"identity": 5}'])
def test_a_damaged_description_is_one_line(content, whole, tiny):
    (whole / "run.json").write_text(content)
    with pytest.raises(RecordError, match=r"run\.json is damaged .*choose another --out"):
        train(tiny(), whole)


def test_two_processes_do_not_train_in_one_folder(tiny, tmp_path):
    import fcntl

    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RecordError, match="another process"):
            train(tiny(), tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_finishes_the_step_and_keeps_it(number, whole, tiny, tmp_path):
    def interrupt(step, model, tokenizer):
        if step == 6:
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt):
        train(tiny(), tmp_path / "run", callbacks=[interrupt])
    assert signal.getsignal(number) is before
    assert [path.name for path in checkpoints(tmp_path / "run")] == ["step-7"]
    train(tiny(), tmp_path / "run")
    assert_same_run(tmp_path / "run", whole)


def poison(at):
    """Makes one gradient of the step behind `at` infinite."""

    def callback(step, model, tokenizer):
        if step == at:
            parameter = next(model.parameters())
            handle = parameter.register_hook(lambda gradient: (handle.remove(), gradient * float("inf"))[1])

    return callback


def test_a_step_with_a_bad_gradient_is_skipped_and_logged(tiny, tmp_path):
    kept = {}

    def watch(step, model, tokenizer):
        kept[step] = {name: weight.clone() for name, weight in model.state_dict().items()}

    train(tiny(), tmp_path / "run", callbacks=[watch, poison(at=5)])
    assert all(torch.equal(weight, kept[5][name]) for name, weight in kept[6].items())
    assert not torch.equal(kept[7]["encoder.embedding.weight"], kept[6]["encoder.embedding.weight"])
    row = next(row for row in read_metrics(tmp_path / "run") if row["step"] == 6)
    assert "gradient's norm" in row["skipped"]
    assert list(read_metrics(tmp_path / "run"))[-2]["skipped_steps"] == 1


def test_a_bad_step_stops_the_run_where_that_is_asked_for(tiny, tmp_path):
    settings = tiny("guard.action=stop", "system.checkpoint_every=2")
    with pytest.raises(TrainingError, match=r"step 6: the gradient's norm is .*the last good checkpoint is .*step-4"):
        train(settings, tmp_path / "run", callbacks=[poison(at=5)])
    train(settings, tmp_path / "run")  # goes on from there


def test_a_bad_step_is_no_checkpoint(tiny, tmp_path):
    train(tiny("system.checkpoint_every=3", "system.keep=0"), tmp_path / "run", callbacks=[poison(at=5)])
    assert [path.name for path in checkpoints(tmp_path / "run")] == [f"step-{n}" for n in (3, 9, 12, 15, 18, 20)]


def test_a_spike_is_a_loss_far_above_its_running_mean():
    settings = GuardSettings(spike=1.5, patience=5)
    guard = Guard()
    assert guard.judge(90.0, 1.0, settings) is None  # nothing to compare it with yet
    for _ in range(400):
        assert guard.judge(2.0, 1.0, settings) is None
    assert guard.mean == pytest.approx(2.0, abs=0.05)
    assert "1.6 times its running mean" in guard.judge(3.2, 1.0, settings)
    again = Guard()
    again.restore(guard.as_tensor())
    assert again == guard == Guard(mean=guard.mean, accepted=401, skipped=1, in_a_row=1)
    assert again.judge(2.9, 1.0, settings) is None
    assert again.in_a_row == 0
    assert "loss is nan" in again.judge(float("nan"), 1.0, settings)


def test_weights_that_are_lost_end_the_run(tiny, tmp_path):
    def lose(step, model, tokenizer):
        if step == 5:
            with torch.no_grad():
                next(model.parameters()).fill_(float("nan"))

    with pytest.raises(TrainingError, match="3 steps in a row were skipped, there is no checkpoint yet"):
        train(tiny("guard.max_skips=3"), tmp_path / "run", callbacks=[lose])


def test_callbacks_get_step_model_and_tokenizer(tiny, tmp_path):
    seen = []

    def look(step, model, tokenizer):
        model.eval()
        seen.append((step, type(model).__name__, len(tokenizer)))

    train(tiny(), tmp_path / "run", callbacks=[look])
    assert seen == [(step, "CrossBert", 401) for step in range(1, 21)]


def test_held_out_sets_have_their_own_loss(tiny, tiny_data, tmp_path):
    from crossbert.prepare import prepare
    from crossbert.settings import PrepareSettings

    tokenizer = str(tiny_data / "tokenizer")
    other = PrepareSettings(builtin=60, seed=5, tokenizer=tokenizer, validation_share=0.3)
    prepare(other, tmp_path / "more")
    train(tiny(f"data.held_out={tmp_path / 'more'}"), tmp_path / "run")
    last = list(read_metrics(tmp_path / "run"))[-1]
    assert set(last) == {"step", "validation_loss", "validation_more_loss"}
    assert last["validation_loss"] != last["validation_more_loss"]
    shutil.copytree(tmp_path / "more", tmp_path / "b" / "more")
    with pytest.raises(SettingsError, match="two folders are called more"):
        train(tiny(f"data.held_out={tmp_path / 'more'},{tmp_path / 'b' / 'more'}"), tmp_path / "again")
    (shard,) = (tmp_path / "b" / "more").glob("validation-*")
    shard.write_bytes(bytes(shard.stat().st_size))
    with pytest.raises(DataError, match="is damaged"):
        train(tiny(f"data.held_out={tmp_path / 'b' / 'more'}"), tmp_path / "again")
    foreign = PrepareSettings(builtin=60, train_tokenizer=500, validation_share=0.3)
    prepare(foreign, tmp_path / "foreign")
    with pytest.raises(DataError, match="another tokenizer"):
        train(tiny(f"data.held_out={tmp_path / 'foreign'}"), tmp_path / "again")


def test_a_compiler_that_fails_is_one_line(tiny, tmp_path, monkeypatch):
    class FailureError(RuntimeError):
        __module__ = "torch._inductor.exc"

    def fails(*arguments):
        raise FailureError("ImportError: x.so: file too short\n\nSet TORCHDYNAMO_VERBOSE=1")

    monkeypatch.setattr("crossbert.train._Run._forward", fails)
    with pytest.raises(
        SettingsError, match=r"torch.compile failed: ImportError: x\.so: file too short; .*system\.compile"
    ):
        train(tiny(), tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_compiled_a_run_is_one_graph_without_recompilation(objective, tiny, tmp_path):
    settings = tiny(f"model.objective={objective}", "system.compile=true", "dtype=bf16")
    train(settings, tmp_path / "compiled")
    rows = [row for row in read_metrics(tmp_path / "compiled") if "loss" in row]
    assert rows[0]["graphs"] == 1
    assert rows[-1]["graphs"] == 2  # the other is validation's, without gradients
    assert all(row["recompiles"] == 0 for row in rows)
    assert rows[-1]["loss"] < rows[0]["loss"]


def test_the_learning_rate_warms_up_and_falls_to_the_least():
    settings = OptimiserSettings(learning_rate=1e-3, min_learning_rate=1e-5, warmup_steps=10)
    rates = [learning_rate(step, 111, settings) for step in range(111)]
    assert rates[0] == pytest.approx(1e-4)
    assert rates[9] == pytest.approx(1e-3)
    assert rates[10] == pytest.approx(1e-3)
    assert rates[60] == pytest.approx((1e-3 + 1e-5) / 2)
    assert rates[110] == pytest.approx(1e-5)
    assert max(rates) <= 1e-3


def test_norms_do_not_decay_and_matrices_do(tiny):
    model = build_model(tiny().model)
    settings = OptimiserSettings(weight_decay=0.5, learning_rate=0.1)
    optimiser = build_optimiser(model, settings)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimiser.step()
    kinds = set()
    for name, parameter in model.named_parameters():
        factor = 0.95 if parameter.ndim == 2 else 1.0
        kinds.add(factor)
        torch.testing.assert_close(parameter.detach(), factor * before[name])
    assert kinds == {0.95, 1.0}


def test_settings_that_do_not_fit_are_one_line(tiny, tmp_path):
    with pytest.raises(SettingsError, match=r"warmup_steps \(20\) must be below steps \(20\)"):
        tiny("optimiser.warmup_steps=20")
    with pytest.raises(SettingsError, match=r"model.vocabulary \(100\) is below the 401 ids"):
        train(tiny("model.vocabulary=100"), tmp_path / "a")
    with pytest.raises(SettingsError, match="device"):
        train(tiny("system.device=tpu"), tmp_path / "b")
    with pytest.raises(SettingsError, match=r"unknown setting data\.batches; allowed are folder, batch"):
        tiny("data.batches=3")
    with pytest.raises(SettingsError, match="write key=value"):
        tiny("data.batch")
    with pytest.raises(SettingsError, match="steps is no table"):
        tiny("steps.x=1")
    with pytest.raises(DataError, match="not prepared data"):
        tiny("data.folder=nowhere")
