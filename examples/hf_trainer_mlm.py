"""Masked-language-model pre-training with transformers' Trainer; frozen scores choose the best checkpoint.

python -m examples.hf_trainer_mlm [OUTPUT_DIR]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from transformers import (
    BertForMaskedLM,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from examples.tiny import TASKS, make_config, make_tokenizer, sentences
from frozenprobe.callbacks import FrozenProbeCallback


def make_trainer(
    output: Path, callbacks: Sequence[TrainerCallback], *, steps: int = 60, **arguments: object
) -> Trainer:
    """A Trainer as anybody would set it up; nothing in it knows of frozenprobe."""
    texts = sentences()
    tokenizer = make_tokenizer(texts)
    rows = [{"input_ids": ids} for ids in tokenizer(texts, truncation=True)["input_ids"]]
    settings = {
        "output_dir": str(output),
        "max_steps": steps,
        "per_device_train_batch_size": 32,
        "learning_rate": 2e-3,
        "logging_steps": steps // 6,
        "eval_strategy": "steps",
        "eval_steps": steps // 3,
        "save_steps": steps // 3,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return Trainer(
        model=BertForMaskedLM(make_config(tokenizer)),
        args=TrainingArguments(**{**settings, **arguments}),
        train_dataset=rows[:-200],
        eval_dataset=rows[-200:],
        data_collator=DataCollatorForLanguageModeling(tokenizer),
        processing_class=tokenizer,
        callbacks=list(callbacks),
    )


def main(output: Path) -> Trainer:
    """Trains with the callback and prints what came of it."""
    trainer = make_trainer(
        output,
        [FrozenProbeCallback(suite="builtin", tasks=TASKS, max_train=400, on_start=True)],
        load_best_model_at_end=True,
        metric_for_best_model="frozen_mean_ridge",
    )
    trainer.train()
    for entry in trainer.state.log_history:
        if "eval_frozen_mean_ridge" in entry:
            scores = [f"{name} {value:.3f}" for name, value in entry.items() if name.startswith("eval_frozen")]
            print(f"step {entry['step']}: {', '.join(scores)}")
    print(f"best by frozen_mean_ridge: {trainer.state.best_model_checkpoint}")
    print(f"records: frozenprobe show {output}/frozenprobe/step-*")
    return trainer


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/hf-trainer-mlm"))
