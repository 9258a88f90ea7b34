"""One forward pass that hands out each layer as it is ready, through hooks on the blocks.

Serves the `forward` half of the `Encoder` protocol (`base.py`). Layer 0 is the input of the first block, 1 ... L are
the raw block outputs, `last` is what the model returns. Which modules are the blocks is found out, not assumed: a probe
forward compares them with what the model itself calls its hidden states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from frozenprobe.encoders.base import Layer, Visit
from frozenprobe.errors import EncoderError


class LayerReader:
    """Runs a model and visits the requested layers.

    Attributes:
        model: The model, called with keyword arguments.
        layers: Number of blocks `L`; 0 where only the last layer can be had.
        width: Width `d` of the last hidden state.
        notes: What a reader of layer-wise scores should know.

    Args:
        model: The model.
        inputs: A small padded batch as keyword arguments; run once here, and it should contain padding.
        layers: Number of blocks if the config tells, None: found out.
        takes_flag: Whether the model understands `output_hidden_states=True`.
        cross_check: Whether to compare the blocks with the model's own hidden states. transformers 5 leaves its
            (idle) hooks on a model that was once asked for them, which a model in training should be spared.

    Raises:
        EncoderError: The model cannot run on text, or returns no `[b, t, d]` hidden state.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Mapping[str, torch.Tensor],
        *,
        layers: int | None,
        takes_flag: bool,
        cross_check: bool = True,
    ) -> None:
        self.model = model
        self.notes: tuple[str, ...] = ()
        candidates = find_block_lists(model, layers)
        self._blocks: list[nn.Module] | None = list(candidates[0]) if len(candidates) == 1 else None
        self._probe(inputs, layers, takes_flag, cross_check)

    def run(self, inputs: Mapping[str, Any], layers: Sequence[Layer], visit: Visit) -> None:
        """Runs the model once and calls `visit(layer, hidden)` for every requested layer, in the order of depth.

        Args:
            inputs: Keyword arguments of the model.
            layers: Block numbers 0 ... L and `last`.
            visit: Called with the layer and its hidden states `[b, t, d]`, which are valid only during the call.

        Raises:
            EncoderError: A layer does not exist, or a block did not run exactly once.
        """
        wanted = {layer for layer in layers if layer != "last"}
        if unknown := sorted(layer for layer in wanted if not 0 <= layer <= self.layers or not self._has_blocks):
            known = f"0 ... {self.layers} and last" if self._has_blocks else "last only"
            raise EncoderError(f"there is no layer {unknown[0]}: this encoder has layers {known}")
        if self._blocks is None and wanted:
            output = self.model(**inputs, output_hidden_states=True)
            for layer in sorted(wanted):
                visit(layer, output.hidden_states[layer])
        else:
            output = self._run_hooked(inputs, wanted, visit)
        if "last" in layers:
            visit("last", last_hidden_state(output))

    def _run_hooked(self, inputs: Mapping[str, Any], wanted: set[int], visit: Visit) -> Any:
        seen: list[int] = []

        def meet(layer: int, value: Any) -> None:
            hidden = _hidden_in(value)
            if hidden is None:
                raise EncoderError(f"block {layer} returned no [b, t, d] hidden state")
            seen.append(layer)
            visit(layer, hidden)

        handles = []
        blocks = self._blocks or []
        try:
            for layer in sorted(wanted):
                if layer == 0:
                    handles.append(blocks[0].register_forward_pre_hook(_input_hook(meet), with_kwargs=True))
                else:
                    handles.append(blocks[layer - 1].register_forward_hook(_output_hook(layer, meet)))
            output = self.model(**inputs)
        finally:
            for handle in handles:
                handle.remove()
        if sorted(seen) != sorted(wanted):
            raise EncoderError(f"the blocks of {type(self.model).__name__} did not run exactly once: {seen}")
        return output

    def _probe(
        self, inputs: Mapping[str, torch.Tensor], layers: int | None, takes_flag: bool, cross_check: bool
    ) -> None:
        """One small forward: the width, and whether the blocks give what the model calls its hidden states."""
        flag = {"output_hidden_states": True} if takes_flag else {}
        hooked: dict[int, torch.Tensor] = {}
        output = None
        if self._blocks is not None:
            self.layers, self._has_blocks = len(self._blocks), True
            try:
                output = self._run_hooked(
                    {**inputs, **(flag if cross_check else {})},
                    set(range(self.layers + 1)),
                    lambda layer, hidden: hooked.__setitem__(int(layer), hidden.clone()),
                )
            except EncoderError:  # a block that runs twice, or not on hidden states
                hooked.clear()
        if output is None:
            output = self.model(**inputs, **flag)
        last = last_hidden_state(output)
        mask = inputs["attention_mask"].bool()
        if last.ndim != 3 or last.shape[:2] != mask.shape:
            raise EncoderError(
                f"{type(self.model).__name__} returned a hidden state of shape {list(last.shape)} for {len(mask)} "
                f"inputs of {mask.shape[1]} tokens: an encoder gives one vector per token"
            )
        self.width = last.shape[2]
        told = getattr(output, "hidden_states", None)
        told = told if isinstance(told, (tuple, list)) and len(told) > 1 else None
        if hooked and all(hidden.shape[:2] == mask.shape for hidden in hooked.values()):
            # The last entry may or may not be after the final norm; the ones before it are comparable.
            depth = range(self.layers)
            if told is None or (len(told) == self.layers + 1 and all(_same(hooked[i], told[i], mask) for i in depth)):
                return
        self._blocks = None
        self._has_blocks = told is not None
        self.layers = len(told) - 1 if told is not None else 0
        if told is None:
            self.notes = ("blocks not found: only the last layer can be read",)
        else:
            self.notes = (
                "blocks not found unambiguously: layers are the model's own hidden_states, all held at once, and the "
                "last of them may be after the final norm",
            )


