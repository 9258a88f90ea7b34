"""Checks that an encoder keeps its contract where breaking it would silently change scores.

One check so far, called once per run: padding must not influence hidden states.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float

from frozenprobe.encoders.base import Encoder, Tokenized
from frozenprobe.errors import EncoderError

# One word beside a long text: nearly all of its row is padding, so an ignored mask moves it far.
_TEXTS = ("Yes.", "Padding must not change what a short text means. " * 4, "No, it must not.")
# Largest difference allowed, relative to the norm of a row's hidden states: rounding, not attention.
_TOLERANCE = {"fp32": 1e-4, "fp16": 1e-2, "bf16": 5e-2}


def check_padding(encoder: Encoder) -> None:
    """Encodes a few texts alone and in one padded batch, and compares.

    Args:
        encoder: Any encoder; it runs four small forward passes.

    Raises:
        EncoderError: Hidden states are not finite, or differ by more than rounding: the adapter or model ignores the attention mask, or
            shifts positions with the padding.
    """
    tokens = encoder.tokenize(_TEXTS)
    together = _hidden(encoder, tokens, np.arange(len(_TEXTS)))
    if not all(bool(hidden.isfinite().all()) for hidden in together):
        raise EncoderError(
            f"{encoder.info.name}: hidden states are not finite (NaN or infinity) in {encoder.info.dtype}"
        )
    for row in range(len(_TEXTS)):
        (alone,) = _hidden(encoder, tokens, np.array([row]))
        norm = float(torch.linalg.vector_norm(alone))
        difference = float(torch.linalg.vector_norm(together[row] - alone)) / max(norm, 1e-12)
        if not difference <= _TOLERANCE.get(encoder.info.dtype, 1e-4):
            raise EncoderError(
                f"{encoder.info.name}: the hidden states of a text change with the padding of its batch (by "
                f"{difference:.1e} of their norm): the attention mask is ignored, so no score would be reproducible"
            )


def _hidden(encoder: Encoder, tokens: Tokenized, rows: np.ndarray) -> list[Float[torch.Tensor, "t d"]]:
    """The last hidden states of the given rows, padding removed."""
    batch = encoder.collate(tokens, rows)
    kept: list[torch.Tensor] = []
    encoder.forward(
        batch, ("last",), lambda _, hidden: kept.extend(h[m].float() for h, m in zip(hidden, batch.mask, strict=True))
    )
    return kept
