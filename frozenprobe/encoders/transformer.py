"""The encoder that every adapter of this package returns or wraps: a torch model with a transformers tokenizer.

Implements the `Encoder` protocol (`base.py`). Loading is elsewhere (`loading.py`, `module.py`).
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import nn
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from frozenprobe.encoders.base import Batch, EncoderInfo, Layer, Role, Tokenized, Visit
from frozenprobe.encoders.fingerprint import fingerprint, is_pooler
from frozenprobe.encoders.hidden_states import LayerReader, last_hidden_state
from frozenprobe.encoders.lengths import position_table
from frozenprobe.encoders.tokenization import TextTokenizer
from frozenprobe.errors import EncoderError, FrozenprobeError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_PROBE_TEXTS = ("a", "the probe has padding")


@dataclass(frozen=True)
class Origin:
    """What only the loader knows about an encoder: the part of `EncoderInfo` that is not measured on the model."""

    name: str
    kind: str
    revision: str | None = None
    notes: tuple[str, ...] = ()


class TransformerEncoder:
    """A torch model and its tokenizer as an `Encoder`.

    Args:
        model: Called with `input_ids`, `attention_mask` and, where it takes them, `token_type_ids`.
        tokenizer: A transformers tokenizer.
        origin: Name, kind, revision, notes.
        max_length: Longest input in tokens.
        lower_case: Lower-case every text first.

    Raises:
        EncoderError: The model cannot run on text, or its tokenizer does not fit it.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        origin: Origin,
        *,
        max_length: int,
        lower_case: bool = False,
    ) -> None:
        self.model = model
        self.config = getattr(unwrap(model), "config", None)
        self._parameters = inspect.signature(unwrap(model).forward).parameters
        with_types = self._takes_types(tokenizer)
        self._tokenizer = TextTokenizer(tokenizer, max_length, with_types=with_types, lower_case=lower_case)
        self._pad_id = _pad_id(tokenizer, self.config)
        self._vocabulary = _vocabulary(unwrap(model))
        self._fixed_arguments = {"use_cache": False} if "use_cache" in self._parameters else {}
        first = next(model.parameters(), None)
        if first is None:
            raise EncoderError(f"{type(model).__name__} has no parameters: it is no encoder")
        padding_side, side_notes = _padding_side(unwrap(model), tokenizer)
        # Placeholder until the probe has run: tokenising and collating need only these fields.
        self.info = EncoderInfo(
            name=origin.name,
            kind=origin.kind,
            architecture=type(unwrap(model)).__name__,
            revision=origin.revision,
            parameters=_count(model, embeddings=True),
            parameters_without_embeddings=_count(model, embeddings=False),
            hidden_size=0,
            layers=0,
            max_length=max_length,
            dtype={value: key for key, value in DTYPES.items()}.get(first.dtype, str(first.dtype)),
            attention=getattr(self.config, "_attn_implementation", None) or "own",
            device=first.device.type,
            padding_side=padding_side,
        )
        self._reader = self._make_reader()
        self.info = replace(
            self.info,
            hidden_size=self._reader.width,
            layers=self._reader.layers,
            notes=(*origin.notes, *side_notes, *self._reader.notes),
        )

    @property
    def _cross_checks(self) -> bool:
        """Whether the blocks found are compared with the model's own hidden states."""
        return True

    @property
    def device(self) -> torch.device:
        """Where the weights are now (a live module may move)."""
        return next(self.model.parameters()).device

    def tokenize(self, texts: Sequence[str], pairs: Sequence[str] | None = None, role: Role | None = None) -> Tokenized:
        """Tokenises texts or pairs, truncated to `info.max_length` (longest text of a pair first).

        Args:
            texts: First or only texts.
            pairs: Second texts, or None.
            role: Without effect: a plain encoder reads queries and documents alike.

        Returns:
            The ragged ids.

        Raises:
            EncoderError: A text cannot be tokenised, or gives ids that the model has no embedding for.
        """
        tokens = self._tokenizer.encode(texts, pairs)
        if self._vocabulary is not None and len(tokens.ids) and (top := int(tokens.ids.max())) >= self._vocabulary:
            raise EncoderError(
                f"{self.info.name}: the tokenizer gave id {top}, but the model has {self._vocabulary} embeddings: "
                "tokenizer and model do not belong together"
            )
        return tokens

    def collate(self, tokens: Tokenized, rows: Int[np.ndarray, " b"]) -> Batch:
        """Pads the rows to the longest of them, on the device."""
        rows = np.asarray(rows)
        starts = tokens.offsets[rows]
        lengths = tokens.offsets[rows + 1] - starts
        width = int(lengths.max())
        columns = np.arange(width)
        if self.info.padding_side == "left":
            mask = columns[None, :] >= width - lengths[:, None]
        else:
            mask = columns[None, :] < lengths[:, None]
        # Where each token of the batch lies in the flat arrays, row after row.
        source = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths) + np.arange(int(lengths.sum()))
        ids = np.full((len(rows), width), self._pad_id, dtype=np.int64)
        ids[mask] = tokens.ids[source]
        types = None
        if tokens.types is not None:
            types = np.zeros((len(rows), width), dtype=np.int64)
            types[mask] = tokens.types[source]
        device = self.device
        return Batch(ids=_to(ids, device), mask=_to(mask, device), types=None if types is None else _to(types, device))

    def forward(self, batch: Batch, layers: Sequence[Layer], visit: Visit) -> None:
        """Runs the model once under inference mode and visits each layer as it is ready; see `Encoder.forward`.

        Raises:
            EncoderError: A layer does not exist, or the model fails on this batch. Memory that runs out is passed on.
        """
        try:
            with self._running():
                self._reader.run(self._arguments(batch), layers, visit)
        except (AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise EncoderError(
                f"{self.info.name}: the model fails on {batch.ids.shape[0]} texts of up to {batch.ids.shape[1]} tokens "
                f"({reason:.200}); a smaller --max-length may help"
            ) from error

    def trained_module(self) -> PreTrainedModel:
        """The model itself, for training it end to end (`Trainable`).

        Raises:
            EncoderError: It is no transformers model, so that it could not be saved afterwards.
        """
        model = unwrap(self.model)
        if not isinstance(model, PreTrainedModel):
            raise EncoderError(
                f"{self.info.name}: {type(model).__name__} is no transformers model, so it could not be saved after "
                "training; export it as one first"
            )
        return model

    def differentiable(self, batch: Batch) -> Float[torch.Tensor, "b t d"]:
        """The last hidden states of a batch, with gradients (`Trainable`); the model keeps its mode."""
        kept: list[torch.Tensor] = []
        self._reader.run(self._arguments(batch), ("last",), lambda _, hidden: kept.append(hidden))
        return kept[0]

    def save_trained(self, folder: Path) -> None:
        """Writes model and tokenizer as a transformers folder (`Trainable`).

        Raises:
            EncoderError: The model is no transformers model, or the folder cannot be written.
        """
        self._write(self.trained_module(), folder)

    def fingerprint(self) -> str:
        """SHA-256 over weights, config, tokenizer, foreign model code and the adapter's version."""
        return fingerprint(unwrap(self.model), self.config, self._tokenizer.digest(), self.info.kind)

    def trainable(self) -> nn.Module:
        """A copy to be finetuned; see `Finetunable`."""
        copied = copy.deepcopy(unwrap(self.model)).float().requires_grad_(True)
        return _Differentiable(copied, self._fixed_arguments)

    def save(self, folder: Path) -> dict[str, Any]:
        """Saves model and tokenizer as a transformers folder.

        Args:
            folder: Where to; it is made.

        Returns:
            What sentence-transformers must be told besides (`sentence_bert_config.json`).

        Raises:
            EncoderError: The model is not transformers' own, so that the folder alone would not load; or the folder
                cannot be written.
        """
        model = unwrap(self.model)
        if not isinstance(model, PreTrainedModel) or not type(model).__module__.startswith("transformers.models."):
            raise EncoderError(
                f"{type(model).__name__} is not a class of transformers, which the folder would need to load"
            )
        self._write(model, folder)
        return {"max_seq_length": self.info.max_length, "do_lower_case": self._tokenizer.lower_case}

    def _write(self, model: PreTrainedModel, folder: Path) -> None:
        bars = transformers_logging.is_progress_bar_enabled()
        transformers_logging.disable_progress_bar()
        try:
            model.save_pretrained(folder)
            self._tokenizer.tokenizer.save_pretrained(folder)
        except OSError as error:
            raise EncoderError(f"cannot write {folder}: {error.strerror or error}") from None
        finally:
            if bars:
                transformers_logging.enable_progress_bar()

    def _running(self) -> AbstractContextManager[Any]:
        """The context of every forward pass."""
        return torch.inference_mode()

    def _arguments(self, batch: Batch) -> dict[str, Any]:
        return _arguments(batch.ids, batch.mask, batch.types) | self._fixed_arguments

    def _make_reader(self) -> LayerReader:
        """Probes the model on two short texts of different length."""
        batch = self.collate(self.tokenize(_PROBE_TEXTS), np.arange(2))
        takes_flag = "output_hidden_states" in self._parameters or type(unwrap(self.model)).__module__.startswith(
            "transformers.models."
        )
        try:
            with self._running():
                return LayerReader(
                    self.model,
                    self._arguments(batch),
                    layers=_block_count(self.config),
                    takes_flag=takes_flag,
                    cross_check=self._cross_checks,
                )
        except FrozenprobeError:
            raise
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise EncoderError(
                f"{self.info.name}: {self.info.architecture} cannot be run on token ids and their mask alone "
                f"({reason:.200})"
            ) from error

    def _takes_types(self, tokenizer: Any) -> bool:
        # A table of one type has nothing to tell apart, and a tokenizer's 1s for a second text would be out of range.
        types = getattr(self.config, "type_vocab_size", 2)
        return (
            "token_type_ids" in self._parameters
            and "token_type_ids" in tokenizer.model_input_names
            and (types is None or types > 1)
        )


class _Differentiable(nn.Module):
    """A model as a function from a batch's fields to its last hidden states."""

    def __init__(self, model: nn.Module, fixed_arguments: dict[str, Any]) -> None:
        super().__init__()
        self.model = model
        self._fixed_arguments = fixed_arguments

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor | None = None) -> torch.Tensor:
        """The last hidden states `[b, t, d]`."""
        return last_hidden_state(self.model(**_arguments(ids, mask, types), **self._fixed_arguments))


