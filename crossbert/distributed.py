"""One process or many: who this process is, and how a model is spread over all of them.

Under `torchrun` every process is a rank; without it there is one. FSDP2 shards parameters, gradients and moments over
the ranks; plain data parallelism keeps them whole on each.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from crossbert.memory import keep_freed_memory
from crossbert.model import PretrainingModel
from crossbert.settings import SystemSettings
from frozenprobe.errors import SettingsError
from frozenprobe.ranks import TRAINING_TIMEOUT, count, joined, own_gpu, rank


@dataclass(frozen=True)
class Ranks:
    """This process among all.

    Attributes:
        rank: Its number.
        count: How many there are.
        device: What it computes on.
        checkpoint_group: A group of their own for what is written in the background, or None with one process.
    """

    rank: int
    count: int
    device: torch.device
    checkpoint_group: dist.ProcessGroup | None = None

    @property
    def first(self) -> bool:
        """Whether this process writes what is written once."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Adds up a small tensor over all ranks."""
        if self.count > 1:
            dist.all_reduce(values)
        return values

    def wait(self) -> None:
        """Returns when every rank has come here."""
        if self.count > 1:
            dist.barrier()


@contextmanager
def ranks(device: str) -> Generator[Ranks]:
    """Joins the processes that `torchrun` started, and leaves them at the end.

    Args:
        device: auto, or a torch device; with several GPUs each process takes its own.

    Raises:
        SettingsError: There is no such device.
        RankError: The others did not come.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(device)
    except RuntimeError:
        raise SettingsError(f"system.device: {device!r} is no device; allowed are auto, cpu and cuda") from None
    if kind.type not in ("cpu", "cuda") or (kind.type == "cuda" and not torch.cuda.is_available()):
        raise SettingsError(
            f"system.device: {device} is not available here; allowed are auto, cpu and, with a GPU, cuda"
        )
    if kind.type == "cuda":
        kind = kind if kind.index is not None else torch.device("cuda", own_gpu())
        torch.cuda.set_device(kind)
    else:
        keep_freed_memory()
    with joined(TRAINING_TIMEOUT, nccl=kind.type == "cuda"):
        yield Ranks(rank(), count(), kind, dist.new_group(backend="gloo") if count() > 1 else None)


@dataclass(frozen=True)
class Parallel:
    """A model made ready to be trained.

    Attributes:
        model: The model itself, with the names of its parameters unchanged.
        call: What is called for a forward pass.
    """

    model: PretrainingModel
    call: nn.Module

    @contextmanager
    def gathering(self, last: bool) -> Generator[None]:
        """Around the work on a piece of a step: gradients are summed over the ranks with the last piece only."""
        if isinstance(self.call, FSDPModule):
            self.call.set_requires_gradient_sync(last)
        with self.call.no_sync() if isinstance(self.call, DistributedDataParallel) and not last else nullcontext():
            yield


def parallelise(model: PretrainingModel, settings: SystemSettings, here: Ranks) -> Parallel:
    """Moves a model to its device, compiles it, and spreads it over the ranks.

    Every rank passes the same whole model, built on the CPU; under FSDP each keeps its shards of it.

    Args:
        model: A `PretrainingModel`, initialised.
        settings: How.
        here: This process.
    """
    blocks = model.shardable()
    if settings.activation_checkpointing:
        for block in blocks:  # not a wrapper module: names of parameters stay as they are
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    model.to(here.device)
    sharded = here.count > 1 and settings.parallel != "ddp"
    if settings.compile:
        for module in (
            blocks if sharded else [model]
        ):  # FSDP works between the blocks, so that they are compiled one by one
            module.compile(dynamic=False, fullgraph=True)
    if here.count == 1:
        return Parallel(model, model)
    if not sharded:
        ids = [here.device] if here.device.type == "cuda" else None
        return Parallel(model, DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True))
    # Parameters stay float32 and autocast does the rest, as with one process: sharding changes no number.
    mesh = dist.init_device_mesh(here.device.type, (here.count,))
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return Parallel(model, model)
