"""The pre-training loop: from prepared tokens to checkpoints.

    runs/x/
      run.json        what the run is: settings, data, versions, git state
      metrics.jsonl   one line a step, and one for each validation
      step-1000/ ...  checkpoints; see `checkpoint.py`

The same call in the same folder goes on from the last complete checkpoint: bit for bit on the same number of ranks,
and with the same batches and masks, hence equal up to the order of sums, on any other.
"""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from crossbert.checkpoint import Checkpoints, checkpoints, load_state, training_state
from crossbert.data import Batch, BatchMaker, Loader, Order, PreparedData, Share
from crossbert.display import Display
from crossbert.distributed import Parallel, Ranks, parallelise, ranks
from crossbert.metrics import MetricsLog, Row, Speed, graphs, measured_peak, memory_bytes, require_trackers
from crossbert.model import PretrainingModel, build_model
from crossbert.optimiser import Guard, build_optimiser, gradient_norm, learning_rate, scale_gradients
from crossbert.reading import step_number
from crossbert.settings import TrainSettings
from frozenprobe.errors import DataError, FrozenprobeError, RecordError, SettingsError
from frozenprobe.files import sole_writer, write_atomically
from frozenprobe.records.provenance import provenance
from frozenprobe.settings import differences

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Callback = Callable[[int, PretrainingModel, "PreTrainedTokenizerBase"], None]
"""Called on every rank after each step with the steps done, the model and the tokenizer."""

RUN = "run.json"
VALIDATION_SEED = 0
"""Of validation masks: the same for every run, so that losses compare."""
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


class TrainingError(FrozenprobeError):
    """The run cannot go on: its steps go wrong."""


def train(
    settings: TrainSettings, out: Path, callbacks: Sequence[Callback] = (), display: Display | None = None
) -> Path:
    """Trains a model, or goes on with it.

    Args:
        settings: What is trained, on what, and how.
        out: The run's folder.
        callbacks: Called after each step, in order.
        display: Told how far the run has got.

    Returns:
        The last checkpoint.

    Raises:
        SettingsError: The settings do not fit the data or the machine.
        DataError: The data is missing or damaged.
        RecordError: The folder belongs to another run, is in use, or cannot be written.
        TrainingError: Steps go wrong, and the guard says stop.
        KeyboardInterrupt: Interrupted; the step in progress was finished and a checkpoint written.
    """
    data = PreparedData.open(settings.data.folder)
    if settings.model.vocabulary < data.vocabulary:
        raise SettingsError(
            f"model.vocabulary ({settings.model.vocabulary}) is below the {data.vocabulary} ids of {data.folder}"
        )
    with ExitStack() as stack:
        here = stack.enter_context(ranks(settings.system.device))
        held_out = _held_out(settings.data.held_out, data)
        identity = _identity(settings, data)
        if here.first:
            stack.enter_context(sole_writer(out))
            _require_same(out, identity)
            for checked in (data, *held_out.values()) if settings.data.verify else ():
                checked.verify()
        here.wait()
        finished = checkpoints(out)
        if finished and step_number(finished[-1]) >= settings.steps:
            return finished[-1]
        run = _Run(settings, out, data, held_out, here, callbacks, display if display and here.first else Display())
        stack.callback(run.close)
        if here.first and not (out / RUN).exists():  # nothing is left to be refused
            manifest = {"identity": identity, "settings": settings.model_dump(mode="json"), "provenance": provenance()}
            write_atomically(out / RUN, (json.dumps(manifest, indent=2) + "\n").encode())
        return run.go_on()


def _held_out(folders: Sequence[Path], data: PreparedData) -> dict[str, PreparedData]:
    """Further sets whose validation loss is wanted, by the names that their folders have."""
    found: dict[str, PreparedData] = {}
    for folder in folders:
        other = PreparedData.open(folder)
        if other.manifest["tokenizer"] != data.manifest["tokenizer"]:
            raise DataError(f"{folder} was prepared with another tokenizer than {data.folder}")
        if folder.name in found:
            raise SettingsError(f"data.held_out: two folders are called {folder.name}, and their losses would be")
        found[folder.name] = other
    return found


