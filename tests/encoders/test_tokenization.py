"""Ragged ids against the tokenizer's own answer, with the state it shares left alone."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import transformers as tf
from tokenizers import processors

from frozenprobe.encoders.tokenization import CHUNK, TextTokenizer
from frozenprobe.errors import EncoderError
from tests.encoders import tiny

KINDS = {"wordpiece": tiny.wordpiece, "byte_bpe": tiny.byte_bpe, "unigram": tiny.unigram}
LONG = " ".join(tiny.CORPUS * 3)


class SlowTokenizer(tf.PreTrainedTokenizer):
    """A tokenizer written in Python: one token per word, numbered by its length."""

    def __init__(self, **kwargs):
        self._vocabulary = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3} | {f"w{i}": i for i in range(4, 40)}
        super().__init__(pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", **kwargs)

    @property
    def vocab_size(self):
        return 40

    def get_vocab(self):
        return dict(self._vocabulary)

    def _tokenize(self, text, **kwargs):
        return [f"w{min(len(word) + 3, 39)}" for word in text.split()]

    def _convert_token_to_id(self, token):
        return self._vocabulary.get(token, 1)

    def _convert_id_to_token(self, index):
        return list(self._vocabulary)[index]

    def build_inputs_with_special_tokens(self, first, second=None):
        return [2, *first, 3] + ([*second, 3] if second else [])

    def create_token_type_ids_from_sequences(self, first, second=None):
        return [0] * (len(first) + 2) + ([1] * (len(second) + 1) if second else [])

    def save_vocabulary(self, folder, filename_prefix=None):
        return ()


def slow():
    return SlowTokenizer(model_max_length=64)


@pytest.mark.parametrize("kind", [*KINDS, "slow"])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("paired", [False, True], ids=["single", "pair"])
def test_equals_the_tokenizer_itself(kind, side, paired):
    tokenizer = (KINDS | {"slow": slow})[kind]()
    tokenizer.truncation_side = side
    texts = ["the fox", LONG, "", "Cafés", LONG, "a b"]
    pairs = ["a probe", "short", LONG, LONG, LONG, "c"] if paired else None
    with_types = kind in ("wordpiece", "slow")
    ours = TextTokenizer(tokenizer, 20, with_types=with_types).encode(texts, pairs)
    right = tokenizer(texts, pairs, truncation=True, max_length=20, return_token_type_ids=with_types)
    whole = tokenizer(texts, pairs, truncation=False)
    assert [row.tolist() for row in np.split(ours.ids, ours.offsets[1:-1])] == right["input_ids"]
    assert ours.full_lengths.tolist() == [len(row) for row in whole["input_ids"]]
    assert ours.truncated.tolist() == [len(row) > 20 for row in whole["input_ids"]]
    assert ours.truncated.any()
    if with_types:
        assert ours.types.tolist() == [kind for row in right["token_type_ids"] for kind in row]
        assert ours.types.any() == paired
    else:
        assert ours.types is None


def test_a_smaller_truncation_and_padding_in_the_file_are_neutralised(tmp_path):
    tokenizer = tiny.wordpiece()
    tokenizer.backend_tokenizer.enable_truncation(8)
    tokenizer.backend_tokenizer.enable_padding(length=8)
    tokenizer.save_pretrained(tmp_path)
    tokenizer = tf.AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.backend_tokenizer.truncation["max_length"] == 8
    ours = TextTokenizer(tokenizer, 40, with_types=True).encode(["the", LONG])
    assert ours.lengths.tolist() == [3, 40]
    assert tokenizer.backend_tokenizer.truncation["max_length"] == 8  # and the caller's own object is as it was


def test_many_rows_keep_their_order():
    tokenizer = tiny.wordpiece()
    texts = [f"{i} the fox {'over ' * (i % 30)}" for i in range(2 * CHUNK + 5)]
    ours = TextTokenizer(tokenizer, 24, with_types=True).encode(texts)
    assert len(ours) == len(texts)
    for i in (0, 1, CHUNK - 1, CHUNK, 2 * CHUNK, len(texts) - 1):
        row = ours.ids[ours.offsets[i] : ours.offsets[i + 1]]
        assert row.tolist() == tokenizer(texts[i], truncation=True, max_length=24)["input_ids"]


def test_no_texts():
    ours = TextTokenizer(tiny.wordpiece(), 24, with_types=True).encode([])
    assert len(ours) == 0
    assert ours.offsets.tolist() == [0]


def test_lower_case_leaves_special_tokens_alone():
    cased = tiny.byte_bpe()
    ours = TextTokenizer(cased, 24, with_types=False, lower_case=True).encode(["THE <mask> FOX"])
    plain = TextTokenizer(cased, 24, with_types=False).encode(["the <mask> fox"])
    assert ours.ids.tolist() == plain.ids.tolist()
    assert 4 in ours.ids


@pytest.mark.parametrize(
    ("texts", "pairs", "message"),
    [
        (["a", None], None, "text 1 is NoneType, not a string"),
        (["a", 3.5], None, "text 1 is float"),
        (["a"], [b"b"], "text 0 is bytes"),
        (["a", "b"], ["c"], "2 texts cannot be paired with 1"),
        (["a", "x\ud800y"], None, "lone surrogate"),
    ],
)
def test_hostile_texts_are_refused_in_one_line(texts, pairs, message):
    with pytest.raises(EncoderError, match=message) as caught:
        TextTokenizer(tiny.wordpiece(), 24, with_types=True).encode(texts, pairs)
    assert "\n" not in str(caught.value)


def test_a_text_without_tokens_is_refused():
    tokenizer = tiny.byte_bpe()
    tokenizer.backend_tokenizer.post_processor = processors.ByteLevel()
    with pytest.raises(EncoderError, match="text 1 has no tokens"):
        TextTokenizer(tokenizer, 24, with_types=False).encode(["a", ""])


def test_length_without_room_is_refused():
    with pytest.raises(EncoderError, match="give at least 3"):
        TextTokenizer(tiny.wordpiece(), 2, with_types=True)
    tokenizer = TextTokenizer(tiny.byte_bpe(), 4, with_types=False)
    with pytest.raises(EncoderError, match=r"4 special tokens to a pair.*at least 5"):
        tokenizer.encode(["a"], ["b"])


def test_threads_do_not_disturb_each_other():
    tokenizer = TextTokenizer(tiny.wordpiece(), 24, with_types=True)
    texts = [LONG, "the fox"] * 50
    right = tokenizer.encode(texts)
    wrong = []

    def work():
        for _ in range(5):
            if not np.array_equal(tokenizer.encode(texts).ids, right.ids):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_digest_sees_the_vocabulary_and_not_the_limits():
    one = tiny.wordpiece()
    digest = TextTokenizer(one, 24, with_types=True).digest()
    one.backend_tokenizer.enable_truncation(8)
    assert TextTokenizer(one, 24, with_types=True).digest() == digest
    one.add_tokens(["fox"])
    assert TextTokenizer(one, 24, with_types=True).digest() != digest
    assert TextTokenizer(slow(), 24, with_types=True).digest() == TextTokenizer(slow(), 24, with_types=True).digest()
