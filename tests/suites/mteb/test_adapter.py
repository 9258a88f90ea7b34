"""The adapter below mteb's DataLoader: each text once, in order, in its role, by content."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch.utils.data import DataLoader

from frozenprobe.encoders.base import Tokenized
from frozenprobe.encoders.pooled import PooledEncoder
from frozenprobe.errors import EncoderError, FeatureError, SettingsError
from frozenprobe.features.cache import FeatureCache


class Counting:
    """The tiny encoder, counting the rows that go through the model; `shift` adds to a role's vectors."""

    def __init__(self, encoder, shift=None):
        self.below = encoder
        self.info = replace(encoder.info)
        self.shift = shift or {}
        self.encoded = 0

    def tokenize(self, texts, pairs=None, role=None):
        tokens = self.below.tokenize(texts, pairs)
        return RoleTokens(**vars(tokens), role=role)

    def collate(self, tokens, rows):
        self.role = tokens.role
        return self.below.collate(tokens, rows)

    def forward(self, batch, layers, visit):
        self.encoded += len(batch.ids)
        shift = self.shift.get(self.role, 0.0)
        self.below.forward(batch, layers, lambda layer, hidden: visit(layer, hidden + shift))

    def fingerprint(self):
        return self.below.fingerprint()


class RoleTokens(Tokenized):
    """Tokens that know their role, as an adapter's own subclass may."""

    def __init__(self, *, role, **fields):
        super().__init__(**fields)
        object.__setattr__(self, "role", role)


def loader(texts):
    return DataLoader(Dataset.from_dict({"text": texts}), batch_size=7)


def encode(model, texts, role=None):
    from mteb.abstasks.task_metadata import TaskMetadata
    from mteb.types import PromptType

    metadata = TaskMetadata.model_construct(name="Sample")
    kind = None if role is None else PromptType(role)
    return model.encode(loader(texts), task_metadata=metadata, hf_split="test", hf_subset="default", prompt_type=kind)


@pytest.fixture(scope="module")
def mteb_encoder():
    from frozenprobe.suites.mteb.adapter import MtebEncoder

    return MtebEncoder


