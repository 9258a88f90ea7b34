"""A training as a whole: it learns, repeats itself, resumes bit for bit, and shares one forward pass in a sweep."""

import json
import socket

import numpy as np
import pandas as pd
import pytest
import torch

import frozenprobe
from frozenprobe.contrastive.run import train_pooler
from frozenprobe.contrastive.saving import load_pooler
from frozenprobe.errors import EncoderError, FrozenprobeError, RankError, RecordError, SettingsError

QUICK = {"batch_size": 16, "lr": 3e-3, "checkpoint_every": 3, "token_budget": 200}


@pytest.fixture
def train(write_rows, tmp_path, rows, fake):
    """Trains on 100 rows of 40 queries with everything at its smallest."""
    path = write_rows(rows(100, queries=40))

    def run(out=None, encoder=None, training=None, data=None, **settings):
        return train_pooler(
            encoder or fake(),
            out=None if out is None else tmp_path / out,
            data={"train_data": str(path), "held_out": 4, **(data or {})},
            training={**QUICK, **(training or {})},
            **{"pooler": {"blocks": 1, "dropout": 0.1}, **settings},
        )

    return run


def weights(pooler):
    return torch.cat([tensor.flatten() for tensor in pooler.state_dict().values()])


def losses(result, name="pooler"):
    return [entry["losses"][name] for entry in result.history if "losses" in entry]


def test_it_learns_and_says_how_well(train):
    result = train(training={"epochs": 6, "lr": 1e-2}, pooler={"blocks": 1})
    found = losses(result)
    assert len(found) == 6 * 6
    assert np.mean(found[-6:]) < 0.6 * np.mean(found[:6])
    scores = result.scores().set_index(["pooler", "metric"])
    assert set(scores.index.levels[0]) == {"pooler", "mean pooling"}
    entry = scores.loc[("pooler", "ndcg@10")]
    assert entry["low"] <= entry["value"] <= entry["high"]
    mean = scores.loc[("mean pooling", "ndcg@10"), "value"]
    assert entry["against_mean"] == pytest.approx(entry["value"] - mean)
    assert result.best == "pooler"


def test_held_out_scores_are_taken_during_the_training(train):
    result = train(training={"epochs": 2, "evaluate_every": 5})
    assert [entry["step"] for entry in result.history if "held_out" in entry] == [0, 5, 10, 12]
    assert {"mrr@10", "ndcg@10"} == set(result.history[0]["held_out"]["pooler"])


def test_the_same_settings_give_the_same_bits_and_another_seed_others(train):
    one, same, other = train(), train(), train(training={"seed": 1})
    assert torch.equal(weights(one.pooler), weights(same.pooler))
    assert losses(one) == losses(same)
    assert losses(one) != losses(other)


class Killed(BaseException):
    pass


def kill_at(step):
    def on_progress(progress):
        if progress.step == step:
            raise Killed

    return on_progress


@pytest.mark.parametrize("keep_features", [False, True])
@pytest.mark.parametrize("moment", [2, 7, 11])
def test_a_resume_is_bit_for_bit(train, moment, keep_features):
    settings = {"sweep": "lr=1e-3,3e-3", "training": {"epochs": 2, "keep_features": keep_features}}
    whole = train("whole", **settings)
    with pytest.raises(Killed):
        train("killed", on_progress=kill_at(moment), **settings)
    again = train("killed", **settings)
    assert again.history == whole.history
    for name, pooler in whole.poolers.items():
        assert torch.equal(weights(pooler), weights(again.poolers[name]))
    assert again.results["held_out"] == whole.results["held_out"]


def test_an_interruption_ends_with_the_step_and_a_checkpoint(train, tmp_path, write_rows, rows, fake):
    import signal

    whole = train("whole")
    path = tmp_path / "rows.jsonl"
    settings = {
        "data": {"train_data": str(path), "held_out": 4},
        "training": QUICK,
        "pooler": {"blocks": 1, "dropout": 0.1},
    }

    def interrupt(progress):
        if progress.step == 4:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train_pooler(fake(), out=tmp_path / "out", on_progress=interrupt, **settings)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    seen = []
    again = train_pooler(fake(), out=tmp_path / "out", on_progress=lambda p: seen.append(p.step), **settings)
    assert seen == [6]  # step 5 was finished before the training ended
    assert torch.equal(weights(whole.pooler), weights(again.pooler))


