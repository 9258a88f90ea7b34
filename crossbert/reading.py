"""Reads what training leaves behind: `runs/x/step-N`, or `runs/x`, which stands for its newest complete step.

A step folder holds `config.json` (the model's settings under "model"), `model.safetensors` (whole weights in the names of
`state_dict`), `tokenizer/`, and `COMPLETE`, written last, with the checksums of all other files. Finding and reading settings
imports no torch.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossbert.config import ModelConfig
from crossbert.scaling import paper_flops
from frozenprobe.errors import EncoderError, SettingsError
from frozenprobe.files import checksum
from frozenprobe.settings import parse

if TYPE_CHECKING:
    from crossbert.model import PretrainingModel

MARKER = "COMPLETE"
_STEP = re.compile(r"step-(\d+)")


def steps_of(run: Path) -> list[Path]:
    """The step folders of a run, complete or not, oldest first."""
    if not run.is_dir():
        return []
    folders = [folder for folder in run.iterdir() if folder.is_dir() and _STEP.fullmatch(folder.name)]
    return sorted(folders, key=step_number)


def step_number(folder: Path) -> int:
    """The N of `step-N`."""
    match = _STEP.fullmatch(folder.name)
    if match is None:
        raise EncoderError(f"{folder} is no step folder: its name is not step-N")
    return int(match.group(1))


def is_training_checkpoint(path: Path) -> bool:
    """Whether a path is a run, or one of its steps, even one that was never finished."""
    return any((folder / name).exists() for folder in (path, *steps_of(path)) for name in (MARKER, "state"))


def is_unfinished_step(folder: Path) -> bool:
    """Whether a folder is a step without the marker, of which itself or its siblings tell that a training wrote it."""
    if _STEP.fullmatch(folder.name) is None or (folder / MARKER).exists():
        return False
    return is_training_checkpoint(folder) or is_training_checkpoint(folder.parent)


def find_checkpoint(path: Path) -> Path:
    """The complete step folder that a path stands for.

    Raises:
        EncoderError: There is none.
    """
    if (path / MARKER).is_file():
        return path
    steps = steps_of(path)
    complete = [folder for folder in steps if (folder / MARKER).is_file()]
    if complete:
        return complete[-1]
    if steps:
        raise EncoderError(
            f"none of the {len(steps)} checkpoints in {path} is complete: each was cut off while written"
        )
    if is_training_checkpoint(path):
        raise EncoderError(f"{path} is not complete (it has no {MARKER} file): it was cut off while written")
    raise EncoderError(f"{path} is no training checkpoint: expected step-N, or a folder that holds some")


def damage(folder: Path, part: str) -> str | None:
    """What is wrong with a part of a step, in words, by the checksums that were noted when it was written.

    Args:
        folder: The step; one that was never completed has noted nothing, and neither had those of earlier versions.
        part: A file of it, or a folder with all its files.
    """
    marker = folder / MARKER
    try:
        content = marker.read_text() if marker.is_file() else ""
        noted = dict[str, int](json.loads(content)) if content else {}
    except (OSError, ValueError, TypeError):
        return f"{marker} is damaged"
    for name, expected in noted.items():
        if name == part or name.startswith(f"{part}/"):
            try:
                found = checksum(folder / name)
            except OSError as error:
                return f"{folder / name} cannot be read: {error.strerror}"
            if found != expected:
                return f"{folder / name} is damaged: its checksum is not the one noted in {MARKER}"
    return None


def _require_whole(folder: Path, part: str) -> None:
    if wrong := damage(folder, part):
        raise EncoderError(wrong)


@dataclass(frozen=True)
class Saved:
    """What a checkpoint says of itself.

    Attributes:
        model: The model's settings.
        step: Optimiser steps done.
        training_flops: What they cost, as the paper counts (eq. 7 and 8), so that it compares with published runs;
            None where the batch is not recorded.
    """

    model: ModelConfig
    step: int
    training_flops: float | None


def read_config(folder: Path) -> Saved:
    """The settings of a checkpoint.

    Raises:
        EncoderError: They are missing or damaged.
    """
    file = folder / "config.json"
    _require_whole(folder, file.name)
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        model, step = parse(ModelConfig, values["model"]), int(values["step"])
        batch = values.get("train", {}).get("data", {}).get("batch")
        flops = None if batch is None else step * int(batch) * paper_flops(model)
        return Saved(model, step, flops)
    except OSError as error:
        raise EncoderError(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, SettingsError) as error:
        raise EncoderError(f"{file} is damaged: {type(error).__name__}: {error}") from error


def read_model(folder: Path, config: ModelConfig) -> PretrainingModel:
    """The trained model on the CPU, in float32.

    Raises:
        EncoderError: The weights are missing, damaged, not finite, or another model's.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from crossbert.model import build_model

    file = folder / "model.safetensors"
    _require_whole(folder, file.name)
    try:
        weights = load_file(file)
    except (OSError, SafetensorError) as error:
        raise EncoderError(f"{file} cannot be read: {error}") from error
    with torch.device("meta"):
        model = build_model(config)
    expected = model.state_dict()
    for name in expected.keys() | weights.keys():
        if name not in weights or name not in expected:
            raise EncoderError(f"{file} {'lacks' if name in expected else 'has one too many:'} weight {name}")
        if weights[name].shape != expected[name].shape:
            raise EncoderError(
                f"{file}: weight {name} is {list(weights[name].shape)}, the settings say {list(expected[name].shape)}"
            )
        if not torch.isfinite(weights[name]).all():
            raise EncoderError(f"{file}: weight {name} is not finite (NaN or infinity)")
    model.load_state_dict({name: weight.float() for name, weight in weights.items()}, assign=True)
    return model


def read_tokenizer(folder: Path, config: ModelConfig) -> Any:
    """The transformers tokenizer of a checkpoint; its longest input is the model's sequence length.

    Raises:
        EncoderError: It is missing or damaged, or has more words than the model.
    """
    from transformers import AutoTokenizer

    place = folder / "tokenizer"
    if not place.is_dir():
        raise EncoderError(f"{folder} has no tokenizer folder")
    _require_whole(folder, place.name)
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(place)
    except Exception as error:  # tokenizers raises bare Exceptions
        raise EncoderError(f"{place} cannot be read: {' '.join(str(error).split())}") from error
    if len(tokenizer) > config.vocabulary:
        raise EncoderError(f"{place} has {len(tokenizer)} words, but the model has {config.vocabulary}")
    tokenizer.model_max_length = config.sequence_length  # what it was trained at, whatever the tokenizer was made for
    return tokenizer
