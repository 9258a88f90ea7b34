"""Makers of tiny randomly initialised models of each architecture, saved in the layout of the real ones.

Weights are drawn wide (standard deviation 0.3), so that attention matters and an ignored mask shows.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests.encoders import remote_model

HIDDEN = 32
LAYERS = 3
CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "a frozen encoder is measured by its probes",
    "padding must not change what a short text means",
    "Whether Two Sentences Mean The Same, or not?",
    "Cafés and naïve façades; numbers like 12, 345 and 6,789.",
]
# Every other word is known whole; the rest fall into characters. Nothing is trained: the trainers break ties at random.
_WORDS = sorted({word.strip(",;.?") for text in CORPUS for word in text.split()})[::2]
_CHARACTERS = "abcdefghijklmnopqrstuvwxyzT0123456789,.?;"
TEXTS = [
    "the fox",
    "a quick encoder jumps over a lazy probe and the padding of the batch must not change that at all",
    "Whether",
    "",
    "naïve numbers 12, 345?",
]

_COMMON = {
    "vocab_size": 300,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "initializer_range": 0.3,
}


def wordpiece(max_length: int = 64, **extra: Any) -> tf.PreTrainedTokenizerFast:
    """BERT's kind: lower-cased word pieces, `[CLS] a [SEP] b [SEP]`, type ids."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*_CHARACTERS, *(f"##{c}" for c in _CHARACTERS), *(word.lower() for word in _WORDS)]
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys([*special, *pieces]))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.decoder = decoders.WordPiece()
    return tf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=max_length,
        **extra,
    )


def byte_bpe(max_length: int = 64, **extra: Any) -> tf.PreTrainedTokenizerFast:
    """RoBERTa's kind: byte-level BPE, `<s> a </s></s> b </s>`, no type ids, padding id 1."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=300,
            show_progress=False,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        cls_token="<s>",
        sep_token="</s>",
        mask_token="<mask>",
        model_input_names=["input_ids", "attention_mask"],
        model_max_length=max_length,
        **extra,
    )


def unigram(max_length: int = 64, **extra: Any) -> tf.PreTrainedTokenizerFast:
    """T5's kind: unigram pieces with a closing `</s>`."""
    scores = {"<pad>": 0.0, "</s>": 0.0, "<unk>": -20.0, "▁": -4.0}
    scores |= dict.fromkeys(_CHARACTERS, -6.0) | {f"▁{word}": -5.0 for word in _WORDS}
    tokenizer = Tokenizer(models.Unigram(list(scores.items()), unk_id=2))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    tokenizer.decoder = decoders.Metaspace()
    return tf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_input_names=["input_ids", "attention_mask"],
        model_max_length=max_length,
        **extra,
    )


def bert() -> tuple[tf.PreTrainedModel, Any]:
    return tf.BertModel(tf.BertConfig(**_COMMON, max_position_embeddings=64)), wordpiece()


def roberta() -> tuple[tf.PreTrainedModel, Any]:
    config = tf.RobertaConfig(**_COMMON, max_position_embeddings=66, pad_token_id=1, type_vocab_size=1)
    return tf.RobertaModel(config), byte_bpe()


def electra() -> tuple[tf.PreTrainedModel, Any]:
    # Narrower embeddings than hidden states, as in ELECTRA-small: a projection lies between them.
    return tf.ElectraModel(tf.ElectraConfig(**_COMMON, embedding_size=16, max_position_embeddings=64)), wordpiece()


def mpnet() -> tuple[tf.PreTrainedModel, Any]:
    config = tf.MPNetConfig(**_COMMON, max_position_embeddings=66, pad_token_id=1)
    return tf.MPNetModel(config), byte_bpe()


def deberta_v3() -> tuple[tf.PreTrainedModel, Any]:
    config = tf.DebertaV2Config(
        **_COMMON,
        max_position_embeddings=64,
        type_vocab_size=0,
        relative_attention=True,
        position_buckets=16,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
    )
    return tf.DebertaV2Model(config), wordpiece()