def test_a_sweep_gives_what_each_pooler_gives_alone_for_one_forward_pass(train, fake):
    alone, swept = fake(), fake()
    results = {
        f"lr={lr},blocks={blocks}": train(encoder=alone, training={"lr": float(lr)}, pooler={"blocks": blocks})
        for lr in ("1e-3", "3e-3")
        for blocks in (1, 2)
    }
    sweep = train(encoder=swept, sweep="lr=1e-3,3e-3,blocks=1,2", pooler={})
    assert set(sweep.poolers) == set(results)
    for name, result in results.items():
        assert torch.equal(weights(sweep.poolers[name]), weights(result.pooler))
    # What is encoded is that of one training; `check_padding` adds its few texts to each.
    assert swept.encoded == alone.encoded / 4
    assert sweep.best == max(sweep.poolers, key=lambda name: sweep.results["held_out"][name]["ndcg@10"]["value"])


def test_further_epochs_off_kept_features_encode_nothing(train, fake):
    once, kept, again = fake(), fake(), fake()
    train(encoder=once, data={"held_out": 0})
    train(encoder=kept, data={"held_out": 0}, training={"epochs": 3, "keep_features": True})
    plain = train(encoder=again, data={"held_out": 0}, training={"epochs": 3})
    assert kept.encoded <= once.encoded
    assert again.encoded > 2.5 * once.encoded
    assert np.isfinite(losses(plain)).all()


def test_deduplication_changes_the_work_and_not_the_result(train, fake, write_rows, rows):
    shared = rows(60, queries=30)
    for i, row in enumerate(shared):
        row["negatives"] = [shared[(i + 3) % 8]["positive"], f"everybody's a{i % 4}"]
    data = {"train_data": str(write_rows(shared, "shared.jsonl")), "held_out": 0}
    settings = {"data": data, "pooler": {"blocks": 1}}
    with_it, without = fake(), fake()
    one = train(encoder=with_it, **settings)
    other = train(encoder=without, training={"deduplicate": False}, **settings)
    assert without.encoded > 1.3 * with_it.encoded
    assert np.allclose(losses(one), losses(other), atol=1e-4)


@pytest.mark.parametrize("keep_features", [False, True])
def test_chunks_change_the_memory_and_not_the_result(train, fake, keep_features):
    encoders = fake(), fake()
    training = {"keep_features": keep_features}
    plain = {"data": {"held_out": 0}, "sweep": "lr=1e-3,3e-3"}
    whole = train(encoder=encoders[0], training=training, **plain)
    chunked = train(encoder=encoders[1], training={"chunk": 5, **training}, **plain)
    for name in whole.poolers:
        assert np.allclose(losses(whole, name), losses(chunked, name), atol=1e-4)
    # Once more for all poolers together, or not at all where features are kept; 6 texts check the padding.
    once = encoders[0].encoded - 6
    assert encoders[1].encoded - 6 == (once if keep_features else 2 * once)


def test_settings_of_the_loss_and_the_layer_change_the_training(train):
    base = losses(train(training={"epochs": 1}))
    for settings in (
        {"loss": {"temperature": 0.1}},
        {"loss": {"negatives": "hard-only"}},
        {"loss": {"symmetric": True}},
        {"loss": {"margin": 0.0}},
        {"layer": 1},
        {"query_prompt": "find: "},
        {"document_prompt": "passage: "},
        {"training": {"batch_size": 32}},
        {"training": {"min_lr": 3e-3}},
        {"training": {"weight_decay": 5.0}},
        {"pooler": {"blocks": 1, "queries": 3}},
        {"data": {"hard_negatives": 0}},
    ):
        assert losses(train(**settings)) != base, settings


def test_a_warm_start_begins_with_the_encoders_pooler(train, warm_fake):
    sweep = train(encoder=warm_fake(), sweep="warm-start=false,true", pooler={})
    first = sweep.history[0]["held_out"]
    assert first["warm_start=true"] != first["warm_start=false"]
    assert type(sweep.poolers["warm_start=true"]).__name__ == "WarmPooler"


def test_a_finished_training_is_read_and_nothing_encoded(train, fake):
    done = train("out")
    encoder = fake()
    again = train("out", encoder)
    assert encoder.encoded == 6  # by the check of the padding
    assert again.results == done.results
    assert torch.equal(weights(done.pooler), weights(again.pooler))


