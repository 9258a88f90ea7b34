"""Ranks under torchrun: each encodes its share of a step's texts, and all of them see all embeddings.

Sums are the only communication: of embeddings, to which every rank adds its rows, and of gradients. One process is a
world of 1.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from types import TracebackType
from typing import Self

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Int


class Ranks:
    """This process among those that torchrun started; a context manager that joins and leaves the group."""

    def __init__(self) -> None:
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        self.local = int(os.environ.get("LOCAL_RANK", "0"))
        self._joined = False

    def __enter__(self) -> Self:
        if self.world > 1 and torch.cuda.is_available():
            torch.cuda.set_device(self.local)
        if self.world > 1 and not dist.is_initialized():
            dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
            self._joined = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._joined:
            dist.destroy_process_group()

    @property
    def leads(self) -> bool:
        """Whether this rank writes files and reports."""
        return self.rank == 0

    def device(self, wish: str) -> str:
        """The wish, with a GPU of its own for every rank of a machine."""
        if self.world > 1 and torch.cuda.is_available() and wish in ("auto", "cuda"):
            return f"cuda:{self.local}"
        return wish

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
