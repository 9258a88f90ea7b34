"""The `frozenprobe` command.

Exit codes: 0 done, 1 another rank was lost, 2 wrong input, 130 interrupted; in all of them what was finished is kept. Of several ranks,
as `torchrun` starts them, only rank 0 prints.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module

from frozenprobe.errors import FrozenprobeError, RankError
from frozenprobe.ranks import launched_count, launched_rank

# Each command is a module of this folder with `add_arguments(parser)` and `run(arguments)`; only the one in use is imported.
COMMANDS = {
    "glue": "frozen evaluation of a checkpoint on GLUE or on the built-in suite",
    "sweep": "the same evaluation of many checkpoints, here or on a SLURM cluster",
    "mteb": "MTEB of a checkpoint with a pooling of its tokens, resumable, ready for the leaderboard",
    "show": "print finished runs again, from their records",
    "cache": "show or prune the feature cache",
}


def main(argv: Sequence[str] | None = None) -> None:
    """Runs a command and exits with its code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if launched_count() == 1:
        raise SystemExit(_main(argv))
    if launched_rank() == 0:
        code = _main(argv)
    else:
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            code = _main(argv)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a thread that waits for a lost rank ends with the process and not before


def _main(argv: list[str]) -> int:
    """Runs a command; returns its exit code."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    parser = argparse.ArgumentParser(
        prog="frozenprobe",
        description="Trustworthy evaluation of frozen text encoders: one forward pass, closed-form ridge and kNN probes.",
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    chosen = next((word for word in argv if word in COMMANDS), None)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        if name == chosen:
            import_module(f"frozenprobe.cli.{name}").add_arguments(command)
    try:
        arguments = parser.parse_args(_join_negative_values(argv))
    except SystemExit as stop:  # argparse has printed help, or what is wrong
        return int(stop.code or 0)
    if arguments.version:
        from importlib.metadata import version

        print(f"frozenprobe {version('frozenprobe')}")
        return 0
    if arguments.command is None:
        parser.print_help()
        return 0
    return _run(arguments)


def _join_negative_values(argv: Sequence[str]) -> list[str]:
    """Lets `--layers -1,-2` be typed: argparse would take the value for an option."""
    joined: list[str] = []
    for word in argv:
        if re.match(r"-\d", word) and joined and joined[-1].startswith("--") and "=" not in joined[-1]:
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _run(arguments: argparse.Namespace) -> int:
    """Runs the chosen command; wrong input becomes one line, an interruption another."""
    started = time.perf_counter()
    try:
        module = import_module(f"frozenprobe.cli.{arguments.command}")
        arguments.started = started
        module.run(arguments)
    except FrozenprobeError as error:
        # Where rank 0 is lost, nobody else says so.
        speaks = launched_rank() == 1 and isinstance(error, RankError) and error.rank == 0
        stream = sys.__stderr__ if speaks else sys.stderr
        print(f"frozenprobe: {' '.join(str(error).split())}", file=stream)
        return error.exit_code
    except KeyboardInterrupt:
        print("frozenprobe: interrupted; what was finished is kept, the same command goes on", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has left, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return 0


if __name__ == "__main__":
    main()
