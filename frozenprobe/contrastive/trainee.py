"""Poolers in training, each with its own optimiser: from blocks of token features to one step.

Embeddings are computed first and the loss is taken on them as leaves; their gradients then go back through the
pooler, block by block. That one path serves chunks (blocks are run again instead of kept, so that a batch may be
larger than memory), several ranks (each sends back its own rows), and a whole batch at once; all give the same
gradients.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt
from torch import nn

from frozenprobe.contrastive.batches import mean_by_slot, noise_of
from frozenprobe.contrastive.distributed import Ranks
from frozenprobe.contrastive.features import Block
from frozenprobe.contrastive.loss import Targets, contrastive_loss
from frozenprobe.contrastive.sweep import Candidate


@dataclass(frozen=True)
class Side:
    """The queries or the passages of a step, as the poolers meet them.

    Attributes:
        blocks: This rank's share of the texts.
        keys: Of the texts of all ranks; their dropout follows from them.
        slots: Where every slot is a text of its own, the distinct text it stands for; None where texts are distinct.
        distinct: Distinct texts.
    """

    blocks: Sequence[Block]
    keys: UInt[np.ndarray, " m"]
    slots: Int[torch.Tensor, " m"] | None
    distinct: int


@dataclass
class _Pass:
    """A pooler's way through one side of a step."""

    noise: Int[torch.Tensor, " m"]
    embeddings: Float[torch.Tensor, "m e"]
    outputs: dict[int, Float[torch.Tensor, "b e"]] = field(default_factory=dict)


class Trainee:
    """A pooler and its optimiser.

    Args:
        candidate: How it is trained.
        pooler: The module, on its device.
        token_width: Width `d` of the token features.
        steps: Of the whole training, for the schedule.
        ranks: The processes that train together.
        encoder: Trained along with the pooler, if given.
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
    ) -> None:
        self.candidate = candidate
        self.pooler = pooler
        self.encoder = encoder
        self._steps = steps
        self._ranks = ranks
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
            self._parameters.values(),
            lr=candidate.lr,
            weight_decay=candidate.weight_decay,
            fused=self.device.type in ("cpu", "cuda"),
        )
        self._passes: list[_Pass] = []

    def rate(self, step: int) -> float:
        """The learning rate of a step: a cosine from `lr` at the first to `min_lr` at the last."""
        low, high = self.candidate.min_lr, self.candidate.lr
        return low + (high - low) * (1 + math.cos(math.pi * step / max(self._steps - 1, 1))) / 2

    def begin(self, step: int, sides: Sequence[Side]) -> None:
        """Makes room for the embeddings of a step."""
        self.pooler.train()
        self._step = step
        self._passes = [
            _Pass(
                noise_of(self.candidate.seed, step, side.keys),
                torch.zeros(len(side.keys), self.dimensions, device=self.device),
            )
            for side in sides
        ]

    def embed(self, side: int, place: int, rows: Int[torch.Tensor, " b"], features: tuple[Any, Any]) -> None:
        """Takes in a block; its graph is kept where gradients are on."""
        output = self._run(side, place, rows, features)
        self._passes[side].embeddings[rows.to(self.device)] = output.detach()
        if output.requires_grad:
            self._passes[side].outputs[place] = output

    def loss(self, sides: Sequence[Side], targets: Targets) -> float:
        """The loss of the step over the embeddings of all ranks, whose gradients are left for `send_back`."""
        leaves = []
        for part in self._passes:
            self._ranks.sum_([part.embeddings])
            leaves.append(part.embeddings.requires_grad_())
        queries, passages = (_by_distinct(leaf, side) for leaf, side in zip(leaves, sides, strict=True))
        loss = contrastive_loss(queries, passages, targets, self.candidate.loss)
        value = float(loss.detach())
        if math.isfinite(value):
            loss.backward()
        return value

    def send_back(self, side: int, place: int, rows: Int[torch.Tensor, " b"], features: tuple[Any, Any] | None) -> None:
        """Sends a block's gradients back: through its kept graph, or through one made again from its features."""
        part = self._passes[side]
        assert part.embeddings.grad is not None
        output = part.outputs.pop(place) if features is None else self._run(side, place, rows, features)
        output.backward(part.embeddings.grad[rows.to(self.device)])

    def end(self) -> None:
        """Sums the gradients over the ranks."""
        self._passes = []
        if self._ranks.world > 1:
            for parameter in self._parameters.values():
                if parameter.grad is None:  # a rank without a text still takes part in the sum
                    parameter.grad = torch.zeros_like(parameter)
            self._ranks.sum_(parameter.grad for parameter in self._parameters.values() if parameter.grad is not None)

    def update(self) -> None:
        """Takes the step that the gradients ask for."""
        for group in self._optimiser.param_groups:
            group["lr"] = self.rate(self._step)
        self._optimiser.step()

    def forget(self) -> None:
        """Drops the gradients."""
        self._optimiser.zero_grad()

    def _run(
        self, side: int, place: int, rows: Int[torch.Tensor, " b"], features: tuple[Any, Any]
    ) -> Float[torch.Tensor, "b e"]:
        noise = self._passes[side].noise[rows].to(self.device)
        with seeded((self.candidate.seed, self._ranks.rank, self._step, side, place), self.device):
            return self.pooler(*features, noise)

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