def _arguments(ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor | None) -> dict[str, Any]:
    arguments: dict[str, Any] = {"input_ids": ids, "attention_mask": mask.long()}
    if types is not None:
        arguments["token_type_ids"] = types
    return arguments


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside wrappers of `torch.compile` and data parallelism."""
    for attribute in ("_orig_mod", "_fsdp_wrapped_module", "module"):
        inner = getattr(model, attribute, None)
        if isinstance(inner, nn.Module) and (attribute != "module" or "Parallel" in type(model).__name__):
            return unwrap(inner)
    return model


def _block_count(config: Any) -> int | None:
    for attribute in ("num_hidden_layers", "n_layers", "n_layer", "num_layers"):
        value = getattr(config, attribute, None)
        if isinstance(value, int) and value > 0:
            return value
    return None


def _count(model: nn.Module, *, embeddings: bool) -> int:
    left_out = set()
    if not embeddings:
        left_out = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    return sum(p.numel() for name, p in model.named_parameters() if id(p) not in left_out and not is_pooler(name))


def _pad_id(tokenizer: Any, config: Any) -> int:
    """Any id does, since padding is masked; but RoBERTa counts positions by it, so the tokenizer's own comes first."""
    for value in (tokenizer.pad_token_id, getattr(config, "pad_token_id", None), tokenizer.eos_token_id):
        if isinstance(value, int) and value >= 0:
            return value
    return 0


def _vocabulary(model: nn.Module) -> int | None:
    """Rows of the token embedding, where the model says which one that is."""
    try:
        embedding = getattr(model, "get_input_embeddings", lambda: None)()
    except (NotImplementedError, AttributeError):  # transformers raises either where a class does not say
        return None
    return getattr(embedding, "num_embeddings", None)


def _padding_side(model: nn.Module, tokenizer: Any) -> tuple[str, tuple[str, ...]]:
    """The tokenizer's side, except where left padding would shift absolute positions."""
    if tokenizer.padding_side != "left":
        return "right", ()
    if position_table(model) is not None:
        return "right", ("padded on the right, because padding on the left would shift this model's positions",)
    return "left", ()


def _to(array: np.ndarray, device: torch.device) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