def find_block_lists(model: nn.Module, layers: int | None) -> list[nn.ModuleList]:
    """The outermost `ModuleList`s of the given length (of any length, where None).

    Only outermost ones, because a block may itself hold a list as long as the stack (a T5 block is one of 2).
    """
    found: dict[str, nn.ModuleList] = {}
    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList) or len(module) == 0 or (layers is not None and len(module) != layers):
            continue
        if not any(name.startswith(f"{outer}.") for outer in found):
            found[name] = module
    return list(found.values())


def last_hidden_state(output: Any) -> torch.Tensor:
    """The last hidden state in whatever a model returns.

    Raises:
        EncoderError: There is none.
    """
    hidden = getattr(output, "last_hidden_state", None)
    if hidden is None and isinstance(output, Mapping):
        hidden = output.get("last_hidden_state")
    elif hidden is None and isinstance(output, (tuple, list)) and output:
        hidden = output[0]
    elif hidden is None:
        hidden = output
    if not isinstance(hidden, torch.Tensor) or not hidden.is_floating_point():
        raise EncoderError(f"the model returned {type(output).__name__} without a last_hidden_state")
    return hidden


def _input_hook(meet: Any) -> Any:
    def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        meet(0, args or (kwargs.get("hidden_states"), *kwargs.values()))

    return hook


def _output_hook(layer: int, meet: Any) -> Any:
    def hook(_module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        meet(layer, output)

    return hook


def _hidden_in(value: Any) -> torch.Tensor | None:
    """The first `[b, t, d]` float tensor of a block's inputs or outputs."""
    if isinstance(value, Mapping):
        value = tuple(value.values())
    for item in value if isinstance(value, (tuple, list)) else (value,):
        if isinstance(item, torch.Tensor) and item.ndim == 3 and item.is_floating_point():
            return item
    return None


def _same(one: torch.Tensor, other: torch.Tensor, mask: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one[mask], other[mask], rtol=1e-5, atol=1e-6, equal_nan=True)
