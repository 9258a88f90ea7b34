"""AdamW, its learning rate, and what is done when a step goes wrong."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from crossbert.settings import GuardSettings, OptimiserSettings

MEMORY = 0.98
"""Share of the running mean of the loss that a step keeps."""


def build_optimiser(model: nn.Module, settings: OptimiserSettings) -> torch.optim.AdamW:
    """AdamW over a model's parameters, its moments made at once so that a checkpoint can be loaded into them.

    Matrices and embeddings decay; vectors (gains of norms, a mask's vector) do not.
    """
    parameters = list(model.parameters())
    optimiser = torch.optim.AdamW(
        [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": settings.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ],
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.eps,
        fused=True,
    )
    for parameter in parameters:
        optimiser.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimiser


def learning_rate(step: int, steps: int, settings: OptimiserSettings) -> float:
    """Learning rate of a step, counted from 0: linear warm-up to the peak, then half a cosine to the least at the last."""
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    progress = (step - settings.warmup_steps) / max(steps - 1 - settings.warmup_steps, 1)
    span = settings.learning_rate - settings.min_learning_rate
    return settings.min_learning_rate + span * (1 + math.cos(math.pi * progress)) / 2


def gradient_norm(model: nn.Module) -> Tensor:
    """Norm of the whole gradient, over all ranks where it is sharded."""
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def scale_gradients(model: nn.Module, factor: float) -> None:
    """Multiplies every gradient, unless there is nothing to do."""
    if factor != 1.0:
        torch._foreach_mul_([p.grad for p in model.parameters() if p.grad is not None], factor)


@dataclass
class Guard:
    """Judges steps by their loss and gradient.

    Attributes:
        mean: Running mean of the loss.
        accepted: Steps that count in it.
        skipped: Steps refused in all.
        in_a_row: Steps refused since the last good one.
    """

    mean: float = 0.0
    accepted: int = 0
    skipped: int = 0
    in_a_row: int = 0

    def judge(self, loss: float, norm: float, settings: GuardSettings) -> str | None:
        """What is wrong with a step, in words, or None. The step is counted either way."""
        fault = None
        if not math.isfinite(loss):
            fault = f"the loss is {loss}"
        elif not math.isfinite(norm):
            fault = f"the gradient's norm is {norm}"
        elif self.accepted >= settings.patience and loss > settings.spike * self.mean:
            fault = f"the loss {loss:.3f} is {loss / self.mean:.1f} times its running mean {self.mean:.3f}"
        if fault is None:
            self.mean = loss if self.accepted == 0 else MEMORY * self.mean + (1 - MEMORY) * loss
            self.accepted += 1
            self.in_a_row = 0
        else:
            self.skipped += 1
            self.in_a_row += 1
        return fault

    def as_tensor(self) -> Tensor:
        """All of it, for a checkpoint."""
        return torch.tensor(astuple(self), dtype=torch.float64)

    def restore(self, values: Tensor) -> None:
        """Takes back what `as_tensor` gave."""
        self.mean = float(values[0])
        self.accepted, self.skipped, self.in_a_row = (int(value) for value in values[1:])
