"""The global batch is a pure function of (seed, step), whatever takes it and from where."""

import json
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from crossbert.data import BatchMaker, Loader, Order, PreparedData, Share
from crossbert.masking import draw_permutations
from crossbert.prepare import prepare
from crossbert.settings import PrepareSettings
from crossbert.tokenizer import train_tokenizer
from frozenprobe.errors import DataError

LENGTH = 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("data") / "builtin"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("crossbert.prepare.DOCUMENTS_AT_ONCE", 16)  # so that there are several shards
        prepare(PrepareSettings(builtin=120, train_tokenizer=400, validation_share=0.1, shard_tokens=3000), out)
    return out


@pytest.fixture(scope="module")
def sequences(folder):
    return PreparedData.open(folder).split("train", LENGTH)


def copy_of(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


def test_sequences_are_the_shards_cut_in_order(folder, sequences):
    shards = [np.fromfile(path, "<u2") for path in sorted(folder.glob("train-*.bin"))]
    assert len(shards) > 1
    rows = np.concatenate([shard[: len(shard) // LENGTH * LENGTH].reshape(-1, LENGTH) for shard in shards])
    assert len(sequences) == len(rows)
    picked = np.array([0, len(rows) - 1, len(shards[0]) // LENGTH, len(shards[0]) // LENGTH - 1, 0])
    np.testing.assert_array_equal(sequences.take(picked).numpy(), rows[picked])


def test_an_epoch_visits_every_sequence_once_and_the_next_in_another_order():
    order = Order(sequences=23, batch=5, seed=7)
    drawn = np.concatenate([order(step) for step in range(23)])  # five epochs
    epochs = drawn.reshape(5, 23)
    for epoch in epochs:
        assert sorted(epoch) == list(range(23))
    assert len({tuple(epoch) for epoch in epochs}) == 5
    assert list(epochs[0]) != list(range(23))


def test_a_batch_depends_on_seed_and_step_alone():
    forwards = [Order(23, 5, 7)(step) for step in range(12)]
    order = Order(23, 5, 7)
    for step in (11, 3, 4, 0):
        np.testing.assert_array_equal(order(step), forwards[step])
    assert not np.array_equal(Order(23, 5, 8)(0), forwards[0])
    # Written down once: a library that draws otherwise would change the data of runs that go on.
    assert Order(10, 5, 0)(0).tolist() == [4, 6, 2, 7, 3]


def test_a_batch_larger_than_the_data_goes_around_it():
    assert sorted(np.bincount(Order(4, 10, 0)(0))) == [2, 2, 3, 3]


@pytest.mark.parametrize(("ranks", "pieces"), [(2, 1), (1, 3), (4, 3), (12, 1)])
def test_ranks_and_pieces_divide_the_same_batch_and_masks(sequences, ranks, pieces):
    def make(rank, ranks, pieces):
        return BatchMaker(sequences, Order(len(sequences), 12, 0), Share(rank, ranks, pieces), seed=0)

    whole = make(0, 1, 1)(5)[0]
    parts = [piece for rank in range(ranks) for piece in make(rank, ranks, pieces)(5)]
    assert torch.equal(torch.cat([part.ids for part in parts]), whole.ids)
    assert torch.equal(torch.cat([part.permutations for part in parts]), whole.permutations)
    assert torch.equal(whole.permutations, draw_permutations(0, 5, range(12), LENGTH))


def test_documents_are_numbered_only_where_a_mask_needs_them(sequences):
    order = Order(len(sequences), 8, 0)
    assert BatchMaker(sequences, order, Share(), 0)(0)[0].documents is None
    batch = BatchMaker(sequences, order, Share(), 0, document_mask=True)(0)[0]
    for ids, documents in zip(batch.ids, batch.documents, strict=True):
        number = 0
        for token, document in zip(ids, documents, strict=True):
            number += int(token == sequences.start)
            assert document == number
    assert batch.documents.max() > 0


def test_a_batch_that_cannot_be_divided_is_refused():
    with pytest.raises(DataError, match="divisible"):
        Share(0, 3, 2).slices(16)


def test_batches_are_made_ahead_in_another_thread_and_in_order():
    threads, made, asked = set(), [], threading.Event()

    def make(step):
        threads.add(threading.current_thread())
        made.append(step)
        if len(made) == 3:
            asked.set()
        return [step]

    loader = Loader(make, 4, 9, ahead=3)
    steps = iter(loader)
    assert next(steps) == [4]
    assert asked.wait(5)  # more were made than were asked for
    assert list(steps) == [[5], [6], [7], [8]]
    assert made == [4, 5, 6, 7, 8]
    assert threading.current_thread() not in threads
    loader.close()


def test_what_goes_wrong_in_the_thread_reaches_the_run():
    def make(step):
        raise DataError("broken")

    loader = Loader(make, 0, 3)
    with pytest.raises(DataError, match="broken"):
        next(iter(loader))
    loader.close()


def test_a_flipped_bit_is_found_by_the_checksum(folder, tmp_path):
    copy = copy_of(folder, tmp_path)
    PreparedData.open(copy).verify()
    path = copy / "train-00001.bin"
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"train-00001\.bin is damaged"):
        PreparedData.open(copy).verify()


def test_a_shard_cut_short_or_missing_is_named(folder, tmp_path):
    copy = copy_of(folder, tmp_path)
    path = copy / "train-00000.bin"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(DataError, match=r"train-00000\.bin is damaged"):
        PreparedData.open(copy).split("train", LENGTH)
    path.unlink()
    with pytest.raises(DataError, match=r"train-00000\.bin: cannot be read"):
        PreparedData.open(copy).split("train", LENGTH)


def test_an_id_outside_the_vocabulary_is_named(folder, tmp_path):
    copy = copy_of(folder, tmp_path)
    path = copy / "train-00000.bin"
    tokens = np.fromfile(path, "<u2")
    tokens[3] = 9999
    tokens.tofile(path)
    with pytest.raises(DataError, match="outside the vocabulary"):
        PreparedData.open(copy).split("train", LENGTH).take(np.array([1, 0]))


@pytest.mark.parametrize("gone", ["vocabulary", "tokenizer", "shards", "tokens", "documents", "start"])
def test_a_manifest_that_lacks_something_is_named(gone, folder, tmp_path):
    copy = copy_of(folder, tmp_path)
    manifest = json.loads((copy / "manifest.json").read_text())
    del manifest[gone]
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=rf"manifest\.json is damaged: {gone}: "):
        PreparedData.open(copy)


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest["shards"].pop("train"),
        lambda manifest: manifest["shards"]["train"][0].pop("file"),
        lambda manifest: manifest["shards"]["train"][0].update(tokens="5"),
        lambda manifest: manifest.update(vocabulary=None),
        lambda manifest: manifest.update(identity=[]),
    ],
)
def test_a_manifest_that_holds_something_else_is_one_line(change, folder, tmp_path):
    copy = copy_of(folder, tmp_path)
    manifest = json.loads((copy / "manifest.json").read_text())
    change(manifest)
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=r"manifest\.json is damaged") as refused:
        PreparedData.open(copy)
    assert "\n" not in str(refused.value)


def test_the_tokenizer_is_the_one_that_made_the_ids(folder):
    loaded = PreparedData.open(folder).load_tokenizer()
    assert (loaded.vocabulary, loaded.start) == (400, 0)


def change_missing(tokenizer):
    shutil.rmtree(tokenizer)


def change_cut(tokenizer):
    (tokenizer / "tokenizer.json").write_text('{"model": ')


def change_file_gone(tokenizer):
    (tokenizer / "tokenizer.json").unlink()


def change_other(tokenizer):
    train_tokenizer(iter(["another text with other words"] * 9), 270, tokenizer)


@pytest.mark.parametrize("noted", [True, False], ids=["noted", "by an earlier version"])
@pytest.mark.parametrize("change", [change_missing, change_cut, change_file_gone, change_other])
def test_a_tokenizer_that_did_not_make_the_ids_is_refused(change, noted, folder, tmp_path, monkeypatch):
    copy_of(folder, tmp_path)
    monkeypatch.chdir(tmp_path)  # a relative folder looks like the name of a repository on the hub
    copy = Path("copy")
    if not noted:
        manifest = json.loads((copy / "manifest.json").read_text())
        del manifest["tokenizer_files"]
        (copy / "manifest.json").write_text(json.dumps(manifest))
    change(copy / "tokenizer")
    with pytest.raises(DataError, match=r"delete copy and prepare it again") as refused:
        PreparedData.open(copy).load_tokenizer()
    assert "\n" not in str(refused.value)
    assert "huggingface.co" not in str(refused.value)
    if noted:
        with pytest.raises(DataError, match="delete copy and prepare it again"):
            PreparedData.open(copy).verify()


def test_what_is_not_prepared_data_is_refused(tmp_path, folder):
    with pytest.raises(DataError, match="not prepared data"):
        PreparedData.open(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(DataError, match="is damaged"):
        PreparedData.open(tmp_path)
    with pytest.raises(DataError, match="no whole sequence of 100000"):
        PreparedData.open(folder).split("train", 100_000)


def test_masks_of_a_validation_are_the_same_in_batches_of_any_size(sequences):
    def masks(batch):
        make = BatchMaker(
            sequences, lambda step: np.arange(step * batch, (step + 1) * batch), Share(), 0, in_any_batch=True
        )
        return torch.cat([piece.permutations for step in range(12 // batch) for piece in make(step)])

    assert torch.equal(masks(3), masks(4))
    assert len(masks(3).unique(dim=0)) == 12
