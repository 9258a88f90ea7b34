"""The tokenizer of a pre-training run: a Hugging Face one, or a byte-level BPE trained on the text itself.

It must have a token that opens a text, one that closes it and one that masks. Text never produces them: a document that
contains the characters `<mask>` is tokenised as those characters.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from frozenprobe.errors import DataError, SettingsError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
"""Special tokens of a trained tokenizer, in the order of their ids, as in RoBERTa (whose mask comes last)."""


@dataclass(frozen=True)
class TextTokenizer:
    """Token ids of whole documents, `<s> ... </s>`.

    Attributes:
        tokenizer: The Hugging Face tokenizer.
        start: Id that opens a document.
        end: Id that closes it.
        vocabulary: Number of ids.
    """

    tokenizer: PreTrainedTokenizerBase
    start: int
    end: int
    vocabulary: int

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of documents of any length, special tokens added."""
        encoded = self.tokenizer(
            list(texts), add_special_tokens=False, split_special_tokens=True, return_attention_mask=False, verbose=False
        )["input_ids"]
        return [[self.start, *ids, self.end] for ids in encoded]


def load_tokenizer(name: str | Path) -> TextTokenizer:
    """Loads a tokenizer.

    Args:
        name: What a user calls it, a folder or a hub id; a `Path` is a folder, for which the hub is never asked.

    Raises:
        DataError: There is none, or the hub cannot be reached.
        SettingsError: It lacks a token that a pre-training run needs.
    """
    from transformers import AutoTokenizer

    local = isinstance(name, Path)
    if local and not name.is_dir():
        raise DataError(f"cannot load the tokenizer {name}: there is no such folder")
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(  # ty: ignore[invalid-assignment]
            str(name), local_files_only=local
        )
    except Exception as error:  # transformers raises OSError, ValueError, and whatever its back ends raise
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        advice = "" if local else "; give a folder, a hub id, or --train-tokenizer N"
        raise DataError(f"cannot load the tokenizer {name}: {reason}{advice}") from error
    start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.cls_token_id
    end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
    missing = [
        what for what, value in (("opens", start), ("closes", end), ("masks", tokenizer.mask_token_id)) if value is None
    ]
    if missing:
        raise SettingsError(f"the tokenizer {name} has no token that {' or '.join(missing)} a text")
    return TextTokenizer(tokenizer, start, end, len(tokenizer))


def train_tokenizer(texts: Iterator[str], vocabulary: int, folder: Path, max_length: int = 512) -> TextTokenizer:
    """Trains a byte-level BPE on text and saves it as a Hugging Face fast tokenizer.

    Args:
        texts: Documents, read once.
        vocabulary: Number of ids wanted, special tokens and the 256 bytes included.
        folder: Where it is saved.
        max_length: What the saved tokenizer states as the longest input, in tokens.

    Raises:
        SettingsError: The text does not hold enough different words for such a vocabulary.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    # The mask swallows the space before it, as RoBERTa's does: "a <mask>" reads like "a word".
    special = [AddedToken(token, special=True, lstrip=token == "<mask>") for token in SPECIAL]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(texts, trainer)
    if raw.get_vocab_size() != vocabulary:
        raise SettingsError(
            f"--train-tokenizer {vocabulary}: the text yields only {raw.get_vocab_size()} different pieces; ask for fewer"
        )
    raw.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", SPECIAL.index("<s>")), ("</s>", SPECIAL.index("</s>"))],
    )
    PreTrainedTokenizerFast(
        tokenizer_object=raw,
        model_max_length=max_length,
        bos_token="<s>",
        cls_token="<s>",
        eos_token="</s>",
        sep_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        mask_token="<mask>",
    ).save_pretrained(folder)
    return load_tokenizer(folder)


def fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Digest of what a tokenizer's ids mean: the vocabulary with its ids, which is what two data sets must share."""
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    return hashlib.sha256(json.dumps(vocabulary).encode()).hexdigest()[:16]
