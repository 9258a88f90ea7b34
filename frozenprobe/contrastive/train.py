"""Trains poolers on frozen token features (paper, section 4.2), several of them off one forward pass.

A step encodes its distinct texts once, then every pooler takes its own step on them. Everything random is a function
of (seed, step, content), so that a resume continues bit for bit. With `unfrozen`, the encoder is trained along with
one pooler.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from frozenprobe.contrastive.batches import HeldOut, Step, TrainingSet
from frozenprobe.contrastive.data import text_key
from frozenprobe.contrastive.distributed import Ranks
from frozenprobe.contrastive.features import Block, FeatureSource, TextBatch
from frozenprobe.contrastive.heldout import PerQuery, score
from frozenprobe.contrastive.pooler import BaselinePooler
from frozenprobe.contrastive.settings import TrainingSettings
from frozenprobe.contrastive.sweep import Candidate
from frozenprobe.contrastive.trainee import Side, Trainee, train_together
from frozenprobe.encoders.base import Trainable
from frozenprobe.errors import FeatureError
from frozenprobe.features.batching import is_out_of_memory

_AHEAD = 2
_SCORES_PER_RUN = 10
_EVALUATED_AT_ONCE = 512  # texts whose token features are held during a held-out score
BASELINE = "mean pooling"


@dataclass(frozen=True)
class TrainingProgress:
    """How far a training has got.

    Attributes:
        step: Steps done.
        steps: Steps in all.
        losses: The last loss of every pooler.
        rows_per_second: Of this call so far.
        seconds_left: At that rate.
        held_out: The latest held-out score of every pooler, and of mean pooling.
    """

    step: int
    steps: int
    losses: dict[str, float]
    rows_per_second: float
    seconds_left: float
    held_out: dict[str, dict[str, float]]

    def facts(self) -> str:
        """Rate, loss and held-out score in words; of a sweep, those of the best."""
        line = f"{self.rows_per_second:,.0f} rows/s, loss {min(self.losses.values()):.3f}"
        scores = [entry["ndcg@10"] for name, entry in self.held_out.items() if name in self.losses]
        return line + (f", nDCG@10 {max(scores):.3f}" if scores else "")


@dataclass
class TrainingState:
    """Where a training stands, beside its tensors.

    Attributes:
        step: Steps done.
        history: One entry per step done (`losses` by pooler), and one per held-out score (`held_out` by pooler).
        failed: Poolers whose loss was not finite, with the step.
        tokens_at_most: Token budget after memory ran out, if it did.
    """

    step: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    failed: dict[str, int] = field(default_factory=dict)
    tokens_at_most: int | None = None


class PoolerTraining:
    """A training: poolers, their optimisers, the order of the rows, and where it stands.

    Attributes:
        state: Where it stands.
        steps: Steps in all.
        trainees: The poolers by name.

    Args:
        data: The rows.
        poolers: The poolers to be trained and how, by name.
        settings: How.
        source: Gives token features.
        ranks: The processes that train together.
        trainable: The encoder, where it is trained too.
    """

    def __init__(
        self,
        data: TrainingSet,
        poolers: dict[str, tuple[Candidate, nn.Module]],
        settings: TrainingSettings,
        source: FeatureSource,
        ranks: Ranks,
        trainable: Trainable | None = None,
    ) -> None:
        self.data = data
        self._settings = settings
        self._source = source
        self._ranks = ranks
        self._trainable = trainable
        self._device = source.device
        self.steps = settings.epochs * data.steps(settings.batch_size)
        self.state = TrainingState()
        self.trainees = {
            name: Trainee(
                candidate,
                pooler.to(self._device),
                source.encoder.info.hidden_size,
                self.steps,
                ranks,
                encoder=None if trainable is None else trainable.trained_module().requires_grad_(True),
            )
            for name, (candidate, pooler) in poolers.items()
        }
        held_out = data.retrieval()
        self._held_out = None if held_out is None else (held_out, self._tokenized(held_out))

    def run(
        self,
        *,
        checkpoint: Callable[[], None],
        on_progress: Callable[[TrainingProgress], None] | None = None,
        note: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Trains from where the state stands to the end.

        Args:
            checkpoint: Writes the state down; called every `checkpoint_every` steps, at the end, and on an interruption.
            on_progress: Called after every step.
            note: Told what a reader of the scores should know.

        Raises:
            FeatureError: Token features are not finite, or no pooler's loss is.
            KeyboardInterrupt: Interrupted; the state is written down.
        """
        every = self._settings.evaluate_every or max(1, self.steps // _SCORES_PER_RUN)
        if not self.state.history:
            self._evaluate()
        started, rows = time.perf_counter(), 0
        with _finishing_steps() as interrupted:
            for step, queries, passages in self.prepared_steps():
                losses = self._step(step, queries, passages, note)
                budget = self._source.budget
                self.state.tokens_at_most = budget.tokens_at_most if budget.halved else None
                self.state.step += 1
                self.state.history.append({"step": self.state.step, "losses": losses})
                rows += len(step.targets.query)
                done = self.state.step == self.steps
                if done or self.state.step % every == 0:
                    self._evaluate()
                stop = self._ranks.any(bool(interrupted), self._device)
                if done or stop or self.state.step % self._settings.checkpoint_every == 0:
                    checkpoint()
                if on_progress is not None:
                    rate = rows / (time.perf_counter() - started)
                    left = (self.steps - self.state.step) * self._settings.batch_size / rate
                    on_progress(TrainingProgress(self.state.step, self.steps, losses, rate, left, self.latest_scores()))
                if stop and not done:
                    raise KeyboardInterrupt

    def _step(
        self, step: Step, queries: TextBatch, passages: TextBatch, note: Callable[[str], None]
    ) -> dict[str, float]:
        try:
            blocks = [self.blocks(batch) for batch in (queries, passages)]
            return self.train_on(self.state.step, step, (queries, passages), blocks, note)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise FeatureError(
                f"step {self.state.step + 1} does not fit in memory on {self._device}: choose a --chunk of texts "
                "(smaller than before), or a smaller --token-budget"
            ) from None

    def latest_scores(self) -> dict[str, dict[str, float]]:
        """The latest held-out score of every pooler."""
        return next((entry["held_out"] for entry in reversed(self.state.history) if "held_out" in entry), {})

    def tensors(self) -> dict[str, torch.Tensor]:
        """Parameters and optimiser states of all poolers, by number and name."""
        return {
            f"{number}/{name}": tensor
            for number, trainee in enumerate(self.trainees.values())
            for name, tensor in trainee.tensors().items()
        }

    def restore(self, state: TrainingState, tensors: dict[str, torch.Tensor]) -> None:
        """Goes back to where `state` and `tensors` were."""
        self.state = state
        if state.tokens_at_most is not None:
            self._source.budget.halve(2 * state.tokens_at_most)
        for number, trainee in enumerate(self.trainees.values()):
            prefix = f"{number}/"
            trainee.restore({name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)})

    def prepared_steps(self) -> Iterator[tuple[Step, TextBatch, TextBatch]]:
        """The steps that are left, read and tokenised in another thread while the one before trains."""
        per_epoch = self.data.steps(self._settings.batch_size)
        pool = ThreadPoolExecutor(1, thread_name_prefix="rows")
        waiting: deque[Future[tuple[Step, TextBatch, TextBatch]]] = deque()
        try:
            batches: list[np.ndarray] = []
            for number in range(self.state.step, self.steps):
                epoch, place = divmod(number, per_epoch)
                if not batches or place == 0:
                    batches = self.data.batch(self._settings.batch_size, self._settings.seed, epoch)
                waiting.append(pool.submit(self._prepare, batches[place]))
                if len(waiting) > _AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _prepare(self, rows: np.ndarray) -> tuple[Step, TextBatch, TextBatch]:
        step = self.data.assemble(rows)
        batches = []
        for table, role in ((step.queries, "query"), (step.passages, "document")):
            texts, keys = table.texts, table.keys
            if not self._settings.deduplicate:
                texts, keys = [texts[slot] for slot in table.slots], keys[table.slots]
            batches.append(self._source.tokenize(texts, keys, role))
        return step, batches[0], batches[1]

    def train_on(
        self,
        number: int,
        step: Step,
        batches: tuple[TextBatch, TextBatch],
        blocks: Sequence[Sequence[Block]],
        note: Callable[[str], None] = lambda line: None,
    ) -> dict[str, float]:
        """Lets every pooler take a step on blocks of the step's queries and passages; returns their losses."""
        tables = (step.queries, step.passages)
        sides = [
            Side(
                blocks=own,
                keys=batch.keys,
                slots=None if self._settings.deduplicate else torch.from_numpy(table.slots).to(self._device),
                distinct=len(table.texts),
            )
            for own, batch, table in zip(blocks, batches, tables, strict=True)
        ]
        going = {name: trainee for name, trainee in self.trainees.items() if name not in self.state.failed}
        recompute = self._settings.chunk is not None
        found = train_together(list(going.values()), number, sides, step.targets.to(self._device), recompute=recompute)
        losses = {}
        for name, loss in zip(going, found, strict=True):
            if math.isfinite(loss):
                losses[name] = loss
                continue
            _require_finite([block for part in blocks for block in part], number)
            self.state.failed[name] = number
            note(
                f"{name}: the loss of step {number + 1} is not finite; it is trained no further (a smaller lr may help)"
            )
        if not losses:
            raise FeatureError(f"the loss of step {number + 1} is not finite: choose a smaller --lr")
        return losses

    def blocks(self, batch: TextBatch) -> list[Block]:
        """This rank's share of a batch, as blocks."""
        rows = self._ranks.share(batch.tokens.lengths)
        if self._trainable is not None:
            return self._source.trained(batch, rows, self._trainable)
        return self._source.frozen(batch, rows) if len(rows) else []

    def _tokenized(self, task: HeldOut) -> tuple[TextBatch, TextBatch]:
        queries, passages = (
            np.array([text_key(t) for t in part], dtype=np.uint64) for part in (task.queries, task.passages)
        )
        return (
            self._source.tokenize(task.queries, queries, "query"),
            self._source.tokenize(task.passages, passages, "document"),
        )

    def _evaluate(self) -> None:
        """Scores all poolers on the held-out queries, and adds the means to the history."""
        if self._held_out is None:
            return
        scores = self.held_out_scores()
        means = {name: {metric: float(v.mean()) for metric, v in found.items()} for name, found in scores.items()}
        self.state.history.append({"step": self.state.step, "held_out": means})

    def held_out_scores(self) -> dict[str, PerQuery]:
        """The held-out score of every query, for all poolers and for mean pooling; empty where nothing is held out."""
        if self._held_out is None:
            return {}
        task, batches = self._held_out
        poolers: dict[str, nn.Module] = {BASELINE: BaselinePooler("mean")}
        poolers |= {name: t.pooler.eval() for name, t in self.trainees.items() if name not in self.state.failed}
        sides = [self._embed_all(poolers, batch) for batch in batches]
        return {name: score(sides[0][name], sides[1][name], task.relevant) for name in poolers}

    @torch.no_grad()
    def _embed_all(self, poolers: dict[str, nn.Module], batch: TextBatch) -> dict[str, torch.Tensor]:
        """Embeddings `[m, e]` of a batch by all poolers; the token features of some hundred texts are held at a time."""
        widths = {name: trainee.dimensions for name, trainee in self.trainees.items()}
        own = self._ranks.share(batch.tokens.lengths)
        found = {
            name: torch.zeros(len(batch), widths.get(name, self._source.encoder.info.hidden_size), device=self._device)
            for name in poolers
        }
        for start in range(0, len(own), _EVALUATED_AT_ONCE):
            for block in self._source.frozen(batch, own[start : start + _EVALUATED_AT_ONCE]):
                tokens, mask = block.features()
                for name, pooler in poolers.items():
                    found[name][block.rows.to(self._device)] = pooler(tokens, mask)
        self._ranks.sum_(found.values())
        return found


def _require_finite(blocks: Sequence[Block], step: int) -> None:
    for block in blocks:
        tokens, mask = block.features()
        if not bool(tokens[mask].isfinite().all()):
            raise FeatureError(
                f"a text of step {step + 1} has token features that are not finite; check the weights, or use fp32"
            )


@contextmanager
def _finishing_steps() -> Generator[list[int]]:
    """Lets an interruption wait for the end of the step: the list is filled instead; a second one is immediate."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def receive(number: int, frame: Any) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    before = signal.signal(signal.SIGINT, receive)
    try:
        yield received
    finally:
        signal.signal(signal.SIGINT, before)
