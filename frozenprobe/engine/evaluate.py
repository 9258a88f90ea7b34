"""One unit of work: a task in one pair form, from texts to scores, for the price of one forward pass."""

from __future__ import annotations

import hashlib
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Shaped

from frozenprobe.encoders.base import Encoder
from frozenprobe.engine.run import OnProgress
from frozenprobe.errors import FeatureError, ProbeError
from frozenprobe.features.base import Features, Inputs, View
from frozenprobe.features.cache import FeatureCache
from frozenprobe.features.diagnostics import diagnose
from frozenprobe.features.extract import extract
from frozenprobe.features.pairs import siamese
from frozenprobe.features.sharding import Team
from frozenprobe.features.tokens import KeptTokens
from frozenprobe.probes.base import Labelled
from frozenprobe.probes.sweep import run_probes
from frozenprobe.records.schema import Unit, UnitKey
from frozenprobe.settings import FeatureSettings, ProbeSettings
from frozenprobe.tasks.base import Split, TaskData, TaskSpec

HEADLINE_VIEW = View("last", "mean")


def unit_key(data: TaskData, pair_form: str, training: str = "frozen") -> UnitKey:
    """The unit of a task; a subset of the published data is never filed under the task's own name."""
    name = data.spec.name + ("-subset" if data.subset else "")
    return UnitKey(data.spec.suite, name, pair_form if data.spec.is_pair else "single", training)


def unit_title(data: TaskData) -> str:
    """The task's name as printed."""
    return data.spec.title + (" (subset)" if data.subset else "")


def train_rows(train: Split, settings: ProbeSettings) -> Split:
    """The rows of the train split that both probes see: at most `max_train`, drawn by the seed, in the order of the file."""
    return train if settings.max_train == "all" else train.some(settings.max_train, settings.seed)


def inputs_of(split: Split, pair_form: str) -> list[Inputs]:
    """What is encoded for a split: its texts, its joint sequences, or both sides of its pairs apart."""
    if split.pairs is None or pair_form == "joint":
        return [Inputs(split.texts, split.pairs)]
    return [Inputs(split.texts), Inputs(split.pairs)]


def facts_of(data: TaskData, splits: Sequence[Split]) -> dict[str, Any]:
    """What a unit says of its data; `splits` are the rows in use, train first."""
    return {
        "target": data.spec.target,
        "classes": list(data.spec.classes),
        "metrics": list(data.spec.metrics),
        "source": data.source,
        "revision": data.revision,
        "subset": data.subset,
        "train_rows": len(splits[0]),
        "train_rows_available": len(data.train),
        "digests": {split.name: _digest(split) for split in splits},
    }


@dataclass(frozen=True)
class TaskRows:
    """The rows of a task that are encoded and scored, in one pair form.

    Attributes:
        key: The unit that they make.
        title: The task's name as printed.
        spec: The task's description.
        about: Facts of the unit that are known before anything is encoded.
        splits: Name and labels of the train split and of each scored split.
        inputs: What is encoded: for each split its texts or joint sequences, or both sides of its pairs apart; or the
            same as tokens.
    """

    key: UnitKey
    title: str
    spec: TaskSpec
    about: dict[str, Any]
    splits: tuple[tuple[str, Shaped[np.ndarray, " n"]], ...]
    inputs: list[Inputs] | KeptTokens

    @classmethod
    def of(cls, data: TaskData, pair_form: str, settings: ProbeSettings, training: str = "frozen") -> TaskRows:
        """Takes the rows in question from a task's data."""
        splits = [train_rows(data.train, settings), *data.evaluations]
        return cls(
            unit_key(data, pair_form, training),
            unit_title(data),
            data.spec,
            facts_of(data, splits),
            tuple((split.name, split.labels) for split in splits),
            [part for split in splits for part in inputs_of(split, pair_form)],
        )

    def tokenized(self, encoder: Encoder) -> TaskRows:
        """The same rows as an encoder's tokens, without their texts: for one that is measured again and again."""
        return self if isinstance(self.inputs, KeptTokens) else replace(self, inputs=KeptTokens(encoder, self.inputs))


def evaluate_task(
    encoder: Encoder,
    rows: TaskRows,
    views: Sequence[View],
    features: FeatureSettings,
    probes: ProbeSettings,
    cache: FeatureCache | None,
    on_progress: OnProgress,
    team: Team | None = None,
) -> tuple[Unit, dict[str, float]]:
    """Encodes a task's rows once, on all ranks of the team if there is one, and probes every view of them.

    Returns:
        The finished unit, and its wall time in seconds by phase.

    Raises:
        FeatureError: The encoder gave a non-finite feature.
        ProbeError: The probes cannot be fitted.
    """
    spec, title, splits = rows.spec, rows.title, rows.splits
    try:
        extracted = extract(
            encoder,
            rows.inputs,
            views,
            features,
            cache=cache,
            on_progress=lambda progress: on_progress("forward", progress.done, progress.total),
            team=team,
        )
    except FeatureError as error:
        raise FeatureError(f"{title}: {error}") from error
    parts_per_split = len(extracted) // len(splits)
    report = extracted[0].report
    warnings = []
    if report.truncated:
        share = report.lost_tokens / report.total_tokens
        warnings.append(
            f"{report.truncated:,} of {report.rows:,} inputs are longer than {encoder.info.max_length} tokens; "
            f"{share:.1%} of all tokens were cut off"
        )
    started = time.perf_counter()
    extraction = {name: value for name, value in report.as_dict().items() if name != "seconds"}
    unit = Unit(rows.key, title, {**rows.about, "extraction": extraction, "diagnostics": {}})
    for name, labels in splits[1:]:
        unit.add_labels(name, labels)
    for done, view in enumerate(views):
        on_progress("probe", done, len(views))
        labelled = [
            Labelled(name, _features(extracted[i * parts_per_split : (i + 1) * parts_per_split], view), labels)
            for i, (name, labels) in enumerate(splits)
        ]
        diagnostics = diagnose(labelled[0].features)
        unit.about["diagnostics"][str(view)] = diagnostics.as_dict()
        try:
            result = run_probes(
                labelled[0],
                labelled[1:],
                target=spec.target,
                n_classes=len(spec.classes),
                metrics=spec.metrics,
                settings=probes,
                device=encoder.info.device if encoder.info.device.startswith("cuda") else "cpu",  # float64 is needed
                seed=task_seed(probes.seed, spec),
            )
        except ProbeError as error:
            raise ProbeError(f"{title}, {view}: {error}") from error
        unit.add_view(view.layer, view.pooling, view == HEADLINE_VIEW, result)
        if view == HEADLINE_VIEW:
            warnings += [*diagnostics.warnings, *result.warnings]
    unit.about["warnings"] = warnings
    return unit, {**report.seconds, "probe": time.perf_counter() - started}


def _features(parts: Sequence[Features], view: View) -> np.ndarray:
    """The features of one split: as encoded, or composed from both sides of its pairs."""
    vectors = [part.by_view[view] for part in parts]
    return vectors[0] if len(vectors) == 1 else siamese(*vectors)


def task_seed(seed: int, spec: TaskSpec) -> int:
    """A seed of a task's own, so that tasks are independent and a task does not depend on its neighbours."""
    return zlib.crc32(f"{seed}/{spec.suite}/{spec.name}".encode())


def _digest(split: Split) -> str:
    """Identifies the rows that were scored, so that only the same rows are ever compared."""
    digest = hashlib.sha256()
    for texts in (split.texts, split.pairs or ()):
        for text in texts:
            digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    digest.update(np.ascontiguousarray(split.labels).tobytes())
    return digest.hexdigest()[:16]
