"""An evaluation over several ranks: rank 0 does it, the others encode for it, and all of them have the result.

Started by `torchrun` or called on every rank of a training, it is the same. One process needs none of it and pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from frozenprobe import ranks
from frozenprobe.encoders.base import Encoder, RunsInStep
from frozenprobe.encoders.contract import check_padding
from frozenprobe.errors import EncoderError, FrozenprobeError, OtherRankError, RankError
from frozenprobe.features.sharding import Team, Work, as_own, do, portable
from frozenprobe.ranks import Messages

Result = TypeVar("Result")
Load = Callable[[], Encoder]


@dataclass(frozen=True)
class _Load:
    """Rank 0 loads the encoder, and so is every rank to."""


@dataclass(frozen=True)
class _Loaded:
    """A rank has the encoder, or could not get it."""

    fingerprint: str | None
    error: Exception | None = None


@dataclass(frozen=True)
class _Ended:
    """The evaluation is over: with a result, or with an error."""

    result: Any = None
    error: BaseException | None = None


def on_all_ranks(load: Load, work: Callable[[Load, Team | None], Result], *, timeout: float) -> Result:
    """Does work that encodes on all ranks; every one of them calls it, and each is given the result.

    Args:
        load: Gives the encoder; called on each rank, at the moment when `work` calls what it was given for it.
        work: Called on rank 0 only, with `load` and with the team that `extract` shares its forward passes with; the team is
            None where there is but one rank.
        timeout: Seconds without a message after which a rank counts as lost.

    Raises:
        FrozenprobeError: What `load` or `work` raised, on every rank.
        RankError: A rank was lost, or did not come.
        EncoderError: The ranks have different encoders.
    """
    if ranks.count() == 1:
        return work(lambda: _checked(load), None)
    with Messages(timeout) as messages:
        try:
            return _lead(load, work, messages) if messages.rank == 0 else _follow(load, messages)
        except KeyboardInterrupt:
            lost = messages.find_lost()
            if lost is None:
                raise
            raise lost from None  # the launcher interrupts the others when one has died


def _lead(load: Load, work: Callable[[Load, Team | None], Result], messages: Messages) -> Result:
    team = Team(messages)

    def load_everywhere() -> Encoder:
        messages.broadcast(_Load())
        encoder = _checked(load)
        team.in_step = isinstance(encoder, RunsInStep) and encoder.in_step
        own = encoder.fingerprint()
        for _ in messages.peers:
            rank, loaded = messages.receive()
            if loaded.error is not None:
                raise as_own(loaded.error, rank)
            if loaded.fingerprint != own:
                raise EncoderError(f"{encoder.info.name} differs between ranks 0 and {rank}: other weights or settings")
        return encoder

    try:
        result = work(load_everywhere, team)
    except BaseException as error:
        told: BaseException = OtherRankError(f"rank 0 failed: {type(error).__name__}: {error}")
        if isinstance(error, FrozenprobeError | KeyboardInterrupt):
            told = error
        _tell(messages, _Ended(error=told))
        raise
    messages.broadcast(_Ended(result))
    return result


def _tell(messages: Messages, ended: _Ended) -> None:
    try:
        messages.broadcast(ended)
    except RankError:
        return  # which is what it is about, or of no more importance


def _follow(load: Load, messages: Messages) -> Any:
    encoder: Encoder | None = None
    while True:
        _, message = messages.receive(patient=True)
        if isinstance(message, _Ended):
            if message.error is not None:
                raise message.error
            return message.result
        if isinstance(message, _Load):
            try:
                encoder = _checked(load)
                messages.send(0, _Loaded(encoder.fingerprint()))
            except RankError:
                raise
            except Exception as error:
                messages.send(0, _Loaded(None, portable(error)))
        elif isinstance(message, Work) and encoder is not None:
            do(message, encoder, messages)


def _checked(load: Load) -> Encoder:
    encoder = load()
    check_padding(encoder)
    return encoder
