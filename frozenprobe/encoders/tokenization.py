"""Texts to ragged token ids, in bulk and without touching anybody else's tokenizer state.

Serves the `tokenize` half of the `Encoder` protocol (`base.py`). The rule: the ids of a row are exactly what
`tokenizer(text, pair, truncation=True, max_length=L)` gives, and its length before the cut is known.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import threading
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, normalizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from frozenprobe.encoders.base import Tokenized
from frozenprobe.errors import EncoderError

CHUNK = 2048  # rows handed to the Rust side at once: enough to keep its threads busy, few enough to keep memory small
SANE_LENGTH = 1_000_000  # tokenizers that know no limit say 1e30

Row = tuple[Sequence[int], Sequence[int]]  # ids, type ids


class TextTokenizer:
    """Tokenises texts or pairs for an encoder, truncated to `max_length`.

    A fast tokenizer is copied, because its padding and truncation are shared state that any other user may set (and
    that a tokenizer.json may bring along, smaller than the model's limit). Hence it is safe in a second thread. A slow
    one is called under a lock.

    Args:
        tokenizer: A transformers tokenizer, left as it is.
        max_length: Longest row in tokens, special tokens included.
        with_types: Whether the model takes token type ids.
        lower_case: Lower-case every text first (sentence-transformers' `do_lower_case`).

    Raises:
        EncoderError: `max_length` leaves no room for text.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        *,
        with_types: bool,
        lower_case: bool = False,
    ) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.with_types = with_types
        self.lower_case = lower_case
        self._lock = threading.Lock()
        self._whole = _private_backend(tokenizer, lower_case)
        self._cut: Tokenizer | None = None
        self._require_room(pair=False)

    def encode(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Tokenized:
        """Tokenises `texts`, or the joint sequences of `texts` with `pairs`.

        Raises:
            EncoderError: A text is no string, is not valid Unicode, or has no tokens at all.
        """
        if pairs is not None and len(pairs) != len(texts):
            raise EncoderError(f"{len(texts)} texts cannot be paired with {len(pairs)}: give as many of each")
        if pairs is not None:
            self._require_room(pair=True)
        _require_strings(texts)
        _require_strings(pairs or ())

        lengths = np.zeros(len(texts), dtype=np.int64)
        full_lengths = np.zeros(len(texts), dtype=np.int64)
        ids: list[np.ndarray] = []
        types: list[np.ndarray] = []
        for start in range(0, len(texts), CHUNK):
            end = min(start + CHUNK, len(texts))
            first = list(texts[start:end])
            second = None if pairs is None else list(pairs[start:end])
            rows = self._rows(first, second, truncate=False)
            full_lengths[start:end] = [len(row[0]) for row in rows]
            too_long = np.flatnonzero(full_lengths[start:end] > self.max_length)
            if len(too_long):
                again = self._rows(
                    [first[i] for i in too_long],
                    None if second is None else [second[i] for i in too_long],
                    truncate=True,
                )
                for i, row in zip(too_long, again, strict=True):
                    rows[i] = row
            lengths[start:end] = [len(row[0]) for row in rows]
            total = int(lengths[start:end].sum())
            ids.append(_flat((row[0] for row in rows), total, np.int32))
            if self.with_types:
                types.append(_flat((row[1] for row in rows), total, np.int8))
        if len(empty := np.flatnonzero(lengths == 0)):
            raise EncoderError(
                f"text {empty[0]} has no tokens: it is empty and the tokenizer adds none; drop it or replace it"
            )
        return Tokenized(
            ids=_joined(ids, np.int32),
            offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            types=_joined(types, np.int8) if self.with_types else None,
            full_lengths=full_lengths,
        )

    def digest(self) -> str:
        """SHA-256 of all that decides the ids, apart from `max_length`. Independent of where the files lie."""
        tokenizer = self.tokenizer
        parts: list[Any] = [type(tokenizer).__name__, tokenizer.truncation_side, self.with_types, self.lower_case]
        if self._whole is not None:
            parts += [self._whole.to_str(), self._whole.encode_special_tokens]
        else:
            parts += [tokenizer.get_vocab(), tokenizer.special_tokens_map, _vocabulary_files(tokenizer)]
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()

    def _rows(self, texts: list[str], pairs: list[str] | None, *, truncate: bool) -> list[Row]:
        try:
            if self._whole is not None:
                return self._rows_fast(texts, pairs, truncate=truncate)
            return self._rows_slow(texts, pairs, truncate=truncate)
        except (UnicodeEncodeError, TypeError) as error:
            for text in chain(texts, pairs or ()):
                if any("\ud800" <= character <= "\udfff" for character in text):
                    raise EncoderError(
                        f"the text {text[:40]!r} is not valid Unicode (a lone surrogate): clean it"
                    ) from error
            raise

    def _rows_fast(self, texts: list[str], pairs: list[str] | None, *, truncate: bool) -> list[Row]:
        backend = self._truncating() if truncate else self._whole
        assert backend is not None
        inputs: list[Any] = texts if pairs is None else list(zip(texts, pairs, strict=True))
        encodings = backend.encode_batch_fast(inputs)
        with_types = self.with_types
        return [(e.ids, e.type_ids if with_types else ()) for e in encodings]

    def _rows_slow(self, texts: list[str], pairs: list[str] | None, *, truncate: bool) -> list[Row]:
        if self.lower_case:
            texts = [text.lower() for text in texts]
            pairs = None if pairs is None else [text.lower() for text in pairs]
        cut: dict[str, Any] = {"truncation": "longest_first", "max_length": self.max_length} if truncate else {}
        with self._lock:
            encoded = self.tokenizer(
                texts,
                pairs,
                padding=False,
                return_token_type_ids=self.with_types,
                return_attention_mask=False,
                verbose=False,
                **cut,
            )
        types = encoded["token_type_ids"] if self.with_types else [()] * len(texts)
        return list(zip(encoded["input_ids"], types, strict=True))

    def _truncating(self) -> Tokenizer:
        """The copy that truncates, made when the first long text arrives."""
        with self._lock:
            if self._cut is None:
                self._cut = _private_backend(self.tokenizer, self.lower_case)
                assert self._cut is not None
                self._cut.enable_truncation(
                    self.max_length, stride=0, strategy="longest_first", direction=self.tokenizer.truncation_side
                )
            return self._cut

    def _require_room(self, *, pair: bool) -> None:
        added = self.tokenizer.num_special_tokens_to_add(pair=pair)
        if self.max_length <= added:
            what = "a pair" if pair else "a text"
            raise EncoderError(
                f"--max-length {self.max_length} leaves no room for text: the tokenizer adds {added} special tokens "
                f"to {what}; give at least {added + 1}"
            )


def _private_backend(tokenizer: PreTrainedTokenizerBase, lower_case: bool) -> Tokenizer | None:
    """A copy of the Rust tokenizer without padding and truncation, or None where there is none to copy."""
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        return None
    if type(tokenizer)._encode_plus is not PreTrainedTokenizerFast._encode_plus:
        return None  # the class does something of its own before or after the Rust side
    try:
        backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    except Exception:  # tokenizers raises bare Exceptions: a component written in Python cannot be copied
        return None
    backend.no_padding()
    backend.no_truncation()
    backend.encode_special_tokens = bool(getattr(tokenizer, "split_special_tokens", False))
    if lower_case:
        steps = [normalizers.Lowercase()]
        if backend.normalizer is not None:
            steps.append(backend.normalizer)
        backend.normalizer = normalizers.Sequence(steps)
    return backend


def _vocabulary_files(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Digests of a slow tokenizer's vocabulary files."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_vocabulary(folder)
        return [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(Path(folder).rglob("*"))]


def _require_strings(texts: Sequence[str]) -> None:
    for position, text in enumerate(texts):
        if not isinstance(text, str):
            raise EncoderError(f"text {position} is {type(text).__name__}, not a string: {text!r:.40}")


def _flat(rows: Any, total: int, dtype: Any) -> np.ndarray:
    return np.fromiter(chain.from_iterable(rows), dtype=dtype, count=total)


def _joined(parts: list[np.ndarray], dtype: Any) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=dtype)
