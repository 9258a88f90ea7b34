"""Batches by token budget, and the search for a budget, on made-up machines whose best budget is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from frozenprobe.features.base import Inputs, View
from frozenprobe.features.batching import DEFAULT_BUDGETS, TokenBudget, is_out_of_memory, rows_within
from frozenprobe.features.extract import extract
from frozenprobe.settings import FeatureSettings


def test_rows_within_a_budget():
    alike = np.full(100, 10)
    assert rows_within(alike, 320) == 32
    assert rows_within(alike, 5) == 1
    assert rows_within(alike[:7], 320) == 7
    falling = np.concatenate([[500], np.full(100, 10)])
    assert rows_within(falling, 2000) == 1, "three short rows padded fifty-fold cost more than a batch of their own"
    assert rows_within(np.array([40, 39, 38, 38]), 160) == 4


def search(cost, device="cpu", dtype="fp32", noise=0.0):
    """Runs the search on a machine where a token costs `cost(budget)`."""
    generator = np.random.default_rng(0)
    budget = TokenBudget(device, dtype)
    spent = 0
    while budget.searching:
        tokens, stretch, place = budget.trial
        assert 0 <= place <= 1
        assert stretch >= tokens
        budget.measured(tokens, stretch, stretch * cost(tokens) * (1 + noise * generator.random()))
        spent += stretch
        assert spent < 10**8
    return budget.tokens, spent


@pytest.mark.parametrize("best", [256, 1024, 4096, 16_384])
def test_the_search_finds_the_best_budget(best):
    found, spent = search(lambda tokens: 1 + abs(np.log2(tokens / best)))
    assert found == best
    assert spent < 60 * max(best, 1024)


def test_noise_alone_moves_nothing():
    assert search(lambda tokens: 1.0, noise=0.02)[0] == DEFAULT_BUDGETS["cpu", "fp32"]
    assert search(lambda tokens: 1.0, "cuda:1", "bf16", noise=0.02)[0] == DEFAULT_BUDGETS["cuda", "bf16"]


def test_the_search_stays_in_range():
    assert search(lambda tokens: 1 / tokens)[0] == 32_768
    assert search(lambda tokens: tokens)[0] == 256


def test_a_given_budget_is_kept_and_an_unknown_device_has_one():
    budget = TokenBudget("cpu", "fp32", 77)
    assert (budget.tokens, budget.searching) == (77, False)
    assert TokenBudget("xpu", "int8").tokens > 0


def test_memory_caps_the_budget():
    budget = TokenBudget("cpu", "fp32")
    budget.halve(600)
    budget.halve(300)
    assert (budget.tokens, budget.halved, budget.searching) == (150, 2, False)


def test_the_search_uses_real_batches_only(fake, words):
    encoder = fake()
    report = extract(encoder, [Inputs(words(3000))], [View("last", "mean")], FeatureSettings())[0].report
    assert encoder.encoded == 3000
    assert report.tokens_per_batch in {2**power for power in range(8, 16)}
    assert len({rows * width // 700 for rows, width in encoder.batches}) > 1, "more than one budget was tried"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("x"), True),
        (MemoryError(), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: not enough memory: you tried"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("MPS backend out of memory"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_counts_as_out_of_memory(error, expected):
    assert is_out_of_memory(error) is expected
