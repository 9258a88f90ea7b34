"""What a trained pooler is worth: against mean pooling of the same frozen features, and warm against cold start.

    python -m benchmarks.poolers NAME --ckpt crossbert:nano --warm-start [--write]
    python -m benchmarks.poolers NAME --ckpt all-mpnet-base-v2 --layer 6 [--write]

`FROZENPROBE_TEST_DATA` names a folder that holds `local/msmarco-triples`, `sentence-transformers/all-nli` and `mteb/scifact`. Two trainings
each: on the MS MARCO triples, scored on held-out queries and on SciFact, and on the dev triplets of All-NLI, scored on held-out anchors and
on the test triplets (does the entailed sentence lie nearer than the contradicted one). All differences are paired, with 95% intervals.

The sets are small (2,611 and 2,954 rows), so the paper's one epoch in batches of 512 would be five steps: here batches are of 64 and
the learning rate is 5e-4, fixed before anything was measured. The same command goes on where it was.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn.functional import normalize

from benchmarks.measure import print_rows, write_down
from frozenprobe import MtebEncoder, load_encoder, train_pooler
from frozenprobe.contrastive.heldout import paired_interval, score
from frozenprobe.contrastive.pooler import BaselinePooler
from frozenprobe.encoders.base import Encoder, Layer
from frozenprobe.settings import EncoderSettings, parse
from frozenprobe.statistics.paired import mcnemar
from frozenprobe.suites.mteb.data import load, use_local_copies
from frozenprobe.suites.mteb.quiet import quiet
from frozenprobe.suites.mteb.selection import fresh, select
from frozenprobe.suites.mteb.settings import MtebSettings

MSMARCO = "local/msmarco-triples/default/train.parquet"
NLI = "sentence-transformers/all-nli/triplet"
MEAN = "mean"


class SideBySide(nn.Module):
    """Mean pooling and every trained pooler off the same tokens: their unit vectors, one after the other."""

    def __init__(self, poolers: dict[str, nn.Module]) -> None:
        super().__init__()
        self.names = [MEAN, *poolers]
        self.poolers = nn.ModuleList([BaselinePooler("mean"), *poolers.values()])
        self.widths: list[int] = []

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Vectors `[b, sum of widths]` of tokens `[b, t, d]`."""
        vectors = [pooler(tokens, mask) for pooler in self.poolers]
        self.widths = [vector.shape[1] for vector in vectors]
        return torch.cat([normalize(vector.float(), dim=1) for vector in vectors], dim=1)


class Comparison:
    """Encodes texts once for all poolings."""

    def __init__(self, encoder: Encoder, layer: Layer, poolers: dict[str, nn.Module]) -> None:
        self._pooler = SideBySide(poolers)
        self._encoder = MtebEncoder(encoder, self._pooler, layer=layer, normalise=False)

    def vectors(self, texts: Sequence[str]) -> dict[str, torch.Tensor]:
        """Unit vectors `[n, e]` by pooling."""
        together = torch.from_numpy(self._encoder.vectors(texts))
        return dict(zip(self._pooler.names, together.split(self._pooler.widths, dim=1), strict=True))


def scifact(comparison: Comparison, data: Path) -> dict[str, np.ndarray]:
    """nDCG@10 of every query by pooling."""
    settings = parse(MtebSettings, {"encoder": {"ckpt": "-"}, "tasks": "SciFact", "benchmark": "MTEB(eng, v1)"})
    (task,) = select(settings).tasks
    with tempfile.TemporaryDirectory() as pages, quiet():
        use_local_copies([task], data, Path(pages))
        task = fresh(task)
        load(task)
    split: Any = task.dataset["default"]["test"]  # ty: ignore[not-subscriptable]
    queries, passages = split["queries"]["text"], [f"{row['title']} {row['text']}".strip() for row in split["corpus"]]
    relevant = np.zeros((len(queries), len(passages)), dtype=bool)
    place = {passage: column for column, passage in enumerate(split["corpus"]["id"])}
    for row, query in enumerate(split["queries"]["id"]):
        for passage, grade in split["relevant_docs"][query].items():
            relevant[row, place[passage]] = grade > 0
    asked, found = comparison.vectors(queries), comparison.vectors(passages)
    return {name: score(asked[name], found[name], relevant)["ndcg@10"] for name in asked}


