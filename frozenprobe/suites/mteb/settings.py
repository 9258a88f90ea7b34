"""Every option of an MTEB run: the tasks, and where the pooler comes from, which may be trained first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, Field, field_validator, model_validator

from frozenprobe.contrastive.settings import ContrastiveSettings, PoolSettings
from frozenprobe.settings import (
    CommaSeparated,
    EncoderSettings,
    ExtractionSettings,
    OneLayer,
    PromptSettings,
    TaskCategory,
    parse,
)

POOLINGS = ("auto", "mean", "cls", "last", "own")


class MtebSettings(PromptSettings):
    """One evaluation on MTEB: an encoder, how its tokens become one vector, and the tasks it is scored on."""

    encoder: EncoderSettings
    features: ExtractionSettings = ExtractionSettings()
    pooler: str = Field(
        "auto",
        description="tokens to vector: mean, cls, last, own (the checkpoint's), or the folder of a trained pooler; "
        "auto: its own where it declares one, else mean",
    )
    frozen: bool = Field(
        False, description="train a pooler on the frozen token features first (--unfrozen: and the encoder with it)"
    )
    layer: OneLayer = Field(
        "last", description="whose tokens are pooled: last, or a number (-2 is the last block but one)"
    )
    normalise: bool = Field(True, description="scale vectors to length 1; a checkpoint's own pooling stays as it is")
    benchmark: str = Field("MTEB(eng, v2)", description="a benchmark of mteb: MTEB(eng, v1), MTEB(eng, v2), ...")
    tasks: CommaSeparated[str] | None = Field(None, description="comma-separated names; None: the whole benchmark")
    task_types: CommaSeparated[TaskCategory] | None = Field(
        None, description="only tasks of these categories: Classification, Clustering, STS, ..."
    )
    data_dir: Path | None = Field(
        None, description="local data, DIR/OWNER/NAME@REVISION or DIR/OWNER/NAME in the hub's layout; None: the hub"
    )
    training_data: CommaSeparated[str] | None = Field(
        None,
        description="what encoder and pooler were trained on, by mteb's names (MSMARCO); none: nothing; None: unknown, "
        "but for MS MARCO rows",
    )
    model_name: str | None = Field(
        None, pattern=r"^[^/\s]+/[^/\s]+$", description="OWNER/NAME under which mteb files the results"
    )
    export: bool = Field(True, description="save the encoder as a sentence-transformers folder")
    contrastive: ContrastiveSettings = ContrastiveSettings()

    @field_validator("training_data")
    @classmethod
    def _none_is_empty(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return () if value == ("none",) else value

    @field_validator("pooler")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in POOLINGS and not Path(value).expanduser().is_dir():
            raise ValueError(f"allowed are {', '.join(POOLINGS)}, and the folder of a trained pooler")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> MtebSettings:
        unfrozen = self.contrastive.training.unfrozen
        if self.frozen and unfrozen:
            raise ValueError("frozen excludes unfrozen, which trains the encoder too")
        if self.trains and self.pooler != "auto":
            raise ValueError(f"pooler {self.pooler} excludes frozen and unfrozen, which train one")
        if unfrozen and self.layer != "last":
            raise ValueError("layer: unfrozen trains the whole encoder: its layer is last")
        if not self.trains and (given := next(_given(self.contrastive, "contrastive"), None)):
            raise ValueError(f"{given} is for the training of a pooler, which frozen or unfrozen asks for")
        if (self.trains or self.pooler_folder) and not self.normalise:
            raise ValueError("normalise: a trained pooler's vectors have length 1")
        return self

    @property
    def trains(self) -> bool:
        """Whether a pooler is trained first."""
        return self.frozen or self.contrastive.training.unfrozen

    @property
    def pooler_folder(self) -> Path | None:
        """The folder of a trained pooler, if that is what the pooler is."""
        return None if self.pooler in POOLINGS else Path(self.pooler).expanduser()

    def pooling(self, name: str) -> PoolSettings:
        """The training of the pooler.

        Args:
            name: What the encoder is called.
        """
        shared = {field: getattr(self, field) for field in ("layer", "query_prompt", "document_prompt")}
        sections = {field: getattr(self.contrastive, field) for field in ContrastiveSettings.model_fields}
        encoder = self.encoder.model_copy(update={"name": name})
        return parse(PoolSettings, {**shared, **sections, "encoder": encoder})


def _given(section: BaseModel, place: str) -> Iterator[str]:
    """The dotted names of what was set in a section."""
    for name in sorted(section.model_fields_set):
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from _given(value, f"{place}.{name}")
        elif value is not False:  # a switch that is off asks for nothing
            yield f"{place}.{name}"
