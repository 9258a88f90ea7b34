"""The model's speed: complementary masking against a flat BERT and against an isolating mask, and use of the machine."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.measure import by_turns
from crossbert.config import ModelConfig
from crossbert.masking import draw_permutations
from crossbert.memory import keep_freed_memory
from crossbert.metrics import measured_peak
from crossbert.model import CrossBert, Prediction, PretrainingModel, build_model
from crossbert.optimiser import build_optimiser, gradient_norm, scale_gradients
from crossbert.scaling import exact_flops, flops_per_position, positions_per_sequence
from crossbert.settings import OptimiserSettings
from frozenprobe.settings import parse

Step = Callable[[], None]
SIZE = {"width": 256, "layers": 8, "heads": 4, "sequence_length": 512, "vocabulary": 8192}
TINY = {"width": 64, "layers": 2, "heads": 2, "sequence_length": 64, "vocabulary": 512}
PAPER = {"width": 768, "layers": 28, "heads": 12, "sequence_length": 512}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def config(objective: str, size: dict[str, int], **changes: Any) -> ModelConfig:
    """A model of a size."""
    return parse(ModelConfig, {"objective": objective, **size, **changes})


def batch(model: ModelConfig, sequences: int) -> tuple[Tensor, Tensor]:
    """Random ids and permutations."""
    ids = torch.randint(
        model.vocabulary, (sequences, model.sequence_length), generator=torch.Generator().manual_seed(0)
    )
    permutations = draw_permutations(0, 0, range(sequences), model.sequence_length)
    return ids.to(DEVICE), permutations.to(DEVICE)


def train_step(
    model: PretrainingModel, sequences: int, *, compiled: bool = True, dtype: torch.dtype = torch.bfloat16
) -> Step:
    """A whole step as the training loop takes it: forward, backward, clipping, AdamW."""
    model.to(DEVICE)
    if DEVICE == "cpu":
        keep_freed_memory()
    if compiled:
        model.compile(dynamic=False, fullgraph=True)
    optimiser = build_optimiser(model, OptimiserSettings(learning_rate=1e-5, warmup_steps=0))
    ids, permutations = batch(model.config, sequences)

    def step() -> None:
        with torch.autocast(DEVICE, dtype, enabled=dtype != torch.float32):
            loss, _, _ = model(ids, permutations)
        loss.backward()
        scale_gradients(model, min(1.0, 1.0 / (float(gradient_norm(model)) + 1e-6)))
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        if DEVICE == "cuda":
            torch.cuda.synchronize()

    return step


def cms(tiny: bool = False) -> list[dict[str, Any]]:
    """CrossBERT with complementary masking against BERT on the same backbone, in positions per second."""
    size, positions, rounds = (TINY, 512, 3) if tiny else (SIZE, 8192, 7)
    rows = []
    for vocabulary in (size["vocabulary"], 50265):
        sized = {**size, "vocabulary": vocabulary}
        ours = config("crossbert", sized)
        for everywhere in (False, True):
            peer = config("bert", sized, logits_everywhere=everywhere)
            seconds, peer_seconds = by_turns(
                train_step(build_model(ours), positions // positions_per_sequence(ours), compiled=not tiny),
                train_step(build_model(peer), positions // positions_per_sequence(peer), compiled=not tiny),
                rounds,
            )
            expected = flops_per_position(peer, "exact") / flops_per_position(ours, "exact")
            ratio = peer_seconds / seconds
            row = {
                "what": f"CrossBERT + CMS / BERT, head on {'all' if everywhere else 'predicted'} positions, {_named(sized)}",
                "unit": f"positions/s, whole training step, bf16, {DEVICE}",
                "ours": positions / seconds,
                "peer": positions / peer_seconds,
                "ratio": ratio,
                "flop_ratio": expected,
            }
            if not everywhere and vocabulary == size["vocabulary"]:
                row |= {"target": f"at least {0.9 * expected:.3f}", "met": ratio >= 0.9 * expected}
            rows.append(row)
    return rows


class IsolatedByMask(CrossBert):
    """The same objective in the plain way: all tokens in one row, views kept apart by attention masks."""

    def predict(self, ids: Tensor, permutations: Tensor, documents: Tensor | None = None) -> Prediction:
        """Logits for every token, each from the view that does not see it."""
        view = torch.zeros_like(ids).scatter(1, permutations[:, self.config.visible :], 1)
        same = (view[:, :, None] == view[:, None, :])[:, None]
        positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        hidden = self.encoder.encode(self.encoder.embedding(ids), positions, same)
        return Prediction(self.logits(self.predictor(hidden, positions, positions, ~same)), ids, None)


def gather(tiny: bool = False) -> list[dict[str, Any]]:
    """Gathered views against an isolating mask: equal loss and gradients, then speed."""
    size, sequences, rounds = (TINY, 4, 3) if tiny else (SIZE, 8, 7)
    ours = build_model(config("crossbert", size))
    peer = IsolatedByMask(ours.config)
    peer.load_state_dict(ours.state_dict())
    ids, permutations = batch(ours.config, sequences)
    losses = []
    for model in (ours.to(DEVICE), peer.to(DEVICE)):
        loss, _, _ = model(ids, permutations)
        loss.backward()
        losses.append(float(loss.detach()))
    difference = max(
        float((a.grad - b.grad).norm() / b.grad.norm())  # ty: ignore[unsupported-operator]
        for a, b in zip(ours.parameters(), peer.parameters(), strict=True)
    )
    for model in (ours, peer):
        model.zero_grad(set_to_none=True)
    seconds, peer_seconds = by_turns(
        train_step(ours, sequences, compiled=not tiny), train_step(peer, sequences, compiled=not tiny), rounds
    )
    equal = abs(losses[0] - losses[1]) <= 1e-5 and difference <= 1e-5
    return [
        {
            "what": f"gathered CMS / isolating attention mask, {_named(size)}",
            "unit": f"s, whole training step, bf16, {DEVICE}",
            "ours": seconds,
            "peer": peer_seconds,
            "ratio": peer_seconds / seconds,
            "loss_difference": abs(losses[0] - losses[1]),
            "gradient_difference": difference,
            "target": "at least 1.1, loss and gradients (fp32, relative) equal to 1e-5",
            "met": peer_seconds / seconds >= 1.1 and equal,
        }
    ]


class _Products(TorchDispatchMode):
    """Notes the shapes of all matrix products: (batch, m, k, n) -> how many."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: Counter[tuple[int, int, int, int]] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, arguments: tuple = (), keywords: dict | None = None) -> Any:
        """Notes one operation and runs it."""
        name = function.overloadpacket.__name__
        if name in ("mm", "addmm"):
            left, right = arguments[-2:]
            self.shapes[1, left.shape[0], left.shape[1], right.shape[1]] += 1
        elif name == "bmm":
            self.shapes[*arguments[0].shape, arguments[1].shape[2]] += 1
        elif "scaled_dot_product" in name:
            # Scores and their product with the values; backward twice that, without what it computes again.
            queries, keys = arguments[1:3] if "backward" in name else arguments[:2]
            (b, h, q, d), k = queries.shape, keys.shape[2]
            times = 2 if "backward" in name else 1
            self.shapes[b * h, q, d, k] += times
            self.shapes[b * h, q, k, d] += times
        return function(*arguments, **(keywords or {}))


