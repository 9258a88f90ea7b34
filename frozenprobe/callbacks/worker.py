"""The evaluating process: takes snapshots from a pipe one by one, measures them, sends back what came of them.

Started by `background.py`. It ends when the pipe is closed, whatever the reason, and then removes the snapshots that nobody will
ask for any more.
"""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import time
from multiprocessing.connection import Connection

import torch

from frozenprobe.callbacks.evaluation import Evaluator, Outcome
from frozenprobe.callbacks.snapshot import Snapshot
from frozenprobe.settings import CallbackSettings

NICENESS = 10


def serve(connection: Connection) -> None:
    """Answers until the other side has gone: settings and the folder of the snapshots first, then tokenizers and snapshots."""
    settings, folder = connection.recv()
    try:
        _serve(connection, settings)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _serve(connection: Connection, settings: CallbackSettings) -> None:
    evaluator = None
    tokenizer = None
    while True:
        message = connection.recv()
        if not isinstance(message, Snapshot):
            tokenizer = pickle.loads(message)
            continue
        started = time.perf_counter()
        try:
            evaluator = evaluator or Evaluator(settings)
            outcome = evaluator.evaluate(message.load(settings.device), tokenizer, message.step)
        except Exception as error:
            outcome = Outcome.failed(message.step, error, time.perf_counter() - started)
        connection.send(outcome)


def main() -> None:
    """Runs the process; the pipe's file descriptor and the number of threads are the arguments."""
    os.nice(NICENESS)  # where the two share a core, training comes first
    torch.set_num_threads(int(sys.argv[2]))
    serve(Connection(int(sys.argv[1])))


if __name__ == "__main__":
    main()
