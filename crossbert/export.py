"""From a training checkpoint to a Hugging Face folder: safetensors, config, tokenizer, and the one source file of the model.

`AutoModel` loads it after `import crossbert`; transformers, sentence-transformers and whatever builds on them load it
without this package where they are allowed to run its source file (`trust_remote_code=True`).
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from crossbert import modeling_crossbert
from crossbert.model import PretrainingModel, transformers_config
from crossbert.modeling_crossbert import CrossBertConfig, CrossBertForMaskedLM, CrossBertModel
from crossbert.reading import find_checkpoint, read_config, read_model, read_tokenizer
from frozenprobe.encoders.loading import quiet_transformers
from frozenprobe.encoders.transformer import DTYPES
from frozenprobe.errors import EncoderError, SettingsError

_SOURCE = Path(modeling_crossbert.__file__)
_TOKENS = ("mask", "pad", "bos", "eos", "cls", "sep")


def export(checkpoint: Path, out: Path, dtype: str = "fp32") -> Path:
    """Writes the folder, whole or not at all.

    Args:
        checkpoint: `runs/x/step-N`, or `runs/x` for its newest complete step.
        out: A folder that does not exist yet, or is empty.
        dtype: Of the weights in the file: `fp32`, `bf16` or `fp16`.

    Returns:
        The step folder that was exported.

    Raises:
        EncoderError: The checkpoint is damaged, or its tokenizer has no mask token.
        SettingsError: `out` is taken or cannot be written.
    """
    folder = find_checkpoint(checkpoint)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SettingsError(f"--out {out} exists and is not an empty folder: choose another, or delete it")
    saved = read_config(folder)
    model, tokenizer = read_model(folder, saved.model), read_tokenizer(folder, saved.model)
    exported = to_transformers(model, tokenizer).to(DTYPES[dtype])
    if not all(torch.isfinite(weight).all() for weight in exported.parameters()):
        raise EncoderError(f"{folder}: weights are too large for {dtype}; export as bf16 or fp32")
    exported.config.training_flops = saved.training_flops
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as place:
            work = Path(place) / "exported"
            with quiet_transformers():
                exported.save_pretrained(work)
                tokenizer.save_pretrained(work)
            shutil.copyfile(_SOURCE, work / _SOURCE.name)
            (work / "README.md").write_text(_card(saved.model.objective, saved.step), encoding="utf-8")
            if out.exists():
                out.rmdir()
            work.rename(out)
    except (OSError, SafetensorError) as error:
        raise SettingsError(f"--out {out} cannot be written: {getattr(error, 'strerror', None) or error}") from error
    return folder


def to_transformers(model: PretrainingModel, tokenizer: Any) -> CrossBertForMaskedLM | CrossBertModel:
    """The same weights as a transformers model: with the masked-LM head, or for Electra, which has none, the encoder alone.

    Raises:
        EncoderError: A masked language model's tokenizer has no mask token.
    """
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id", None) for name in _TOKENS}
    config = transformers_config(model.config, **ids)
    has_head = config.objective != "electra"
    if has_head and config.mask_token_id is None:
        raise EncoderError("the tokenizer has no mask token, which a masked language model needs")
    classes = {"AutoConfig": CrossBertConfig, "AutoModel": CrossBertModel}
    if has_head:
        classes["AutoModelForMaskedLM"] = CrossBertForMaskedLM
    config.auto_map = {auto: f"{_SOURCE.stem}.{cls.__name__}" for auto, cls in classes.items()}
    with torch.device("meta"):
        exported = CrossBertForMaskedLM(config) if has_head else CrossBertModel(config)
    exported.load_state_dict((model if has_head else model.encoder).state_dict(), assign=True)
    return exported.eval()


def _card(objective: str, step: int) -> str:
    title = {"crossbert": "CrossBERT", "bert": "BERT", "electra": "Electra"}[objective]
    return f"""---
library_name: transformers
pipeline_tag: feature-extraction
---

# {title}, step {step}

A text encoder pre-trained with `crossbert`. Its feature is the mean of `last_hidden_state` over the tokens of a text.

    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)  # or without, after `import crossbert`
    model = AutoModel.from_pretrained(folder, trust_remote_code=True)

    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(folder, trust_remote_code=True)  # mean pooling

`frozenprobe glue --ckpt FOLDER` measures it.
"""
