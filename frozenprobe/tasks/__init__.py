"""What is measured: the GLUE table, the built-in suite, a user's own tasks, and their rows, checked before encoding."""

from frozenprobe.tasks.base import Split, TaskData, TaskSpec
from frozenprobe.tasks.builtin import BUILTIN, load_builtin
from frozenprobe.tasks.custom import load_custom
from frozenprobe.tasks.glue import DEFAULT_TASKS, GLUE
from frozenprobe.tasks.loading import load_task
from frozenprobe.tasks.registry import load, resolve

__all__ = [
    "BUILTIN",
    "DEFAULT_TASKS",
    "GLUE",
    "Split",
    "TaskData",
    "TaskSpec",
    "load",
    "load_builtin",
    "load_custom",
    "load_task",
    "resolve",
]
