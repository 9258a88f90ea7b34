"""The processes ("ranks") of one evaluation, and messages between rank 0 and the others.

`torchrun` or a training loop started them. Rank 0 leads and the others follow, so messages go between it and one of them. They
travel over gloo also where the model runs on GPUs: features end up in host memory, and two ranks may share a GPU.
Nothing else than the ranks themselves is in a group, so messages may be pickled, as torch's own object collectives do.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

from frozenprobe.errors import FrozenprobeError, RankError

Value = TypeVar("Value")

_IDLE = timedelta(days=20)
"""A follower waits so long for work: the leader may be reading data or fitting probes. A leader that dies is noticed at once."""

TRAINING_TIMEOUT = 1800.0
"""Seconds that the ranks of a training wait for each other: one may be checking data or writing meanwhile."""

_FAREWELL_SECONDS = 5.0
_GOODBYE = b""


def launched_rank() -> int:
    """This process's rank as a launcher such as `torchrun` set it; 0 where there is none. Imports no torch."""
    return int(os.environ["RANK"]) if launched_count() > 1 else 0


def launched_count() -> int:
    """How many ranks a launcher started; 1 where there is none."""
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return int(os.environ["WORLD_SIZE"]) if all(os.environ.get(name) for name in names) else 1


def local_rank() -> int:
    """This process's number among those on its machine."""
    return int(os.environ.get("LOCAL_RANK", "0")) if launched_count() > 1 else 0


def own_gpu() -> int:
    """The number of this process's own GPU among those that it sees: a launcher may show each rank only its own."""
    import torch

    return local_rank() if torch.cuda.device_count() > 1 else 0


def rank() -> int:
    """This process's number in torch's process group, 0 without one."""
    import torch.distributed as dist

    return dist.get_rank() if count() > 1 else 0


def count() -> int:
    """How many ranks this process is one of: those of torch's process group, 1 without one."""
    import torch.distributed as dist

    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def from_first(compute: Callable[[], Value]) -> Value:
    """What rank 0 computes, on every rank, all of which call it.

    Raises:
        FrozenprobeError: What `compute` raised, on every rank.
    """
    if count() == 1:
        return compute()
    import torch.distributed as dist

    found: list[Any] = [None, None]
    if rank() == 0:
        try:
            found[0] = compute()
        except FrozenprobeError as error:
            found[1] = error
    dist.broadcast_object_list(found, src=0)
    if found[1] is not None:
        raise found[1]
    return found[0]


@contextmanager
def joined(timeout: float = 300.0, *, nccl: bool = False) -> Generator[None]:
    """Joins the ranks that a launcher started, for as long as the block runs; does nothing in a process of its own.

    Args:
        timeout: Seconds to wait for the others, here and in what they do together.
        nccl: Tensors on GPUs are summed over NCCL, each rank's on a GPU of its own; what is on CPUs goes over gloo as ever.

    Raises:
        RankError: The others did not come.
    """
    if launched_count() == 1 or count() > 1:
        yield
        return
    import torch
    import torch.distributed as dist

    if own_gpu() < torch.cuda.device_count():
        torch.cuda.set_device(own_gpu())
    try:
        dist.init_process_group("cpu:gloo,cuda:nccl" if nccl else "gloo", timeout=timedelta(seconds=timeout))
    except (RuntimeError, ValueError) as error:
        raise RankError(
            f"the {launched_count()} ranks that RANK and WORLD_SIZE speak of did not all come within {timeout:g} s "
            f"({_first_line(error)}); unset both to run alone"
        ) from None
    previous = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, _interrupt)  # what a launcher sends to the others when one rank has died
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
        dist.destroy_process_group()


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


@dataclass(frozen=True)
class _Gone:
    """A rank that nothing more can come from."""

    reason: str
    said_goodbye: bool = False


