"""One pooler in training, with its own optimiser: from blocks of token features to one step.

Embeddings are computed first and the loss is taken on them as leaves; their gradients then go back through the pooler, block by
block. That one path serves chunks (blocks are run again instead of kept), several ranks (each sends back its own rows), and
a whole batch at once; all give the same gradients.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import nn

from frozenprobe.contrastive.batches import mean_by_slot
from frozenprobe.contrastive.distributed import Ranks
from frozenprobe.contrastive.features import Block
from frozenprobe.contrastive.loss import Targets, contrastive_loss
from frozenprobe.contrastive.sweep import Candidate


@dataclass(frozen=True)
class Side:
    """The queries or the passages of a step, as a pooler meets them.

    Attributes:
        blocks: This rank's share of the texts.
        count: Texts of all ranks.
        noise: One number per text, from which its dropout follows.
        slots: Where every slot is a text of its own, the distinct text it stands for; None where texts are distinct.
        distinct: Distinct texts.
    """

    blocks: Sequence[Block]
    count: int
    noise: Int[torch.Tensor, " m"]
    slots: Int[torch.Tensor, " m"] | None
    distinct: int


class Trainee:
    """A pooler and its optimiser.

    Args:
        candidate: How it is trained.
        pooler: The module, on its device.
        token_width: Width `d` of the token features.
        steps: Of the whole training, for the schedule.
        ranks: The processes that train together.
        encoder: Trained along with the pooler, if given.
        recompute: Whether blocks are run a second time instead of being kept.
    """

    def __init__(
        self,
        candidate: Candidate,
        pooler: nn.Module,
        token_width: int,
        steps: int,
        ranks: Ranks,
        *,
        encoder: nn.Module | None = None,
        recompute: bool = False,
    ) -> None:
        self.candidate = candidate
        self.pooler = pooler
        self._steps = steps
        self._ranks = ranks
        self._recompute = recompute
        self._encoder = encoder
        modules = {"pooler": pooler} if encoder is None else {"pooler": pooler, "encoder": encoder}
        self._parameters = {
            f"{part}.{name}": parameter
            for part, module in modules.items()
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }
        self.device = next(iter(self._parameters.values())).device
        with torch.no_grad():
            one = torch.zeros(1, 1, token_width, device=self.device)
            self.dimensions = pooler.eval()(one, torch.ones(1, 1, dtype=torch.bool, device=self.device)).shape[1]
        self._optimiser = torch.optim.AdamW(
            self._parameters.values(), lr=candidate.lr, weight_decay=candidate.weight_decay, fused=True
        )

    def rate(self, step: int) -> float:
        """The learning rate of a step: a cosine from `lr` at the first to `min_lr` at the last."""
        low, high = self.candidate.min_lr, self.candidate.lr
        return low + (high - low) * (1 + math.cos(math.pi * step / max(self._steps - 1, 1))) / 2

    def train(self, step: int, sides: tuple[Side, Side], targets: Targets) -> float:
        """One step; returns its loss. Where that is not finite, nothing is changed."""
        if self._encoder is not None:
            self._encoder.train()
        loss = self.backward(step, sides, targets)
        if self._encoder is not None:
            self._encoder.eval()
        if math.isfinite(loss):
            for group in self._optimiser.param_groups:
                group["lr"] = self.rate(step)
            self._optimiser.step()
        self._optimiser.zero_grad()
        return loss

    def backward(self, step: int, sides: tuple[Side, Side], targets: Targets) -> float:
        """Leaves the gradients of a step's loss in the parameters, summed over the ranks, and returns the loss."""
        self.pooler.train()
        kept, leaves = [], []
        for number, side in enumerate(sides):
            outputs, embeddings = self._embed(side, (step, number))
            kept.append(outputs)
            leaves.append(embeddings.requires_grad_())
        loss = contrastive_loss(
            *(_by_distinct(leaf, side) for leaf, side in zip(leaves, sides, strict=True)), targets, self.candidate.loss
        )
        value = float(loss.detach())
        if not math.isfinite(value):
            return value
        loss.backward()
        for number, (side, outputs, leaf) in enumerate(zip(sides, kept, leaves, strict=True)):
            assert leaf.grad is not None
            for place, block in enumerate(side.blocks):
                output = self._run(side, block, (step, number, place)) if self._recompute else outputs[place]
                output.backward(leaf.grad[block.rows.to(leaf.device)])
        gradients = []
        for parameter in self._parameters.values():
            if parameter.grad is None and self._ranks.world > 1:  # a rank without a text still takes part in the sum
                parameter.grad = torch.zeros_like(parameter)
            if parameter.grad is not None:
                gradients.append(parameter.grad)
        self._ranks.sum_(gradients)
        return value

    def _embed(self, side: Side, place: tuple[int, int]) -> tuple[list[torch.Tensor], Float[torch.Tensor, "m e"]]:
        """The embeddings of all texts of a side, and those of this rank's blocks with their graphs, where they are kept."""
        outputs = []
        embeddings = torch.zeros(side.count, self.dimensions, device=self.device)
        for number, block in enumerate(side.blocks):
            with torch.set_grad_enabled(not self._recompute):
                output = self._run(side, block, (*place, number))
            embeddings[block.rows.to(self.device)] = output.detach()
            outputs.append(output)
        self._ranks.sum_([embeddings])
        return outputs, embeddings

    def _run(self, side: Side, block: Block, place: tuple[int, ...]) -> Float[torch.Tensor, "b e"]:
        """The pooler on a block; the same random numbers each time, for whatever else draws some (an encoder's dropout)."""
        with _seeded((self.candidate.seed, self._ranks.rank, *place), self.device):
            tokens, mask = block.features()
            return self.pooler(tokens, mask, side.noise[block.rows].to(self.device))

    def tensors(self) -> dict[str, torch.Tensor]:
        """Parameters and optimiser state, by name."""
        states = self._optimiser.state_dict()["state"]
        found: dict[str, torch.Tensor] = dict(self._parameters)
        for number, name in enumerate(self._parameters):
            found |= {f"{name}@{key}": value for key, value in states.get(number, {}).items()}
        return found

    def restore(self, tensors: dict[str, torch.Tensor]) -> None:
        """Puts back what `tensors` gave.

        Raises:
            KeyError: A parameter is not there.
        """
        whole = self._optimiser.state_dict()
        states: dict[int, dict[str, Any]] = {}
        with torch.no_grad():
            for number, (name, parameter) in enumerate(self._parameters.items()):
                parameter.copy_(tensors[name])
                prefix = f"{name}@"
                found = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
                if found:
                    states[number] = found
        self._optimiser.load_state_dict({**whole, "state": states})


def _by_distinct(embeddings: Float[torch.Tensor, "m e"], side: Side) -> Float[torch.Tensor, "u e"]:
    return embeddings if side.slots is None else mean_by_slot(embeddings, side.slots, side.distinct)


@contextmanager
def _seeded(seeds: tuple[int, ...], device: torch.device) -> Generator[None]:
    """Random numbers that follow from the given ones, and afterwards those of before."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(int(np.random.SeedSequence(seeds).generate_state(1)[0]))
        yield
