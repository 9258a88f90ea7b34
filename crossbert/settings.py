"""Every option of a preparation and of a training run, as frozen pydantic models shared by terminal, Python and TOML."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

import frozenprobe.settings
from crossbert.config import ModelConfig
from frozenprobe.settings import CommaSeparated, Settings

RECIPES = tuple(
    sorted(
        Path(entry.name).stem for entry in (files("crossbert") / "recipes").iterdir() if entry.name.endswith(".toml")
    )
)
"""Names of the recipes that ship with this package."""


class PrepareSettings(Settings):
    """Which text becomes which tokens. Exactly one of `text`, `hub` and `builtin` says where it comes from."""

    text: CommaSeparated[Path] = Field((), description="local .txt, .jsonl and .parquet files, or folders of them")
    hub: str | None = Field(None, description="a hub data set, streamed: owner/name")
    builtin: int | None = Field(None, ge=1, description="so many documents from the built-in grammar: needs no data")
    text_column: str = Field("text", min_length=1, description="field that holds the text (jsonl, parquet, hub)")
    text_unit: Literal["file", "paragraph", "line"] = Field("file", description="what a document is in .txt files")
    hub_config: str | None = Field(None, description="the hub set's configuration")
    hub_split: str = Field("train", description="the hub set's split")
    revision: str | None = Field(None, description="the hub set's branch, tag or commit")
    tokenizer: str = Field("FacebookAI/roberta-base", description="hub id or folder of a Hugging Face tokenizer")
    train_tokenizer: int | None = Field(
        None, ge=300, le=1_000_000, description="train a byte-level BPE of so many entries on the text instead"
    )
    tokenizer_documents: int = Field(200_000, ge=1, description="documents that a new tokenizer is trained on")
    validation_share: float = Field(
        0.01, gt=0, le=1, description="of the documents, chosen by their content; 1: all, a set for data.held_out alone"
    )
    max_documents: int | None = Field(None, ge=1, description="stop after so many; None: all")
    max_tokens: int | None = Field(
        None, ge=1, description="stop at the document that makes it so many tokens, held-out ones included; None: all"
    )
    shard_tokens: int = Field(
        100_000_000, ge=1, description="tokens of a file; a killed run goes on after the last one"
    )
    seed: int = Field(0, ge=0, lt=1 << 63, description="of the validation split and the built-in text")

    @model_validator(mode="after")
    def _one_source(self) -> PrepareSettings:
        if sum((bool(self.text), self.hub is not None, self.builtin is not None)) != 1:
            raise ValueError("exactly one of text, hub and builtin says where the text comes from")
        return self

    @model_validator(mode="after")
    def _all_matter(self) -> PrepareSettings:
        needs = {
            "hub": (self.hub, ("hub_config", "hub_split", "revision")),
            "text": (self.text, ("text_unit",)),
            "text or hub": (self.text or self.hub, ("text_column",)),
            "train_tokenizer": (self.train_tokenizer, ("tokenizer_documents",)),
        }
        for owner, (given, names) in needs.items():
            for name in names:
                if self.asks(name) and not given:
                    raise ValueError(f"{name} changes nothing without {owner}")
        if self.train_tokenizer is not None and self.asks("tokenizer"):
            raise ValueError("tokenizer and train_tokenizer exclude each other")
        return self

    def asks(self, name: str) -> bool:
        """Whether an option was given, be it with its default."""
        return name in self.model_fields_set and getattr(self, name) is not None


class DataSettings(Settings):
    """What is read at each step."""

    folder: Path = Field(description="a folder that `crossbert prepare` made")
    batch: int = Field(768, ge=1, description="sequences of a step, over all ranks")
    held_out: CommaSeparated[Path] = Field((), description="further prepared folders whose validation loss is logged")
    verify: bool = Field(True, description="check every shard's checksum at the start (about a second per gigabyte)")


class OptimiserSettings(Settings):
    """AdamW with warm-up and a cosine (paper, appendix; the open points as in the documentation)."""

    learning_rate: float = Field(6e-4, gt=0, description="at its peak")
    min_learning_rate: float = Field(1e-6, ge=0, description="at the last step")
    warmup_steps: int = Field(2000, ge=0, description="linear, from 0")
    beta1: float = Field(0.9, ge=0, lt=1, description="of AdamW")
    beta2: float = Field(0.95, ge=0, lt=1, description="of AdamW")
    eps: float = Field(1e-8, gt=0, description="of AdamW")
    weight_decay: float = Field(0.1, ge=0, description="of matrices and embeddings; vectors such as norms have none")
    clip: float = Field(1.0, gt=0, description="largest norm of the gradient")

    @model_validator(mode="after")
    def _consistent(self) -> OptimiserSettings:
        if self.min_learning_rate > self.learning_rate:
            raise ValueError("min_learning_rate is above learning_rate")
        return self


class GuardSettings(Settings):
    """What counts as a step gone wrong, and what is done about it."""

    action: Literal["skip", "stop"] = Field("skip", description="leave the weights as they are and go on, or stop")
    spike: float = Field(2.0, gt=1, description="a loss so many times its running mean is a spike")
    patience: int = Field(100, ge=1, description="steps before a running mean is trusted")
    max_skips: int = Field(10, ge=1, description="so many skipped steps in a row stop the run")


class SystemSettings(Settings):
    """How the run is carried out; none of this changes what is computed beyond the order of sums.

    These may differ when a run goes on.
    """

    device: str = Field("auto", description="auto, cpu or cuda")
    parallel: Literal["auto", "fsdp", "ddp"] = Field("auto", description="under torchrun; auto: fsdp")
    accumulation: int = Field(1, ge=1, description="parts in which a rank takes its share of the batch")
    activation_checkpointing: bool = Field(False, description="compute blocks twice to save memory")
    compile: bool = Field(True, description="torch.compile, one graph of static shape")
    validate_every: int = Field(500, ge=0, description="steps between validations; 0: only at the end")
    validation_sequences: int = Field(1024, ge=1, description="at most so many, rounded up to whole batches")
    checkpoint_every: int = Field(1000, ge=0, description="steps between checkpoints; 0: only at the end")
    keep: int = Field(2, ge=0, description="checkpoints kept; 0: all")
    log_every: int = Field(1, ge=1, description="steps between lines of metrics.jsonl")
    peak_tflops: float | None = Field(
        None, gt=0, description="of the device, for MFU; None: measured with torch.matmul at the start"
    )
    trackers: CommaSeparated[Literal["tensorboard", "wandb", "trackio"]] = Field(
        (), description="besides metrics.jsonl"
    )


class TrainSettings(Settings):
    """One pre-training run."""

    model: ModelConfig
    data: DataSettings
    steps: int = Field(ge=1, description="optimiser steps in all")
    seed: int = Field(0, ge=0, lt=2**63, description="of the weights, the order of the data and the masks")
    dtype: Literal["bf16", "fp32"] = Field("bf16", description="of matrix products; weights are kept in float32")
    optimiser: OptimiserSettings = OptimiserSettings()
    guard: GuardSettings = GuardSettings()
    system: SystemSettings = SystemSettings()

    @model_validator(mode="after")
    def _consistent(self) -> TrainSettings:
        if self.optimiser.warmup_steps >= self.steps:
            raise ValueError(
                f"optimiser.warmup_steps ({self.optimiser.warmup_steps}) must be below steps ({self.steps})"
            )
        if self.data.batch % self.system.accumulation:
            raise ValueError(
                f"data.batch ({self.data.batch}) must be divisible by system.accumulation ({self.system.accumulation})"
            )
        return self


class SlurmSettings(frozenprobe.settings.SlurmSettings):
    """What each run of a sweep asks of SLURM."""

    minutes: int = Field(1440, ge=1, description="time limit of a run; the same sweep goes on from its checkpoint")


class SweepSettings(Settings):
    """Runs that differ in some settings, each trained and probed."""

    study: str | None = Field(None, description="a study of the paper: its axes, at the scale of `config`")
    config: str | None = Field(None, description="what all runs start from; as of `crossbert train`")
    train: dict[str, Any] = Field({}, description="settings of all runs, as tables or by dotted key")
    axes: dict[str, Any] = Field({}, description="a list of a setting's values, or a table of named values")
    probe: dict[str, Any] = Field({}, description="options of `frozenprobe glue`, as tables or by dotted key")
    checkpoints: Literal["all", "last", "none"] = Field("all", description="which of a run's checkpoints are probed")
    launcher: Literal["local", "slurm", "submitit-local"] = Field(
        "local", description="one after another in this process, a SLURM job each, or a process each through submitit"
    )
    slurm: SlurmSettings = SlurmSettings()