def _identity(settings: TrainSettings, data: PreparedData) -> dict[str, Any]:
    """What tells a run from another."""
    identity = settings.model_dump(mode="json", exclude={"system": True, "data": {"folder", "held_out", "verify"}})
    identity["data"]["digest"] = data.digest
    return identity


def _require_same(out: Path, identity: dict[str, Any]) -> None:
    """Refuses a folder that holds another run, or anything else."""
    path = out / RUN
    if path.exists():
        try:
            old = json.loads(path.read_text())["identity"]
            different = differences(old, identity)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecordError(f"{path} is damaged ({error!r}); choose another --out") from None
        if different:
            raise RecordError(f"{out} holds a different run ({different}); choose another --out")
        return
    if any(not entry.name.startswith(".") for entry in out.iterdir()):
        raise RecordError(f"{out} holds other files; choose an empty or new folder for --out")


@dataclass
class _Step:
    """What came of one step."""

    loss: float
    parts: Row
    norm: float
    rate: float
    fault: str | None
    interrupted: bool


class _Run:
    """One run in progress."""

    def __init__(
        self,
        settings: TrainSettings,
        out: Path,
        data: PreparedData,
        held_out: dict[str, PreparedData],
        here: Ranks,
        callbacks: Sequence[Callback],
        display: Display,
    ) -> None:
        self._settings, self._out, self._here = settings, out, here
        self._callbacks, self._display = callbacks, display
        self._tokenizer = data.load_tokenizer().tokenizer
        self._dtype = DTYPES[settings.dtype]
        self._share = Share(here.rank, here.count, settings.system.accumulation)
        self._share.slices(settings.data.batch)  # an indivisible batch is refused before anything is built
        require_trackers(settings.system.trackers)
        length = settings.model.sequence_length
        train = data.split("train", length)
        validation = {"validation": data.split("validation", length)}
        validation |= {f"validation_{name}": other.split("validation", length) for name, other in held_out.items()}

        with torch.device("meta"):  # weights are drawn once, from this run's seed
            model = build_model(settings.model)
        model.to_empty(device="cpu").init_weights(settings.seed)
        self._model = model
        self._parallel: Parallel = parallelise(model, settings.system, here)
        self._optimiser = build_optimiser(model, settings.optimiser)
        self._guard = Guard()

        def batches(sequences: Any, order: Callable, seed: int, in_any_batch: bool = False) -> BatchMaker:
            return BatchMaker(
                sequences,
                order,
                self._share,
                seed,
                in_any_batch=in_any_batch,
                document_mask=settings.model.document_mask,
                noise=model.draw_noise,
                pin=here.device.type == "cuda",
            )

        self._make = batches(train, Order(len(train), settings.data.batch, settings.seed), settings.seed)
        self._held_out = {}
        for name, sequences in validation.items():
            used = min(len(sequences), settings.system.validation_sequences)
            maker = batches(sequences, _in_turn(used, settings.data.batch), VALIDATION_SEED, in_any_batch=True)
            self._held_out[name] = (maker, math.ceil(used / settings.data.batch))
        self._interrupted = False
        self._graphs_before = self._graphs_expected = graphs()
        self._seen: set[str] = set()
        config = {
            "model": settings.model.model_dump(mode="json"),
            "train": settings.model_dump(mode="json", exclude={"model"}),
        }
        self._checkpoints = Checkpoints(out, settings.system.keep, here, self._tokenizer, config)

    def close(self) -> None:
        """Waits for the checkpoint that is being written."""
        self._checkpoints.close()

    def go_on(self) -> Path:
        """Trains from the last checkpoint, or from the start, to the end."""
        settings, here = self._settings, self._here
        first = 0
        if finished := checkpoints(self._out):
            first = step_number(finished[-1])
            counters = self._guard.as_tensor()
            load_state(finished[-1], training_state(self._model, self._optimiser, counters), here)
            self._guard.restore(counters)
            self._display.note(f"going on from step {first:,}")
        log = None
        if here.first:
            log = MetricsLog(self._out, first, settings.system.trackers, settings.model_dump(mode="json"))
        speed = Speed(settings, here.count * self._peak())
        loader = Loader(self._make, first, settings.steps)
        try:
            with self._display, self._listening():
                for step, pieces in enumerate(loader, start=first + 1):
                    with self._compiling():
                        done = self._step(step, pieces)
                    self._checkpoints.check()
                    row = self._row(done, speed, loader.waited)
                    if log is not None and (
                        step % settings.system.log_every == 0 or done.fault or step == settings.steps
                    ):
                        log.write(step, row)
                    self._display.advance(step, settings.steps, _facts(row))
                    self._react(step, done)
                    last = step == settings.steps or done.interrupted
                    if _due(step, settings.system.validate_every) or step == settings.steps:
                        with self._compiling():
                            losses = self._validate()
                        if log is not None:
                            log.write(step, losses)
                        self._display.note(f"step {step:,}: " + ", ".join(f"{k} {v:.4f}" for k, v in losses.items()))
                    sound = done.fault is None  # or what is there already is worth more
                    if (_due(step, settings.system.checkpoint_every) and sound) or last:
                        counters = self._guard.as_tensor()
                        self._checkpoints.save(step, training_state(self._model, self._optimiser, counters))
                    for callback in self._callbacks:
                        callback(step, self._model, self._tokenizer)
                        self._model.train()
                    if done.interrupted:
                        self._checkpoints.wait()
                        raise KeyboardInterrupt
                    speed.start()  # what stands between two steps is not their time
            self._checkpoints.wait()
        finally:
            loader.close()
            if log is not None:
                log.close()
        here.wait()
        return self._out / f"step-{settings.steps}"

    def _peak(self) -> float:
        """FLOP/s of this rank's device, as stated or as measured now."""
        stated = self._settings.system.peak_tflops
        return stated * 1e12 if stated else measured_peak(self._here.device, self._dtype)

    def _forward(self, piece: Batch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        device = self._here.device
        with torch.autocast(device.type, self._dtype, enabled=self._dtype != torch.float32):
            return self._parallel.call(*piece.arguments(device))

    def _step(self, step: int, pieces: list[Batch]) -> _Step:
        """Gradient of the global batch, judged, and applied if it is sound."""
        settings = self._settings
        total: Tensor | None = None
        names: list[str] = []
        for number, piece in enumerate(pieces, start=1):
            with self._parallel.gathering(last=number == len(pieces)):
                loss, predicted, parts = self._forward(piece)
                # Weighted by what is predicted, so that a document mask makes no piece count more than its share.
                (loss * (predicted / piece.ids.numel())).backward()
            names = list(parts)
            values = torch.stack([loss.detach(), *parts.values()]).double() * predicted
            values = torch.cat((values, predicted.double()[None]))
            total = values if total is None else total + values
        assert total is not None
        sums = self._here.sum(torch.cat((total, total.new_tensor([self._interrupted])))).tolist()
        predicted_in_all = max(sums[-2], 1.0)
        loss, *parts = (value / predicted_in_all for value in sums[:-2])
        # Ranks average their gradients; each weighed its own by the ids of a piece.
        scale = self._here.count * pieces[0].ids.numel() / predicted_in_all
        norm = float(gradient_norm(self._model)) * scale
        fault = self._guard.judge(loss, norm, settings.guard)
        rate = learning_rate(step - 1, settings.steps, settings.optimiser)
        if fault is None:
            scale_gradients(self._model, scale * min(1.0, settings.optimiser.clip / (norm + 1e-6)))
            for group in self._optimiser.param_groups:
                group["lr"] = rate
            self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        return _Step(loss, dict(zip(names, parts, strict=True)), norm, rate, fault, bool(sums[-1]))

    def _react(self, step: int, done: _Step) -> None:
        """Says that a step was skipped, or ends the run."""
        if done.fault is None:
            return
        guard = self._settings.guard
        if guard.action == "skip" and self._guard.in_a_row < guard.max_skips:
            self._display.note(f"step {step:,} skipped: {done.fault}")
            return
        self._checkpoints.wait()
        kept = checkpoints(self._out)
        last = f"the last good checkpoint is {kept[-1]}" if kept else "there is no checkpoint yet"
        what = "stopped" if guard.action == "stop" else f"{guard.max_skips} steps in a row were skipped"
        raise TrainingError(f"step {step}: {done.fault}; {what}, {last}")

    @torch.no_grad()
    def _validate(self) -> Row:
        """Mean loss of each held-out set, with masks that are the same each time."""
        before = graphs()
        losses = {}
        for name, (make, steps) in self._held_out.items():
            total = torch.zeros(2, dtype=torch.float64, device=self._here.device)
            for step in range(steps):
                for piece in make(step):
                    loss, predicted, _ = self._forward(piece)
                    total += torch.stack((loss.double() * predicted, predicted.double()))
            summed, predicted = self._here.sum(total).tolist()
            losses[f"{name}_loss"] = summed / max(predicted, 1.0)
        self._expect("validation", graphs() - before)
        return losses

    def _row(self, done: _Step, speed: Speed, waited: float) -> Row:
        """What is written down of a step."""
        self._expect("step", graphs() - self._graphs_before)
        return {
            "loss": done.loss,
            **done.parts,
            "gradient_norm": done.norm,
            "learning_rate": done.rate,
            **speed.stop(waited),
            "memory_bytes": memory_bytes(self._here.device),
            "graphs": graphs() - self._graphs_before,
            "recompiles": graphs() - self._graphs_expected,
            "skipped_steps": self._guard.skipped,
            **({"skipped": done.fault} if done.fault else {}),
        }

    @contextmanager
    def _compiling(self) -> Generator[None]:
        """Makes one line of a compiler's failure, such as that of a file which an interrupted compilation left behind."""
        try:
            yield
        except RuntimeError as error:
            if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
                raise
            if self._interrupted:  # Ctrl-C reaches the compiler's processes too
                raise KeyboardInterrupt from None
            reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise SettingsError(
                f"torch.compile failed: {reason}; a damaged file in torch's cache can be removed,"
                " and --set system.compile=false does without"
            ) from error

    def _expect(self, kind: str, new: int) -> None:
        """Graphs made by the first step and the first validation are expected; any later one is a recompilation."""
        if kind not in self._seen:
            self._seen.add(kind)
            self._graphs_expected += new

    @contextmanager
    def _listening(self) -> Generator[None]:
        """Lets the first Ctrl-C or SIGTERM finish the step; the second ends the process in the usual way."""

        def note(number: int, frame: object) -> None:
            self._interrupted = True
            signal.signal(number, before[signal.Signals(number)])

        numbers = (signal.SIGINT, signal.SIGTERM)
        try:
            before = {number: signal.signal(number, note) for number in numbers}
        except ValueError:  # not in the main thread: the program around us listens
            yield
            return
        try:
            yield
        finally:
            for number in numbers:
                signal.signal(number, before[number])


def _in_turn(count: int, batch: int) -> Callable[[int], np.ndarray]:
    """The first sequences in their own order, from the start again where the last batch is not full."""
    return lambda step: np.arange(step * batch, (step + 1) * batch) % count


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _facts(row: Row) -> str:
    return f"loss {row['loss']:.4f}  {row['positions_per_second']:,.0f} positions/s  MFU {row['mfu']:.0%}"
