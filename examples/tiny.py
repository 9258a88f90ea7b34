"""What the examples train on: text from the built-in grammar, a word-level tokenizer of it, and a BERT of 2 layers x 64."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, PreTrainedTokenizerFast

from frozenprobe.tasks.builtin import BUILTIN, load_builtin

TASKS = "builtin-sentiment,builtin-acceptability"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def sentences(seed: int = 1) -> list[str]:
    """A few thousand sentences; the seed differs from that of the tasks, so no row of theirs is trained on."""
    texts: list[str] = []
    for name in BUILTIN:
        train = load_builtin(name, seed).train
        texts += train.texts + (train.pairs or [])
    return texts


def make_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Whole words as tokens, with `[CLS] ... [SEP]` around them."""
    normalizer, splitter = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    words = {word for text in texts for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))}
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate([*SPECIAL, *sorted(words)])}, unk_token="[UNK]")
    )
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **names)


def make_config(tokenizer: PreTrainedTokenizerFast) -> BertConfig:
    """A model that trains in seconds; the weights drawn next are the same every time."""
    torch.manual_seed(0)
    return BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=64,
    )
