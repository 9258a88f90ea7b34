from collections import Counter

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from frozenprobe.errors import ProbeError
from frozenprobe.probes import knn as module
from frozenprobe.probes.knn import nearest, neighbour_mean, vote

KS = (1, 3, 10, 30)


def example(rows=300, duplicates=100):
    random = np.random.default_rng(0)
    train = np.round(random.normal(size=(rows, 16)), 1).astype(np.float32) + 5
    train[rows // 2 : rows // 2 + duplicates] = train[:duplicates]
    train[7] = 0
    queries = np.concatenate([train[:40], random.normal(size=(40, 16)).astype(np.float32) + 5])
    return train, queries


def brute_force(train, queries, distance, leave_one_out=False):
    """Order of the train rows by float64 distance, equal ones by index; a zero row is orthogonal to all."""
    base, sought = train.astype(np.float64), queries.astype(np.float64)
    if distance == "cosine":
        lengths = np.outer(np.linalg.norm(sought, axis=1), np.linalg.norm(base, axis=1))
        apart = -np.einsum("md,nd->mn", sought, base) / np.where(lengths > 0, lengths, 1)
    else:
        apart = ((sought[:, None] - base[None]) ** 2).sum(2)
    if leave_one_out:
        np.fill_diagonal(apart, np.inf)
    return np.argsort(apart, axis=1, kind="stable")


def voted(labels, k):
    """The rule in plain words: majority of k; of the tied classes, that of the nearest neighbour."""
    answers = []
    for row in labels[:, :k]:
        counts = Counter(row.tolist())
        answers.append(next(label for label in row if counts[label] == max(counts.values())))
    return answers


@pytest.mark.parametrize("backend", ["torch", "faiss"])
@pytest.mark.parametrize("distance", ["l2", "cosine"])
def test_neighbours_equal_brute_force_with_duplicates_and_a_zero_row(backend, distance):
    if backend == "faiss":
        pytest.importorskip("faiss")
    train, queries = example()
    np.testing.assert_array_equal(
        nearest(train, queries, 30, distance, backend=backend), brute_force(train, queries, distance)[:, :30]
    )
    np.testing.assert_array_equal(
        nearest(train, None, 30, distance, backend=backend), brute_force(train, train, distance, True)[:, :30]
    )


def test_more_copies_of_one_row_than_candidates():
    train = np.zeros((200, 4), np.float32)
    train[:5] = np.arange(20).reshape(5, 4)
    np.testing.assert_array_equal(nearest(train, train[-1:], 30, "l2")[0], np.arange(5, 35))
    np.testing.assert_array_equal(nearest(train, None, 30, "l2")[10], [*range(5, 10), *range(11, 36)])


@pytest.mark.parametrize("distance", ["l2", "cosine"])
@pytest.mark.parametrize("classes", [2, 3])
def test_votes_equal_brute_force_for_every_k(distance, classes):
    train, queries = example()
    labels = np.random.default_rng(classes).integers(0, classes, len(train))
    answers = vote(labels[nearest(train, queries, 30, distance)], KS, classes)
    for k, answer in zip(KS, answers, strict=True):
        np.testing.assert_array_equal(answer, voted(labels[brute_force(train, queries, distance)], k))


def test_votes_equal_scikit_learn_where_there_is_no_tie():
    random = np.random.default_rng(3)
    train, queries = random.normal(size=(500, 8)).astype(np.float32), random.normal(size=(200, 8)).astype(np.float32)
    labels = random.integers(0, 2, 500)
    for k in (1, 3, 9, 31):
        peer = KNeighborsClassifier(k, algorithm="brute").fit(train, labels).predict(queries)
        np.testing.assert_array_equal(vote(labels[nearest(train, queries, k, "l2")], (k,), 2)[0], peer)


def test_a_tie_goes_to_the_class_of_the_nearest_neighbour():
    labels = np.array([[2, 0, 0, 2], [1, 2, 2, 1], [0, 1, 2, 2]])
    assert vote(labels, (1, 2, 4), 3).tolist() == [[2, 1, 0], [2, 1, 0], [2, 1, 2]]


def test_values_are_the_mean_of_the_neighbours():
    assert neighbour_mean(np.array([[1.0, 2.0, 6.0]]), (1, 2, 3)).ravel().tolist() == [1.0, 1.5, 3.0]


def test_small_chunks_change_nothing(monkeypatch):
    train, queries = example()
    whole = nearest(train, queries, 10, "l2")
    monkeypatch.setattr(module, "CHUNK_VALUES", 1)
    np.testing.assert_array_equal(nearest(train, queries, 10, "l2"), whole)


def test_two_faiss_distributions_are_an_error(monkeypatch):
    monkeypatch.setattr(module, "_is_installed", lambda _: True)
    with pytest.raises(ProbeError, match="break each other"):
        nearest(*example(), 3, "l2", backend="faiss")
