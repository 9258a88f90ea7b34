"""Checkpoints that a kill at any moment leaves whole, written while training goes on.

    step-1000/
      config.json         model, step, settings of the run
      model.safetensors   whole weights, for export and evaluation
      tokenizer/          Hugging Face's `save_pretrained`
      state/              weights, moments and counters in shards (torch.distributed.checkpoint), to go on from
      COMPLETE            written last, with the checksum of every file; a folder without it is not a checkpoint

`state/` is read only to go on with the run that wrote it: torch keeps its index as a pickle. Export and evaluation never
touch it.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.tensor import DTensor

from crossbert.distributed import Ranks
from crossbert.reading import MARKER, damage, step_number, steps_of
from frozenprobe.errors import RecordError
from frozenprobe.files import checksum, write_whole

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# torch says so at every checkpoint of a single process, which is what is asked for.
warnings.filterwarnings("ignore", message="torch.distributed is (disabled, )?unavailable or uninitialized")
warnings.filterwarnings("ignore", message="TypedStorage is deprecated")  # older versions warn of themselves


def checkpoints(run: Path) -> list[Path]:
    """Complete checkpoints of a run, from the first step to the last."""
    return [folder for folder in steps_of(run) if (folder / MARKER).exists()]


def training_state(model: nn.Module, optimiser: torch.optim.Optimizer, counters: Tensor) -> dict[str, Any]:
    """All that a run consists of, as tensors by name; loading fills these very tensors."""
    return {
        "model": dict(model.state_dict()),
        "optimiser": {name: dict(optimiser.state[parameter]) for name, parameter in model.named_parameters()},
        "counters": counters,
    }


def load_state(checkpoint: Path, state: dict[str, Any], here: Ranks) -> None:
    """Reads a checkpoint's state into the tensors of a run, whatever number of ranks wrote it.

    Raises:
        RecordError: It is damaged or belongs to another model.
    """
    if wrong := damage(checkpoint, "state"):
        raise RecordError(f"{wrong}; remove {checkpoint.name} to go on earlier")
    try:
        dcp.load(state, checkpoint_id=checkpoint / "state", process_group=here.checkpoint_group)
    except (CheckpointException, OSError, RuntimeError, ValueError, KeyError, EOFError) as error:
        raise RecordError(
            f"{checkpoint / 'state'} is damaged: {_reason(error)}; remove {checkpoint.name} to go on earlier"
        ) from error


class Checkpoints:
    """Writes a run's checkpoints in the background, one at a time, and drops old ones."""

    def __init__(
        self, run: Path, keep: int, here: Ranks, tokenizer: PreTrainedTokenizerBase, config: Mapping[str, Any]
    ) -> None:
        """Takes what is the same for every checkpoint.

        Args:
            run: The run's folder.
            keep: How many stay; 0 for all.
            here: This process.
            tokenizer: Saved with each.
            config: Contents of `config.json` but the step.
        """
        self._run, self._keep, self._here, self._tokenizer, self._config = run, keep, here, tokenizer, config
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Copies the state and writes it in the background; waits for the checkpoint before, if it is not written yet.

        Args:
            step: Steps done.
            state: What `training_state` gave.

        Raises:
            RecordError: The checkpoint before this one could not be written.
        """
        self.wait()
        folder = self._run / f"step-{step}"
        if self._here.first:
            shutil.rmtree(folder, ignore_errors=True)  # what a kill left of it
        self._here.wait()
        try:
            weights = self._whole_weights(state["model"])
            saving = dcp.async_save(state, checkpoint_id=folder / "state", process_group=self._here.checkpoint_group)
        except (CheckpointException, OSError, RuntimeError) as error:
            raise RecordError(f"cannot write {folder}: {_reason(error)}") from error
        self._pending = self._thread.submit(self._finish, folder, step, weights, saving)  # ty: ignore[invalid-argument-type]

    def check(self) -> None:
        """Raises what went wrong in the background, without waiting.

        Raises:
            RecordError: A checkpoint could not be written.
        """
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Waits until nothing is left to be written.

        Raises:
            RecordError: A checkpoint could not be written.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Ends the thread, after what it is writing."""
        self._thread.shutdown(wait=True)

    def _whole_weights(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies of the unsharded weights on the CPU, on the first rank."""
        copies = {}
        for name, weight in weights.items():
            whole = weight.full_tensor() if isinstance(weight, DTensor) else weight
            if self._here.first:
                copies[name] = whole.detach().to("cpu", copy=True).contiguous()
        return copies

    def _finish(self, folder: Path, step: int, weights: dict[str, Tensor], saving: Future[Any]) -> None:
        """Waits for the shards, writes what only the first rank writes, and marks the checkpoint complete."""
        try:
            saving.result()
            if not self._here.first:
                return
            self._tokenizer.save_pretrained(folder / "tokenizer")
            save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
            (folder / "config.json").write_text(json.dumps({**self._config, "step": step}, indent=2) + "\n")
            checksums = {}
            for file in sorted(file for file in folder.rglob("*") if file.is_file()):
                _flush(file)
                checksums[file.relative_to(folder).as_posix()] = checksum(file)
            write_whole(folder / MARKER, json.dumps(checksums, indent=1).encode(), durable=True)
            _flush(folder)
            self._drop_old(step)
        # The writers wrap their errors differently: a full disk, a folder that is gone. Torch's own is no Exception.
        except (Exception, CheckpointException) as error:
            raise RecordError(f"cannot write {folder}: {_reason(error)}; the checkpoint before it is kept") from error

    def _drop_old(self, newest: int) -> None:
        """Removes checkpoints beyond those that are kept, and what a kill left of others; links and foreign folders stay."""
        own = [folder for folder in steps_of(self._run) if (folder / "state").exists() and not folder.is_symlink()]
        complete = [folder for folder in own if (folder / MARKER).exists()]
        for old in complete[: -self._keep] if self._keep else ():
            (old / MARKER).unlink()  # first, so that half a checkpoint is never taken for one
        for folder in own:
            if step_number(folder) < newest and not (folder / MARKER).exists():
                shutil.rmtree(folder, ignore_errors=True)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _reason(error: BaseException) -> str:
    """The cause in one line: torch wraps one exception per rank."""
    failures = getattr(error, "failures", None)
    if failures:
        cause = next(iter(failures.values()))
        error = cause[0] if isinstance(cause, tuple) else cause
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
