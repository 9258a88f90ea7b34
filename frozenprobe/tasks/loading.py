"""Loading a published task, from the hub or from a folder in the hub's layout, checked before anything is encoded.

Follows the paper's protocol in what is scored: the labelled validation splits. A split that is absent, unlabelled or of
one class is refused in one line; a split with other than the published number of rows is loaded and called a subset.
"""

from __future__ import annotations

import re
from pathlib import Path

from frozenprobe.errors import DataError
from frozenprobe.tasks.base import Split, TaskData, TaskSpec
from frozenprobe.tasks.files import SUFFIXES, Columns, read_columns
from frozenprobe.tasks.hub import HubSplits
from frozenprobe.tasks.rows import build_split

UNKNOWN_REVISION = "unknown"
_SHARD = re.compile(r"^(?P<split>.+)-(?P<index>\d{5})-of-(?P<total>\d{5})$")


def load_task(spec: TaskSpec, *, data_dir: Path | None = None, revision: str | None = None) -> TaskData:
    """Loads every row that a task fits on and scores. Cheap enough to serve as the check before a run.

    Args:
        spec: The task; it must name its data set on the hub.
        data_dir: A folder that holds `<owner>/<name>/<config>/<split>.parquet` (or .json, .jsonl, .csv, .tsv, or the
            hub's own sharded names), or the same below `<owner>/<name>@<revision>/`, which is looked for first.
            None: the hub, through `datasets` and its cache.
        revision: Branch, tag or commit on the hub, or the revision of the folder.

    Returns:
        The checked rows. `subset` says in words where they are not the published ones.

    Raises:
        DataError: Data is missing, damaged, unlabelled or of one class, or the hub does not answer.
    """
    if not spec.hub_id:
        raise DataError(f"{spec.name}: not a task of the hub; it has its own loader")
    splits: FolderSplits | HubSplits
    splits = FolderSplits(spec, data_dir, revision) if data_dir is not None else HubSplits(spec, revision)

    def load(name: str) -> Split:
        columns, where = splits.read(name)
        return build_split(spec, name, columns, where)

    headline, *others = spec.evaluation_splits
    for name in (spec.train_split, headline):
        if name not in splits.names:
            found = ", ".join(splits.names) or "none"
            raise DataError(
                f"{spec.name}: no split {name} in {splits.source}, and the task cannot be scored without it"
                f" (splits found: {found})"
            )
    train = load(spec.train_split)
    evaluations = tuple(load(name) for name in (headline, *others) if name in splits.names)
    return TaskData(
        spec=spec,
        train=train,
        evaluations=evaluations,
        source=splits.source,
        revision=splits.revision,
        subset=_difference_from_published(spec, (train, *evaluations)),
    )


def _difference_from_published(spec: TaskSpec, splits: tuple[Split, ...]) -> str | None:
    rows = {split.name: len(split) for split in splits}
    differences = []
    for name, published in spec.published_rows.items():
        if name not in rows:
            differences.append(f"{name} missing")
        elif rows[name] < published:
            differences.append(f"{name} {rows[name]:,} of {published:,} rows")
        elif rows[name] > published:
            differences.append(f"{name} {rows[name]:,} rows where {published:,} are published")
    return ", ".join(differences) or None


class FolderSplits:
    """The splits of one task in a local folder.

    Attributes:
        names: Splits found, in alphabetical order.
        source: The folder that was given.
        revision: The revision in the folder's name, or `unknown`.
    """

    def __init__(self, spec: TaskSpec, data_dir: Path, revision: str | None) -> None:
        """Finds the files; reads none.

        Raises:
            DataError: The folder or the task's folder in it is missing, or two files claim the same split.
        """
        if not data_dir.is_dir():
            raise DataError(f"{spec.name}: the data folder {data_dir} does not exist")
        root, self.revision = _locate(spec, data_dir, revision)
        self._task = spec
        self._folder = root / spec.config
        if not self._folder.is_dir():
            raise DataError(f"{spec.name}: no folder {self._folder}")
        self.source = str(root)
        self._files = _files_by_split(spec, self._folder)
        self.names = tuple(sorted(self._files))

    def read(self, name: str) -> tuple[Columns, str]:
        """Reads one split; returns its raw columns and what messages about it begin with."""
        paths = self._files[name]
        columns = read_columns(paths, (*self._task.columns, self._task.label_column))
        return columns, f"{self._task.name}, split {name} ({paths[0] if len(paths) == 1 else self._folder})"


def _locate(spec: TaskSpec, data_dir: Path, revision: str | None) -> tuple[Path, str]:
    """The data set's folder and its revision: the pinned folder first, then the plain one of unknown revision."""
    plain = data_dir / spec.hub_id
    if revision is not None:
        pinned = plain.with_name(f"{plain.name}@{revision}")
        if pinned.is_dir():
            return pinned, revision
    if plain.is_dir():
        return plain, UNKNOWN_REVISION
    pinned_folders = sorted(plain.parent.glob(f"{plain.name}@*"))
    if revision is None and len(pinned_folders) == 1:
        return pinned_folders[0], pinned_folders[0].name.partition("@")[2]
    if pinned_folders:
        found = ", ".join(folder.name for folder in pinned_folders)
        raise DataError(f"{spec.name}: choose a revision that {plain.parent} holds (it has {found})")
    raise DataError(f"{spec.name}: no folder {plain}; expected {plain}/{spec.config}/{spec.train_split}.parquet")


def _files_by_split(spec: TaskSpec, folder: Path) -> dict[str, list[Path]]:
    files: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix in SUFFIXES and path.is_file():
            shard = _SHARD.match(path.stem)
            files.setdefault(shard["split"] if shard else path.stem, []).append(path)
    for split, paths in files.items():
        shards = [match for match in (_SHARD.match(path.stem) for path in paths) if match]
        if not shards and len(paths) == 1:
            continue
        found = ", ".join(path.name for path in paths)
        total = int(shards[0]["total"]) if shards else 0
        indices = [int(shard["index"]) for shard in shards]
        if len(shards) != len(paths) or len({path.suffix for path in paths}) > 1 or len(set(indices)) < len(indices):
            raise DataError(f"{spec.name}, split {split}: more than one file claims it in {folder}: {found}")
        if indices != list(range(total)) or any(int(shard["total"]) != total for shard in shards):
            raise DataError(f"{spec.name}, split {split}: {len(paths)} of {total} shards in {folder}: {found}")
    return files
