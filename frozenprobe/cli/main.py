"""The `frozenprobe` command.

Exit codes: 0 done, 1 another rank was lost, 2 wrong input, 130 interrupted, 141 the output's reader has left; in all of them what was finished is kept. Of several ranks,
as `torchrun` starts them, only rank 0 prints.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from typing import NoReturn

from frozenprobe.errors import FrozenprobeError, RankError
from frozenprobe.ranks import launched_count, launched_rank

# Each command is a module of this folder.
COMMANDS = {
    "glue": "frozen evaluation of a checkpoint on GLUE or on the built-in suite",
    "sweep": "the same evaluation of many checkpoints, here or on a SLURM cluster",
    "mteb": "MTEB of a checkpoint with a pooling of its tokens, resumable, ready for the leaderboard",
    "pool": "train a pooler, or a sweep of them, contrastively on frozen token features",
    "mine": "mine hard negatives for pairs of query and positive",
    "show": "print finished runs again, from their records",
    "leaderboard": "runs, and the paper's rows, as one table and as CSV",
    "compare": "compare runs by paired tests on their stored predictions",
    "report": "runs as one HTML page that needs no network",
    "plot": "the plots of a report as SVG or PNG files",
    "cache": "show or prune the feature cache",
}

READER_LEFT = 141
"""What a shell says of a program that SIGPIPE ended, as `| head` does: no success, since not all was printed or even checked."""

DESCRIPTION = "Trustworthy evaluation of frozen text encoders: one forward pass, closed-form ridge and kNN probes."


def main(argv: Sequence[str] | None = None) -> None:
    """Runs a command and exits with its code."""
    run_program("frozenprobe", DESCRIPTION, "frozenprobe.cli", COMMANDS, argv)


def run_program(
    name: str, description: str, package: str, commands: Mapping[str, str], argv: Sequence[str] | None = None
) -> NoReturn:
    """Runs a command of a program and exits with its code: wrong input is one line, an interruption another.

    Args:
        name: The program's.
        description: What it is for.
        package: Holds one module for each command, with `add_arguments(parser)` and `run(arguments)`; only the one in
            use is imported.
        commands: Their names, and what each is for.
        argv: What was typed behind the program's name.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if launched_count() == 1:
        raise SystemExit(_guarded(name, description, package, commands, argv))
    if launched_rank() == 0:
        code = _guarded(name, description, package, commands, argv)
    else:
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            code = _guarded(name, description, package, commands, argv)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a thread that waits for a lost rank ends with the process and not before


def _guarded(name: str, description: str, package: str, commands: Mapping[str, str], argv: list[str]) -> int:
    """Runs a command; returns its exit code."""
    started = time.perf_counter()
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (it stands for the output to the end)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that knows no "±" shows a question mark
    try:
        parser = argparse.ArgumentParser(prog=name, description=description)
        arguments = _parse(parser, package, commands, argv)
        if arguments.version:
            from importlib.metadata import version

            print(f"{name} {version('frozenprobe')}")
        elif arguments.command is None:
            parser.print_help()
        else:
            arguments.started = started
            import_module(f"{package}.{arguments.command}").run(arguments)
        sys.stdout.flush()
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # rich found it, and has spared the interpreter already
            return READER_LEFT
        return int(stop.code or 0)  # argparse has printed help, or what is wrong
    except FrozenprobeError as error:
        # Where rank 0 is lost, nobody else says so.
        speaks = launched_rank() == 1 and isinstance(error, RankError) and error.rank == 0
        stream = sys.__stderr__ if speaks else sys.stderr
        print(f"{name}: {' '.join(str(error).split())}", file=stream)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"{name}: interrupted; what was finished is kept, the same command goes on", file=sys.stderr)
        return 130
    except OSError as error:
        # The reader of our output has left, as `| head` does, or the output's disk is full. The interpreter is spared
        # a second failure when it flushes on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return READER_LEFT
        print(f"{name}: {error.filename or 'output'}: {error.strerror or error}", file=sys.stderr)
        return 2
    return 0


def _parse(
    parser: argparse.ArgumentParser, package: str, commands: Mapping[str, str], argv: list[str]
) -> argparse.Namespace:
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    parser.add_argument("--version", action="store_true", help="print the version")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    chosen = next((word for word in argv if word in commands), None)
    for command, summary in commands.items():
        subparser = subparsers.add_parser(command, help=summary, description=summary, allow_abbrev=False)
        if command == chosen:
            import_module(f"{package}.{command}").add_arguments(subparser)
    return parser.parse_args(_join_negative_values(argv))


def _join_negative_values(argv: Sequence[str]) -> list[str]:
    """Lets `--layers -1,-2` be typed: argparse would take the value for an option."""
    joined: list[str] = []
    for word in argv:
        if re.match(r"-\d", word) and joined and joined[-1].startswith("--") and "=" not in joined[-1]:
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


if __name__ == "__main__":
    main()
