"""Reading runs back as pandas frames; loads no torch."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from frozenprobe.records.schema import COLUMNS, Unit
from frozenprobe.records.store import read_manifest, read_timings, read_units

SCORE_COLUMNS = pa.schema(
    [field for field in COLUMNS if field.name not in ("kind", "values")] + [pa.field("title", pa.string())]
)

STEP = re.compile(r"(?:step|checkpoint|ckpt)[-_ =]?(\d+)$", re.IGNORECASE)


@dataclass(frozen=True)
class Run:
    """A run read back.

    Attributes:
        folder: Where it lies.
        manifest: Its facts.
        units: Its finished units.
        damaged: Unit files left out because they are damaged.
        foreign: Unit files left out because another run wrote them.
    """

    folder: Path
    manifest: dict[str, Any]
    units: list[Unit]
    damaged: list[str]
    foreign: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The encoder's name as printed."""
        return self.manifest["encoder"]["name"]

    @property
    def step(self) -> int | None:
        """The training step of a checkpoint, where its fingerprint, its checkpoint's name or its own folder tells it."""
        encoder = self.manifest["encoder"]
        ckpt = self.manifest.get("settings", {}).get("encoder", {}).get("ckpt", "")
        for text in (encoder.get("fingerprint", ""), Path(ckpt).name, self.name, self.folder.name):
            if found := STEP.search(text):
                return int(found[1])
        return None

    def rows(self, kind: str) -> list[dict[str, Any]]:
        """All rows of a kind: `score`, `prediction` or `label`, with their task's printed title."""
        return [{**row, "title": unit.title} for unit in self.units for row in unit.rows if row["kind"] == kind]

    def scores(self) -> pd.DataFrame:
        """One row per score, with the encoder's name and revision in front."""
        encoder = self.manifest["encoder"]
        frame = pa.Table.from_pylist(self.rows("score"), schema=SCORE_COLUMNS).to_pandas()
        frame.insert(0, "encoder", self.name)
        frame.insert(1, "revision", encoder["revision"])
        return frame

    def headline(self) -> list[dict[str, Any]]:
        """The rows that a table is made of, replicates included."""
        return [row for row in self.rows("score") if row["is_headline"]]

    def warnings(self) -> list[str]:
        """What a reader of the scores should know: truncation, collapse, subsets, files left out."""
        lines = [f"{unit.title}: {line}" for unit in self.units for line in unit.about.get("warnings", ())]
        lines += [
            f"{unit.title}: {unit.about['subset']}; not a {unit.key.suite} score"
            for unit in self.units
            if unit.about.get("subset")
        ]
        return list(dict.fromkeys(lines)) + self.left_out()  # a frozen and a finetuned unit have the same texts

    def left_out(self) -> list[str]:
        """A line for each unit file that is not among the units."""
        lines = [f"{name} is damaged and left out" for name in self.damaged]
        return lines + [f"{name} is of another run and left out" for name in self.foreign]

    def timings(self) -> dict[str, dict[str, float]]:
        """Wall time by phase of the set-up and of every unit; the last timing of each counts."""
        return {line["what"]: line["seconds"] for line in read_timings(self.folder)}

    def seconds(self) -> dict[str, float]:
        """Wall time by phase, summed over the set-up and all units."""
        total: dict[str, float] = {}
        for seconds in self.timings().values():
            for phase, value in seconds.items():
                total[phase] = total.get(phase, 0.0) + value
        return total


def read_run(folder: str | Path, *, headline_only: bool = False) -> Run:
    """Reads a run's folder.

    Args:
        folder: The run.
        headline_only: Read the headline scores and nothing else, ten times as fast; enough for a table.

    Raises:
        RecordError: The folder is not a run.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    return Run(folder, manifest, *read_units(folder, manifest, headline_only=headline_only))
