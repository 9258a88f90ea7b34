"""What tasks would cost: mteb's own counts of texts and characters, and the encoder's speed on generated English.

No row of a task is read for it. An estimate: text of a length costs what generated text of that length costs, and what
lies beyond the length limit costs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from frozenprobe.suites.mteb.adapter import MtebEncoder
from frozenprobe.suites.mteb.selection import size
from frozenprobe.tasks.builtin import load_builtin

_LENGTHS = (40, 160, 640, 2560)
_CHARACTERS = 30_000
"""Characters to encode per length: enough to be past the first, slow batches."""


@dataclass(frozen=True)
class Forecast:
    """What a task would cost.

    Attributes:
        task: Its name.
        category: Its category.
        main_score: The metric it is reported by.
        texts: Distinct texts, or None where mteb has no statistics.
        characters: Their characters.
        seconds: Estimated time of the forward pass, or None where the texts are not known.
        finished: Done already; costs nothing.
    """

    task: str
    category: str
    main_score: str
    texts: int | None
    characters: int | None
    seconds: float | None
    finished: bool = False


def forecast_tasks(model: MtebEncoder, tasks: Sequence[Any], finished: Set[str] = frozenset()) -> list[Forecast]:
    """Forecasts of tasks, in their order; `finished` names those that are done."""
    all_done = all(task.metadata.name in finished for task in tasks)
    per_character = [0.0] * len(_LENGTHS) if all_done else _seconds_per_character(model)
    lines = []
    for task in tasks:
        counted = size(task)
        done = task.metadata.name in finished
        seconds = 0.0 if done else None
        if counted is not None and not done:
            length = np.log(max(counted.characters / max(counted.texts, 1), 1))
            seconds = counted.characters * float(np.interp(length, np.log(_LENGTHS), per_character))
        metadata = task.metadata
        texts, characters = (None, None) if counted is None else (counted.texts, counted.characters)
        lines.append(Forecast(metadata.name, metadata.type, metadata.main_score, texts, characters, seconds, done))
    return lines


def _seconds_per_character(model: MtebEncoder) -> list[float]:
    """Seconds per character of texts of each length; a first, short pass warms up."""
    sentences = load_builtin("builtin-sentiment", 0).train.texts
    story = " ".join(sentences)
    story *= 1 + (_CHARACTERS + max(_LENGTHS)) // len(story)
    cache, model.cache = model.cache, None
    try:
        model.vectors(sentences[:32])
        rates = []
        for length in _LENGTHS:
            # Texts that start anywhere are all different, so that none is spared.
            starts = range(0, _CHARACTERS, length)
            texts = [story[start + number % 7 : start + length] for number, start in enumerate(starts)]
            started = time.perf_counter()
            model.vectors(texts)
            rates.append((time.perf_counter() - started) / _CHARACTERS)
            model.start_task()
    finally:
        model.cache = cache
    return rates