def test_another_training_in_the_folder_is_refused_until_overwritten(train, fake, tmp_path, write_rows, rows):
    train("out")
    with pytest.raises(RecordError, match=r"holds a different training \(poolers\.pooler\.lr was 0\.003, is 0\.001\)"):
        train("out", training={"lr": 1e-3})
    with pytest.raises(RecordError, match=r"encoder\.fingerprint"):
        train("out", fake(weight_seed=1))
    path = write_rows(rows(50), "others.jsonl")
    with pytest.raises(RecordError, match=r"data\.revision"):
        train("out", data={"train_data": str(path)})
    before = json.loads((tmp_path / "out/training.json").read_text())
    train_pooler(fake(), out=tmp_path / "out", overwrite=True, data={"train_data": str(path)}, training=QUICK)
    assert json.loads((tmp_path / "out/training.json").read_text()) != before
    assert len(list((tmp_path / "out").glob("rows-*"))) == 1


def test_overwriting_with_bad_input_loses_nothing(train, fake, tmp_path, write_rows):
    done = train("out")
    bad = write_rows([{"query": "q", "positive": ""}], "bad.jsonl")
    for data in ({"train_data": str(bad)}, {"train_data": "nowhere.jsonl"}):
        with pytest.raises(FrozenprobeError):
            train_pooler(fake(), out=tmp_path / "out", overwrite=True, data=data)
    assert train("out").results == done.results


def test_before_a_first_checkpoint_other_settings_may_take_the_folder(train):
    with pytest.raises(Killed):
        train("out", on_progress=kill_at(1))
    assert train("out", training={"lr": 1e-3}).best == "pooler"


def test_a_second_process_is_kept_out(train, fake, tmp_path):
    def intrude(progress):
        if progress.step == 2:
            with pytest.raises(RecordError, match="another process is writing to"):
                train("out")

    train("out", on_progress=intrude)


def test_a_folder_with_other_files_is_refused(train, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.tex").write_text("precious")
    with pytest.raises(RecordError, match=r"holds other files \(thesis\.tex\)"):
        train("out")
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="is a file"):
        train("file")


def test_a_damaged_checkpoint_is_one_line(train, tmp_path):
    with pytest.raises(Killed):
        train("out", on_progress=kill_at(5))
    path = tmp_path / "out/checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(RecordError, match="is damaged"):
        train("out")


def test_a_full_disk_is_one_line_and_keeps_the_last_checkpoint(train, tmp_path, monkeypatch):
    from frozenprobe.contrastive import checkpoint

    real = checkpoint.save_file
    calls = []

    def full(*arguments):
        calls.append(1)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        real(*arguments)

    whole = train("whole")
    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(RecordError, match="No space left on device"):
        train("out")
    assert not list((tmp_path / "out").glob(".writing-*"))
    assert torch.equal(weights(train("out").pooler), weights(whole.pooler))


def test_features_that_are_not_finite_are_an_error_that_says_so(train, fake):
    with pytest.raises(FrozenprobeError, match="not finite; check the weights"):
        train(encoder=fake(poison="a20"), data={"held_out": 0})


def test_a_step_that_does_not_fit_in_memory_says_what_helps(train, monkeypatch):
    from frozenprobe.contrastive.trainee import Trainee

    def embed(self, *arguments):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    monkeypatch.setattr(Trainee, "embed", embed)
    with pytest.raises(FrozenprobeError, match="step 1 does not fit in memory on cpu: choose a --chunk"):
        train()


def test_a_pooler_that_diverges_leaves_the_sweep_and_the_others_go_on(train, monkeypatch):
    from frozenprobe.contrastive.trainee import Trainee

    real = Trainee.loss

    def loss(self, sides, targets):
        value = real(self, sides, targets)
        return float("nan") if self.candidate.lr == 0.5 and self._step == 2 else value

    monkeypatch.setattr(Trainee, "loss", loss)
    result = train(sweep="lr=1e-3,0.5")
    assert result.results["failed"] == {"lr=0.5": 2}
    assert list(result.poolers) == ["lr=1e-3"]
    assert result.best == "lr=1e-3"
    with pytest.raises(FrozenprobeError, match="smaller --lr"):
        train(training={"lr": 0.5})


