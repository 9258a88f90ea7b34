"""Writes training checkpoints as a run leaves them, with a tiny tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from crossbert.model import PretrainingModel
from tests.crossbert import tiny
from tests.encoders.tiny import byte_bpe


def write_checkpoint(run: Path, step: int = 1, **changes: Any) -> PretrainingModel:
    """`run/step-N`, complete; returns the model that was saved."""
    model = tiny.model(**changes)
    model.init_weights(step)
    folder = run / f"step-{step}"
    (folder / "state").mkdir(parents=True)
    config = {"model": model.config.model_dump(mode="json"), "step": step, "train": {"data": {"batch": 8}}}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(model.state_dict(), folder / "model.safetensors")
    byte_bpe(max_length=1000).save_pretrained(folder / "tokenizer")
    (folder / "COMPLETE").touch()
    return model.eval()
