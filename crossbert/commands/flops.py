"""`crossbert flops`: parameters and cost of a model, and the run that the paper's laws give it."""

from __future__ import annotations

import argparse

from crossbert.config import ModelConfig
from frozenprobe.cli.options import add_options, read_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="a configuration to start from; see crossbert configs")
    add_options(parser, ModelConfig)


def run(arguments: argparse.Namespace) -> None:
    """Runs the command.

    Raises:
        SettingsError: An unknown configuration or an impossible value.
    """
    from crossbert.recipes import for_objective, read_shape
    from crossbert.scaling import (
        LAWS,
        TOKENS_PER_FLOP,
        count_parameters,
        exact_flops,
        flops_per_position,
        named,
        positions_per_sequence,
    )

    base = named(arguments.name).model.model_dump() if arguments.name is not None else {}
    if arguments.config is not None:
        shape, arguments.config = read_shape(arguments.config), None
        base = for_objective(base, shape.get("objective", base.get("objective"))) | shape
    if "objective" in arguments:  # what belongs to another objective is dropped, as in training
        base = for_objective(base, arguments.objective)
    model = read_options(arguments, ModelConfig, base)
    counts, positions = count_parameters(model), positions_per_sequence(model)
    paper, exact = (flops_per_position(model, kind) for kind in ("paper", "exact"))
    lines = [
        ("parameters, M", f"total {counts.total / 1e6:.2f}, of which embedding {counts.embedding / 1e6:.2f}"),
        ("", f"encoder and embedding {counts.encoder_only / 1e6:.2f}, effective {counts.effective / 1e6:.2f}"),
        ("FLOPs a position", f"{paper:.4e} as the paper counts, {exact:.4e} exactly, heads included"),
        ("FLOPs a sequence", f"{exact_flops(model):.4e} exactly"),
        ("", f"{positions} positions for {model.sequence_length} tokens of text"),
    ]
    if model.objective == "crossbert":
        shared = model.model_dump(include={"vocabulary", "width", "layers", "heads", "sequence_length"})
        flat, everywhere = (ModelConfig(objective="bert", logits_everywhere=wide, **shared) for wide in (False, True))
        lines += [
            ("flat BERT costs", f"{flops_per_position(flat, 'paper') / paper:.2f}x a position as the paper counts"),
            ("", f"{flops_per_position(flat, 'exact') / exact:.2f}x exactly"),
            ("", f"{flops_per_position(everywhere, 'exact') / exact:.2f}x with its head on all positions"),
        ]
    if model.objective in LAWS:
        tokens, laws = TOKENS_PER_FLOP * paper, LAWS[model.objective]
        compute = tokens * paper
        sequences = max(1, round(laws.batch(compute) / positions))
        steps = round(tokens / (sequences * positions))
        lines += [
            (f"a run at {TOKENS_PER_FLOP}:1", f"{tokens:.4e} positions, {compute:.3e} FLOPs; by the paper's laws"),
            ("", f"learning rate {laws.learning_rate(compute):.2e}, {sequences:,} sequences a step, {steps:,} steps"),
        ]
    for label, text in lines:
        print(f"{label:18}{text}")