def test_what_was_cut_and_what_was_not_kept_is_said(fake, write_rows, rows, tmp_path):
    from frozenprobe.contrastive.run import run_pooling
    from frozenprobe.contrastive.settings import PoolSettings
    from frozenprobe.settings import parse

    notes = []
    values = {
        "encoder": {"ckpt": "fake"},
        "data": {"train_data": str(write_rows(rows(20))), "held_out": 0},
        "training": {**QUICK, "keep_features": True, "keep_features_gb": 1e-6},
    }
    run_pooling(parse(PoolSettings, values), tmp_path / "out", encoder=fake(max_length=5), note=notes.append)
    # Of 80 texts the 20 queries have 4 tokens, with `[CLS]`; positives have 8, negatives 6 or 7 and more.
    assert "60 of 80 texts were longer than 5 tokens and were cut" in notes
    assert any("let no more in" in line for line in notes)


def test_hard_only_without_hard_negatives_is_refused(train):
    with pytest.raises(FrozenprobeError, match="frozenprobe mine"):
        train(loss={"negatives": "hard-only"}, data={"hard_negatives": 0})


def test_without_held_out_queries_nothing_is_best(train):
    result = train(sweep="seed=0,1", data={"held_out": 0})
    assert result.best is None
    assert result.scores().empty
    with pytest.raises(RecordError, match="nothing was held out"):
        _ = result.pooler


def test_what_is_written_can_be_read_without_us(train, tmp_path):
    result = train("out")
    table = pd.read_parquet(tmp_path / "out/held_out.parquet")
    means = table.groupby("pooler")["ndcg@10"].mean()
    assert means["pooler"] == pytest.approx(result.results["held_out"]["pooler"]["ndcg@10"]["value"])
    lines = [json.loads(line) for line in (tmp_path / "out/history.jsonl").read_text().splitlines()]
    assert lines == result.history
    assert not (tmp_path / "out/checkpoint.safetensors").exists()
    config = json.loads((tmp_path / "out/poolers/pooler/config.json").read_text())
    assert config["training"]["pooler"]["loss"]["temperature"] == 0.05
    assert config["training"]["data"]["source"] == str(tmp_path / "rows.jsonl")


def test_a_saved_pooler_loads_on_its_encoder_only(train, fake, tmp_path):
    result = train("out")
    folder = tmp_path / "out/poolers/pooler"
    tokens = torch.randn(3, 5, 16)
    mask = torch.ones(3, 5, dtype=torch.bool)
    assert torch.equal(frozenprobe.load_pooler(folder, fake())(tokens, mask), result.pooler(tokens, mask))
    with pytest.raises(EncoderError, match="a pooler belongs to one encoder"):
        load_pooler(folder, fake(weight_seed=1))
    with pytest.raises(EncoderError, match="add --max-length 64"):
        load_pooler(folder, fake(max_length=32))
    with pytest.raises(EncoderError, match="add --dtype fp32"):
        load_pooler(folder, fake(dtype=torch.bfloat16))
    (folder / "pooler.safetensors").write_bytes(b"no weights")
    with pytest.raises(RecordError, match="is damaged"):
        load_pooler(folder, fake())
    with pytest.raises(RecordError, match="holds no pooler"):
        load_pooler(tmp_path, fake())


def test_a_warm_started_pooler_is_saved_and_loaded(train, warm_fake, tmp_path):
    result = train("out", warm_fake(), pooler={"warm_start": True})
    loaded = load_pooler(tmp_path / "out/poolers/pooler", warm_fake())
    assert torch.equal(weights(loaded), weights(result.pooler))
    assert not torch.equal(weights(loaded.inner), weights(warm_fake().warm_pooler()))


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"training": {"min_lr": 1.0}}, SettingsError, "min_lr 1 is above lr"),
        ({"training": {"unfrozen": True, "keep_features": True}}, SettingsError, "exclude each other"),
        ({"training": {"unfrozen": True}, "layer": 1}, SettingsError, "its layer is last"),
        ({"training": {"unfrozen": True}}, EncoderError, "cannot be trained end to end"),
        ({"pooler": {"warm_start": True}}, EncoderError, "offers no pooler"),
        ({"pooler": {"size": 3}}, SettingsError, "unknown setting pooler.size"),
        ({"data": {"train_data": "nowhere.jsonl"}}, FrozenprobeError, "no such file"),
    ],
)
def test_wrong_input_is_one_line_and_leaves_nothing(train, tmp_path, settings, error, message):
    with pytest.raises(error, match=message) as caught:
        train("out", **settings)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_ranks_that_do_not_come_are_one_line(train, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", port)):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("frozenprobe.contrastive.run.TRAINING_TIMEOUT", 1.0)
    with pytest.raises(RankError, match="did not all come within 1 s"):
        train()
