"""A live `nn.Module` with its tokenizer as an encoder: for training loops and for models built by hand.

Implements the `Encoder` protocol (`base.py`) without leaving a trace in the model: train or eval mode of every
submodule, gradients and random states are afterwards as before.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from frozenprobe import ranks
from frozenprobe.encoders.base import Encoder
from frozenprobe.encoders.fingerprint import weights_sample
from frozenprobe.encoders.lengths import resolve_max_length
from frozenprobe.encoders.transformer import Origin, TransformerEncoder, unwrap
from frozenprobe.errors import EncoderError


class ModuleEncoder(TransformerEncoder):
    """A model that is already in memory, possibly in the middle of its training.

    A transformers model with a head is measured as its bare encoder (an encoder-decoder as its encoder half), a
    sentence-transformers model as the transformer inside. Any other module does whose `forward(input_ids, attention_mask[, token_type_ids])` returns `[b, t, d]` hidden states, or an
    output with `last_hidden_state`.

    Args:
        model: The module; it stays where it is and keeps its modes.
        tokenizer: Its transformers tokenizer.
        name: The name it is reported under, such as the name of the run.
        step: Training step. Where given, `fingerprint` is name, step and a digest of some weights of every tensor, which
            takes milliseconds; otherwise all weights are hashed.
        max_length: Longest input in tokens; None: what tokenizer and config say.

    Raises:
        EncoderError: It is no module, has no tokenizer, or cannot run on text.
    """

    def __init__(
        self, model: nn.Module, tokenizer: Any, *, name: str, step: int | None = None, max_length: int | None = None
    ) -> None:
        if not isinstance(model, nn.Module):
            raise EncoderError(f"{name}: {type(model).__name__} is no torch.nn.Module")
        if not callable(tokenizer) or not hasattr(tokenizer, "num_special_tokens_to_add"):
            raise EncoderError(f"{name}: {type(tokenizer).__name__} is no transformers tokenizer")
        self.step = step
        bare, notes = bare_encoder(model)
        length, length_notes = resolve_max_length(bare, getattr(bare, "config", None), tokenizer, asked=max_length)
        super().__init__(bare, tokenizer, Origin(name, "module", None, (*notes, *length_notes)), max_length=length)

    def fingerprint(self) -> str:
        """Digest of a sample of the weights with name and step, where a step was given; else of all weights as they are.

        Raises:
            EncoderError: No step was given and the weights are sharded, so that no rank has them all.
        """
        if self.in_step:
            if self.step is None:
                raise EncoderError(
                    f"{self.info.name}: its weights are sharded over ranks; give the training step instead"
                )
            return f"{self.info.name} step {self.step}"  # no rank has the weights, so the caller must keep it unique
        if self.step is not None:
            return f"{self.info.name} {weights_sample(unwrap(self.model))} step {self.step}"
        return super().fingerprint()

    @property
    def in_step(self) -> bool:
        """Whether its weights are sharded over ranks (FSDP), which must then run every forward pass together."""
        if ranks.count() == 1:
            return False
        from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel  # a second to import

        return any(isinstance(module, FSDPModule | FullyShardedDataParallel) for module in self.model.modules())

    @property
    def _cross_checks(self) -> bool:
        # Where transformers collects hidden states by hooks of its own, it leaves them on the model; and they sit on
        # the blocks of its choice, so there is nothing to compare.
        return not getattr(unwrap(self.model), "_can_record_outputs", None)

    @contextmanager
    def _running(self) -> Generator[None]:
        """Eval mode without gradients, and everything put back.

        Not inference mode: what a module caches during the pass (a rotary table, say) must stay usable in training.
        """
        modes = [(module, module.training) for module in self.model.modules()]
        device = self.device
        devices = [device] if device.type == "cuda" else []
        self.model.eval()
        try:
            with torch.random.fork_rng(devices=devices), torch.no_grad():
                yield
        finally:
            for module, training in modes:
                module.training = training


def as_encoder(
    model: Any, tokenizer: Any = None, *, name: str = "module", step: int | None = None, max_length: int | None = None
) -> Encoder:
    """The model itself where it is an `Encoder` already, otherwise a `ModuleEncoder` around it.

    Args:
        model: An encoder or a torch module.
        tokenizer: The module's tokenizer; an encoder has its own.
        name: See `ModuleEncoder`.
        step: See `ModuleEncoder`.
        max_length: See `ModuleEncoder`.

    Raises:
        EncoderError: It is neither, or a module comes without a tokenizer.
    """
    if isinstance(model, Encoder):
        return model
    return ModuleEncoder(model, tokenizer, name=name, step=step, max_length=max_length)


def bare_encoder(model: nn.Module) -> tuple[nn.Module, tuple[str, ...]]:
    """The part of a model that gives hidden states, and notes; a module that is not transformers' stays whole.

    The encoder inside `torch.compile` or `DistributedDataParallel` shares the same weights and is taken out of them;
    sharded wrappers stay, since only they can gather the weights.
    """
    inner = without_replicas(model)
    if _is_sentence_transformer(inner):
        base, notes = bare_encoder(inner[0].auto_model)  # ty: ignore[not-subscriptable]
        return base, ("measured at the transformer inside, without its own pooling", *notes)
    if unwrap(inner) is not inner or not isinstance(inner, PreTrainedModel):
        return inner, ()
    notes: tuple[str, ...] = ()
    base = inner.base_model
    if base is not inner:
        notes = (f"measured without the head of {type(inner).__name__}",)
    if getattr(base.config, "is_encoder_decoder", False):
        notes = (f"only the encoder of {type(inner).__name__} is measured",)
        base = inner.get_encoder()
    return base, notes


def without_replicas(model: nn.Module) -> nn.Module:
    """The module inside `torch.compile` or `DistributedDataParallel`."""
    inner = (
        model.module if isinstance(model, nn.parallel.DistributedDataParallel) else getattr(model, "_orig_mod", None)
    )
    return without_replicas(inner) if isinstance(inner, nn.Module) else model


def _is_sentence_transformer(model: nn.Module) -> bool:
    library = sys.modules.get("sentence_transformers")  # whose models can exist only once it is imported
    return library is not None and isinstance(model, library.SentenceTransformer)
