"""Token features of a step: what the encoder gives, each distinct text once, whatever the batches, from memory or disk."""

import numpy as np
import pytest
import torch

from frozenprobe.contrastive.data import text_key
from frozenprobe.contrastive.features import FeatureSource
from frozenprobe.contrastive.store import TokenStore
from frozenprobe.errors import FeatureError
from tests.features.conftest import LAYERS, WIDTH


def keys_of(texts):
    return np.array([text_key(text) for text in texts], dtype=np.uint64)


def batch_of(source, texts, role="document"):
    return source.tokenize(texts, keys_of(texts), role)


def alone(encoder, text, layer="last"):
    kept = []
    tokens = encoder.tokenize([text])
    encoder.forward(encoder.collate(tokens, np.array([0])), (layer,), lambda _, hidden: kept.append(hidden[0]))
    return kept[0].float()


def rows_of(blocks):
    """Token features by row of the batch."""
    found = {}
    for block in blocks:
        tokens, mask = block.features()
        for place, row in enumerate(block.rows.tolist()):
            assert row not in found
            found[row] = tokens[place][mask[place]].float()
    return found


TEXTS = [" ".join(f"w{(7 * i + j) % 23}" for j in range(1 + i % 9)) + f" t{i}" for i in range(40)]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("tokens", [4, 50, None])
@pytest.mark.parametrize("layer", ["last", 1])
def test_they_are_the_encoders_own_for_every_batch_size(fake, side, tokens, layer):
    encoder = fake(padding_side=side, garbage=float("nan"))
    source = FeatureSource(encoder, layer, tokens=tokens)
    found = rows_of(source.frozen(batch_of(source, TEXTS), np.arange(40)))
    assert sorted(found) == list(range(40))
    for row, text in enumerate(TEXTS):
        assert torch.allclose(found[row], alone(encoder, text, layer), atol=1e-5)
    assert LAYERS >= 1


def test_only_the_rows_asked_for_are_encoded(fake):
    encoder = fake()
    source = FeatureSource(encoder)
    assert sorted(rows_of(source.frozen(batch_of(source, TEXTS), np.array([3, 17])))) == [3, 17]
    assert encoder.encoded == source.encoded_texts == 2


def test_a_chunk_bounds_what_is_in_memory(fake):
    encoder = fake()
    source = FeatureSource(encoder, chunk=7)
    blocks = source.frozen(batch_of(source, TEXTS), np.arange(40))
    assert [len(block.rows) for block in blocks] == [7, 7, 7, 7, 7, 5]
    assert encoder.encoded == 0  # nothing before a block is asked for, and nothing stays
    found = rows_of(blocks)
    assert encoder.encoded == 40
    other = FeatureSource(fake())
    whole = rows_of(other.frozen(batch_of(other, TEXTS), np.arange(40)))
    assert all(torch.allclose(found[row], whole[row], atol=1e-6) for row in range(40))


def test_batches_are_halved_where_memory_runs_out(fake):
    encoder = fake(tokens_that_fit=30)
    source = FeatureSource(encoder, tokens=400)
    assert len(rows_of(source.frozen(batch_of(source, TEXTS), np.arange(40)))) == 40
    assert source.budget.halved
    source = FeatureSource(fake(tokens_that_fit=3))
    with pytest.raises(FeatureError, match="does not fit in memory"):
        source.frozen(batch_of(source, TEXTS), np.arange(40))


def test_a_text_without_tokens_is_named(fake):
    source = FeatureSource(fake(special=False))
    with pytest.raises(FeatureError, match="the query '' has no tokens"):
        batch_of(source, ["a", ""], "query")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kept_features_are_the_same_bits_and_encode_nothing(fake, tmp_path, dtype):
    encoder = fake(dtype=dtype)

    def features(store, rows):
        source = FeatureSource(encoder, store=store)
        return source.frozen(batch_of(source, TEXTS), rows), source

    store = TokenStore(tmp_path, WIDTH, dtype, 10**9)
    fresh, _ = features(store, np.arange(40))
    encoder.encoded = 0
    for again in (store, TokenStore(tmp_path, WIDTH, dtype, 10**9)):
        kept, source = features(again, np.arange(40))
        assert source.encoded_texts == encoder.encoded == 0
        for one, other in zip(fresh, kept, strict=True):
            assert torch.equal(one.rows, other.rows)
            mask = one.features()[1]
            assert torch.equal(one.features()[0][mask], other.features()[0][mask])


def test_what_lacks_is_encoded_and_roles_are_kept_apart(fake, tmp_path):
    encoder = fake()
    store = TokenStore(tmp_path, WIDTH, torch.float32, 10**9)
    source = FeatureSource(encoder, store=store)
    source.frozen(batch_of(source, TEXTS), np.arange(10))
    found = rows_of(source.frozen(batch_of(source, TEXTS), np.arange(40)))
    assert encoder.encoded == 40
    assert all(torch.allclose(found[row], alone(encoder, text), atol=1e-6) for row, text in enumerate(TEXTS))
    encoder.encoded = 0
    source.frozen(batch_of(source, TEXTS, "query"), np.arange(10))
    assert encoder.encoded == 10


def test_a_limit_ends_the_keeping_and_changes_nothing(fake, tmp_path):
    store = TokenStore(tmp_path, WIDTH, torch.float32, 100 * WIDTH * 4)
    source = FeatureSource(fake(), tokens=20, store=store)
    found = rows_of(source.frozen(batch_of(source, TEXTS), np.arange(40)))
    assert store.full
    assert 0 < len(store) < 40
    assert len(found) == 40
    assert (tmp_path / "tokens.bin").stat().st_size <= 100 * WIDTH * 4


def test_a_kill_between_vectors_and_index_is_cut_off(fake, tmp_path):
    encoder = fake()
    source = FeatureSource(encoder, store=TokenStore(tmp_path, WIDTH, torch.float32, 10**9))
    source.frozen(batch_of(source, TEXTS), np.arange(10))
    for name, garbage in (("tokens.bin", b"half a vector"), ("tokens.index", b"half")):
        with (tmp_path / name).open("ab") as file:
            file.write(garbage)
    source = FeatureSource(encoder, store=TokenStore(tmp_path, WIDTH, torch.float32, 10**9))
    found = rows_of(source.frozen(batch_of(source, TEXTS), np.arange(40)))
    again = FeatureSource(encoder, store=TokenStore(tmp_path, WIDTH, torch.float32, 10**9))
    kept = rows_of(again.frozen(batch_of(again, TEXTS), np.arange(40)))
    assert again.encoded_texts == 0
    assert all(torch.equal(found[row], kept[row]) for row in range(40))


def test_queries_and_documents_are_encoded_in_their_roles(fake):
    """C01, for token features: the same text in both roles, in one step."""
    source = FeatureSource(fake(role_in_weights=True))
    query, document = (
        rows_of(source.frozen(batch_of(source, ["a b"], role), np.arange(1)))[0] for role in ("query", "document")
    )
    assert torch.allclose(query - document, torch.full_like(query, 2.0 * (1 + LAYERS + 1)), atol=1e-4)
