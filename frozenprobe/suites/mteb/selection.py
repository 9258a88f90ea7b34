"""Which tasks a run is made of, what each would cost, and their order: cheap ones first.

A benchmark is mteb's own; the table in `tasks/mteb.py` says what the two English ones consist of, so that one that has
changed is noticed.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mteb
from mteb.abstasks.aggregated_task import AbsTaskAggregate

from frozenprobe.errors import DataError
from frozenprobe.suites.mteb.settings import MtebSettings
from frozenprobe.tasks.mteb import BENCHMARKS, CATEGORIES, tasks_of

_TRAIN_ROWS_PER_LABEL = 80  # of a classification task: mteb draws 8 of them ten times over


@dataclass(frozen=True)
class Size:
    """What a task encodes, by mteb's own statistics.

    Attributes:
        texts: Distinct texts.
        characters: Their characters.
    """

    texts: int
    characters: int


@dataclass(frozen=True)
class Selection:
    """The tasks of a run.

    Attributes:
        benchmark: mteb's name of the benchmark.
        complete: Name, category and main score of all its tasks, whether asked for or not.
        tasks: The tasks asked for, cheap ones first; those outside of the benchmark are allowed, and are in no mean of it.
        notes: What a reader of the means should know.
    """

    benchmark: str
    complete: list[tuple[str, str, str]]
    tasks: list[Any]
    notes: list[str]


def select(settings: MtebSettings) -> Selection:
    """Finds the benchmark and the tasks that settings name.

    Raises:
        DataError: A benchmark or task is unknown, is not made of texts, or nothing is left to run.
    """
    benchmark = _benchmark(settings.benchmark)
    found = {_key(task.metadata.name): task for task in benchmark.tasks}
    complete = _in_order(found.values())
    if settings.tasks is None:
        tasks = list(found.values())
    else:
        tasks = list({task.metadata.name: task for name in settings.tasks for task in [_task(name, found)]}.values())
    if settings.task_types is not None:
        tasks = [task for task in tasks if task.metadata.type in settings.task_types]
    if not tasks:
        raise DataError(f"no task is left of {benchmark.name}: choose others with --tasks and --task-types")
    for task in tasks:
        if task.metadata.modalities != ["text"]:
            raise DataError(f"{task.metadata.name} is not a task of texts only ({', '.join(task.metadata.modalities)})")
    tasks = [fresh(task) for task in sorted(tasks, key=_cost)]  # mteb's own instances are shared by the whole process
    return Selection(benchmark.name, complete, tasks, _notes(benchmark.name, complete))


def parts_of(task: Any) -> list[Any]:
    """The tasks that are encoded for a task: itself, or the parts of an aggregate, cheap ones first."""
    if isinstance(task, AbsTaskAggregate):
        return [fresh(part) for part in sorted(task.metadata.tasks, key=_cost)]
    return [task]


def fresh(task: Any) -> Any:
    """The same task anew: an instance draws from a random state of its own, so a second evaluation of it would differ."""
    copy = type(task)(seed=task.seed)
    for name in ("hf_subsets", "_eval_splits", "metadata", "fast_loading"):
        setattr(copy, name, getattr(task, name))
    return copy


def size(task: Any) -> Size | None:
    """How much a task encodes, or None where mteb has no statistics of it."""
    if isinstance(task, AbsTaskAggregate):
        sizes = [size(part) for part in task.metadata.tasks]
        known = [part for part in sizes if part is not None]
        if len(known) < len(sizes):
            return None
        return Size(sum(part.texts for part in known), sum(part.characters for part in known))
    texts = characters = 0.0
    for split in task.eval_splits:
        for subset in task.hf_subsets:
            statistics = statistics_of(task, split, subset)
            if statistics is None:
                return None
            share = _share(task, statistics["num_samples"])
            for column in _columns(statistics):
                texts += share * column["unique_texts"]
                characters += share * column["unique_texts"] * column["average_text_length"]
    train = getattr(task, "train_split", None)
    if train is not None and train not in task.eval_splits:
        for subset in task.hf_subsets:
            statistics = statistics_of(task, train, subset)
            if statistics is not None:
                rows = min(
                    statistics["num_samples"], _TRAIN_ROWS_PER_LABEL * statistics["label_statistics"]["unique_labels"]
                )
                texts += rows
                characters += rows * statistics["text_statistics"]["average_text_length"]
    return Size(round(texts), round(characters))


def statistics_of(task: Any, split: str, subset: str) -> dict[str, Any] | None:
    """The published statistics of one subset of a split."""
    found = (task.metadata.descriptive_stats or {}).get(split)
    by_subset = (found or {}).get("hf_subset_descriptive_stats")
    return by_subset.get(subset) if by_subset else found


def _columns(statistics: dict[str, Any]) -> list[dict[str, Any]]:
    """The statistics of every column of texts."""
    kinds = ("text_statistics", "text1_statistics", "text2_statistics", "summaries_statistics")
    columns = [entry for name, entry in statistics.items() if name.endswith(kinds) and entry]
    # The texts that were summarised are never encoded.
    return columns[1:] if "human_summaries_statistics" in statistics else columns


def _share(task: Any, rows: int) -> float:
    """The part of its rows that a clustering task of the newer kind draws."""
    most = getattr(task, "max_document_to_embed", None)
    fraction = getattr(task, "max_fraction_of_documents_to_embed", None)
    if most is not None:
        return min(1.0, most / rows)
    return 1.0 if fraction is None else fraction


def _cost(task: Any) -> tuple[float, str]:
    counted = size(task)
    return (float("inf") if counted is None else counted.characters, task.metadata.name)


def _benchmark(name: str) -> Any:
    known = [benchmark.name for benchmark in mteb.get_benchmarks()]
    try:
        return mteb.get_benchmark(name)
    except (KeyError, ValueError):
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or list(BENCHMARKS)
        raise DataError(f"mteb has no benchmark {name!r}; did you mean {' or '.join(close)}?") from None


def _task(name: str, found: dict[str, Any]) -> Any:
    """A task of the benchmark; else as another English benchmark has it; else mteb's, in English where it can be."""
    if _key(name) in found:
        return found[_key(name)]
    for other in BENCHMARKS:
        for task in mteb.get_benchmark(other).tasks:
            if _key(task.metadata.name) == _key(name):
                return task
    try:
        (task,) = mteb.get_tasks(tasks=[name], languages=["eng"]) or mteb.get_tasks(tasks=[name])
    except (KeyError, ValueError):
        known = [task.metadata.name for task in found.values()]
        known += [task for other in BENCHMARKS for task, *_ in tasks_of(other)]
        by_key = {_key(task): task for task in known}
        close = [by_key[key] for key in difflib.get_close_matches(_key(name), by_key, n=3, cutoff=0.5)]
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise DataError(f"mteb has no task {name!r}{hint}") from None
    return task


def _in_order(tasks: Any) -> list[tuple[str, str, str]]:
    """Name, category and main score, in the order of the categories and by name."""
    rows = [(task.metadata.name, task.metadata.type, task.metadata.main_score) for task in tasks]
    place = {category: position for position, category in enumerate(CATEGORIES)}
    return sorted(rows, key=lambda row: (place.get(row[1], len(place)), row[1], row[0].lower()))


def _notes(name: str, complete: Sequence[tuple[str, str, str]]) -> list[str]:
    published = tasks_of(name)
    if not published or published == list(complete):
        return []
    changed = sorted({task for task, *_ in set(published) ^ set(complete)})
    return [f"the installed mteb {mteb.__version__} has another {name} than was published: {', '.join(changed)}"]


def _key(name: str) -> str:
    return name.casefold().replace("-", "").replace("_", "").strip()
