"""The `crossbert` command. Exit codes: 0 done, 2 wrong input, 130 interrupted with everything finished kept."""

from __future__ import annotations

from collections.abc import Sequence

from frozenprobe.cli.main import run_program

# Each command is a module of `crossbert/commands/`.
COMMANDS = {
    "prepare": "turn text into packed token files",
    "train": "pre-train a model, or go on with a run",
    "sweep": "pre-train and probe many configurations",
    "export": "write a checkpoint as a Hugging Face folder",
    "configs": "list the named configurations with their sizes, FLOPs and learning rates",
    "flops": "parameters and FLOPs of a configuration",
    "fit": "fit power laws to a sweep of your own",
}
DESCRIPTION = "Pre-training of CrossBERT and of its flat baselines BERT and Electra, from text to checkpoint."


def main(argv: Sequence[str] | None = None) -> None:
    """Runs a command and exits with its code."""
    run_program("crossbert", DESCRIPTION, "crossbert.commands", COMMANDS, argv)


if __name__ == "__main__":
    main()
