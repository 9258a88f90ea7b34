"""What frozenprobe asks of an encoder: ragged token ids in, hidden states out, layer by layer.

An adapter implements `Encoder`; what some encoders offer beyond it are the small protocols at the end of this page.
An encoder knows nothing of tasks, pooling or probes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

from frozenprobe.settings import Layer, Role

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch import nn

Visit = Callable[["Layer", "torch.Tensor"], None]


@dataclass(frozen=True)
class EncoderInfo:
    """Who the encoder is, as written into every record.

    Attributes:
        name: The name it is reported under (hub id, folder name, or what the caller gave).
        kind: The adapter that claimed it, such as `hf`, `st` or `module`.
        architecture: Class name of the model, such as `BertModel`.
        revision: Hub commit, where there is one.
        parameters: All parameters of the encoder.
        parameters_without_embeddings: The same without token, position and type embeddings.
        hidden_size: Width `d` of the hidden states.
        layers: Number of blocks `L`; layer 0 is the embedding output, 1 ... L the blocks.
        max_length: Longest input in tokens, special tokens included; longer ones are truncated and counted.
        dtype: `fp32`, `bf16` or `fp16`.
        attention: The attention kernel, such as `sdpa` or `eager`.
        device: `cpu`, `cuda`, ...
        padding_side: `right` or `left`.
        notes: What a reader of the scores should know, one line each (for example a repaired buffer).
        training_flops: What training it cost, where the adapter can count it; None where it is unknown.
    """

    name: str
    kind: str
    architecture: str
    revision: str | None
    parameters: int
    parameters_without_embeddings: int
    hidden_size: int
    layers: int
    max_length: int
    dtype: str
    attention: str
    device: str
    padding_side: str = "right"
    notes: tuple[str, ...] = ()
    training_flops: float | None = None


@dataclass(frozen=True)
class Tokenized:
    """`n` tokenised inputs as ragged arrays: row `i` owns `[offsets[i], offsets[i + 1])` of the flat ones.

    Attributes:
        ids: Token ids.
        offsets: Where each row starts; the last entry is the total.
        types: Token type ids, or None where the model takes none.
        full_lengths: Length of each row before truncation; larger than the row where it was cut.
    """

    ids: Int[np.ndarray, " total"]
    offsets: Int[np.ndarray, " n_plus_1"]
    types: Int[np.ndarray, " total"] | None
    full_lengths: Int[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Int[np.ndarray, " n"]:
        """Tokens per row, after truncation."""
        return np.diff(self.offsets)

    @property
    def truncated(self) -> Bool[np.ndarray, " n"]:
        """True for the rows that lost tokens."""
        return self.full_lengths > self.lengths

    def take(self, rows: Int[np.ndarray, " m"]) -> Self:
        """Some of the rows, in the order given; what a subclass adds for each row it takes along itself."""
        lengths = self.lengths[rows]
        ends = np.cumsum(lengths)
        source = np.repeat(self.offsets[rows] - (ends - lengths), lengths) + np.arange(int(lengths.sum()))
        return replace(
            self,
            ids=self.ids[source],
            offsets=np.concatenate([[0], ends]),
            types=None if self.types is None else self.types[source],
            full_lengths=np.asarray(self.full_lengths)[rows],
        )


@dataclass(frozen=True)
class Batch:
    """A padded batch on the encoder's device; `mask` is True on every token that is not padding."""

    ids: Int[torch.Tensor, "b t"]
    mask: Bool[torch.Tensor, "b t"]
    types: Int[torch.Tensor, "b t"] | None


@runtime_checkable
class Encoder(Protocol):
    """A frozen text encoder."""

    info: EncoderInfo

    def tokenize(self, texts: Sequence[str], pairs: Sequence[str] | None = None, role: Role | None = None) -> Tokenized:
        """Tokenises `texts`, or the joint sequences of `texts` with `pairs`, truncated to `info.max_length`.

        Safe to call from another thread while `forward` runs.
        """
        ...

    def collate(self, tokens: Tokenized, rows: Int[np.ndarray, " b"]) -> Batch:
        """Pads the given rows to the longest of them and moves them to the device."""
        ...

    def forward(self, batch: Batch, layers: Sequence[Layer], visit: Visit) -> None:
        """Runs the model once, without gradients, and calls `visit(layer, hidden)` for each layer as it is ready.

        `hidden` is `[b, t, d]` in the model's dtype, valid only during the call, so that all layers are never held.
        `last` is what the model itself returns (after its final norm, if it has one), 0 the embedding output,
        1 ... L the raw block outputs.
        """
        ...

    def fingerprint(self) -> str:
        """A digest of everything that decides the vectors: weights, config, tokenizer, adapter. Computed when asked."""
        ...


def device_of(encoder: Encoder) -> torch.device:
    """Where an encoder's batches go, with the number of the GPU that `EncoderInfo.device` leaves out."""
    return encoder.collate(encoder.tokenize(["a"]), np.array([0])).mask.device


@runtime_checkable
class Trainable(Protocol):
    """An encoder that can be trained end to end."""

    def trained_module(self) -> torch.nn.Module:
        """The module whose parameters are trained.

        Raises:
            EncoderError: What comes out could not be saved.
        """
        ...

    def differentiable(self, batch: Batch) -> Float[torch.Tensor, "b t d"]:
        """The last hidden states of a batch, with gradients."""
        ...

    def save_trained(self, folder: Path) -> None:
        """Writes the encoder as a folder that `load_encoder` reads."""
        ...


@runtime_checkable
class HasPooling(Protocol):
    """An encoder that declares its own pooling (a sentence-transformers folder)."""

    def pool(self, hidden: Float[torch.Tensor, "b t d"], batch: Batch) -> Float[torch.Tensor, "b e"]:
        """Pools the last layer as the encoder's own description says, its normalisation included."""
        ...


@runtime_checkable
class HasPrompts(Protocol):
    """An encoder whose queries and documents are prefixed differently."""

    def prompt(self, role: Role) -> str:
        """The prefix for a role; may be empty."""
        ...


@runtime_checkable
class HasWarmPooler(Protocol):
    """An encoder that was trained together with something that can pool its outputs (CrossBERT's predictor)."""

    def warm_pooler(self) -> torch.nn.Module:
        """A trained pooler to start from, on the encoder's device, in float32, trainable; a new copy each time.

        Its forward takes the last hidden states `[b, t, d]` and their mask `[b, t]`, and gives vectors `[b, e]`.
        """
        ...


@runtime_checkable
class RunsInStep(Protocol):
    """An encoder whose weights may be sharded over ranks, so that all of them must run every forward pass together."""

    @property
    def in_step(self) -> bool:
        """Whether they are."""
        ...


@runtime_checkable
class Finetunable(Protocol):
    """An encoder whose weights can be finetuned on a task."""

    def trainable(self) -> nn.Module:
        """A copy of the model in float32 with gradients: `copy(ids, mask, types)` gives the last hidden states `[b, t, d]`.

        The arguments are the fields of a `Batch`. The encoder itself stays as it is.
        """
        ...