class Messages:
    """Messages between the leader and its followers; every rank opens one at the same point.

    One thread for each peer takes in what it sends, so that nobody waits for a reader and a lost peer is noticed at once.

    Args:
        timeout: Seconds without a message after which a rank that owes one counts as lost.

    Raises:
        RankError: The other ranks do not open theirs.
    """

    def __init__(self, timeout: float) -> None:
        import torch.distributed as dist

        self.rank, self.count = dist.get_rank(), dist.get_world_size()
        self.peers = tuple(range(1, self.count)) if self.rank == 0 else (0,)
        self._timeout = timeout
        try:
            self._group: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
        except RuntimeError as error:
            raise RankError(
                f"the {self.count} ranks did not all start the evaluation within {timeout:g} s ({_first_line(error)}); "
                "in training, call it on every rank"
            ) from None
        self._inbox: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._lost: dict[int, str] = {}
        self._listeners = [threading.Thread(target=self._listen, args=(peer,), daemon=True) for peer in self.peers]
        for listener in self._listeners:
            listener.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def waiting(self) -> bool:
        """Whether a message has come."""
        return not self._inbox.empty()

    def send(self, peer: int, message: Any) -> None:
        """Sends a message.

        Raises:
            RankError: The peer is lost.
        """
        self._send(peer, pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))

    def broadcast(self, message: Any) -> None:
        """Sends a message to every peer.

        Raises:
            RankError: A peer is lost; the others have got it.
        """
        packed = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        lost = None
        for peer in self.peers:
            try:
                self._send(peer, packed)
            except RankError as error:
                lost = error
        if lost is not None:
            raise lost

    def receive(self, *, patient: bool = False) -> tuple[int, Any]:
        """The next message and its sender.

        Args:
            patient: Wait without limit: the sender owes nothing yet.

        Raises:
            RankError: A peer is lost, or none has sent anything for too long.
        """
        try:
            peer, message = self._inbox.get(timeout=None if patient else self._timeout)
        except queue.Empty:
            waited, self._timeout = self._timeout, min(self._timeout, _FAREWELL_SECONDS)
            raise RankError(f"no other rank has answered for {waited:g} s; {_KEPT}") from None
        if isinstance(message, _Gone):
            raise self._loss(peer, message.reason)
        return peer, message

    def find_lost(self, seconds: float = 2.0) -> RankError | None:
        """The error for a peer that is lost or found to be lost within some seconds; drops the messages before it."""
        while not self._lost:
            try:
                peer, message = self._inbox.get(timeout=seconds)
            except queue.Empty:
                return None
            if isinstance(message, _Gone) and not message.said_goodbye:
                return self._loss(peer, message.reason)
        return self._loss(*next(iter(self._lost.items())))

    def close(self) -> None:
        """Says goodbye, and ends the threads; one that waits for a silent peer ends with the process."""
        import torch.distributed as dist

        for peer in self.peers:
            try:
                self._send(peer, _GOODBYE)
            except RankError:
                continue
        for listener in self._listeners:
            listener.join(_FAREWELL_SECONDS)
        if not any(listener.is_alive() for listener in self._listeners):
            dist.destroy_process_group(self._group)

    def _loss(self, peer: int, reason: str) -> RankError:
        return RankError(f"rank {peer} is lost ({reason}); {_KEPT}", peer)

    def _send(self, peer: int, packed: bytes) -> None:
        import torch
        import torch.distributed as dist

        if peer in self._lost:
            raise self._loss(peer, self._lost[peer])
        parts = [torch.tensor([len(packed)])]
        if packed:
            parts.append(torch.frombuffer(bytearray(packed), dtype=torch.uint8))
        try:
            for part in parts:
                sending = dist.isend(part, peer, group=self._group)
                if sending is not None:
                    sending.wait(timedelta(seconds=self._timeout))
        except RuntimeError as error:
            self._lost.setdefault(peer, _reason(error))
            raise self._loss(peer, self._lost[peer]) from None

    def _listen(self, peer: int) -> None:
        import torch
        import torch.distributed as dist

        def take(part: torch.Tensor) -> None:
            receiving = dist.irecv(part, peer, group=self._group)
            if receiving is not None:
                receiving.wait(_IDLE)

        length = torch.zeros(1, dtype=torch.int64)
        try:
            while True:
                take(length)
                if not int(length):
                    self._inbox.put((peer, _Gone("it left", said_goodbye=True)))
                    return
                packed = torch.empty(int(length), dtype=torch.uint8)
                take(packed)
                self._inbox.put((peer, pickle.loads(packed.numpy())))
        except Exception as error:  # whatever it is, nothing more will be read from this peer
            self._lost.setdefault(peer, _reason(error))
            self._inbox.put((peer, _Gone(self._lost[peer])))


_KEPT = "what was finished is kept, and the same command goes on from there"


def _reason(error: Exception) -> str:
    text = str(error)
    if "closed by peer" in text or "reset by peer" in text or "Broken pipe" in text:
        return "its process ended: killed, or out of memory"
    return _first_line(error)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