def test_five_thousand_rows_of_forty_texts_are_forty_encodings_in_order(tiny, mteb_encoder):
    encoder = Counting(tiny)
    distinct = [f"text number {i} " * (1 + i % 5) for i in range(40)]
    texts = [distinct[(7 * i) % 40] for i in range(5000)]
    vectors = encode(mteb_encoder(encoder), texts)
    assert encoder.encoded == 40
    assert vectors.shape == (5000, 32)
    alone = np.stack([encode(mteb_encoder(tiny), [text])[0] for text in distinct])
    np.testing.assert_allclose(vectors, alone[[(7 * i) % 40 for i in range(5000)]], atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_what_a_task_asks_for_again_is_not_encoded_again(tiny, mteb_encoder):
    encoder = Counting(tiny)
    model = mteb_encoder(encoder)
    first = encode(model, ["one", "two", "three"])
    second = encode(model, ["three", "four", "one", "three"])
    assert encoder.encoded == 4
    np.testing.assert_array_equal(second[[2, 0, 3]], first[[0, 2, 2]])
    np.testing.assert_array_equal(encode(model, ["two", "two"]), first[[1, 1]])
    model.start_task()
    encode(model, ["one"])
    assert encoder.encoded == 5


def test_roles_have_vectors_of_their_own_in_the_cache_and_a_third_call_encodes_nothing(tiny, mteb_encoder, tmp_path):
    encoder = Counting(tiny, {"query": 1.0, "document": -1.0})
    cache = FeatureCache(tmp_path)

    def fresh():
        return mteb_encoder(encoder, "mean", normalise=False, cache=cache)

    query = encode(fresh(), ["the same text"], "query")
    document = encode(fresh(), ["the same text"], "document")
    assert encoder.encoded == 2
    np.testing.assert_allclose(query - document, 2, atol=1e-5)
    np.testing.assert_array_equal(encode(fresh(), ["the same text"], "query"), query)
    np.testing.assert_array_equal(encode(fresh(), ["the same text"], "document"), document)
    assert encoder.encoded == 2
    model = fresh()  # within a task too, where vectors are remembered
    np.testing.assert_array_equal(encode(model, ["the same text"], "query"), query)
    np.testing.assert_array_equal(encode(model, ["the same text"], "document"), document)


def test_prompts_stand_before_queries_and_documents_only(tiny, mteb_encoder):
    plain = mteb_encoder(tiny)
    prompted = mteb_encoder(tiny, prompts={"query": "query: ", "document": ""})
    assert prompted.uses_prompts
    assert not plain.uses_prompts
    np.testing.assert_array_equal(encode(prompted, ["x"], "query"), encode(plain, ["query: x"], "query"))
    np.testing.assert_array_equal(encode(prompted, ["x"], "document"), encode(plain, ["x"], "document"))
    np.testing.assert_array_equal(encode(prompted, ["x"]), encode(plain, ["x"]))


def test_prompts_beside_the_checkpoints_own_are_refused(tiny, mteb_encoder):
    class Prompted(Counting):
        def prompt(self, role):
            return "own: "

    with pytest.raises(SettingsError, match="declares prompts of its own"):
        mteb_encoder(Prompted(tiny), prompts={"query": "mine: "})


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_a_pooling_is_what_it_says(tiny, mteb_encoder, pooling):
    text = "a few words"
    tokens = tiny.tokenize([text])
    kept = []
    tiny.forward(tiny.collate(tokens, np.array([0])), (1,), lambda _, hidden: kept.append(hidden[0].numpy().copy()))
    expected = {"mean": kept[0].mean(0), "cls": kept[0][0], "last": kept[0][-1]}[pooling]
    model = mteb_encoder(tiny, pooling, layer=1, normalise=False)
    found = encode(model, [text, "a much longer text beside it, so that there is padding"])
    np.testing.assert_allclose(found[0], expected, atol=1e-5)


def test_any_module_is_a_pooler_of_any_layer(tiny, mteb_encoder, pooler):
    text = "a few words"
    kept = []
    batch = tiny.collate(tiny.tokenize([text]), np.array([0]))
    tiny.forward(batch, (1,), lambda _, hidden: kept.append(hidden.clone()))
    with torch.no_grad():
        expected = pooler(kept[0], batch.mask)[0].numpy()
    found = encode(
        mteb_encoder(tiny, pooler, layer=-2), [text, "another, with so many more words that there is padding"]
    )
    assert found.shape == (2, 12)
    np.testing.assert_allclose(found[0], expected, atol=1e-5)


def test_a_poolers_weights_are_part_of_the_fingerprint(tiny, mteb_encoder, pooler):
    before = mteb_encoder(tiny, pooler).fingerprint()
    assert before == mteb_encoder(tiny, pooler).fingerprint()
    assert before != mteb_encoder(tiny, pooler, layer=1).fingerprint()
    with torch.no_grad():
        pooler.query[0] += 1
    assert before != mteb_encoder(tiny, pooler).fingerprint()


def test_a_pooler_that_is_no_module_or_gives_no_vectors_is_refused(tiny, mteb_encoder):
    with pytest.raises(EncoderError, match=r"no torch\.nn\.Module"):
        PooledEncoder(tiny, lambda tokens, mask: tokens.mean(1))

    class Wrong(torch.nn.Module):
        def forward(self, tokens, mask):
            return tokens

    with pytest.raises(EncoderError, match="not a vector each"):
        encode(mteb_encoder(tiny, Wrong()), ["x"])


def test_own_pooling_of_a_checkpoint_without_one_is_refused(tiny, mteb_encoder):
    with pytest.raises(EncoderError, match="declares no pooling of its own"):
        mteb_encoder(tiny, "own")
    assert mteb_encoder(tiny).pooling == "mean"


def test_a_layer_out_of_range_is_refused(tiny, mteb_encoder):
    with pytest.raises(SettingsError, match="out of range"):
        mteb_encoder(tiny, layer=9)


def test_a_feature_that_is_not_finite_names_task_and_row(tiny, mteb_encoder):
    with pytest.raises(FeatureError, match=r"Sample, test, query: row 0 .* non-finite"):
        encode(mteb_encoder(Counting(tiny, {"query": float("nan")})), ["x"], "query")


def test_rows_without_a_data_set_below_them_are_read_from_the_batches(tiny, mteb_encoder):
    from mteb.abstasks.task_metadata import TaskMetadata

    batches = [{"text": ["a", "b"]}, {"text": ["c"]}]
    metadata = TaskMetadata.model_construct(name="Sample")
    found = mteb_encoder(tiny).encode(batches, task_metadata=metadata, hf_split="test", hf_subset="default")
    np.testing.assert_allclose(found, encode(mteb_encoder(tiny), ["a", "b", "c"]), atol=1e-6)


def test_the_token_budget_is_kept_once_enough_was_encoded_to_measure_it(tiny, mteb_encoder, monkeypatch):
    monkeypatch.setattr(
        "frozenprobe.suites.mteb.adapter._MEASURED_BATCHES", 2
    )  # enough for whichever budget is fastest today
    model = mteb_encoder(tiny)
    encode(model, ["few", "texts"])
    assert model.features.tokens_per_batch is None
    encode(model, [f"text number {i} " + "with some words " * 20 for i in range(6000)])
    assert model.features.tokens_per_batch == model.reports[-1].tokens_per_batch


def test_pinned_weights_are_read_once_and_no_more(tiny, mteb_encoder, tmp_path):
    class Asked(Counting):
        asked = 0

        def fingerprint(self):
            self.asked += 1
            return super().fingerprint()

    encoder = Asked(tiny)
    model = mteb_encoder(encoder, cache=FeatureCache(tmp_path))
    model.pin()
    for text in ("one", "two", "three"):
        encode(model, [text])
    assert model.fingerprint() == tiny.fingerprint()
    assert encoder.asked == 1
    again = mteb_encoder(encoder, cache=FeatureCache(tmp_path))
    encode(again, ["two"])
    assert encoder.encoded == 3
