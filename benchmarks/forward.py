"""The peer of whole evaluations: a bare forward loop over the same distinct token ids, sorted by length, within a token budget."""

from __future__ import annotations

import time
from collections.abc import Iterable

import numpy as np
import torch
from torch import nn

from frozenprobe.encoders.base import Encoder
from frozenprobe.features.base import Inputs

Row = tuple[tuple[int, ...], tuple[int, ...]]
BUDGETS = (512, 1024, 2048, 4096, 8192)


def distinct_rows(encoder: Encoder, inputs: Iterable[Inputs]) -> list[Row]:
    """Token ids and type ids of every distinct input, shortest first."""
    distinct = set()
    for part in inputs:
        tokens = encoder.tokenize(part.texts, part.pairs)
        for i in range(len(tokens)):
            place = slice(tokens.offsets[i], tokens.offsets[i + 1])
            kinds = tokens.ids[place] * 0 if tokens.types is None else tokens.types[place]
            distinct.add((tuple(tokens.ids[place].tolist()), tuple(kinds.tolist())))
    return sorted(distinct, key=lambda row: len(row[0]))


def bare_forward(model: nn.Module, rows: list[Row], budget: int) -> float:
    """Seconds of running a BERT over the rows and taking the mean over their tokens."""
    started = time.perf_counter()
    with torch.inference_mode():
        start = 0
        while start < len(rows):
            end = start + 1
            while end < len(rows) and (end + 1 - start) * len(rows[end][0]) <= budget:
                end += 1
            width = len(rows[end - 1][0])
            ids, kinds, mask = (np.zeros((end - start, width), np.int64) for _ in range(3))
            for i, (row, types) in enumerate(rows[start:end]):
                ids[i, : len(row)], kinds[i, : len(row)], mask[i, : len(row)] = row, types, 1
            inputs = [torch.from_numpy(array) for array in (ids, mask, kinds)]
            hidden = model(input_ids=inputs[0], attention_mask=inputs[1], token_type_ids=inputs[2]).last_hidden_state
            (hidden * inputs[1][..., None]).sum(1) / inputs[1].sum(1, keepdim=True)
            start = end
    return time.perf_counter() - started


def best_budget(model: nn.Module, rows: list[Row]) -> int:
    """The budget at which a tenth of the rows is quickest."""
    return min(BUDGETS, key=lambda budget: bare_forward(model, rows[::10], budget))
