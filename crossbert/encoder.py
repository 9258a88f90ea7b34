"""A trained CrossBERT, BERT or Electra as a frozenprobe encoder, and CrossBERT's predictor as a warm-started pooler.

Implements `Encoder`, `Finetunable` and, for CrossBERT, `HasWarmPooler` (`frozenprobe.encoders.base`).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import nn

from crossbert.model import CrossBert, build_model
from crossbert.modeling_crossbert import CrossBertForMaskedLM, Predictor
from crossbert.reading import read_config, read_model, read_tokenizer
from frozenprobe.encoders.base import Batch, Encoder, Layer, Role, Tokenized, Visit
from frozenprobe.encoders.lengths import resolve_max_length
from frozenprobe.encoders.loading import load_transformer, quiet_transformers, require_finite, resolve_device
from frozenprobe.encoders.transformer import DTYPES, Origin, TransformerEncoder
from frozenprobe.errors import EncoderError
from frozenprobe.settings import EncoderSettings


class CrossBertEncoder:
    """The encoder of a CrossBERT, with the predictor that was trained on top of it (`HasWarmPooler`)."""

    def __init__(self, transformer: TransformerEncoder, predictor: Predictor) -> None:
        self.info = transformer.info
        self._transformer = transformer
        self._predictor = predictor

    def tokenize(self, texts: Sequence[str], pairs: Sequence[str] | None = None, role: Role | None = None) -> Tokenized:
        """Tokenises texts or pairs; see `Encoder.tokenize`."""
        return self._transformer.tokenize(texts, pairs, role)

    def collate(self, tokens: Tokenized, rows: Int[np.ndarray, " b"]) -> Batch:
        """Pads the rows to the longest of them, on the device."""
        return self._transformer.collate(tokens, rows)

    def forward(self, batch: Batch, layers: Sequence[Layer], visit: Visit) -> None:
        """Runs the encoder once; see `Encoder.forward`."""
        self._transformer.forward(batch, layers, visit)

    def fingerprint(self) -> str:
        """The encoder's digest; no hidden state depends on the predictor."""
        return self._transformer.fingerprint()

    def trainable(self) -> nn.Module:
        """A copy of the encoder to be finetuned; see `Finetunable`. The predictor is left out, as from the frozen features."""
        return self._transformer.trainable()

    def warm_pooler(self) -> nn.Module:
        """A pooler that starts as the predictor: a copy of its own, in float32, ready to be trained."""
        predictor = copy.deepcopy(self._predictor).float().requires_grad_(True)
        return PredictorPooler(predictor.to(self._transformer.device))


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


def load_checkpoint(settings: EncoderSettings, folder: Path) -> Encoder:
    """Loads a complete step folder of a training run.

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
    saved = read_config(folder)
    config, flops, place = saved.model, saved.training_flops, folder.resolve()
    name, notes = f"{place.parent.name}/{place.name}", (f"pre-trained as {config.objective}",)
    if settings.random_init:
        model, flops = build_model(config), None
        model.init_weights(settings.init_seed)
        name += f" (random init, seed {settings.init_seed})"
        notes += (f"random weights, seed {settings.init_seed}: not the checkpoint's",)
    else:
        model = read_model(folder, config)
    tokenizer = read_tokenizer(folder, config)
    model = model.eval().requires_grad_(False)
    encoder = model.encoder.to(device, DTYPES[settings.dtype])
    require_finite(str(folder), encoder, settings.dtype)
    max_length, length_notes = resolve_max_length(encoder, encoder.config, tokenizer, asked=settings.max_length)
    origin = Origin(name, "crossbert", None, (*notes, *length_notes))
    transformer = TransformerEncoder(encoder, tokenizer, origin, max_length=max_length)
    transformer.info = replace(transformer.info, training_flops=flops)
    return CrossBertEncoder(transformer, model.predictor) if isinstance(model, CrossBert) else transformer


def load_exported(settings: EncoderSettings, path: str) -> Encoder:
    """Loads an exported folder or hub repository as any other of transformers, and CrossBERT's predictor with it.

    Raises:
        EncoderError: It is damaged, lacks its predictor, or cannot run as asked.
    """
    transformer = load_transformer(settings, path, kind="crossbert")
    config: Any = transformer.config
    flops = None if settings.random_init else getattr(config, "training_flops", None)
    transformer.info = replace(transformer.info, training_flops=flops)
    if config.objective != "crossbert":
        return transformer
    if settings.random_init:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.init_seed)
            return CrossBertEncoder(transformer, CrossBertForMaskedLM(config).predictor)
    revision = transformer.info.revision or "main"
    with quiet_transformers():
        loaded: Any = CrossBertForMaskedLM.from_pretrained(
            path, revision=revision, dtype=torch.float32, output_loading_info=True
        )
    model, told = loaded
    if lost := sorted(told["missing_keys"]):
        raise EncoderError(f"{path}: the checkpoint lacks {len(lost)} weights of the predictor ({lost[0]}, ...)")
    require_finite(path, model.predictor, "fp32")
    return CrossBertEncoder(transformer, model.predictor.eval().requires_grad_(False))
