"""The probed encoder as a sentence-transformers folder that gives the same vectors wherever it is loaded.

Mean, cls and last pooling become sentence-transformers' own modules. A pooler that is a module of its own becomes a graph with the
one source file that reads it (`exported_pooling.py`), so that frozenprobe is not needed; such a folder loads with
`trust_remote_code=True`, as every module of foreign code does.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from frozenprobe.encoders.sentence_encoder import SentenceEncoder
from frozenprobe.encoders.transformer import TransformerEncoder
from frozenprobe.errors import EncoderError, RecordError
from frozenprobe.files import TEMPORARY
from frozenprobe.suites.mteb import exported_pooling
from frozenprobe.suites.mteb.adapter import MtebEncoder

_HOME = "sentence_transformers.models"  # every release since the first loads a module by this name
_POOLING_MODES = {"mean": "mean_tokens", "cls": "cls_token", "last": "lasttoken"}
_ABOUT = "frozenprobe.json"
_TOLERANCE = 1e-4


def export(model: MtebEncoder, folder: Path) -> None:
    """Saves the encoder with its pooling; a folder that holds it already stays.

    Raises:
        EncoderError: It cannot be saved so that sentence-transformers would give the same vectors; the line says why.
        RecordError: The disk is full, or the folder is another's.
    """
    _require_exportable(model)
    about = {"fingerprint": model.fingerprint(), "pooling": model.pooling, "normalise": model.normalise}
    if folder.exists():
        if _read_about(folder) == about:
            return
        raise RecordError(f"{folder} holds something else than this encoder; move it away")
    writing = folder.with_name(f"{TEMPORARY}{folder.name}")
    shutil.rmtree(writing, ignore_errors=True)
    try:
        writing.mkdir(parents=True)
        _write(model, writing)
        _write_json(writing / _ABOUT, about)
        os.replace(writing, folder)
    except (OSError, SafetensorError) as error:
        raise RecordError(f"cannot write {folder}: {getattr(error, 'strerror', None) or error}") from error
    finally:
        shutil.rmtree(writing, ignore_errors=True)


def _require_exportable(model: MtebEncoder) -> TransformerEncoder:
    """The transformer to save, or the reason why there is none."""
    encoder = model.encoder
    if model.layer != "last":
        raise EncoderError(f"sentence-transformers pools the last layer only, and layer {model.layer} is pooled here")
    transformer = encoder.transformer if isinstance(encoder, SentenceEncoder) else encoder
    if not isinstance(transformer, TransformerEncoder):
        raise EncoderError(f"the adapter {encoder.info.kind!r} has no transformer to save")
    if model.pooler == "own" and isinstance(encoder, SentenceEncoder):
        foreign = [
            type(m).__name__ for m in encoder.tail if not type(m).__module__.startswith("sentence_transformers.")
        ]
        if foreign:
            raise EncoderError(f"its module {foreign[0]} is foreign code")
    return transformer


def _write(model: MtebEncoder, folder: Path) -> None:
    encoder = model.encoder
    transformer = _require_exportable(model)
    modules: list[tuple[str, Callable[[Path], None]]] = []
    if isinstance(model.pooler, nn.Module):
        modules.append(("", lambda place: _save_pooler(model, place)))
    elif model.pooler == "own" and isinstance(encoder, SentenceEncoder):
        tail: list[Any] = list(encoder.tail)
        modules += [(type(module).__name__, lambda place, module=module: module.save(str(place))) for module in tail]
    else:
        modules.append(("Pooling", lambda place: _save_pooling(encoder.info.hidden_size, str(model.pooler), place)))
    if model.normalise:
        modules.append(("Normalize", lambda place: None))
    _write_json(folder / "sentence_bert_config.json", transformer.save(folder))
    entries = [{"idx": 0, "name": "0", "path": "", "type": f"{_HOME}.Transformer"}]
    for number, (name, save) in enumerate(modules, start=1):
        path = f"{number}_{name or 'ExportedPooling'}"
        (folder / path).mkdir()
        save(folder / path)
        kind = f"{_HOME}.{name}" if name else f"{Path(exported_pooling.SOURCE).stem}.ExportedPooling"
        entries.append({"idx": number, "name": str(number), "path": path, "type": kind})
    _write_json(folder / "modules.json", entries)
    prompts = dict(encoder.prompts) if isinstance(encoder, SentenceEncoder) else dict(model.prompts)
    default = None
    if isinstance(encoder, SentenceEncoder) and encoder.default_prompt:
        default = next(name for name, text in prompts.items() if text == encoder.default_prompt)
    about = {"prompts": prompts, "default_prompt_name": default, "similarity_fn_name": "cosine"}
    _write_json(folder / "config_sentence_transformers.json", about)


def _save_pooling(width: int, pooling: str, folder: Path) -> None:
    modes = {f"pooling_mode_{mode}": pooling == name for name, mode in _POOLING_MODES.items()}
    _write_json(folder / "config.json", {"word_embedding_dimension": width, **modes})


def _save_pooler(model: MtebEncoder, folder: Path) -> None:
    """Exports the pooler's graph for any batch and length, and checks that it gives the pooler's vectors."""
    assert isinstance(model.pooler, nn.Module)
    width = model.encoder.info.hidden_size
    pooler = _Bare(model.pooler).cpu()
    device = model.encoder.info.device
    try:
        # Not inference mode, whose tensors torch.export cannot trace.
        with torch.no_grad():
            batch, length = (torch.export.Dim(name, max=2**31) for name in ("batch", "length"))
            shapes = ({0: batch, 1: length}, {0: batch, 1: length})
            program = torch.export.export(pooler, _example(3, 7, width), dynamic_shapes=shapes, strict=False)
            exported = exported_pooling.ExportedPooling(model.width(), width, program)
            for rows, tokens in ((1, 2), (2, 5), (4, 31)):
                example, mask = _example(rows, tokens, width)
                found = exported({"token_embeddings": example, "attention_mask": mask})["sentence_embedding"]
                difference = float((found - pooler(example, mask)).abs().max())
                if not difference <= _TOLERANCE:
                    raise EncoderError(f"the exported pooler differs from the pooler by {difference:.1e}")
    except EncoderError:
        raise
    except Exception as error:  # torch.export raises many kinds
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise EncoderError(f"{type(model.pooler).__name__} cannot be exported by torch.export: {reason}") from error
    finally:
        model.pooler.to(device)
    exported.save(str(folder))


class _Bare(nn.Module):
    """The pooler with no argument but tokens and mask."""

    def __init__(self, pooler: nn.Module) -> None:
        super().__init__()
        self.pooler = pooler

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.pooler(tokens, mask)


def _example(rows: int, length: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token features and a mask with padding in every row but the first."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.arange(length)[None] < (length - torch.arange(rows) % length)[:, None]
    tokens = torch.randn(rows, length, width, generator=generator).masked_fill(~mask[..., None], 0)
    return tokens, mask


def _read_about(folder: Path) -> Any:
    try:
        return json.loads((folder / _ABOUT).read_text())
    except (OSError, ValueError):
        return None


def _write_json(path: Path, values: Any) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n")
