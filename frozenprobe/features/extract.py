"""Texts in, pooled features out: one forward pass for every view, each distinct input encoded once, rows in input order.

Drives any `Encoder` (encoders/base.py). Rows are sorted by length inside large chunks and batched by a token budget
(batching.py), pooled layer by layer (pooling.py), and kept in the feature cache if there is one (cache.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Int

from frozenprobe.encoders.base import Encoder, EncoderInfo, Layer
from frozenprobe.errors import SettingsError
from frozenprobe.features.base import ExtractionReport, Features, Inputs, View
from frozenprobe.features.batching import TokenBudget
from frozenprobe.features.cache import FeatureCache, FeatureStore
from frozenprobe.features.encoding import BatchRunner
from frozenprobe.features.output import Output
from frozenprobe.features.pooling import LAST_ONLY, ViewPooler
from frozenprobe.features.sharding import Team
from frozenprobe.features.tokens import Chunk, KeptTokens, TextSource, count_truncation
from frozenprobe.settings import ExtractionSettings, FeatureSettings

_SAVE_SECONDS = 20.0
"""Encoded rows wait at most so long before they are in the cache."""


@dataclass(frozen=True)
class ExtractionProgress:
    """How far an extraction has got.

    Attributes:
        done: Tokens encoded so far, padding not counted.
        total: Tokens to encode in all; an estimate by characters until every text is tokenised.
    """

    done: int
    total: int


def resolve_views(settings: FeatureSettings, info: EncoderInfo) -> list[View]:
    """The views that settings mean for an encoder.

    `all` is 0 ... L-1 and `last`. Number L, the last block's raw output, differs from `last` where the model has a final
    norm, and is a view only when asked for by number. Negative numbers count back from `last` = -1.

    Raises:
        SettingsError: A layer is out of range, or a pooling of the last layer only is asked without that layer.
    """
    count = info.layers
    wanted = (*range(count), "last") if settings.layers == "all" else settings.layers
    if not wanted:
        raise SettingsError("no layers asked for; allowed are last, all and numbers such as 0,6,-2")
    layers = list(dict.fromkeys(resolve_layer(layer, info) for layer in wanted))
    for pooling in settings.poolings:
        if pooling in LAST_ONLY and "last" not in layers:
            raise SettingsError(f"pooling {pooling} belongs to the last layer; add last to the layers")
        if pooling == "first-last-mean" and not count:
            raise SettingsError(
                "pooling first-last-mean needs the first block, and this encoder shows only its last layer"
            )
    return [
        View(layer, pooling)
        for layer in layers
        for pooling in dict.fromkeys(settings.poolings)
        if layer == "last" or pooling not in LAST_ONLY
    ]


def resolve_layer(layer: Layer, info: EncoderInfo) -> Layer:
    """A layer by its number from below, or `last`; -1 is `last`, -2 the last block but one.

    Raises:
        SettingsError: It is out of range.
    """
    count = info.layers
    if layer == "last" or layer == -1:
        return "last"
    if not -count - 1 <= layer <= count:
        raise SettingsError(
            f"layer {layer} is out of range: the encoder has {count} blocks; allowed are 0 (embeddings) to {count}, "
            f"-1 (last) to {-count - 1} (embeddings), last and all"
        )
    return layer if layer >= 0 else count + 1 + layer


def extract(
    encoder: Encoder,
    inputs: Sequence[Inputs] | KeptTokens,
    views: Sequence[View],
    settings: ExtractionSettings,
    *,
    cache: FeatureCache | None = None,
    on_progress: Callable[[ExtractionProgress], None] | None = None,
    team: Team | None = None,
) -> list[Features]:
    """Encodes several inputs together, such as the splits of a task, and pools all views in the same pass.

    Args:
        encoder: The frozen encoder.
        inputs: What to encode; a tokenised input that occurs more than once, in whichever of them, is encoded once.
            `KeptTokens` stand for inputs that were tokenised before.
        views: Layers and poolings, as `resolve_views` gives them.
        settings: The token budget (None: measured on the first batches).
        cache: Where vectors are looked up and kept; None encodes everything.
        on_progress: Called after every batch.
        team: The other ranks, which encode their share (engine/ranks.py); None: this process encodes everything.

    Returns:
        The features of each input, float32 `[n, d]` per view, rows in input order. All of them carry one report, of
        the whole call. The arrays of one view are parts of one block of memory.

    Raises:
        EncoderError: `own` pooling of an encoder that has none.
        FeatureError: A non-finite feature (named by row and input), an input without tokens, one that does not
            fit in memory even alone, or an encoder that breaks its contract.
        RankError: Another rank is lost.
    """
    views = list(dict.fromkeys(views))
    if not views:
        raise SettingsError("no views asked for")
    pooler = ViewPooler(encoder, views)
    report = ExtractionReport(seconds=dict.fromkeys(("tokenize", "forward", "cache"), 0.0))
    clock = partial(_timed, report.seconds)
    with clock("tokenize"):
        source = inputs if isinstance(inputs, KeptTokens) else TextSource(encoder, inputs)
        sources = source.sources
        report.rows = len(sources)
        progress = _Progress(source.characters, report, on_progress)
    output = Output(views, source.sizes, encoder.info.hidden_size)
    budget = TokenBudget(encoder.info.device, encoder.info.dtype, settings.tokens_per_batch)
    if team is not None and team.in_step:
        budget.searching = False  # a search runs as many batches as time tells it to
    runner = BatchRunner(encoder, pooler, budget, output, report, team)
    chunks = source.chunks()
    keeper = None
    known: dict[bytes, int] = {}
    group = None
    try:
        while True:
            with clock("tokenize"):
                chunk = next(chunks, None)
                if chunk is None:
                    break
                if chunk.group is not group:
                    known = {}
                new = _new_positions(chunk, known, sources)
                report.distinct += len(new)
                count_truncation(report, chunk)
            with clock("cache"):
                if cache is not None and chunk.group is not group:
                    if keeper is not None:
                        keeper.save()
                    keeper = _Keeper(cache.open(encoder, chunk.group.role, chunk.group.form), output)
                group = chunk.group
                if keeper is not None:
                    new = keeper.load(chunk, new)
            progress.add(chunk, new)
            finished = runner.run(chunk, new)
            while True:
                with clock("forward"):
                    positions = next(finished, None)
                if positions is None:
                    break
                progress.show()
                if keeper is not None:
                    with clock("cache"):
                        keeper.add(chunk, positions)
    finally:
        # Ends the tokenising thread, and keeps what was encoded even where the run is interrupted.
        chunks.close()
        if keeper is not None:
            with clock("cache"):
                keeper.save()
    progress.show()
    report.tokens_per_batch = budget.tokens
    report.halved = budget.halved
    with clock("forward"):
        # Two steps lead to a row's vector: to the first row with its text, and on to the first with its tokens.
        return output.finish(sources[sources], report)


def _new_positions(chunk: Chunk, known: dict[bytes, int], sources: Int[np.ndarray, " n"]) -> Int[np.ndarray, " m"]:
    """Positions of the tokenised inputs met for the first time; the others' rows are pointed to where they were."""
    new = []
    rows = chunk.first_rows.tolist()
    digests = np.ascontiguousarray(chunk.keys).tobytes()
    for position, row in enumerate(rows):
        first = known.setdefault(digests[16 * position : 16 * position + 16], row)
        if first == row:
            new.append(position)
        else:
            sources[row] = first
    return np.array(new, dtype=np.int64)


