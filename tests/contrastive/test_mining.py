"""Mining: exactly the nearest passages that do not answer, whatever the layout, and refusals before any encoding."""

import json

import numpy as np
import pytest

import frozenprobe
from frozenprobe.contrastive.data import prepare
from frozenprobe.contrastive.mining import mine_negatives
from frozenprobe.contrastive.settings import PairSettings
from frozenprobe.errors import DataError, EncoderError, RecordError, SettingsError
from tests.contrastive.test_features import alone
from tests.features.conftest import PoolingFake


def mean_vector(encoder, text):
    vector = alone(encoder, text).mean(0).double().numpy()
    return vector / np.linalg.norm(vector)


def brute_force(encoder, pairs, passages, wanted, margin, depth):
    answers = {}
    for query, positive in pairs:
        answers.setdefault(query, set()).add(positive)
    vectors = {text: mean_vector(encoder, text) for text in {*passages, *(x for pair in pairs for x in pair)}}
    mined = {}
    for query, positive in pairs:
        order = sorted(passages, key=lambda text: -float(vectors[text] @ vectors[query]))[:depth]
        limit = vectors[query] @ vectors[positive] - margin
        fit = [t for t in order if t not in answers[query] and t != query and vectors[t] @ vectors[query] < limit]
        mined[query, positive] = fit[:wanted]
    return mined


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("margin", [0.0, 0.05, 0.4])
@pytest.mark.parametrize("depth", [5, 100])
def test_it_is_the_exact_search_without_answers_and_near_answers(fake, write_rows, rows, tmp_path, margin, depth):
    drawn = rows(40, queries=25)
    path = write_rows(drawn)
    pairs = list(dict.fromkeys((row["query"], row["positive"]) for row in drawn))
    passages = list(dict.fromkeys(positive for _, positive in pairs))
    out = tmp_path / "mined.jsonl"
    report = mine_negatives(fake(), path, out, negatives=3, margin=margin, depth=depth)
    expected = brute_force(fake(), pairs, passages, 3, margin, depth)
    found = read(out)
    assert {(row["query"], row["positive"]): row["negatives"] for row in found} == expected
    assert report.pairs == len(pairs)
    assert report.passages == len(passages)
    assert report.negatives == sum(map(len, expected.values()))
    assert report.short == sum(len(mined) < 3 for mined in expected.values())


def test_a_corpus_is_searched_instead_and_faults_are_counted(fake, write_rows, tmp_path):
    pairs = write_rows([{"query": "a b", "positive": "a b c"}, {"query": "a b", "positive": None}], "pairs.jsonl")
    texts = ["a b d", "a b", "x y z", "", "a b c", "x y z", 7]
    corpus = write_rows([{"text": text} for text in texts], "corpus.jsonl")
    report = mine_negatives(fake(), pairs, tmp_path / "out.jsonl", corpus=corpus, margin=0.0)
    (row,) = read(tmp_path / "out.jsonl")
    assert set(row["negatives"]) <= {"a b d", "x y z"}
    assert "x y z" in row["negatives"]
    assert (report.pairs, report.bad_pairs, report.passages, report.bad_passages) == (1, 1, 4, 2)


def test_each_text_is_encoded_once(fake, write_rows, rows, tmp_path):
    encoder = fake()
    mine_negatives(encoder, write_rows(rows(30)), tmp_path / "out.jsonl", tokens_per_batch=500)
    assert encoder.encoded == 60 + 6  # 6 by the check of the padding


def test_what_is_mined_is_what_training_reads(fake, write_rows, rows, tmp_path):
    out = tmp_path / "mined.jsonl"
    mine_negatives(fake(), write_rows(rows(20)), out, negatives=4)
    report = prepare(PairSettings(train_data=str(out)), tmp_path / "rows").report
    assert report.rows == 20
    assert report.positive_among_negatives == report.bad_negatives == 0
    result = frozenprobe.train_pooler(
        fake(), data={"train_data": str(out), "held_out": 2}, training={"batch_size": 8}, pooler={"blocks": 1}
    )
    assert result.results["data"]["rows"] == 20


def test_the_encoders_own_pooling_is_used_where_it_has_one(fake, write_rows, rows, tmp_path):
    path, found = write_rows(rows(30)), {}
    for pooling in ("auto", "own", "mean"):
        mine_negatives(PoolingFake(), path, tmp_path / "out.jsonl", pooling=pooling)
        found[pooling] = read(tmp_path / "out.jsonl")
    assert found["auto"] == found["own"] != found["mean"]
    mine_negatives(fake(), path, tmp_path / "out.jsonl")
    assert read(tmp_path / "out.jsonl") == found["mean"]


def test_cut_texts_are_counted(fake, write_rows, tmp_path):
    path = write_rows([{"query": "a b", "positive": "a b c d e f g"}])
    assert mine_negatives(fake(max_length=5), path, tmp_path / "out.jsonl").truncated == 2  # as passage and as positive


def test_faiss_finds_the_same(fake, write_rows, rows, tmp_path):
    pytest.importorskip("faiss")
    path = write_rows(rows(30))
    for backend in ("torch", "faiss"):
        mine_negatives(fake(), path, tmp_path / f"{backend}.jsonl", backend=backend)
    assert read(tmp_path / "torch.jsonl") == read(tmp_path / "faiss.jsonl")


def test_wrong_input_is_refused_before_any_encoding(fake, write_rows, tmp_path):
    encoder = fake()
    pairs = write_rows([{"query": "q", "positive": "p"}], "pairs.jsonl")
    empty = write_rows([{"query": "q", "positive": " "}], "empty.jsonl")
    other = write_rows([{"passage": "p"}], "other.jsonl")
    out = tmp_path / "out.jsonl"
    for arguments, settings, error, message in (
        ((tmp_path / "nowhere.jsonl", out), {}, DataError, "no such file"),
        ((empty, out), {}, DataError, "no row has both"),
        ((pairs, tmp_path / "out.csv"), {}, RecordError, r"\.jsonl file"),
        ((pairs, tmp_path), {}, RecordError, r"\.jsonl file|is there already"),
        ((pairs, out), {"corpus": other}, DataError, "no column text; it has passage"),
        ((pairs, out), {"corpus": tmp_path / "nowhere.jsonl"}, DataError, "no such file"),
        ((pairs, out), {"depth": 1, "negatives": 5}, SettingsError, "--depth 1 is below --negatives 5"),
        ((pairs, out), {"pooling": "own"}, EncoderError, "declares no pooling"),
    ):
        with pytest.raises(error, match=message):
            mine_negatives(encoder, *arguments, **settings)
    assert encoder.encoded == 0
    assert not out.exists()
