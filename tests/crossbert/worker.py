"""A training run in a process of its own, which kills itself where it is told to: CONFIG OUT DIE_AT [key=value ...]."""

import os
import signal
import sys
import time
from pathlib import Path

from crossbert.checkpoint import checkpoints
from crossbert.recipes import read_recipe
from crossbert.train import train

config, out, die_at, *assignments = sys.argv[1:]


def die(step, model, tokenizer):
    """Kills the process at a step, as soon as there is a checkpoint to go on from."""
    if step == int(die_at):
        while not checkpoints(Path(out)):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)


train(read_recipe(config, assignments), Path(out), callbacks=[die])
