"""Where a task's rows come from: a local copy in the hub's layout, or the hub; found out before anything is encoded.

A local copy is looked for as `OWNER/NAME@REVISION`, with the revision that mteb pins, and then as `OWNER/NAME`, whose
revision is unknown and recorded so: the two benchmarks pin some data sets at different revisions. mteb reads it through
`load_dataset(folder, config)`, which sees configs only where a README names them; a folder without one gets such a page beside it.
"""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from huggingface_hub import DatasetCard
from mteb.abstasks.classification import AbsTaskClassification
from mteb.abstasks.clustering import AbsTaskClustering
from mteb.abstasks.clustering_legacy import AbsTaskClusteringLegacy
from mteb.abstasks.pair_classification import AbsTaskPairClassification
from mteb.abstasks.retrieval import AbsTaskRetrieval

from frozenprobe.errors import DataError
from frozenprobe.suites.mteb.selection import statistics_of
from frozenprobe.tasks.files import SUFFIXES

UNKNOWN_REVISION = "revision unknown"
_SHARD = re.compile(r"(?P<split>.+)-\d{5}-of-\d{5}$")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_HUB_THREADS = 8

Configs = dict[str, dict[str, list[Path]]]
"""Files by config and split."""


def use_local_copies(tasks: Sequence[Any], data_dir: Path, pages: Path) -> dict[str, str]:
    """Points tasks at their local copies.

    Args:
        tasks: mteb tasks; their metadata is replaced.
        data_dir: The folder of the copies; nothing is written there.
        pages: A folder for the pages that name configs.

    Returns:
        The folder of each task's copy, by the task's name.

    Raises:
        DataError: A data set, or a config or split that its task reads, is not there; all that are missing are named.
    """
    if not data_dir.is_dir():
        raise DataError(f"the data folder {data_dir} does not exist")
    problems, folders = [], {}
    for task in tasks:
        hub_id, pinned = task.metadata.dataset["path"], task.metadata.dataset["revision"]
        folder = data_dir / hub_id
        with_revision = folder.with_name(f"{folder.name}@{pinned}")
        revision = UNKNOWN_REVISION
        if with_revision.is_dir():
            folder, revision = with_revision, pinned
        if not folder.is_dir():
            problems.append(f"{task.metadata.name} ({hub_id})")
            continue
        folders[task.metadata.name] = str(folder)
        configs = {} if _names_configs(folder) else _configs(folder)
        if configs:
            lacking = _lacking(task, configs)
            if lacking:
                problems.append(f"{task.metadata.name} ({folder} has no {lacking})")
                continue
            # Such a task would read all languages from one config and divide the rows by a column; its own is enough.
            task.fast_loading = task.fast_loading and not set(task.hf_subsets) <= set(configs)
            folder = _page(configs, pages / folder.parent.name / folder.name)
        dataset = {**task.metadata.dataset, "path": str(folder.resolve()), "revision": revision}
        task.metadata = task.metadata.model_copy(update={"dataset": dataset})
    if problems:
        raise DataError(
            f"{len(problems)} of {len(tasks)} data sets are not in {data_dir}: {', '.join(problems)}; "
            "add them, or choose tasks with --tasks"
        )
    return folders


def inherit_revision(aggregate: Any, parts: Sequence[Any]) -> None:
    """An aggregate of copies of unknown revision is of unknown revision too."""
    if any(part.metadata.dataset["revision"] == UNKNOWN_REVISION for part in parts):
        dataset = {**aggregate.metadata.dataset, "revision": UNKNOWN_REVISION}
        aggregate.metadata = aggregate.metadata.model_copy(update={"dataset": dataset})


def check_hub(tasks: Sequence[Any]) -> None:
    """Asks the hub, or its cache where there is no network, for every data set at its pinned revision.

    Raises:
        DataError: One is not there, or only the cache answers and holds another revision; all are named.
    """
    with ThreadPoolExecutor(_HUB_THREADS) as pool:
        answers = list(pool.map(_ask_hub, tasks))
    problems = [f"{task.metadata.name} ({answer})" for task, answer in zip(tasks, answers, strict=True) if answer]
    if problems:
        raise DataError(
            f"{len(problems)} of {len(tasks)} data sets cannot be had from the hub: {'; '.join(problems)}; "
            "check the network, give a local copy with --data-dir, or choose tasks with --tasks"
        )


def load(task: Any) -> None:
    """Reads a task's rows through mteb.

    Raises:
        DataError: They cannot be read, or a re-ranking task came without its candidates.
    """
    try:
        task.load_data()
    except Exception as error:  # whatever datasets and the hub's clients raise
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        source = f"{task.metadata.dataset['path']} at {task.metadata.dataset['revision']}"
        raise DataError(f"{task.metadata.name}: {source} cannot be read: {type(error).__name__}: {reason}") from error
    if task.metadata.type == "Reranking":  # mteb would rank the whole corpus, and the score would be another task's
        for subset, splits in task.dataset.items():
            if any(splits[split].get("top_ranked") is None for split in task.eval_splits):
                raise DataError(f"{task.metadata.name}: its candidates (config top_ranked of {subset}) are missing")


