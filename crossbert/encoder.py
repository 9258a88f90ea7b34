"""A trained CrossBERT, BERT or Electra as a frozenprobe encoder, and CrossBERT's predictor as a warm-started pooler.

Implements `Encoder` and, for CrossBERT, `HasWarmPooler` (`frozenprobe.encoders.base`).
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import nn

from crossbert.model import CrossBert, build_model
from crossbert.modeling_crossbert import Predictor
from crossbert.reading import read_config, read_model, read_tokenizer
from frozenprobe.encoders.lengths import resolve_max_length
from frozenprobe.encoders.loading import require_finite, resolve_device
from frozenprobe.encoders.transformer import DTYPES, Origin, TransformerEncoder
from frozenprobe.errors import EncoderError
from frozenprobe.settings import EncoderSettings


class CrossBertEncoder(TransformerEncoder):
    """The encoder of a CrossBERT, with the predictor that was trained on top of it (`HasWarmPooler`)."""

    def __init__(self, model: CrossBert, tokenizer: Any, origin: Origin, *, max_length: int) -> None:
        super().__init__(model.encoder, tokenizer, origin, max_length=max_length)
        self._predictor = model.predictor

    def warm_pooler(self) -> nn.Module:
        """A pooler that starts as the predictor: a copy of its own, in float32, ready to be trained."""
        return PredictorPooler(copy.deepcopy(self._predictor).float().requires_grad_(True).to(self.device))


class PredictorPooler(nn.Module):
    """One `<MASK>` query at position 0 over the encoder's outputs: all predictor blocks, then the final norm (paper, section 4.2)."""

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        predictor.projection = nn.Identity()  # belongs to the word head, which is left out
        self.predictor = predictor

    def forward(
        self, features: Float[torch.Tensor, "b t d"], mask: Bool[torch.Tensor, "b t"]
    ) -> Float[torch.Tensor, "b p"]:
        """One vector per text.

        Args:
            features: The encoder's last hidden states.
            mask: True on every token that is not padding.
        """
        positions = (mask.long().cumsum(dim=1) - 1).clamp(min=0)  # padding may be on either side
        query = positions.new_zeros(len(positions), 1)
        return self.predictor.read(features, query, positions, mask.bool()[:, None, None, :])[:, 0]


def load_checkpoint(settings: EncoderSettings, folder: Path) -> TransformerEncoder:
    """Loads a complete step folder.

    Args:
        settings: How the encoder is run.
        folder: `runs/x/step-N`.

    Returns:
        The encoder, frozen, in eval mode, on its device; a `CrossBertEncoder` where there is a predictor.

    Raises:
        EncoderError: It is damaged or cannot run as asked.
    """
    if settings.revision is not None:
        raise EncoderError(f"--revision {settings.revision} goes with a hub id, but {folder} is a local folder")
    if settings.attn not in ("auto", "sdpa"):
        raise EncoderError(f"--attn {settings.attn} is not supported here; use --attn auto")
    device = resolve_device(settings.device)
    config, _ = read_config(folder)
    place = folder.resolve()
    name, notes = f"{place.parent.name}/{place.name}", (f"pre-trained as {config.objective}",)
    if settings.random_init:
        model = build_model(config)
        model.init_weights(settings.init_seed)
        name += f" (random init, seed {settings.init_seed})"
        notes += (f"random weights, seed {settings.init_seed}: not the checkpoint's",)
    else:
        model = read_model(folder, config)
    tokenizer = read_tokenizer(folder, config)
    model = model.eval().requires_grad_(False).to(device, DTYPES[settings.dtype])
    require_finite(str(folder), model.encoder, settings.dtype)
    max_length, length_notes = resolve_max_length(
        model.encoder, model.encoder.config, tokenizer, asked=settings.max_length
    )
    origin = Origin(name, "crossbert", None, (*notes, *length_notes))
    if isinstance(model, CrossBert):
        return CrossBertEncoder(model, tokenizer, origin, max_length=max_length)
    return TransformerEncoder(model.encoder, tokenizer, origin, max_length=max_length)
