"""Real triples, and a real encoder whose inner layer has no sentence space of its own."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from frozenprobe.contrastive.batches import TrainingSet
from frozenprobe.contrastive.data import prepare
from frozenprobe.contrastive.run import train_pooler
from frozenprobe.contrastive.settings import PairSettings


@pytest.fixture
def staged(real_data):
    def find(path):
        if not (real_data / path).exists():
            pytest.skip(f"FROZENPROBE_TEST_DATA has no {path}")
        return real_data / path

    return find


def test_ms_marco_triples_are_read_whole_and_shared_passages_are_found(staged, tmp_path):
    path = staged("local/msmarco-triples/default/train.parquet")
    rows = prepare(PairSettings(train_data=str(path), hard_negatives=25), tmp_path)
    assert rows.report.as_dict() | {"source": "", "revision": ""} == {
        "source": "",
        "revision": "",
        "rows": 2611,
        "without_query": 0,
        "without_positive": 0,
        "positive_among_negatives": 0,
        "bad_negatives": 0,
        "without_negatives": 0,
    }
    data = TrainingSet(rows)
    steps = [data.assemble(batch) for batch in data.batch(512, seed=0, epoch=0)]
    assert sum(len(step.passages.slots) for step in steps) == 20_468
    assert len({text for step in steps for text in step.passages.texts}) == 3_493
    assert len({text for step in steps for text in step.queries.texts}) == 153


@pytest.mark.slow
def test_a_trained_pooler_beats_mean_pooling_of_an_inner_layer(staged, minilm, tmp_path):
    path = tmp_path / "train.parquet"
    pq.write_table(pq.read_table(staged("sentence-transformers/all-nli/triplet/dev.parquet")).slice(0, 1000), path)
    result = train_pooler(
        f"hf:{minilm}",
        encoder={"max_length": 48},
        out=tmp_path / "out",
        data={"train_data": str(path), "held_out": 100},
        training={"batch_size": 128, "lr": 1e-3},
        layer=3,
        pooler={"blocks": 1},
    )
    score = result.results["held_out"]["pooler"]["ndcg@10"]
    assert score["against_mean_low"] > 0.2
    first = next(entry["held_out"] for entry in result.history)
    # A fresh pooler is as good as the mean that it starts from.
    assert first["pooler"]["ndcg@10"] == pytest.approx(first["mean pooling"]["ndcg@10"], abs=0.02)
    assert np.isfinite([entry["losses"]["pooler"] for entry in result.history if "losses" in entry]).all()