def rows_of(task: Any, split: str, subset: str) -> int:
    """Rows of a loaded split, counted as mteb's statistics count them."""
    parts = task.dataset.get(subset, task.dataset)
    rows = parts[split]
    if isinstance(task, AbsTaskRetrieval):
        return len(rows["corpus"]) + len(rows["queries"])
    if isinstance(task, AbsTaskClustering | AbsTaskClusteringLegacy):
        return _leaves(rows[task.input_column_name])
    if isinstance(task, AbsTaskPairClassification):
        return _leaves(rows[task.label_column_name])
    return len(rows)


def subset_of(task: Any) -> str | None:
    """What a loaded local copy of unknown revision lacks of the published rows, or None."""
    if task.metadata.dataset["revision"] != UNKNOWN_REVISION:
        return None
    splits = list(task.eval_splits)
    if isinstance(task, AbsTaskClassification):
        splits.append(task.train_split)
    for split in splits:
        for subset in task.hf_subsets:
            published = statistics_of(task, split, subset)
            if published is None:
                continue
            rows, expected = rows_of(task, split, subset), published["num_samples"]
            if rows < expected:
                return f"{split} {rows:,} of {expected:,} rows"
            if rows > expected:
                return f"{split} {rows:,} rows where {expected:,} are published"
    return None


def _ask_hub(task: Any) -> str | None:
    """What is wrong with a task's data set on the hub, or None."""
    from datasets import get_dataset_config_names, load_dataset_builder

    path, revision = task.metadata.dataset["path"], task.metadata.dataset["revision"]
    try:
        names = get_dataset_config_names(path, revision=revision)
        config = names[0] if isinstance(task, AbsTaskRetrieval) or len(names) == 1 else task.hf_subsets[0]
        builder = load_dataset_builder(path, config if config in names else None, revision=revision)
    except Exception as error:  # whatever datasets and the hub's clients raise
        return f"{path}: {(str(error).strip().splitlines() or [type(error).__name__])[0].rstrip('.')}"
    if _COMMIT.fullmatch(revision) and builder.hash != revision:
        return f"{path}: the hub does not answer, and the cache holds revision {builder.hash}, not {revision}"
    return None


def _names_configs(folder: Path) -> bool:
    page = folder / "README.md"
    if not page.is_file():
        return False
    try:
        return bool(DatasetCard.load(page, ignore_metadata_errors=True).data.get("configs"))
    except (OSError, ValueError) as error:
        raise DataError(f"{page}: {(str(error).splitlines() or ['cannot be read'])[0]}") from error


def _configs(folder: Path) -> Configs:
    """`<config>/<split>.parquet` and `<config>/<split>-00000-of-00002.parquet`; empty for any other layout."""
    found: Configs = {}
    for path in sorted(folder.glob("*/*")):
        if path.is_file() and path.suffix in SUFFIXES:
            shard = _SHARD.match(path.stem)
            config = found.setdefault("default" if path.parent.name == "data" else path.parent.name, {})
            config.setdefault(shard["split"] if shard else path.stem, []).append(path)
    return found


def _lacking(task: Any, configs: Configs) -> str | None:
    """A config or split that mteb reads and the folder lacks, in words, or None."""
    if isinstance(task, AbsTaskRetrieval):
        prefix = "" if task.hf_subsets == ["default"] else f"{task.hf_subsets[0]}-"
        qrels = "default" if not prefix and "default" in configs else f"{prefix}qrels"
        queries = "query" if "query" in configs else f"{prefix}queries"
        candidates = [f"{prefix}top_ranked"] if task.metadata.type == "Reranking" else []
        wanted = [qrels, f"{prefix}corpus", queries, *candidates]
        splits = []
    else:
        wanted = list(task.hf_subsets) if len(configs) > 1 or task.metadata.is_multilingual else []
        if task.fast_loading and "default" in configs and not set(wanted) <= set(configs):
            wanted = ["default"]
        splits = [*task.eval_splits, *([task.train_split] if isinstance(task, AbsTaskClassification) else [])]
    for config in wanted:
        if config not in configs:
            return f"config {config}"
    for config in wanted or list(configs):
        for split in splits:
            if split not in configs[config]:
                return f"split {split} in {config}"
    return None


def _page(configs: Configs, folder: Path) -> Path:
    """A folder with nothing but the page that names the configs and where their files lie."""
    entries = [
        {
            "config_name": config,
            "data_files": [
                {"split": split, "path": [glob.escape(str(path.resolve())) for path in paths]}
                for split, paths in splits.items()
            ],
        }
        for config, splits in sorted(configs.items(), key=lambda item: item[0] != "default")
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text(f"---\n{json.dumps({'configs': entries})}\n---\n", encoding="utf-8")
    return folder


def _leaves(column: Any) -> int:
    """Entries of a column whose rows may themselves be lists."""
    return sum(len(entry) if isinstance(entry, list) else 1 for entry in column)
