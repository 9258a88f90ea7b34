"""Pooling: from the hidden states of one layer at a time to one float32 vector per input.

`ViewPooler` is what an `Encoder` (encoders/base.py) calls as its `visit`: each layer is pooled while it is there, and never kept.
Padding never contributes, whatever an encoder leaves in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from jaxtyping import Bool, Float

from frozenprobe.encoders.base import Batch, Encoder, HasPooling, Layer
from frozenprobe.errors import EncoderError, FeatureError, SettingsError
from frozenprobe.features.base import View
from frozenprobe.settings import Pooling

FIRST_LAYER = 1
"""The first block's output: what `first-last-mean` averages with the last layer."""

LAST_ONLY = ("first-last-mean", "own")
"""Poolings that are defined on layer `last` and on no other."""


def mean(hidden: Float[torch.Tensor, "b t d"], mask: Bool[torch.Tensor, "b t"]) -> Float[torch.Tensor, "b d"]:
    """Mean over every non-padding token, special tokens included (paper, section 4.1), summed in float32."""
    count = mask.sum(dim=1, keepdim=True)
    if hidden.device.type == "cpu":
        # A product is five times faster than the masked sum here, but 0 x NaN is NaN: some encoders leave NaN in padding.
        pooled = torch.bmm((mask / count)[:, None], hidden.float()).squeeze(1)
        if pooled.isfinite().all():
            return pooled
    # On a GPU the product could run in TF32, and looking at its result would wait for the device.
    return hidden.masked_fill(~mask[..., None], 0).sum(dim=1, dtype=torch.float32) / count


def cls(hidden: Float[torch.Tensor, "b t d"], mask: Bool[torch.Tensor, "b t"]) -> Float[torch.Tensor, "b d"]:
    """The first non-padding token, whichever side the padding is on."""
    return _token(hidden, mask.int().argmax(dim=1))


def last(hidden: Float[torch.Tensor, "b t d"], mask: Bool[torch.Tensor, "b t"]) -> Float[torch.Tensor, "b d"]:
    """The last non-padding token, whichever side the padding is on."""
    return _token(hidden, mask.shape[1] - 1 - mask.int().flip(1).argmax(dim=1))


def maximum(hidden: Float[torch.Tensor, "b t d"], mask: Bool[torch.Tensor, "b t"]) -> Float[torch.Tensor, "b d"]:
    """The largest value of each dimension over the non-padding tokens."""
    return hidden.masked_fill(~mask[..., None], -torch.inf).amax(dim=1).float()


def _token(hidden: Float[torch.Tensor, "b t d"], positions: torch.Tensor) -> Float[torch.Tensor, "b d"]:
    return hidden[torch.arange(len(hidden), device=hidden.device), positions].float()


POOLINGS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mean": mean,
    "cls": cls,
    "max": maximum,
    "last": last,
}


def resolve_pooling(pooling: str, encoder: Encoder, layer: Layer = "last") -> Pooling:
    """The pooling that `auto` means: the encoder's own of its last layer where it declares one, else `mean`."""
    if pooling != "auto":
        return cast("Pooling", pooling)
    return "own" if isinstance(encoder, HasPooling) and layer == "last" else "mean"


class ViewPooler:
    """Pools all views of a batch from one forward pass.

    `first-last-mean` is the mean over tokens of (layer 1 + layer `last`) / 2, known in the sentence-embedding
    literature as first-last-avg; layer 1 is the output of the first block, not of the embedding layer.
    """

    def __init__(self, encoder: Encoder, views: Sequence[View]) -> None:
        """Checks that the encoder has what the views need.

        Raises:
            EncoderError: `own` is asked of an encoder that declares no pooling.
            SettingsError: `own` or `first-last-mean` is asked of another layer than `last`.
        """
        for view in views:
            if view.pooling in LAST_ONLY and view.layer != "last":
                raise SettingsError(f"pooling {view.pooling} belongs to the last layer (got {view})")
        self._own = encoder.pool if isinstance(encoder, HasPooling) else None
        if self._own is None and any(view.pooling == "own" for view in views):
            raise EncoderError(
                f"{encoder.info.name} declares no pooling of its own; leave out own, or use mean, cls, max or last"
            )
        self._encoder = encoder
        self._views = tuple(views)
        wanted = [view.layer for view in views]
        if any(view.pooling == "first-last-mean" for view in views):
            wanted.append(FIRST_LAYER)
        self.layers: tuple[Layer, ...] = tuple(dict.fromkeys(wanted))

    @torch.no_grad()
    def __call__(self, batch: Batch) -> list[Float[torch.Tensor, "b d"]]:
        """Runs the encoder once and returns the pooled float32 vectors of each view, in the order of the views.

        Raises:
            FeatureError: The encoder did not visit a layer that was asked for, or gave a wrong shape.
        """
        pooled: dict[View, torch.Tensor] = {}
        halves: list[torch.Tensor] = []
        seen: set[Layer] = set()

        def visit(layer: Layer, hidden: torch.Tensor) -> None:
            if hidden.ndim != 3 or hidden.shape[:2] != batch.mask.shape:
                raise FeatureError(
                    f"{self._encoder.info.name} breaks its contract: layer {layer} has shape {tuple(hidden.shape)} "
                    f"for a batch of {tuple(batch.mask.shape)}"
                )
            seen.add(layer)
            for view in self._views:
                if view.pooling == "first-last-mean":
                    if layer in (FIRST_LAYER, "last"):
                        halves.append(mean(hidden, batch.mask) / 2)
                elif view.layer == layer and view.pooling != "own":
                    pooled[view] = POOLINGS[view.pooling](hidden, batch.mask)
                elif view.layer == layer and self._own is not None:
                    # A copy: what an encoder returns may be a part of `hidden`, which ends with this call.
                    pooled[view] = self._own(hidden, batch).to(torch.float32, copy=True)

        self._encoder.forward(batch, self.layers, visit)
        missing = [layer for layer in self.layers if layer not in seen]
        if missing:
            raise FeatureError(f"{self._encoder.info.name} breaks its contract: it gave no layer {missing[0]}")
        for view in self._views:
            if view.pooling == "first-last-mean":
                pooled[view] = halves[0] + halves[1]
        return [pooled[view] for view in self._views]
