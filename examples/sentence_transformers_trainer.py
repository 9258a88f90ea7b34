"""Contrastive training with sentence-transformers' trainer, watched by frozen scores.

python -m examples.sentence_transformers_trainer [OUTPUT_DIR]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.models import Pooling, Transformer
from transformers import BertModel, TrainerCallback

from examples.tiny import TASKS, make_config, make_tokenizer, sentences
from frozenprobe.callbacks import FrozenProbeCallback
from frozenprobe.tasks.builtin import load_builtin


def make_trainer(
    output: Path, callbacks: Sequence[TrainerCallback], *, steps: int = 30, **arguments: object
) -> SentenceTransformerTrainer:
    """A trainer on pairs of sentences that mean the same."""
    tokenizer = make_tokenizer(sentences())
    start = output / "start"
    BertModel(make_config(tokenizer)).save_pretrained(start)
    tokenizer.save_pretrained(start)
    transformer = Transformer(str(start))
    model = SentenceTransformer(modules=[transformer, Pooling(64)], device="cpu")
    train = load_builtin("builtin-paraphrase", seed=1).train
    same = [row for row in zip(train.texts, train.pairs or [], train.labels, strict=True) if row[2] == 1]
    settings = {
        "output_dir": str(output),
        "max_steps": steps,
        "per_device_train_batch_size": 16,
        "learning_rate": 1e-3,
        "logging_steps": steps // 3,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(**{**settings, **arguments}),
        train_dataset=Dataset.from_dict({"anchor": [row[0] for row in same], "positive": [row[1] for row in same]}),
        loss=MultipleNegativesRankingLoss(model),
        callbacks=list(callbacks),
    )


def main(output: Path) -> SentenceTransformerTrainer:
    """Trains with the callback and prints what came of it."""
    trainer = make_trainer(output, [FrozenProbeCallback(suite="builtin", tasks=TASKS, max_train=400, every=10)])
    trainer.train()
    for entry in trainer.state.log_history:
        if "eval_frozen_mean_ridge" in entry:
            print(
                f"step {entry['step']}: linear {entry['eval_frozen_mean_ridge']:.3f}, kNN {entry['eval_frozen_mean_knn']:.3f}"
            )
    return trainer


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/sentence-transformers"))
