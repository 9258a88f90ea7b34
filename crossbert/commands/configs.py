"""`crossbert configs`: the paper's runs, with what is printed beside what is counted; or one of them as TOML."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="print this one's model as TOML")


def run(arguments: argparse.Namespace) -> None:
    """Runs the command.

    Raises:
        SettingsError: There is no configuration of that name.
    """
    from crossbert.scaling import NAMED, Published, count_parameters, flops_per_position, named

    if arguments.name is not None:
        model = named(arguments.name).model
        print("[model]")
        for setting, value in model.model_dump().items():
            written = f'"{value}"' if isinstance(value, str) else str(value).lower()
            print(f"{setting} = {written}")
        return

    from rich.table import Table

    from frozenprobe.reports.console import print_whole, terminal

    def shape(run: Published) -> str:
        model = run.model
        extra = f" + {model.predictor_layers} x {model.predictor_width}" if model.predictor_layers else ""
        extra += f", generator {model.generator_layers} x {model.generator_width}" if model.generator_layers else ""
        return f"{model.layers} x {model.width}{extra}"

    table = Table(title="Runs of the paper: printed values, and in brackets what is counted", title_justify="left")
    for column in ("name", "source", "layers x width"):
        table.add_column(column)
    for column in ("parameters, M", "FLOPs", "tokens, B", "steps", "tokens a step", "learning rate"):
        table.add_column(column, justify="right")
    for name, run in NAMED.items():
        counts = count_parameters(run.model)
        counted = {
            "total": counts.total,
            "effective": counts.effective,
            "untied": counts.total + counts.embedding,
        }[run.counted]
        # The single-scale runs print rounded tokens, so their cost follows from steps and batch.
        tokens = run.steps * run.batch_tokens
        table.add_row(
            name,
            run.source,
            shape(run),
            f"{run.parameters_m:g} ({counted / 1e6:.2f} {run.counted})",
            f"{run.flops:.2e} ({tokens * flops_per_position(run.model, 'paper'):.2e})",
            f"{run.tokens_b:g}",
            f"{run.steps:,}",
            f"{run.batch_tokens:,}",
            f"{run.learning_rate:.2e}",
        )
    console = terminal(room=180)
    print_whole(table, console)
    console.print("tokens are processed positions: under complementary masking two for each token of the text")
