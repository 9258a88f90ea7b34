"""Two ranks over gloo: the same vectors, scores and predictions as one process, and one clear line where a rank is lost."""

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from frozenprobe.encoders.loading import resolve_device
from frozenprobe.errors import EncoderError, FeatureError, OtherRankError, RankError, SettingsError
from frozenprobe.features.base import Inputs
from frozenprobe.features.extract import extract
from frozenprobe.features.sharding import deal
from frozenprobe.records.reading import read_run
from frozenprobe.settings import FeatureSettings
from tests.engine.rank_checks import VIEWS, Fake, texts

ROOT = Path(__file__).parents[2]
GLUE = [
    "--suite",
    "builtin",
    "--max-train",
    "300",
    "--regimes",
    "10",
    "--draws",
    "1",
    "--bootstrap",
    "20",
    "--no-cache",
]


def environment(rank=None, port=None):
    extra = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    if rank is not None:
        extra |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        extra |= {"MASTER_PORT": str(port)}
    return os.environ | extra


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def start_two(*command):
    port = free_port()
    return [
        subprocess.Popen(
            [sys.executable, "-m", *map(str, command)],
            env=environment(rank, port),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]


def finish(processes, seconds=240):
    """Exit codes and errors of the processes, none of which outlives the call."""
    try:
        errors = [process.communicate(timeout=seconds)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], errors


@pytest.fixture(scope="module")
def checked(tiny_bert, tmp_path_factory):
    """What both ranks found, check by check."""
    folder = tmp_path_factory.mktemp("ranks")
    codes, errors = finish(start_two("tests.engine.rank_checks", folder, tiny_bert))
    assert codes == [0, 0], errors
    first, second = (pickle.loads((folder / f"rank-{rank}.pickle").read_bytes()) for rank in range(2))
    return {name: (first[name], second[name]) for name in first}


def alone(rows, encoder=None, budget=256):
    encoder = encoder or Fake()
    return extract(encoder, [Inputs(rows)], VIEWS, FeatureSettings(tokens_per_batch=budget))[0]


def assert_equal(found, expected, exactly=True):
    for view in VIEWS:
        if exactly:
            np.testing.assert_array_equal(found["features"][str(view)], expected.by_view[view])
        else:
            np.testing.assert_allclose(found["features"][str(view)], expected.by_view[view], rtol=1e-5, atol=1e-6)


def test_vectors_are_those_of_one_process_to_the_bit_and_each_rank_encodes_half_of_the_tokens(checked):
    leader, follower = checked["same_features"]
    expected = alone(texts())
    assert_equal(leader, expected)
    assert_equal(follower, expected)
    report = {name: value for name, value in expected.report.as_dict().items() if name != "seconds"}
    assert {name: value for name, value in leader["report"].items() if name != "seconds"} == report
    here, there = leader["encoded_here"] - 6, follower["encoded_here"] - 6  # the padding check encodes six texts
    assert here + there == 400
    assert min(here, there) > 150


def test_a_measured_budget_gives_the_same_vectors(checked):
    leader, follower = checked["measured_budget"]
    assert_equal(leader, alone(texts(1200)), exactly=False)
    assert min(leader["encoded_here"], follower["encoded_here"]) > 400


def test_one_row_is_enough(checked):
    leader, follower = checked["one_row"]
    assert_equal(leader, alone(["one text"]))
    assert follower["encoded_here"] == 6


def test_only_rank_0_writes_the_cache_and_a_second_call_encodes_nothing(checked):
    leader, follower = checked["cached"]
    assert leader["first"]["report"]["encoded"] == 400
    assert leader["again"]["report"]["encoded"] == 0
    assert follower["again"]["encoded_here"] == 6
    assert_equal(leader["again"], alone(texts()))
    assert leader["files"] > 0
    assert follower["files"] == 0


def test_a_non_finite_feature_is_named_as_in_one_process(checked):
    rows = texts()
    rows[37] = "poison " + rows[37]
    with pytest.raises(FeatureError) as expected:
        alone(rows, Fake(poison="poison"))
    for error in checked["not_finite"]:
        assert isinstance(error, FeatureError)
        assert str(error) == str(expected.value)


@pytest.mark.parametrize("check", ["little_memory", "little_memory_there"])
def test_batches_are_halved_where_memory_runs_out_on_whichever_rank(checked, check):
    leader, _ = checked[check]
    assert leader["report"]["halved"] >= 1
    assert leader["report"]["tokens_per_batch"] < 256
    assert_equal(leader, alone(texts()), exactly=False)


def test_a_row_that_fits_nowhere_is_named(checked):
    for error in checked["no_memory"]:
        assert isinstance(error, FeatureError)
        assert "row 250 of input 0" in str(error)
        assert "does not fit in memory" in str(error)


def test_a_bug_on_another_rank_is_no_wrong_input(checked):
    leader, follower = checked["breaks_there"]
    assert type(leader) is RuntimeError
    assert "rank 1" in str(leader)
    assert "ValueError: a bug" in str(leader)
    assert isinstance(follower, OtherRankError)


def test_ranks_with_different_weights_are_refused(checked):
    for error in checked["different_weights"]:
        assert isinstance(error, EncoderError)
        assert "differs between ranks 0 and 1" in str(error)


def test_wrong_input_is_raised_on_every_rank(checked):
    assert [str(error) for error in checked["wrong_input"]] == ["no such task"] * 2
    for error in checked["missing_there"]:
        assert isinstance(error, SettingsError)
        assert str(error) == "rank 1: there is no GPU here"


@pytest.mark.parametrize("wrapped", ["replicated", "sharded", "sharded_the_older_way"])
def test_an_evaluation_in_training_uses_all_ranks_and_gives_all_of_them_the_scores_of_one(checked, wrapped):
    expected, _ = checked["alone"]
    for found in checked[wrapped]:
        assert found["trains"]
        assert found["random_state_unchanged"]
        assert found["frame"].equals(expected["frame"])
    assert len(expected["frame"]) > 100


def test_sharded_weights_are_not_hashed(checked):
    for error in checked["sharded_without_step"]:
        assert isinstance(error, EncoderError)
        assert "give the training step" in str(error)


def test_a_silent_rank_ends_the_run_after_the_stated_time(checked):
    leader, _ = checked["silent"]
    assert isinstance(leader, RankError)
    assert "no other rank has answered for 2 s" in str(leader)
    assert checked["silent: seconds"][0] < 20


def test_a_rank_that_does_not_take_part_is_waited_for_no_longer_than_stated(checked):
    leader, _ = checked["absent"]
    assert isinstance(leader, RankError)
    assert "did not all start the evaluation within 1 s" in str(leader)
    assert "on every rank" in str(leader)


@pytest.mark.parametrize(
    ("wish", "gpus", "place", "device"),
    [
        ("auto", 4, 2, "cuda:2"),
        ("cuda", 4, 0, "cuda"),
        ("cuda:1", 4, 2, "cuda:1"),
        ("cpu", 4, 2, "cpu"),
        ("auto", 1, 2, "cuda:0"),
    ],
)
def test_each_rank_of_a_machine_takes_its_own_gpu(monkeypatch, wish, gpus, place, device):
    for name, value in {**environment(place, 1), "WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert resolve_device(wish) == torch.device(device)
    if gpus > 1:
        monkeypatch.setenv("LOCAL_RANK", "5")
        if wish in ("auto", "cuda"):
            with pytest.raises(EncoderError, match="start 4 on this machine"):
                resolve_device(wish)


def test_rows_are_taken_along_with_all_that_belongs_to_them():
    tokens = Fake().tokenize(["a b c", "d", "e f"], ["x", "y z", "u"])
    some = tokens.take(np.array([2, 0]))
    for position, row in enumerate((2, 0)):
        start, end = some.offsets[position], some.offsets[position + 1]
        original = slice(tokens.offsets[row], tokens.offsets[row + 1])
        for name in ("ids", "types"):
            np.testing.assert_array_equal(getattr(some, name)[start:end], getattr(tokens, name)[original])
    assert some.full_lengths.tolist() == [tokens.full_lengths[2], tokens.full_lengths[0]]
    assert len(tokens.take(np.array([], dtype=int))) == 0


def test_batches_are_dealt_by_tokens():
    lengths = np.array([100, 50, 50, 50, 10, 10])
    batches = [np.array([0]), np.array([1, 2]), np.array([3]), np.array([4, 5])]
    shares = deal(batches, lengths, 2)
    assert [[rows.tolist() for rows in share] for share in shares] == [[[0], [3]], [[1, 2], [4, 5]]]
    assert deal([np.array([0])], lengths, 3) == [[np.array([0])], [], []]


def record(out):
    return sorted(json.dumps(row, sort_keys=True) for unit in read_run(out).units for row in unit.rows)


@pytest.mark.slow
def test_torchrun_leaves_the_record_of_one_process(tiny_bert, tmp_path):
    options = ["glue", *GLUE, "--tokens-per-batch", "1024", "--tasks", "builtin-sentiment,builtin-similarity"]
    options += ["--ckpt", str(tiny_bert)]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "frozenprobe"]
    one, two = (
        subprocess.Popen(
            [sys.executable, *launcher, *options, "--out", str(tmp_path / out)],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for launcher, out in ((["-m", "frozenprobe"], "one"), (torchrun, "two"))
    )
    output, error = two.communicate(timeout=120)
    one.communicate(timeout=120)
    assert (one.returncode, two.returncode) == (0, 0), error
    assert output.count("linear, honest") == 1
    assert error.count("[2/2]") == 1
    assert record(tmp_path / "one") == record(tmp_path / "two")


def test_wrong_input_is_one_line_once_and_exit_2(tiny_bert, tmp_path):
    codes, errors = finish(
        start_two("frozenprobe", "glue", *GLUE, "--ckpt", tiny_bert, "--tasks", "colla", "--out", tmp_path / "run")
    )
    assert codes == [2, 2]
    assert errors[0].count("\n") == 1
    assert "unknown task 'colla'" in errors[0]
    assert errors[1] == ""


@pytest.mark.gpu
def test_two_ranks_on_a_gpu_give_the_scores_of_one(tiny_bert, tmp_path):
    options = ["glue", *GLUE, "--tokens-per-batch", "4096", "--ckpt", tiny_bert, "--device", "cuda:0"]
    codes, errors = finish(start_two("frozenprobe", *options, "--out", tmp_path / "two"))
    assert codes == [0, 0], errors
    command = [sys.executable, "-m", "frozenprobe", *map(str, options), "--out", str(tmp_path / "one")]
    subprocess.run(command, env=environment(), check=True, timeout=120)
    assert record(tmp_path / "one") == record(tmp_path / "two")


@pytest.mark.slow
@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_killed_rank_is_one_line_and_the_finished_units_stay(tiny_bert, tmp_path, victim):
    out = tmp_path / "run"
    options = ["--ckpt", tiny_bert, "--out", out, "--quiet", "--tokens-per-batch", "256"]
    processes = start_two("frozenprobe", "glue", *GLUE, *options)
    while not list(out.glob("units/*.parquet")):
        assert processes[0].poll() is None, processes[0].communicate()
        time.sleep(0.02)
    processes[victim].send_signal(signal.SIGKILL)
    codes, errors = finish(processes, 30)
    survivor = errors[1 - victim]
    assert codes[1 - victim] == 1
    assert survivor.count("\n") == 1
    assert survivor.startswith(f"frozenprobe: rank {victim} is lost (its process ended")
    assert 1 <= len(read_run(out).units) < 5


@pytest.mark.slow
def test_a_launcher_that_ends_all_ranks_is_an_interruption(tiny_bert, tmp_path):
    out = tmp_path / "run"
    options = ["--ckpt", tiny_bert, "--out", out, "--quiet", "--tokens-per-batch", "256"]
    processes = start_two("frozenprobe", "glue", *GLUE, *options)
    while not list(out.glob("units/*.parquet")):
        assert processes[0].poll() is None, processes[0].communicate()
        time.sleep(0.02)
    for process in processes:
        process.send_signal(signal.SIGTERM)
    codes, errors = finish(processes, 30)
    assert codes == [130, 130]
    assert errors[0] == "frozenprobe: interrupted; what was finished is kept, the same command goes on\n"
    assert errors[1] == ""


def test_ranks_that_never_come_are_waited_for_no_longer_than_stated(monkeypatch):
    from frozenprobe.ranks import joined

    for name, value in environment(0, free_port()).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RankError, match="did not all come within 1 s"), joined(timeout=1):
        pytest.fail("nobody else is there")
