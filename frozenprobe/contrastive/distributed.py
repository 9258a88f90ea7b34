"""Ranks under torchrun: each encodes its share of a step's texts, and all of them see all embeddings.

Sums are the only communication: of embeddings, to which every rank adds its rows, and of gradients. One process is a
world of 1.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Int

from frozenprobe import ranks


class Ranks:
    """This process among those of the process group that it has joined (`frozenprobe.ranks`)."""

    def __init__(self) -> None:
        self.world, self.rank = ranks.count(), ranks.rank()

    @property
    def leads(self) -> bool:
        """Whether this rank writes files and reports."""
        return self.rank == 0

    def share(self, lengths: Int[np.ndarray, " m"]) -> Int[np.ndarray, " r"]:
        """The texts that this rank encodes, dealt by length so that all ranks have about as many tokens."""
        return np.argsort(-lengths, kind="stable")[self.rank :: self.world]

    def sum_(self, tensors: Iterable[torch.Tensor]) -> None:
        """Replaces each tensor by its sum over the ranks."""
        if self.world > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)

    def any(self, flag: bool, device: torch.device) -> bool:
        """Whether the flag is set on any rank."""
        if self.world == 1:
            return flag
        total = torch.tensor([float(flag)], device=device)
        dist.all_reduce(total)
        return bool(total.item())

    def wait(self) -> None:
        """Until all ranks are here."""
        if self.world > 1:
            dist.barrier()
