"""The table of the two English benchmarks against mteb's own."""

import pytest

from frozenprobe.tasks.mteb import BENCHMARKS, CATEGORIES, tasks_of

COUNTS = {"MTEB(eng, v1)": (12, 11, 3, 4, 15, 10, 1), "MTEB(eng, v2)": (8, 8, 3, 2, 10, 9, 1)}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_task_is_listed_with_its_category_and_main_score(name):
    import mteb

    theirs = [
        (task.metadata.name, task.metadata.type, task.metadata.main_score) for task in mteb.get_benchmark(name).tasks
    ]
    assert sorted(tasks_of(name)) == sorted(theirs)
    assert tuple(len(BENCHMARKS[name][category]) for category in CATEGORIES) == COUNTS[name]


def test_an_unknown_benchmark_has_no_tasks_here():
    assert tasks_of("MTEB(rus, v1)") == []
