"""An encoder with a pooler of its own: any layer's tokens, pooled by any torch module.

Implements `Encoder` and `HasPooling` (`base.py`), so that whatever takes a checkpoint's declared pooling takes a trained pooler too.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import nn

from frozenprobe.encoders.base import Batch, Encoder, Layer, Role, RunsInStep, Tokenized, Visit
from frozenprobe.encoders.fingerprint import digest, weights_digest
from frozenprobe.errors import EncoderError


class PooledEncoder:
    """An encoder whose layer `last` is the layer asked for, and whose pooling is the module given.

    Args:
        encoder: The encoder below; it stays as it is.
        pooler: Called with token features `[b, t, d]` in float32, zero on padding, and the mask `[b, t]`; gives `[b, e]`. It is
            put into eval mode and moved to the encoder's device.
        layer: Whose tokens it pools: `last`, or a block number.

    Raises:
        EncoderError: The pooler is no torch module, so that nothing would tell its weights from another's.
    """

    def __init__(self, encoder: Encoder, pooler: nn.Module, *, layer: Layer = "last") -> None:
        if not isinstance(pooler, nn.Module):
            raise EncoderError(
                f"{type(pooler).__name__} is no torch.nn.Module: a pooler must be one, so that its weights tell it apart"
            )
        self.info = encoder.info
        self.encoder = encoder
        self.pooler = pooler.eval().to(encoder.info.device)
        self.layer = layer

    def tokenize(self, texts: Sequence[str], pairs: Sequence[str] | None = None, role: Role | None = None) -> Tokenized:
        """As the encoder below."""
        return self.encoder.tokenize(texts, pairs, role)

    def collate(self, tokens: Tokenized, rows: Int[np.ndarray, " b"]) -> Batch:
        """As the encoder below."""
        return self.encoder.collate(tokens, rows)

    def forward(self, batch: Batch, layers: Sequence[Layer], visit: Visit) -> None:
        """As the encoder below, except that `last` is the layer asked for."""
        if self.layer == "last":
            self.encoder.forward(batch, layers, visit)
            return
        self.encoder.forward(batch, (self.layer,), lambda _, hidden: visit("last", hidden))

    def pool(self, hidden: Float[torch.Tensor, "b t d"], batch: Batch) -> Float[torch.Tensor, "b e"]:
        """The pooler's vectors.

        Raises:
            EncoderError: It does not give one vector per text.
        """
        with torch.inference_mode():
            vectors = self.pooler(hidden.float().masked_fill(~batch.mask[..., None], 0), batch.mask)
        if vectors.ndim != 2 or len(vectors) != len(hidden):
            raise EncoderError(
                f"the pooler gives shape {list(vectors.shape)} for {len(hidden)} texts, not a vector each"
            )
        return vectors

    @property
    def in_step(self) -> bool:
        """As the encoder below; see `RunsInStep`."""
        return isinstance(self.encoder, RunsInStep) and self.encoder.in_step

    def fingerprint(self) -> str:
        """A digest of the encoder below, the layer, and the pooler's weights and code."""
        cls = type(self.pooler)
        try:
            code = Path(inspect.getfile(cls)).read_text(encoding="utf-8")
        except (OSError, TypeError):  # a class typed into a console has no file
            code = ""
        return digest(
            self.encoder.fingerprint(),
            str(self.layer),
            weights_digest(self.pooler),
            cls.__name__,
            code,
            repr(self.pooler),
        )