def modernbert() -> tuple[tf.PreTrainedModel, Any]:
    config = tf.ModernBertConfig(
        **_COMMON,
        max_position_embeddings=64,
        local_attention=8,
        global_attn_every_n_layers=2,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        cls_token_id=0,
        sep_token_id=2,
    )
    return tf.ModernBertModel(config), byte_bpe()


def eurobert() -> tuple[tf.PreTrainedModel, Any]:
    if not hasattr(tf, "EuroBertConfig"):
        pytest.skip("this transformers has no EuroBERT of its own")
    config = tf.EuroBertConfig(
        **_COMMON, num_key_value_heads=2, max_position_embeddings=64, pad_token_id=1, bos_token_id=0, eos_token_id=2
    )
    return tf.EuroBertModel(config), byte_bpe()


def t5() -> tuple[tf.PreTrainedModel, Any]:
    # Two layers, because a block of T5 itself holds a list of two.
    config = tf.T5Config(
        vocab_size=300, d_model=HIDDEN, d_kv=8, d_ff=64, num_layers=2, num_heads=4, initializer_factor=1.0
    )
    return tf.T5Model(config), unigram()


def bart() -> tuple[tf.PreTrainedModel, Any]:
    config = tf.BartConfig(
        vocab_size=300,
        d_model=HIDDEN,
        encoder_layers=LAYERS,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=64,
        init_std=0.3,
    )
    return tf.BartModel(config), byte_bpe()


def llama() -> tuple[tf.PreTrainedModel, Any]:
    config = tf.LlamaConfig(**_COMMON, num_key_value_heads=2, max_position_embeddings=64, pad_token_id=1)
    return tf.LlamaModel(config), byte_bpe(padding_side="left")


def gpt2() -> tuple[tf.PreTrainedModel, Any]:
    config = tf.GPT2Config(
        vocab_size=300, n_embd=HIDDEN, n_layer=LAYERS, n_head=4, n_positions=64, initializer_range=0.3
    )
    return tf.GPT2Model(config), byte_bpe(padding_side="left")


def albert() -> tuple[tf.PreTrainedModel, Any]:
    # One block run three times: hooks cannot tell its layers apart.
    return tf.AlbertModel(tf.AlbertConfig(**_COMMON, embedding_size=16, max_position_embeddings=64)), wordpiece()


ARCHITECTURES: dict[str, Callable[[], tuple[tf.PreTrainedModel, Any]]] = {
    maker.__name__: maker for maker in (bert, roberta, electra, mpnet, deberta_v3, modernbert, eurobert, t5)
}
OTHERS: dict[str, Callable[[], tuple[tf.PreTrainedModel, Any]]] = {
    maker.__name__: maker for maker in (bart, llama, gpt2, albert)
}


def make(name: str, seed: int = 0) -> tuple[tf.PreTrainedModel, Any]:
    """A tiny model in eval mode and its tokenizer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, tokenizer = (ARCHITECTURES | OTHERS)[name]()
    return model.eval(), tokenizer


def save(folder: Path, name: str = "bert", seed: int = 0) -> Path:
    """Saves a tiny model with its tokenizer and gives the folder back."""
    model, tokenizer = make(name, seed)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_remote_code(folder: Path, seed: int = 0) -> Path:
    """A folder that brings its own code through `auto_map`, as NeoBERT does.

    Its rotary table is a non-persistent buffer computed in `__init__`, which transformers 5 does not restore.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(remote_model.__file__, folder / "modeling_tiny.py")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = remote_model.TinyRemoteModel(remote_model.TinyRemoteConfig())
    model.save_pretrained(folder)
    wordpiece().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {
        "AutoConfig": "modeling_tiny.TinyRemoteConfig",
        "AutoModel": "modeling_tiny.TinyRemoteModel",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder
