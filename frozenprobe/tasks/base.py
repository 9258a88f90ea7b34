"""A task as data: what is read, what is predicted, which metric counts. Knows neither encoders nor probes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from jaxtyping import Shaped

Target = Literal["classification", "regression"]


@dataclass(frozen=True)
class TaskSpec:
    """The description of one task.

    Attributes:
        name: As typed by a user: `cola`, `mnli`, ...
        title: As printed in a table: `CoLA`, `MNLI`.
        suite: `GLUE`, `built-in` or the user's own name; printed with every score.
        target: Whether labels are class ids or real numbers.
        columns: One text column, or the two of a pair.
        label_column: The column with the label.
        classes: Label names in the order of their ids; empty for regression.
        train_split: The split that probes are fitted on.
        evaluation_splits: The splits that are scored; the first gives the headline.
        metrics: All metrics recorded; the first is the headline.
        config: The configuration inside the data set on the hub.
        hub_id: The data set on the hub, `owner/name`; empty for tasks that come from elsewhere.
        published_rows: Rows of each published split, so that a subset is recognised; empty where nothing is published.
        label_range: Smallest and largest possible value of a regression label, or None where there is no limit.
    """

    name: str
    title: str
    suite: str
    target: Target
    columns: tuple[str, ...]
    label_column: str
    classes: tuple[str, ...]
    train_split: str
    evaluation_splits: tuple[str, ...]
    metrics: tuple[str, ...]
    config: str
    hub_id: str = ""
    published_rows: Mapping[str, int] = field(default_factory=dict, hash=False)
    label_range: tuple[float, float] | None = None

    @property
    def is_pair(self) -> bool:
        """True where an input is two texts."""
        return len(self.columns) == 2


@dataclass(frozen=True)
class Split:
    """The rows of one split, every one of them labelled (checked on loading).

    Attributes:
        name: Name of the split.
        texts: First (or only) text of each row.
        pairs: Second text of each row, or None.
        labels: Class ids (int64) or values (float64).
    """

    name: str
    texts: list[str]
    pairs: list[str] | None
    labels: Shaped[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.texts)

    def some(self, rows: int, seed: int) -> Split:
        """At most so many rows, drawn by the seed, in the order of the file."""
        if len(self) <= rows:
            return self
        kept = np.sort(np.random.default_rng(seed).permutation(len(self))[:rows])
        pairs = None if self.pairs is None else [self.pairs[row] for row in kept]
        return Split(self.name, [self.texts[row] for row in kept], pairs, self.labels[kept])


@dataclass(frozen=True)
class TaskData:
    """A task with its rows.

    Attributes:
        spec: The task's description.
        train: The rows that probes are fitted on.
        evaluations: The scored splits, in the order of `spec.evaluation_splits`.
        source: Where the rows came from (hub id, folder, `built-in`).
        revision: Hub commit, `unknown` for a folder without one, or the generator's version and seed.
        subset: How the rows differ from the published data, in words ("train 10,293 of 104,743 rows"), or None where
            they are whole. Scores on a subset must never be reported under the task's bare name.
    """

    spec: TaskSpec
    train: Split
    evaluations: tuple[Split, ...]
    source: str
    revision: str
    subset: str | None = None

    def scored_on(self, rows: int, seed: int) -> TaskData:
        """The task with at most so many rows in each scored split; a subset, and called one, where that leaves any out."""
        evaluations = tuple(split.some(rows, seed) for split in self.evaluations)
        cut = [
            f"{part.name} {len(part):,} of {len(whole):,} rows scored"
            for part, whole in zip(evaluations, self.evaluations, strict=True)
            if len(part) < len(whole)
        ]
        subset = ", ".join(filter(None, [self.subset, *cut])) or None
        return replace(self, evaluations=evaluations, subset=subset)
