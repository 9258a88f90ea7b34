"""The order of the rows, the held-out split, and what a step asks to be encoded."""

import numpy as np
import pytest
import torch

from frozenprobe.contrastive.batches import TrainingSet, deal, mean_by_slot, noise_of
from frozenprobe.contrastive.data import prepare
from frozenprobe.contrastive.settings import PairSettings
from frozenprobe.errors import DataError


@pytest.fixture
def training_set(write_rows, tmp_path):
    def make(rows, held_out=0, **settings):
        path = write_rows(rows)
        return TrainingSet(prepare(PairSettings(train_data=str(path), **settings), tmp_path / "out"), held_out)

    return make


def test_every_row_is_dealt_once_and_no_batch_holds_a_query_twice():
    random = np.random.default_rng(0)
    keys = random.permutation(np.repeat(np.arange(120), random.integers(1, 12, size=120))).astype(np.int64)
    batches = deal(keys, 50, seed=0, epoch=0)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(keys)))
    assert all(len(batch) <= 50 for batch in batches)
    assert len(batches) == -(-len(keys) // 50)
    for batch in batches:
        assert len(np.unique(keys[batch])) == len(batch)


def test_a_query_with_more_rows_than_batches_is_spread_evenly():
    keys = np.array([0] * 20 + list(range(1, 21)), dtype=np.int64)
    counts = [int((keys[batch] == 0).sum()) for batch in deal(keys, 10, seed=0, epoch=0)]
    assert counts == [5, 5, 5, 5]


def test_the_order_is_a_function_of_seed_and_epoch():
    keys = np.arange(100)
    one = np.concatenate(deal(keys, 10, seed=1, epoch=2))
    assert np.array_equal(one, np.concatenate(deal(keys, 10, seed=1, epoch=2)))
    for seed, epoch in ((1, 3), (2, 2)):
        assert not np.array_equal(one, np.concatenate(deal(keys, 10, seed=seed, epoch=epoch)))


def test_a_step_names_each_distinct_text_once(training_set):
    data = training_set(
        [
            {"query": "q0", "positive": "p0", "negatives": ["n", "p1"]},
            {"query": "q1", "positive": "p1", "negatives": ["n"]},
            {"query": "q0", "positive": "p2", "negatives": ["p0", "m"]},
        ]
    )
    step = data.assemble(np.array([2, 0, 1]))
    assert sorted(step.queries.texts) == ["q0", "q1"]
    assert sorted(step.passages.texts) == ["m", "n", "p0", "p1", "p2"]

    def text(table, place):
        return table.texts[int(place)] if place >= 0 else None

    named = [
        (text(step.queries, q), text(step.passages, p), {text(step.passages, n) for n in own} - {None})
        for q, p, own in zip(step.targets.query, step.targets.positive, step.targets.own, strict=True)
    ]
    assert named == [("q0", "p2", {"p0", "m"}), ("q0", "p0", {"n", "p1"}), ("q1", "p1", {"n"})]
    known = {
        (step.queries.texts[u], step.passages.texts[m]) for u, m in np.argwhere(step.targets.known.numpy()).tolist()
    }
    assert known == {("q0", "p0"), ("q0", "p2"), ("q1", "p1")}


def test_known_positives_come_from_the_whole_data(training_set):
    data = training_set([{"query": "q", "positive": f"p{i}", "negative": "p1"} for i in range(3)])
    step = data.assemble(np.array([0]))
    assert step.targets.known[0, step.passages.texts.index("p1")]


def test_held_out_queries_and_their_answers_are_never_trained_on(training_set, rows):
    shared = rows(60, queries=30)
    for i in range(0, 60, 7):  # other queries are answered by, or have as negatives, what may be held out
        shared[i]["negatives"].append(shared[(i + 5) % 60]["positive"])
        shared.append({"query": f"other {i}", "positive": shared[(i + 9) % 60]["positive"], "negatives": []})
    data = training_set(shared, held_out=100, hard_negatives=10)
    task = data.retrieval()
    assert len(task.queries) == len({row["query"] for row in shared}) // 10
    answers = {passage for m, passage in enumerate(task.passages) if task.relevant[:, m].any()}
    seen = set()
    for batch in data.batch(16, seed=0, epoch=0):
        step = data.assemble(batch)
        assert not set(step.queries.texts) & set(task.queries)
        seen |= set(step.passages.texts)
    assert not seen & answers
    assert any("hold such a passage" in line for line in data.notes)
    expected = {row["query"]: set() for row in shared}
    for row in shared:
        expected[row["query"]].add(row["positive"])
    for u, query in enumerate(task.queries):
        assert {task.passages[m] for m in np.flatnonzero(task.relevant[u])} == expected[query] & set(task.passages)
        assert task.relevant[u].any()


def test_the_split_does_not_depend_on_the_order_of_the_rows(write_rows, tmp_path, rows):
    found = []
    for name, order in (("a", 1), ("b", -1)):
        path = write_rows(rows(50)[::order], f"{name}.jsonl")
        found.append(TrainingSet(prepare(PairSettings(train_data=str(path)), tmp_path / name), 3).retrieval().queries)
    assert sorted(found[0]) == sorted(found[1])


def test_nothing_left_to_train_on_is_refused(training_set):
    with pytest.raises(DataError, match="--held-out 0"):
        training_set([{"query": f"q{i}", "positive": "the same"} for i in range(10)], held_out=1)


def test_noise_follows_from_seed_step_and_content():
    keys = np.array([5, 1 << 63, 9], dtype=np.uint64)
    assert torch.equal(noise_of(0, 3, keys)[[2, 0]], noise_of(0, 3, keys[[2, 0]]))
    assert not (noise_of(0, 3, keys) == noise_of(0, 4, keys)).any()
    assert not (noise_of(0, 3, keys) == noise_of(1, 3, keys)).any()


def test_slots_of_one_text_are_averaged():
    vectors = torch.tensor([[1.0, 2], [3, 4], [5, 6]])
    assert torch.equal(mean_by_slot(vectors, torch.tensor([1, 0, 1]), 2), torch.tensor([[3.0, 4], [3, 4]]))