def utilisation(tiny: bool = False) -> list[dict[str, Any]]:
    """Step time against the step's matrix products alone, at the rate of `torch.matmul` for the same shapes and dtype."""
    size, sequences, rounds = (TINY, 4, 3) if tiny else (SIZE, 8, 7)
    if DEVICE == "cuda" and not tiny:
        size, sequences = {**PAPER, "vocabulary": 50265}, 64
    rows = []
    for objective in ("crossbert", "bert"):
        shape = config(objective, size)
        with _Products() as products:  # as written, before compilation
            train_step(build_model(shape), sequences, compiled=False)()
        ideal = sum(count * _matmul_seconds(*product) for product, count in products.shapes.items())
        step = train_step(build_model(shape), sequences, compiled=not tiny)
        seconds = _median(step, rounds)
        flops = sum(2 * b * m * k * n * count for (b, m, k, n), count in products.shapes.items())
        rows.append(
            {
                "what": f"matrix products alone / whole step, {objective}, {_named(size)}",
                "unit": f"s, bf16, compiled, {DEVICE}",
                "ours": seconds,
                "peer": ideal,
                "ratio": ideal / seconds,
                "products_of_exact_flops": flops / sequences / exact_flops(shape),
                "gflops_reached": flops / seconds / 1e9,
                "gflops_of_products": flops / ideal / 1e9,
                "share_of_step_in_products": _share_in_products(step),
                "mfu_of_square_matmul": flops / seconds / measured_peak(torch.device(DEVICE), torch.bfloat16),
                "target": "at least 0.5",
                "met": ideal / seconds >= 0.5,
            }
        )
    return rows


def _share_in_products(step: Step) -> float | None:
    """How much of a step on a CPU its matrix products take where they stand: behind other work, with nothing in a cache."""
    if DEVICE != "cpu":
        return None
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        started = time.perf_counter()
        for _ in range(3):
            step()
        seconds = time.perf_counter() - started
    products = ("aten::mm", "aten::addmm", "aten::bmm")
    return sum(row.self_cpu_time_total for row in seen.key_averages() if row.key in products) / 1e6 / seconds


def _matmul_seconds(b: int, m: int, k: int, n: int) -> float:
    """Median time of one product of this shape in bf16."""
    left = torch.randn(b, m, k, device=DEVICE).to(torch.bfloat16)
    right = torch.randn(b, k, n, device=DEVICE).to(torch.bfloat16)

    def product() -> None:
        torch.matmul(left, right)
        if DEVICE == "cuda":
            torch.cuda.synchronize()

    return _median(product, 7)


def _median(work: Step, rounds: int) -> float:
    """Median seconds, after two rounds to warm up."""
    times = []
    for _ in range(rounds + 2):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times[2:])


def _named(size: dict[str, int]) -> str:
    return f"d={size['width']} L={size['layers']} S={size['sequence_length']} V={size['vocabulary']}"