def train_together(
    trainees: Sequence[Trainee], step: int, sides: Sequence[Side], targets: Targets, *, recompute: bool = False
) -> list[float]:
    """One step of several poolers off the same blocks.

    Args:
        trainees: The poolers.
        step: Its number.
        sides: Queries and passages.
        targets: Who belongs to whom.
        recompute: Run every block a second time instead of keeping its graph. All poolers then share the second run too.

    Returns:
        The losses. A pooler whose loss is not finite is left unchanged.
    """
    # With everything kept, one pooler after the other needs the memory of one.
    groups = [list(trainees)] if recompute else [[trainee] for trainee in trainees]
    losses = []
    for group in groups:
        encoder = group[0].encoder
        if encoder is not None:
            encoder.train()
        found = backward(group, step, sides, targets, recompute=recompute)
        if encoder is not None:
            encoder.eval()
        for trainee, loss in zip(group, found, strict=True):
            if math.isfinite(loss):
                trainee.update()
            trainee.forget()
        losses += found
    return losses


def backward(
    trainees: Sequence[Trainee], step: int, sides: Sequence[Side], targets: Targets, *, recompute: bool = False
) -> list[float]:
    """Leaves the gradients of a step's loss in the parameters, summed over the ranks; see `train_together`."""
    device = trainees[0].device

    def features(side: int, place: int, block: Block) -> tuple[Float[torch.Tensor, "b t d"], Bool[torch.Tensor, "b t"]]:
        # The same random numbers in both runs, for an encoder that is trained and has dropout of its own.
        with seeded((step, side, place), device):
            return block.features()

    for trainee in trainees:
        trainee.begin(step, sides)
    with torch.set_grad_enabled(not recompute):
        for side, place, block in _all(sides):
            found = features(side, place, block)
            for trainee in trainees:
                trainee.embed(side, place, block.rows, found)
    losses = [trainee.loss(sides, targets) for trainee in trainees]
    sound = [trainee for trainee, loss in zip(trainees, losses, strict=True) if math.isfinite(loss)]
    for side, place, block in _all(sides) if sound else ():
        again = features(side, place, block) if recompute else None
        for trainee in sound:
            trainee.send_back(side, place, block.rows, again)
    for trainee in sound:
        trainee.end()
    return losses


def _all(sides: Sequence[Side]) -> Generator[tuple[int, int, Block]]:
    for number, side in enumerate(sides):
        for place, block in enumerate(side.blocks):
            yield number, place, block


def _by_distinct(embeddings: Float[torch.Tensor, "m e"], side: Side) -> Float[torch.Tensor, "u e"]:
    return embeddings if side.slots is None else mean_by_slot(embeddings, side.slots, side.distinct)


@contextmanager
def seeded(seeds: tuple[int, ...], device: torch.device) -> Generator[None]:
    """Random numbers that follow from the given ones, and afterwards those of before."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(int(np.random.SeedSequence(seeds).generate_state(1)[0]))
        yield