class _Keeper:
    """Between the output and the cache: loads what is held, saves what was encoded every few seconds."""

    def __init__(self, store: FeatureStore, output: Output) -> None:
        self._store = store
        self._output = output
        self._held: dict[View, np.ndarray] = {}
        self._waiting: dict[View, list[tuple[np.ndarray, np.ndarray]]] = {view: [] for view in output.views}
        self._saved = time.monotonic()

    def load(self, chunk: Chunk, positions: Int[np.ndarray, " m"]) -> Int[np.ndarray, " k"]:
        """Fills the output from the cache; returns the positions that lack a view and are to be encoded."""
        complete = np.ones(len(positions), dtype=bool)
        for view in self._output.views:
            held = self._held[view] = np.zeros(len(chunk.tokens), dtype=bool)
            for places, vectors in self._store.read(view, chunk.keys[positions]):
                self._output.put(view, chunk.first_rows[positions[places]], vectors)
                held[positions[places]] = True
            complete &= held[positions]
        return positions[~complete]

    def add(self, chunk: Chunk, positions: Int[np.ndarray, " k"]) -> None:
        """Takes in positions of the chunk that was loaded last, now encoded."""
        for view, held in self._held.items():
            lacking = positions[~held[positions]]
            self._waiting[view].append((chunk.keys[lacking], chunk.first_rows[lacking]))
        if time.monotonic() - self._saved > _SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Writes what waits."""
        for view, waiting in self._waiting.items():
            if waiting:
                keys, rows = map(np.concatenate, zip(*waiting, strict=True))
                waiting.clear()
                self._store.write(view, keys, self._output.get(view, rows))
        self._saved = time.monotonic()


class _Progress:
    """Reports tokens done, and estimates tokens in all from the characters of what is not tokenised yet."""

    def __init__(
        self, characters: int, report: ExtractionReport, on_progress: Callable[[ExtractionProgress], None] | None
    ) -> None:
        self._report = report
        self._on_progress = on_progress
        self._characters_left = characters
        self._characters = self._tokens = self._to_encode = 0

    def add(self, chunk: Chunk, new: Int[np.ndarray, " m"]) -> None:
        """A chunk is tokenised, and `new` of it is to be encoded."""
        self._to_encode += int(chunk.tokens.lengths[new].sum())
        if self._on_progress is not None:
            self._tokens += int(chunk.tokens.lengths.sum())
            self._characters += chunk.characters
            self._characters_left -= chunk.characters

    def show(self) -> None:
        """Tells the caller."""
        if self._on_progress is not None:
            left = self._characters_left * self._tokens / max(self._characters, 1)
            self._on_progress(ExtractionProgress(self._report.tokens, self._to_encode + round(left)))


@contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Generator[None]:
    started = time.perf_counter()
    try:
        yield
    finally:
        seconds[phase] += time.perf_counter() - started
