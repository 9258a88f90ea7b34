"""From the names that a user types to tasks, and from a task to its rows. Suites are never mixed: a mean has one suite."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from frozenprobe.errors import DataError
from frozenprobe.tasks.base import TaskData, TaskSpec
from frozenprobe.tasks.builtin import BUILTIN, load_builtin
from frozenprobe.tasks.builtin import SUITE as BUILTIN_SUITE
from frozenprobe.tasks.glue import DEFAULT_TASKS, GLUE
from frozenprobe.tasks.loading import load_task

Suite = Literal["glue", "builtin"]

TASKS: dict[Suite, dict[str, TaskSpec]] = {"glue": GLUE, "builtin": BUILTIN}
DEFAULTS: dict[Suite, tuple[str, ...]] = {"glue": DEFAULT_TASKS, "builtin": tuple(BUILTIN)}


def resolve(names: Sequence[str] | None, suite: Suite = "glue") -> list[TaskSpec]:
    """The tasks that a user asked for, each once, in the order of the suite's table.

    Args:
        names: Task names; case, hyphens and underscores do not matter. None: the suite's default.
        suite: `glue` or `builtin`.

    Raises:
        DataError: No name is given, or a name is unknown; says what is allowed and what was probably meant.
    """
    if suite not in TASKS:
        raise DataError(f"unknown suite {suite!r}; allowed are {', '.join(TASKS)}")
    tasks = TASKS[suite]
    if names is None:
        names = DEFAULTS[suite]
    elif not names:
        raise DataError(f"no task is named; allowed are {', '.join(tasks)}")
    by_key = {_key(name): name for name in tasks}
    wanted = {by_key[_key(name)] if _key(name) in by_key else _refuse(name, suite) for name in names}
    return [spec for name, spec in tasks.items() if name in wanted]


def load(spec: TaskSpec, *, data_dir: Path | None = None, revision: str | None = None, seed: int = 0) -> TaskData:
    """Loads a task of either suite: a built-in one from its seed, any other from `data_dir` or the hub.

    Raises:
        DataError: See `load_task`.
    """
    if spec.suite == BUILTIN_SUITE:
        return load_builtin(spec.name, seed)
    return load_task(spec, data_dir=data_dir, revision=revision)


def _key(name: str) -> str:
    return name.casefold().replace("-", "").replace("_", "").strip()


def _refuse(name: str, suite: Suite) -> str:
    tasks = TASKS[suite]
    for other, others in TASKS.items():
        if other != suite and _key(name) in {_key(known) for known in others}:
            raise DataError(f"{name!r} is a task of the suite {other}, not of {suite}; {suite} has {', '.join(tasks)}")
    close = difflib.get_close_matches(_key(name), [_key(known) for known in tasks], n=2, cutoff=0.5)
    guesses = [known for known in tasks if _key(known) in close]
    hint = f"; did you mean {' or '.join(guesses)}?" if guesses else ""
    raise DataError(f"unknown task {name!r}; allowed are {', '.join(tasks)}{hint}")
