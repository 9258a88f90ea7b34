"""Reading a task from the hub through an unmodified `datasets.load_dataset`, its commit recorded.

Whatever goes wrong on the way (no network, no such revision, a connection cut in the middle of a file) is one line.
`datasets` is imported here and only when the hub is asked: it takes longer to import than local data takes to read.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from frozenprobe.errors import DataError
from frozenprobe.tasks.base import TaskSpec
from frozenprobe.tasks.files import Columns

if TYPE_CHECKING:
    import datasets

_COMMIT = re.compile(r"[0-9a-f]{40}")


def load_hub(
    what: str, hub_id: str, config: str | None, revision: str | None
) -> tuple[dict[str, datasets.Dataset], str]:
    """Downloads all splits of a data set, unless they are in the cache.

    Args:
        what: What messages begin with.
        hub_id: The data set.
        config: Its configuration, None where it has one only.
        revision: Branch, tag or commit; None: what is newest.

    Returns:
        The splits by name, memory-mapped, and the commit that the rows belong to.

    Raises:
        DataError: The hub cannot be reached, has no such data set, revision or configuration, or sends broken data.
    """
    import datasets
    import huggingface_hub
    from datasets.exceptions import DatasetBuildError

    commit = revision
    try:
        if revision is not None and not _COMMIT.fullmatch(revision):
            # Pinned first: without a network `datasets` takes any cached commit for the branch or tag asked for.
            commit = huggingface_hub.HfApi().dataset_info(hub_id, revision=revision).sha
        loaded = datasets.load_dataset(hub_id, config, revision=commit)
    except Exception as error:  # the errors of these libraries have no common base, and all of them mean: no data
        generating = isinstance(error, DatasetBuildError)
        cause = error.__cause__ or error if generating else error
        raise DataError(f"{what}: {_explain(hub_id, config, revision, cause)}") from error
    splits = {str(name): split for name, split in loaded.items()}
    return splits, _commit_of(splits, what, hub_id, commit)


class HubSplits:
    """The splits of one task on the hub, downloaded or from the cache.

    Attributes:
        names: Splits found.
        source: The data set's id.
        revision: The commit that the rows belong to.
    """

    def __init__(self, spec: TaskSpec, revision: str | None) -> None:
        """Downloads all splits of the task, unless they are in the cache.

        Raises:
            DataError: See `load_hub`.
        """
        self._task = spec
        self._splits, self.revision = load_hub(spec.name, spec.hub_id, spec.config, revision)
        self.names = tuple(self._splits)
        self.source = spec.hub_id

    def read(self, name: str) -> tuple[Columns, str]:
        """Returns the raw columns of one split, and what messages about it begin with."""
        split = self._splits[name]
        where = f"{self._task.name}, split {name} ({self.source}@{self.revision})"
        wanted = (*self._task.columns, self._task.label_column)
        missing = [column for column in wanted if column not in split.column_names]
        if missing:
            raise DataError(f"{where}: no column {', '.join(missing)}; it has {', '.join(split.column_names)}")
        table = split.with_format("arrow")[:]
        return {column: table.column(column).to_pylist() for column in wanted}, where


def _commit_of(splits: dict[str, datasets.Dataset], what: str, hub_id: str, wanted: str | None) -> str:
    """The commit as `datasets` recorded it: in the addresses it read, or in the cache folder it wrote to.

    Without a network `datasets` answers with whatever is in its cache, even where another commit was asked for.
    """
    traces = [address for split in splits.values() for address in split.info.download_checksums or ()]
    traces += [file["filename"] for split in splits.values() for file in split.cache_files]
    found = _COMMIT.search(" ".join(traces))
    if found is None:
        raise DataError(f"{what}: {hub_id} was read, but not from a known commit")
    if wanted is not None and found.group() != wanted:
        raise DataError(
            f"{what}: the hub does not answer, and the cache holds {hub_id} only at revision {found.group()}, not {wanted}"
        )
    return found.group()


def _explain(hub_id: str, config: str | None, revision: str | None, error: BaseException) -> str:
    """One line for whatever the hub's clients raised; some of theirs have many."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # The clients print the address that was tried and a request id on lines of their own; the sentence comes last.
    reason = (lines[0] if len(lines) < 2 else f"{lines[0]} {lines[-1]}") if lines else type(error).__name__
    named = f"{hub_id} ({config})" if config else hub_id
    at = f" at revision {revision}" if revision else ""
    return (
        f"cannot load {named}{at} from the hub: {reason.rstrip('.')};"
        " check the network and the revision, or give a folder that holds the data"
    )
