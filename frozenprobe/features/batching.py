"""Token-budget batches: how many of the length-sorted rows go through the model together.

The budget counts padded tokens, rows x longest row. The best one differs several-fold between devices and dtypes, so it is
measured on the first batches of a run, which are real ones: nothing is encoded for the sake of measuring.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Int

DEFAULT_BUDGETS = {
    ("cpu", "fp32"): 1024,
    ("cpu", "bf16"): 4096,
    ("cpu", "fp16"): 2048,
    ("mps", "fp32"): 8192,
    ("cuda", "fp32"): 16_384,
    ("cuda", "bf16"): 32_768,
    ("cuda", "fp16"): 32_768,
}
"""Where the measurement starts."""

FALLBACK_BUDGET = 8192
_RANGES = {"cpu": (256, 32_768), "cuda": (2048, 1 << 18)}
_BATCH_COST = 1 / 16  # What starting a batch costs, in full batches; larger means fewer batches and more padding.
_ROUNDS = 3
_GAIN = 1.03  # A neighbour must be so much faster to be worth a move: below it is noise.

_OUT_OF_MEMORY = (
    "out of memory",
    "not enough memory",
    "can't allocate memory",
    "cublas_status_alloc_failed",
)


def is_out_of_memory(error: BaseException) -> bool:
    """True where a device or the machine had too little memory for a batch."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _OUT_OF_MEMORY)


def rows_within(lengths: Int[np.ndarray, " n"], budget: int) -> int:
    """How many of the first rows, which are sorted longest first, make the best batch within a budget.

    As many as fit where lengths are alike; fewer where they drop so fast that padding costs more than a batch of its own
    would. A row longer than the budget is a batch of one.
    """
    most = max(1, min(len(lengths), budget // int(lengths[0])))
    rows = np.arange(1, most + 1)
    cost = (rows * lengths[0] + budget * _BATCH_COST) / np.cumsum(lengths[:most])
    return most - int(cost[::-1].argmin())


def cut(rows: Int[np.ndarray, " m"], lengths: Int[np.ndarray, " n"], budget: int) -> list[Int[np.ndarray, " b"]]:
    """Cuts rows, sorted longest first, into batches within a budget; `lengths` are those of all rows."""
    batches, start = [], 0
    sizes = lengths[rows]
    while start < len(rows):
        end = start + rows_within(sizes[start:], budget)
        batches.append(rows[start:end])
        start = end
    return batches


class TokenBudget:
    """The budget in use, and the search for a better one.

    The search climbs: it encodes neighbouring stretches of about equal length with half, once and twice the budget, three
    rounds of it in different places of the length-sorted rows, and moves while a neighbour is faster.
    """

    def __init__(self, device: str, dtype: str, fixed: int | None = None) -> None:
        """Starts at `fixed`, which is then kept, or at the default of the device and the dtype."""
        kind = device.partition(":")[0]
        self.tokens = fixed or DEFAULT_BUDGETS.get((kind, dtype), FALLBACK_BUDGET)
        self.tokens_at_most = 1 << 62
        self.searching = fixed is None
        self.halved = 0
        self._low, self._high = _RANGES.get(kind, (256, 1 << 16))
        self._moves = 0
        self._warm = False
        self._start_round_trip()

    def _start_round_trip(self) -> None:
        self._candidates = [
            tokens for tokens in (self.tokens // 2, self.tokens, self.tokens * 2) if self._low <= tokens <= self._high
        ]
        self._seconds: dict[int, list[float]] = {tokens: [] for tokens in self._candidates}
        self._trial = 0

    @property
    def trial(self) -> tuple[int, int, float]:
        """The next stretch to measure: its budget, its padded tokens, and where in the sorted rows it is taken (0 to 1).

        All candidates of a round are taken at one place, so that they meet rows of one length; the first stretch
        of all only warms up.
        """
        if not self._warm:
            return self.tokens, self.tokens, 0.5
        round_, position = divmod(self._trial, len(self._candidates))
        # Back and forth: a machine that drifts hurts no candidate more than another.
        order = self._candidates if round_ % 2 == 0 else self._candidates[::-1]
        return order[position], self._candidates[-1], (0.5, 0.2, 0.8)[round_ % 3]

    def measured(self, budget: int, tokens: int, seconds: float) -> None:
        """Takes in what a stretch of so many tokens cost."""
        if not self.searching:
            return
        if not self._warm:
            self._warm = True
            return
        if budget in self._seconds:
            self._seconds[budget].append(seconds / max(tokens, 1))
        self._trial += 1
        if self._trial >= _ROUNDS * len(self._candidates):
            self._decide()

    def _decide(self) -> None:
        cost = {tokens: float(np.median(costs)) for tokens, costs in self._seconds.items() if costs}
        best = min(cost, key=lambda tokens: cost[tokens])
        self._moves += 1
        if best == self.tokens or cost[self.tokens] < cost[best] * _GAIN or self._moves > math.log2(self._high):
            self.searching = False
            return
        self.tokens = best
        self._start_round_trip()

    def halve(self, padded: int) -> None:
        """A batch of `padded` tokens did not fit: half of it is the new budget, and the search is over."""
        self.halved_elsewhere(1, max(1, padded // 2))

    def halved_elsewhere(self, times: int, tokens_at_most: int) -> None:
        """Batches were halved, by another rank perhaps, until one of `tokens_at_most` fitted."""
        self.tokens_at_most = min(self.tokens_at_most, tokens_at_most)
        self.tokens = min(self.tokens, self.tokens_at_most)
        self.halved += times
        self.searching = False
