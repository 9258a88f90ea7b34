"""What a finished training leaves behind: the poolers, held-out scores with intervals, and reading it back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from torch import nn

from frozenprobe.contrastive import checkpoint
from frozenprobe.contrastive.heldout import PerQuery, paired_interval
from frozenprobe.contrastive.saving import encoder_facts, load_pooler, save_pooler
from frozenprobe.contrastive.settings import PoolSettings
from frozenprobe.contrastive.train import BASELINE, PoolerTraining
from frozenprobe.encoders.base import Encoder, HasWarmPooler, Trainable
from frozenprobe.encoders.registry import load_encoder
from frozenprobe.errors import RecordError
from frozenprobe.files import write_atomically
from frozenprobe.settings import EncoderSettings

if TYPE_CHECKING:
    import pandas as pd

FILE = "results.json"


@dataclass(frozen=True)
class TrainingResult:
    """A finished training.

    Attributes:
        poolers: The trained poolers by name, in eval mode: `(token features [b, t, d], mask [b, t]) -> [b, e]`.
        best: The pooler with the highest held-out nDCG@10; None where several are there and nothing was held out.
        encoder: What the poolers belong to; after `unfrozen`, the trained one.
        results: What `results.json` holds.
        history: Losses and held-out scores by step.
    """

    poolers: dict[str, nn.Module]
    best: str | None
    encoder: Encoder
    results: dict[str, Any]
    history: list[dict[str, Any]]

    @property
    def pooler(self) -> nn.Module:
        """The best pooler, or the only one.

        Raises:
            RecordError: There are several, and none is known to be best.
        """
        if self.best is None:
            raise RecordError(f"nothing was held out, so none of {', '.join(self.poolers)} is known to be best")
        return self.poolers[self.best]

    def scores(self) -> pd.DataFrame:
        """One row per pooler and metric: held-out value with its interval, and its difference to mean pooling."""
        import pandas as pd

        rows = [
            {"pooler": name, "metric": metric, **values}
            for name, entry in self.results["held_out"].items()
            for metric, values in entry.items()
        ]
        return pd.DataFrame(rows)


def finish(
    out: Path,
    settings: PoolSettings,
    training: PoolerTraining,
    scores: dict[str, PerQuery],
    facts: dict[str, Any],
    identity: dict[str, Any],
    trainable: Trainable | None,
) -> None:
    """Writes poolers and scores; `results.json`, which says that it is all there, comes last."""
    if trainable is not None:
        trainable.save_trained(out / "encoder")
        trained = load_encoder(_trained_settings(settings, out, facts["max_length"]))
        facts = encoder_facts(trained, settings.layer)
    for name, trainee in training.trainees.items():
        if name not in training.state.failed:
            about = {
                "data": {"source": training.data.rows.report.source, **identity["data"]},
                "schedule": identity["training"],
                "pooler": identity["poolers"][name],
                "prompts": settings.prompts,
            }
            save_pooler(out / "poolers" / name, trainee.pooler, trainee.candidate.pooler, facts, about)
    if scores:
        table = {
            "pooler": [name for name, found in scores.items() for _ in range(len(found["ndcg@10"]))],
            "query": [row for found in scores.values() for row in range(len(found["ndcg@10"]))],
            **{
                metric: np.concatenate([found[metric] for found in scores.values()]) for metric in ("mrr@10", "ndcg@10")
            },
        }
        buffer = pa.BufferOutputStream()
        pq.write_table(pa.table(table), buffer)
        write_atomically(out / "held_out.parquet", buffer.getvalue().to_pybytes())
    results = {
        "identity": identity,
        "data": training_data_report(training),
        "failed": training.state.failed,
        "held_out": {name: _with_intervals(found, scores[BASELINE]) for name, found in scores.items()},
        "best": _best(scores, [name for name in training.trainees if name not in training.state.failed]),
    }
    write_json(out / FILE, results)
    (out / checkpoint.FILE).unlink(missing_ok=True)


def training_data_report(training: PoolerTraining) -> dict[str, Any]:
    """Counts of the rows, as recorded."""
    return {**training.data.rows.report.as_dict(), "trained": len(training.data.train)}


def _with_intervals(found: PerQuery, baseline: PerQuery) -> dict[str, dict[str, float]]:
    entries = {}
    for metric, values in found.items():
        difference = values - baseline[metric]
        (low, high), (less, more) = paired_interval(values), paired_interval(difference)
        entries[metric] = {
            "value": float(values.mean()),
            "low": low,
            "high": high,
            "against_mean": float(difference.mean()),
            "against_mean_low": less,
            "against_mean_high": more,
        }
    return entries


def _best(scores: dict[str, PerQuery], trained: list[str]) -> str | None:
    if len(trained) == 1:
        return trained[0]
    if not scores:
        return None
    return max(trained, key=lambda name: (scores[name]["ndcg@10"].mean(), scores[name]["mrr@10"].mean()))


def _trained_settings(settings: PoolSettings, out: Path, max_length: int) -> EncoderSettings:
    """How the encoder that was trained along is loaded."""
    return EncoderSettings(
        ckpt=f"hf:{out / 'encoder'}",
        name=settings.encoder.name,
        device=settings.encoder.device,
        attn=settings.encoder.attn,
        max_length=max_length,
        trust_remote_code=settings.encoder.trust_remote_code,
    )


def read(out: Path, encoder: Encoder, settings: PoolSettings, fingerprint: str) -> TrainingResult:
    """A finished training.

    Args:
        out: Its folder.
        encoder: The encoder that it began with.
        settings: What was asked for.
        fingerprint: Of that encoder.

    Raises:
        FrozenprobeError: A file is damaged.
    """
    results = read_json(out / FILE)
    origin = encoder if isinstance(encoder, HasWarmPooler) else None
    history = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    if settings.training.unfrozen:
        encoder = load_encoder(_trained_settings(settings, out, encoder.info.max_length))
        fingerprint = encoder.fingerprint()
    names = [name for name in results["identity"]["poolers"] if name not in results["failed"]]
    poolers = {
        name: load_pooler(out / "poolers" / name, encoder, fingerprint=fingerprint, origin=origin) for name in names
    }
    return TrainingResult(poolers, results["best"], encoder, results, history)


def write_history(out: Path, training: PoolerTraining) -> None:
    """Writes the losses and held-out scores so far."""
    lines = "".join(json.dumps(entry) + "\n" for entry in training.state.history)
    write_atomically(out / "history.jsonl", lines.encode())


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file of ours.

    Raises:
        RecordError: It is damaged.
    """
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RecordError(f"{path} is damaged ({error}); choose another --out or --overwrite") from None


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Writes a JSON file whole.

    Raises:
        RecordError: The disk is full or the folder cannot be written.
    """
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())
