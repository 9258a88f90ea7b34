"""Extraction: order, duplicates, batches, memory, non-finite values, truncation, interrupts (C01, C04, C08)."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from frozenprobe.errors import EncoderError, FeatureError, SettingsError
from frozenprobe.features.base import Inputs, View
from frozenprobe.features.extract import extract, resolve_views
from frozenprobe.features.tokens import FIRST_CHUNK, KeptTokens
from frozenprobe.settings import FeatureSettings

LAST_MEAN = View("last", "mean")
SETTINGS = FeatureSettings()


def budget(tokens):
    return FeatureSettings(tokens_per_batch=tokens)


def by_hand(encoder, text, pair=None, role=None):
    """Mean of the last layer, one row at a time, in numpy."""
    tokens = encoder.tokenize([text], None if pair is None else [pair], role)
    found = []
    encoder.forward(
        encoder.collate(tokens, np.array([0])), ["last"], lambda _, hidden: found.append(hidden[0].double().numpy())
    )
    return found[0].mean(0)


def test_rows_come_back_in_input_order_for_every_input(fake, words):
    encoder, plain = fake(), fake()
    train, dev = words(70, seed=1), words(30, seed=2)
    pairs = words(30, seed=3)
    result = extract(encoder, [Inputs(train), Inputs(dev, pairs), Inputs(dev, role="query")], [LAST_MEAN], SETTINGS)
    assert [len(part.by_view[LAST_MEAN]) for part in result] == [70, 30, 30]
    assert all(part.by_view[LAST_MEAN].dtype == np.float32 for part in result)
    for i, text in enumerate(train):
        np.testing.assert_allclose(result[0].by_view[LAST_MEAN][i], by_hand(plain, text), rtol=1e-5, atol=1e-5)
    for i, (text, pair) in enumerate(zip(dev, pairs, strict=True)):
        np.testing.assert_allclose(result[1].by_view[LAST_MEAN][i], by_hand(plain, text, pair), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tokens", [1, 31, 7 * 31, 50 * 31, None])
def test_c04_features_do_not_depend_on_the_batch(fake, words, tokens):
    texts = words(50)
    reference = extract(fake(), [Inputs(texts)], [LAST_MEAN], budget(1))[0].by_view[LAST_MEAN]
    order = np.random.default_rng(3).permutation(50)
    encoder = fake()
    shuffled = extract(encoder, [Inputs([texts[i] for i in order])], [LAST_MEAN], budget(tokens))[0]
    difference = np.linalg.norm(shuffled.by_view[LAST_MEAN] - reference[order], axis=1)
    assert (difference <= 1e-5 * np.linalg.norm(reference[order], axis=1)).all()
    if tokens == 1:
        assert {rows for rows, _ in encoder.batches} == {1}


def test_budget_counts_padded_tokens(fake, words):
    encoder = fake()
    report = extract(encoder, [Inputs(words(200))], [LAST_MEAN], budget(100))[0].report
    assert all(rows * width <= 100 for rows, width in encoder.batches)
    assert report.padded_tokens == sum(rows * width for rows, width in encoder.batches)
    assert report.tokens < report.padded_tokens < 1.2 * report.tokens
    assert report.tokens_per_batch == 100


def test_c08_each_distinct_input_is_encoded_once(fake, words):
    distinct = words(40)
    which = np.random.default_rng(0).integers(40, size=5000)
    encoder = fake()
    first, second = extract(encoder, [Inputs([distinct[i] for i in which]), Inputs(distinct)], [LAST_MEAN], SETTINGS)
    assert encoder.encoded == encoder.tokenized == first.report.encoded == first.report.distinct == 40
    assert first.report.rows == 5040
    np.testing.assert_array_equal(first.by_view[LAST_MEAN], second.by_view[LAST_MEAN][which])


def test_texts_with_the_same_tokens_are_encoded_once(fake):
    encoder = fake()
    texts = ["A b", "x", "a  b", "a b", "x", "a B"]
    result = extract(encoder, [Inputs(texts)], [LAST_MEAN], SETTINGS)[0]
    vectors = result.by_view[LAST_MEAN]
    assert encoder.encoded == result.report.distinct == 2
    np.testing.assert_array_equal(vectors[[0, 2, 3, 5]], np.repeat(vectors[:1], 4, axis=0))
    np.testing.assert_array_equal(vectors[1], vectors[4])
    assert not np.array_equal(vectors[0], vectors[1])


def test_same_tokens_in_another_chunk_are_found(fake, words):
    filler = words(FIRST_CHUNK, longest=3)
    encoder = fake()
    result = extract(encoder, [Inputs([*filler, filler[5].upper(), "new"])], [LAST_MEAN], SETTINGS)[0]
    assert encoder.encoded == FIRST_CHUNK + 1
    np.testing.assert_array_equal(result.by_view[LAST_MEAN][FIRST_CHUNK], result.by_view[LAST_MEAN][5])


def test_types_distinguish_inputs_with_the_same_ids(fake):
    encoder = fake()
    result = extract(encoder, [Inputs(["a", "a b"], ["b c", "c"])], [LAST_MEAN], SETTINGS)[0]
    assert encoder.encoded == 2
    assert not np.array_equal(*result.by_view[LAST_MEAN])


def test_roles_and_forms_are_never_mixed(fake):
    encoder = fake(role_in_weights=True)
    query, document, neither = extract(
        encoder,
        [Inputs(["a b"], role="query"), Inputs(["a b"], role="document"), Inputs(["a b"])],
        [LAST_MEAN],
        SETTINGS,
    )
    assert encoder.encoded == 3
    np.testing.assert_allclose(query.by_view[LAST_MEAN] - neither.by_view[LAST_MEAN], 5.0, rtol=1e-5)
    np.testing.assert_allclose(document.by_view[LAST_MEAN] - neither.by_view[LAST_MEAN], -5.0, rtol=1e-5)


@pytest.mark.parametrize("knob", [{"rows_that_fit": 3}, {"tokens_that_fit": 70}])
def test_batches_halve_when_memory_runs_out_and_the_run_goes_on(fake, words, knob):
    texts = words(120)
    expected = extract(fake(), [Inputs(texts)], [LAST_MEAN], SETTINGS)[0].by_view[LAST_MEAN]
    for settings in (SETTINGS, budget(4000)):
        encoder = fake(**knob)
        result = extract(encoder, [Inputs(texts)], [LAST_MEAN], settings)[0]
        np.testing.assert_allclose(result.by_view[LAST_MEAN], expected, rtol=1e-5, atol=1e-6)
        assert 1 <= result.report.halved <= 12
        assert result.report.tokens_per_batch < 1024
        assert encoder.encoded == result.report.encoded == 120


def test_a_single_row_that_does_not_fit_is_named_with_its_length(fake):
    texts = ["a", "b c", "long " * 40]
    with pytest.raises(FeatureError, match=r"row 2 of input 1, of 41 tokens, does not fit in memory on cpu"):
        extract(fake(tokens_that_fit=30), [Inputs(["x"]), Inputs(texts)], [LAST_MEAN], SETTINGS)


def test_other_runtime_errors_are_not_taken_for_memory(fake):
    encoder = fake()

    def fail():
        raise RuntimeError("expected scalar type Float but found Half")

    encoder.before_forward = fail
    with pytest.raises(RuntimeError, match="expected scalar type"):
        extract(encoder, [Inputs(["a"])], [LAST_MEAN], SETTINGS)


def test_a_non_finite_feature_names_row_and_input(fake, words):
    dev = words(20, seed=5)
    dev[13] = "some poison here"
    with pytest.raises(FeatureError, match=r"row 13 of input 1 has a non-finite feature in view last/mean"):
        extract(fake(poison="poison"), [Inputs(words(30)), Inputs(dev)], [LAST_MEAN], SETTINGS)


@pytest.mark.parametrize("garbage", [torch.nan, torch.inf, 1e30])
@pytest.mark.parametrize("pooling", ["mean", "max", "cls", "last", "first-last-mean"])
def test_what_an_encoder_leaves_in_padding_never_counts(fake, words, garbage, pooling):
    texts, view = words(20), View("last", pooling)
    clean = extract(fake(), [Inputs(texts)], [view], budget(1))[0].by_view[view]
    for side in ("left", "right"):
        dirty = extract(fake(garbage=garbage, padding_side=side), [Inputs(texts)], [view], budget(9999))[0].by_view[
            view
        ]
        np.testing.assert_allclose(dirty, clean, rtol=1e-5, atol=1e-5)


def test_an_input_without_tokens_is_refused(fake):
    with pytest.raises(FeatureError, match=r"row 1 of input 0 has no tokens"):
        extract(fake(special=False), [Inputs(["a", "  "])], [LAST_MEAN], SETTINGS)


def test_empty_text_is_encoded_where_the_tokenizer_adds_tokens(fake):
    assert np.isfinite(extract(fake(), [Inputs([""])], [LAST_MEAN], SETTINGS)[0].by_view[LAST_MEAN]).all()


def test_no_rows_give_empty_features(fake):
    nothing, one = extract(fake(), [Inputs([]), Inputs(["a"])], [LAST_MEAN], SETTINGS)
    assert nothing.by_view[LAST_MEAN].shape == (0, 16)
    assert one.by_view[LAST_MEAN].shape == (1, 16)
    assert extract(fake(), [Inputs([])], [LAST_MEAN], SETTINGS)[0].by_view[LAST_MEAN].shape == (0, 16)


def test_hostile_inputs_are_refused(fake):
    with pytest.raises(FeatureError, match=r"row 1 of input 0 is no text: None"):
        extract(fake(), [Inputs(["a", None])], [LAST_MEAN], SETTINGS)  # ty: ignore[invalid-argument-type]
    with pytest.raises(FeatureError, match=r"input 0 has 2 texts but 1 pairs"):
        extract(fake(), [Inputs(["a", "b"], ["c"])], [LAST_MEAN], SETTINGS)
    with pytest.raises(SettingsError, match="no views"):
        extract(fake(), [Inputs(["a"])], [], SETTINGS)


def test_truncation_is_counted_over_all_rows(fake):
    texts = ["w " * 100, "short text", "w " * 100, "w " * 63]
    report = extract(fake(max_length=64), [Inputs(texts)], [LAST_MEAN], SETTINGS)[0].report
    assert (report.truncated, report.lost_tokens, report.total_tokens) == (2, 2 * 37, 101 + 3 + 101 + 64)
    # The truncated text and the one that just fits have the same tokens.
    assert (report.rows, report.distinct, report.tokens) == (4, 2, 64 + 3)


def test_tokenising_happens_in_another_thread_that_ends(fake, words):
    encoder = fake()
    extract(encoder, [Inputs(words(20))], [LAST_MEAN], SETTINGS)
    assert encoder.threads == {"tokenize_0"}
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tokenize")]


def test_an_interrupt_stops_the_thread(fake, words):
    encoder = fake()

    def interrupt():
        raise KeyboardInterrupt

    encoder.before_forward = interrupt
    with pytest.raises(KeyboardInterrupt):
        extract(encoder, [Inputs(words(FIRST_CHUNK * 3, longest=3))], [LAST_MEAN], SETTINGS)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tokenize")]


def test_an_error_in_the_tokenizer_reaches_the_caller(fake):
    encoder = fake()
    encoder.tokenize = lambda *_: (_ for _ in ()).throw(EncoderError("no such text"))
    with pytest.raises(EncoderError, match="no such text"):
        extract(encoder, [Inputs(["a"])], [LAST_MEAN], SETTINGS)


def test_progress_counts_tokens_up_to_the_total(fake, words):
    texts, seen = words(FIRST_CHUNK + 500, longest=6), []
    result = extract(fake(), [Inputs(texts)], [LAST_MEAN], budget(256), on_progress=seen.append)[0]
    done = [progress.done for progress in seen]
    assert done == sorted(done)
    assert len(seen) > 10
    assert seen[-1].done == seen[-1].total == result.report.tokens
    assert all(0.7 < progress.total / result.report.tokens < 1.4 for progress in seen)


def test_an_encoder_that_skips_a_layer_or_a_row_is_refused(fake):
    encoder = fake()
    encoder.forward = lambda batch, layers, visit: None
    with pytest.raises(FeatureError, match="gave no layer last"):
        extract(encoder, [Inputs(["a"])], [LAST_MEAN], SETTINGS)
    encoder.forward = lambda batch, layers, visit: visit("last", torch.zeros(1, 1, 16))
    with pytest.raises(FeatureError, match="shape"):
        extract(encoder, [Inputs(["a b c"])], [LAST_MEAN], SETTINGS)
    one = fake().tokenize(["a"])
    encoder.tokenize = lambda *_: one
    with pytest.raises(FeatureError, match="2 texts gave 1 tokenised rows"):
        extract(encoder, [Inputs(["a", "b"])], [LAST_MEAN], SETTINGS)


def views(layers, poolings="mean", count=3, fake=None):
    return [str(view) for view in resolve_views(FeatureSettings(layers=layers, poolings=poolings), fake().info)]


def test_layers_resolve(fake):
    assert views("all", fake=fake) == ["0/mean", "1/mean", "2/mean", "last/mean"]
    assert views("-1,-2,-4,last,3", fake=fake) == ["last/mean", "2/mean", "0/mean", "3/mean"]
    assert views("all", "own,max", fake=fake) == ["0/max", "1/max", "2/max", "last/own", "last/max"]
    for wrong in (4, -5, 99):
        with pytest.raises(SettingsError, match=rf"layer {wrong} .*3 blocks; allowed are 0 \(embeddings\) to 3"):
            views((wrong,), fake=fake)
    for pooling in ("own", "first-last-mean"):
        with pytest.raises(SettingsError, match=f"pooling {pooling} belongs to the last layer"):
            views("1", pooling, fake=fake)
    with pytest.raises(SettingsError, match="no layers"):
        views("", fake=fake)


def test_own_pooling_needs_an_encoder_that_has_one(fake, fake_with_pooling, words):
    own = View("last", "own")
    with pytest.raises(EncoderError, match="no pooling of its own"):
        extract(fake(), [Inputs(["a"])], [own], SETTINGS)
    texts = words(30)
    result = extract(fake_with_pooling(), [Inputs(texts)], [own, LAST_MEAN], SETTINGS)[0].by_view
    assert result[own].shape == (30, 5)
    assert result[LAST_MEAN].shape == (30, 16)
    np.testing.assert_allclose(np.linalg.norm(result[own], axis=1), 1, rtol=1e-5)


# Tokens kept between extractions


def test_kept_tokens_give_the_same_features_and_the_same_report(fake, words):
    texts = words(2 * FIRST_CHUNK, seed=1)  # several chunks
    inputs = [Inputs([*texts, texts[3]]), Inputs(texts[:5], texts[1:6]), Inputs([])]
    encoder, views = fake(max_length=20), [LAST_MEAN, View(0, "cls")]
    expected = extract(encoder, inputs, views, budget(200))
    kept = KeptTokens(encoder, inputs)
    tokenized = encoder.tokenized
    for _ in range(2):  # an extraction uses nothing up
        found = extract(encoder, kept, views, budget(200))
        for one, other in zip(expected, found, strict=True):
            for view in views:
                np.testing.assert_array_equal(one.by_view[view], other.by_view[view])
        one, other = (part[0].report.as_dict() | {"seconds": None} for part in (expected, found))
        assert one == other
    assert encoder.tokenized == tokenized
    assert not any(chunk.group.texts or chunk.group.pairs for chunk in kept.chunks())
    assert kept.tokens == expected[0].report.tokens
    assert 4 * kept.tokens < kept.nbytes < 100 * kept.tokens
