"""Token features of the distinct texts of a step, from one forward pass or from disk, in blocks for the poolers.

The encoder runs on length-sorted batches of a token budget; the poolers on larger blocks, cut by a rule that does not
depend on where the features came from. So a resume, and features kept from an earlier epoch, change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt

from frozenprobe.contrastive.store import TokenStore
from frozenprobe.encoders.base import Encoder, Layer, Role, Tokenized, Trainable, device_of
from frozenprobe.encoders.prompts import prefixed, require_no_prompts
from frozenprobe.errors import FeatureError
from frozenprobe.features.batching import TokenBudget, is_out_of_memory, rows_within

BLOCK_TOKENS = 16_384
"""Padded tokens that a pooler takes at once: enough that its weights are read seldom."""


@dataclass(frozen=True)
class TextBatch:
    """Tokenised texts of one role, with the keys of their contents."""

    role: Role
    tokens: Tokenized
    keys: UInt[np.ndarray, " m"]

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True)
class Block:
    """Some texts for a pooler.

    Attributes:
        rows: Their places in the batch.
        features: Gives their token features `[b, t, d]` and mask `[b, t]`; an encoder in training runs here.
    """

    rows: Int[torch.Tensor, " b"]
    features: Callable[[], tuple[Float[torch.Tensor, "b t d"], Bool[torch.Tensor, "b t"]]]


class FeatureSource:
    """Gives blocks of token features for batches of texts.

    Args:
        encoder: The encoder.
        layer: Whose token features.
        tokens: Token budget of its batches; None: the default of its device and dtype. Never measured: other batches
            would round differently, and a resume must not.
        chunk: Texts per block at most; None: as `BLOCK_TOKENS` allows.
        store: Where token features are kept.
        prompts: Prefixes by role, for an encoder that declares none.

    Raises:
        SettingsError: Prompts beside the encoder's own.
    """

    def __init__(
        self,
        encoder: Encoder,
        layer: Layer = "last",
        *,
        tokens: int | None = None,
        chunk: int | None = None,
        store: TokenStore | None = None,
        prompts: Mapping[Role, str] | None = None,
    ) -> None:
        self.encoder = encoder
        self._prompts = prompts or {}
        require_no_prompts(encoder, self._prompts)
        self.budget = TokenBudget(encoder.info.device, encoder.info.dtype, tokens)
        self.device = device_of(encoder)
        self.encoded_texts = self.encoded_tokens = 0
        self.texts = self.truncated = 0
        self._layer: Layer = layer
        self._chunk = chunk
        self._store = store

    def notes(self) -> list[str]:
        """What a reader of the scores should know of the texts so far."""
        lines = []
        if self.truncated:
            limit = self.encoder.info.max_length
            lines.append(f"{self.truncated:,} of {self.texts:,} texts were longer than {limit} tokens and were cut")
        if self._store is not None and self._store.full:
            lines.append(f"token features of {len(self._store):,} texts are kept; the limit or the disk let no more in")
        return lines

    def tokenize(self, texts: Sequence[str], keys: UInt[np.ndarray, " m"], role: Role) -> TextBatch:
        """Tokenises texts; may be called from another thread.

        Raises:
            FeatureError: A text has no tokens.
        """
        tokens = self.encoder.tokenize(prefixed(texts, role, self._prompts), role=role)
        self.texts += len(texts)
        self.truncated += int(tokens.truncated.sum())
        if not tokens.lengths.all():
            empty = texts[int(np.argmin(tokens.lengths))]
            raise FeatureError(f"the {role} {empty!r:.60} has no tokens: an empty text cannot be encoded")
        return TextBatch(role, tokens, keys)

    def frozen(self, batch: TextBatch, rows: Int[np.ndarray, " r"]) -> list[Block]:
        """Some texts of a batch, encoded without gradients or read from what was kept.

        With a limited chunk, a block encodes its texts each time it is asked, so that no more than one is ever in memory.

        Raises:
            FeatureError: A text does not fit in memory even alone.
        """
        order = _by_length(batch.tokens, rows)
        if self._chunk is not None:
            cuts = self._cuts(batch.tokens.lengths[order], BLOCK_TOKENS)
            return [self._lazy(batch, order[first:last]) for first, last in cuts]
        return self._encoded(batch, order)

    def _lazy(self, batch: TextBatch, order: Int[np.ndarray, " b"]) -> Block:
        return Block(torch.from_numpy(order), lambda: self._encoded(batch, order)[0].features())

    def _encoded(self, batch: TextBatch, order: Int[np.ndarray, " r"]) -> list[Block]:
        """Blocks of rows that are sorted longest first, their features in memory."""
        lengths = batch.tokens.lengths[order]
        flat = self._flat(batch, order, lengths)
        starts = np.cumsum(lengths) - lengths
        blocks = []
        for first, last in self._cuts(lengths, BLOCK_TOKENS) if self._chunk is None else [(0, len(order))]:
            part = lengths[first:last]
            columns = np.arange(int(part.max()))
            mask = columns[None] < part[:, None]
            places = np.where(mask, starts[first:last, None] + columns[None], 0)
            tokens = flat[torch.from_numpy(places).to(flat.device)]
            blocks.append(_kept(order[first:last], tokens, torch.from_numpy(mask).to(flat.device)))
        return blocks

    def trained(self, batch: TextBatch, rows: Int[np.ndarray, " r"], encoder: Trainable) -> list[Block]:
        """Blocks whose features come from the encoder with gradients, each time they are asked for."""
        order = _by_length(batch.tokens, rows)

        def run(chosen: Int[np.ndarray, " b"]) -> tuple[torch.Tensor, torch.Tensor]:
            padded = self.encoder.collate(batch.tokens, chosen)
            self.encoded_texts += len(chosen)
            self.encoded_tokens += int(batch.tokens.lengths[chosen].sum())
            return encoder.differentiable(padded), padded.mask

        return [
            Block(torch.from_numpy(order[first:last]), lambda chosen=order[first:last]: run(chosen))
            for first, last in self._cuts(batch.tokens.lengths[order], self.budget.tokens)
        ]

    def _cuts(self, lengths: Int[np.ndarray, " r"], tokens: int) -> Iterator[tuple[int, int]]:
        """Stretches of rows that are sorted longest first."""
        first = 0
        while first < len(lengths):
            last = first + min(rows_within(lengths[first:], tokens), self._chunk or len(lengths))
            yield first, last
            first = last

    def _flat(
        self, batch: TextBatch, order: Int[np.ndarray, " r"], lengths: Int[np.ndarray, " r"]
    ) -> Float[torch.Tensor, "total d"]:
        """The token features of rows in the given order, one after the other."""
        starts = np.cumsum(lengths) - lengths
        flat: torch.Tensor | None = None
        held = self._store.find(batch.role, batch.keys[order]) if self._store is not None else None
        lacking = np.arange(len(order)) if held is None else np.flatnonzero(~held)
        if self._store is not None and held is not None and held.any():
            flat = self._store.buffer(int(lengths.sum()), self.device)
            for place in np.flatnonzero(held):
                kept = self._store.read(batch.role, int(batch.keys[order[place]]))
                flat[starts[place] : starts[place] + lengths[place]] = kept.to(flat.device)
        for places, hidden in self._encode(batch, order, lacking, lengths):
            if flat is None:
                flat = hidden.new_empty(int(lengths.sum()), hidden.shape[1])
            targets = _ranges(starts[places], lengths[places])
            flat[torch.from_numpy(targets).to(flat.device)] = hidden
            if self._store is not None:
                self._store.add(batch.role, batch.keys[order[places]], lengths[places], hidden)
        if flat is None:
            raise FeatureError(f"{self.encoder.info.name} was asked for no text")
        return flat

    def _encode(
        self,
        batch: TextBatch,
        order: Int[np.ndarray, " r"],
        places: Int[np.ndarray, " k"],
        lengths: Int[np.ndarray, " r"],
    ) -> Iterator[tuple[Int[np.ndarray, " b"], Float[torch.Tensor, "total d"]]]:
        """Runs the encoder on some of the ordered rows; yields their places with their tokens, padding removed."""
        while len(places):
            count = rows_within(lengths[places], self.budget.tokens)
            chosen, padded = places[:count], count * int(lengths[places[0]])
            hidden = self._forward(batch.tokens, order[chosen])
            if hidden is None:
                if count == 1:
                    raise FeatureError(
                        f"a text of {padded} tokens does not fit in memory on {self.encoder.info.device} even alone; "
                        "choose a smaller maximum length or another dtype"
                    )
                self.budget.halve(padded)
                continue
            places = places[count:]
            self.encoded_texts += count
            self.encoded_tokens += int(lengths[chosen].sum())
            yield chosen, hidden

    def _forward(self, tokens: Tokenized, rows: Int[np.ndarray, " b"]) -> Float[torch.Tensor, "total d"] | None:
        """The tokens of one batch, row after row, or None where memory ran out."""
        kept: list[torch.Tensor] = []
        try:
            batch = self.encoder.collate(tokens, rows)
            lengths = tokens.lengths[rows]
            width = batch.mask.shape[1]
            left = self.encoder.info.padding_side == "left"
            firsts = np.arange(len(rows)) * width + (width - lengths if left else 0)
            places = torch.from_numpy(_ranges(firsts, lengths)).to(batch.mask.device)

            def visit(_: Layer, hidden: torch.Tensor) -> None:
                if hidden.shape[:2] != batch.mask.shape:
                    raise FeatureError(
                        f"{self.encoder.info.name} breaks its contract: hidden states of shape {tuple(hidden.shape)} "
                        f"for a batch of {tuple(batch.mask.shape)}"
                    )
                # A copy, since `hidden` ends with this call; a normal one, since an inference tensor has no gradients.
                with torch.inference_mode(False):
                    kept.append(hidden.flatten(0, 1)[places].detach())

            self.encoder.forward(batch, (self._layer,), visit)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            kept = []
        if not kept and self.encoder.info.device.startswith("cuda"):
            torch.cuda.empty_cache()
        return kept[0] if kept else None


def _by_length(tokens: Tokenized, rows: Int[np.ndarray, " r"]) -> Int[np.ndarray, " r"]:
    return rows[np.argsort(-tokens.lengths[rows], kind="stable")]


def _ranges(starts: Int[np.ndarray, " b"], lengths: Int[np.ndarray, " b"]) -> Int[np.ndarray, " total"]:
    """All numbers from each start on, so many of them as each length says."""
    return np.repeat(starts - (np.cumsum(lengths) - lengths), lengths) + np.arange(int(lengths.sum()))


def _kept(rows: Int[np.ndarray, " b"], tokens: torch.Tensor, mask: torch.Tensor) -> Block:
    return Block(torch.from_numpy(np.ascontiguousarray(rows)), lambda: (tokens, mask))
