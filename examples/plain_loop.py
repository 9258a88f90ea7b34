"""A training loop of one's own; another process evaluates snapshots of the weights while training goes on.

python -m examples.plain_loop [OUTPUT_DIR]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import BertForMaskedLM, DataCollatorForLanguageModeling

from examples.tiny import TASKS, make_config, make_tokenizer, sentences
from frozenprobe import Probe


def train(probe: Probe | None, steps: int = 60) -> list[float]:
    """Trains a small BERT; returns the losses."""
    texts = sentences()
    tokenizer = make_tokenizer(texts)
    model = BertForMaskedLM(make_config(tokenizer)).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    rows = [{"input_ids": ids} for ids in tokenizer(texts, truncation=True)["input_ids"]]
    loader = torch.utils.data.DataLoader(
        rows, batch_size=32, shuffle=True, collate_fn=DataCollatorForLanguageModeling(tokenizer)
    )
    losses = []
    for step, batch in zip(range(1, steps + 1), loader, strict=False):
        loss = model(**batch).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item())
        if probe is not None:
            probe(model, tokenizer, step=step)
    return losses


def main(output: Path) -> None:
    """Trains with a probe in another process and prints the scores as they arrive."""

    def log(step: int, scores: dict[str, float]) -> None:
        print(f"step {step}: " + ", ".join(f"{name} {value:.3f}" for name, value in scores.items()))

    with Probe(
        log=log, suite="builtin", tasks=TASKS, max_train=400, every=20, mode="process", queue=4, out=output
    ) as probe:
        losses = train(probe)
    print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f}; records: frozenprobe show {output}/step-*")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/plain-loop"))
