"""A checkpoint is there wholly or not at all, old ones go, and damage is one line."""

import shutil
import signal
import subprocess
import sys

import pytest
import torch

from crossbert import checkpoint as module
from crossbert.checkpoint import checkpoints
from crossbert.train import train
from frozenprobe.errors import RecordError


def test_old_checkpoints_go_and_all_stay_where_that_is_asked_for(tiny, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(tiny("system.keep=3"), tmp_path / "few", callbacks=[lambda *_: signal.raise_signal(signal.SIGINT)])
    shutil.copytree(tmp_path / "few" / "step-2", tmp_path / "few" / "step-3")
    (tmp_path / "few" / "step-3" / "COMPLETE").unlink()  # as a kill leaves it
    train(tiny("system.checkpoint_every=4", "system.keep=3"), tmp_path / "few")
    assert [path.name for path in checkpoints(tmp_path / "few")] == ["step-12", "step-16", "step-20"]
    assert len(list((tmp_path / "few").glob("step-*"))) == 3
    assert not list((tmp_path / "few").glob("step-3"))
    train(tiny("system.checkpoint_every=4", "system.keep=0"), tmp_path / "all")
    assert len(checkpoints(tmp_path / "all")) == 5


def test_links_and_folders_of_others_are_left_alone(tiny, tmp_path):
    train(tiny(), tmp_path / "other")
    archive = tmp_path / "other" / "step-10"
    before = sorted(archive.rglob("*"))
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(tiny(), out, callbacks=[lambda *_: signal.raise_signal(signal.SIGINT)])
    (out / "step-1").symlink_to(archive)
    (out / "step-3").mkdir()
    (out / "step-3" / "notes.txt").write_text("mine")
    train(tiny("system.checkpoint_every=4", "system.keep=1"), out)
    assert sorted(archive.rglob("*")) == before
    assert sorted(path.name for path in out.glob("step-*")) == ["step-1", "step-20", "step-3"]


@pytest.mark.parametrize("content", ['{"state/.met', "[1]", '"abc"', "\xff"])
def test_a_damaged_marker_is_one_line(content, tiny, tmp_path):
    train(tiny("system.keep=0"), tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "step-20")
    (tmp_path / "run" / "step-10" / "COMPLETE").write_text(content, encoding="latin-1")
    with pytest.raises(RecordError, match="COMPLETE is damaged; remove step-10 to go on earlier"):
        train(tiny("system.keep=0"), tmp_path / "run")


def test_what_was_not_finished_is_no_checkpoint(tiny, tmp_path):
    train(tiny(), tmp_path / "run")
    (tmp_path / "run" / "step-20" / "COMPLETE").unlink()
    assert [path.name for path in checkpoints(tmp_path / "run")] == ["step-10"]
    train(tiny(), tmp_path / "run")
    assert [path.name for path in checkpoints(tmp_path / "run")] == ["step-10", "step-20"]


@pytest.mark.parametrize("writer", ["save_file", "async_save"])
def test_a_full_disk_is_one_line_and_the_checkpoint_before_stays(writer, tiny, tmp_path, monkeypatch):
    out = tmp_path / "run"
    calls = []

    def full(*arguments, **options):
        calls.append(1)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return right(*arguments, **options)

    owner = module if writer == "save_file" else module.dcp
    right = getattr(owner, writer)
    monkeypatch.setattr(owner, writer, full)
    with pytest.raises(RecordError, match=r"cannot write .*step-10: .*No space left"):
        train(tiny("system.checkpoint_every=5"), out)
    assert [path.name for path in checkpoints(out)] == ["step-5"]
    monkeypatch.undo()
    train(tiny("system.checkpoint_every=5"), out)


@pytest.mark.parametrize("room", [30_000, 150_000, 300_000])
def test_a_disk_that_is_really_full_is_one_line_too(room, tiny_config, tiny, tmp_path):
    """Torch's own writer runs into it in the background."""
    code = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room})); "
    code += "from crossbert.cli import main; main()"
    words = ["train", "--config", tiny_config, "--out", tmp_path / "run", "--quiet"]
    done = subprocess.run([sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert "cannot write" in done.stderr
    assert checkpoints(tmp_path / "run") == []
    train(tiny(), tmp_path / "run")


def test_a_folder_that_cannot_be_written_is_one_line(tiny, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match="cannot write"):
        train(tiny(), tmp_path / "file" / "run")


def test_a_damaged_state_is_one_line(tiny, tmp_path):
    class EnoughError(Exception):
        pass

    def breaks(step, model, tokenizer):
        if step == 15:
            raise EnoughError

    with pytest.raises(EnoughError):
        train(tiny(), tmp_path / "run", callbacks=[breaks])
    (shard,) = (tmp_path / "run" / "step-10" / "state").glob("*.distcp")
    whole = shard.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    for content in (whole[:100], bytes(flipped)):
        shard.write_bytes(content)
        with pytest.raises(
            RecordError, match=r"step-10/state/.*distcp is damaged: .*; remove step-10 to go on earlier"
        ):
            train(tiny(), tmp_path / "run")
    (tmp_path / "run" / "step-10" / "COMPLETE").write_text("")  # as checkpoints had it that noted no checksums
    shard.write_bytes(whole[:100])
    with pytest.raises(RecordError, match="step-10/state is damaged"):
        train(tiny(), tmp_path / "run")
    shard.write_bytes(whole)
    train(tiny(), tmp_path / "run")


def test_a_checkpoint_holds_the_step_it_was_taken_at_although_training_went_on(tiny, tmp_path, monkeypatch):
    """The background writer is held up until the run is over; what it writes must be the state of step 10."""
    import threading

    over, finish = threading.Event(), module.Checkpoints._finish
    at_ten = {}

    def late(self, *arguments):
        over.wait(30)
        finish(self, *arguments)

    def watch(step, model, tokenizer):
        if step == 10:
            at_ten.update({name: weight.clone() for name, weight in model.state_dict().items()})
        if step == 19:
            over.set()

    monkeypatch.setattr(module.Checkpoints, "_finish", late)
    train(tiny(), tmp_path / "run", callbacks=[watch])
    from safetensors.torch import load_file

    written = load_file(tmp_path / "run" / "step-10" / "model.safetensors")
    assert all(torch.equal(weight, at_ten[name]) for name, weight in written.items())
    state = {"model": {name: torch.empty_like(weight) for name, weight in at_ten.items()}}
    module.dcp.load(state, checkpoint_id=tmp_path / "run" / "step-10" / "state")
    assert all(torch.equal(weight, at_ten[name]) for name, weight in state["model"].items())