def triplets(comparison: Comparison, path: Path) -> dict[str, np.ndarray]:
    """By pooling, for every triplet: whether the positive is more similar to the anchor than the negative."""
    frame = pd.read_parquet(path)
    anchor, positive, negative = (comparison.vectors(frame[column].tolist()) for column in frame.columns[:3])
    return {
        name: ((anchor[name] * positive[name]).sum(1) > (anchor[name] * negative[name]).sum(1)).numpy()
        for name in anchor
    }


def differences(what: str, by_pooling: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Every pooling's mean with its interval, and every trained one's paired difference to those before it."""
    rows: list[dict[str, Any]] = []
    names = list(by_pooling)
    for number, name in enumerate(names):
        values = by_pooling[name].astype(float)
        low, high = paired_interval(values)
        row: dict[str, Any] = {
            "what": f"{what}: {name}",
            "n": len(values),
            "ours": values.mean(),
            "low": low,
            "high": high,
        }
        for other in names[:number]:
            difference = values - by_pooling[other]
            row[f"against {other}"] = [
                round(float(value), 4) for value in (difference.mean(), *paired_interval(difference))
            ]
            if by_pooling[name].dtype == bool:
                row[f"p against {other}"] = mcnemar(by_pooling[other], by_pooling[name])
        rows.append(row)
    return rows


def measure(arguments: argparse.Namespace, data: Path, out: Path) -> list[dict[str, Any]]:
    """Trains on both sets and scores what comes out."""
    encoder = load_encoder(EncoderSettings(ckpt=arguments.ckpt, dtype=arguments.dtype, max_length=arguments.max_length))
    rows: list[dict[str, Any]] = []
    for name, source in (("msmarco", data / MSMARCO), ("all-nli", data / NLI / "dev.parquet")):
        result = train_pooler(
            encoder,
            out=out / name,
            layer=arguments.layer,
            data={"train_data": str(source)},
            sweep="warm-start=false,true" if arguments.warm_start else None,
            training={"batch_size": 64, "epochs": arguments.epochs, "lr": 5e-4, "keep_features": True},
        )
        held_out = pd.read_parquet(out / name / "held_out.parquet")
        scores = {str(pooler): part["ndcg@10"].to_numpy() for pooler, part in held_out.groupby("pooler", sort=False)}
        rows += differences(f"trained on {name}, nDCG@10 of held-out queries", scores)
        comparison = Comparison(encoder, arguments.layer, result.poolers)
        if name == "msmarco":
            rows += differences("trained on msmarco, nDCG@10 of SciFact", scifact(comparison, data))
        else:
            right = triplets(comparison, data / NLI / "test.parquet")
            rows += differences("trained on all-nli, accuracy on test triplets", right)
    return rows


def main() -> None:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="of the results: results/measured/poolers-NAME.json")
    parser.add_argument("--ckpt", required=True)
    parser.add_argument(
        "--layer",
        type=lambda word: word if word == "last" else int(word),
        default="last",
        help="whose tokens are pooled",
    )
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--max-length", type=int)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--warm-start", action="store_true", help="also begin with the encoder's own pooler")
    parser.add_argument("--write", action="store_true", help="write the results down")
    arguments = parser.parse_args()
    rows = measure(arguments, Path(os.environ["FROZENPROBE_TEST_DATA"]), Path("runs/poolers") / arguments.name)
    print_rows(rows)
    if arguments.write:
        options = f"--ckpt {Path(arguments.ckpt).name} --layer {arguments.layer} --dtype {arguments.dtype}"
        options += f" --max-length {arguments.max_length}" if arguments.max_length else ""
        options += f" --epochs {arguments.epochs}{' --warm-start' if arguments.warm_start else ''}"
        print(
            write_down(
                f"poolers-{arguments.name}", f"python -m benchmarks.poolers {arguments.name} {options} --write", rows
            )
        )


if __name__ == "__main__":
    main()
