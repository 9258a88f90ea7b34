"""Every option of pooler probing and of mining, as frozen pydantic models; see `frozenprobe.settings`.

Defaults are the paper's (section 5.1) wherever it gives one: one epoch, batch 512, 5e-5 with cosine to 5e-7.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from frozenprobe.settings import EncoderSettings, OneLayer, PromptSettings, Settings

TRAIN_DATA = "sentence-transformers/msmarco-msmarco-distilbert-base-tas-b"


class PairSettings(Settings):
    """Where the training rows come from: query, positive and hard negatives."""

    train_data: str = Field(
        TRAIN_DATA, min_length=1, description="hub id, or a .jsonl, .json or .parquet file, or a folder of them"
    )
    train_config: str | None = Field(
        None, description="configuration on the hub; None: triplet for the default set, else its only one"
    )
    train_split: str = Field("train", min_length=1, description="split, on the hub or in the folder")
    train_revision: str | None = Field(None, description="hub revision of the training data")
    hard_negatives: int = Field(7, ge=0, description="hard negatives taken per row at most, the first ones")
    held_out: int = Field(
        500, ge=0, description="queries kept from training and scored, a tenth of all at most; 0: none"
    )


class PoolerSettings(Settings):
    """The pooler: learned queries that cross-attend to the token features in a few transformer blocks."""

    blocks: int = Field(2, ge=1, le=64, description="cross-attention blocks")
    queries: int = Field(1, ge=1, description="learned queries; more than one are joined by a linear map")
    width: int | None = Field(None, ge=1, description="of the blocks; None: the encoder's")
    heads: int | None = Field(None, ge=1, description="attention heads; None: one per 64 of the width")
    dimensions: int | None = Field(None, ge=1, description="of the embedding; None: the width")
    dropout: float = Field(0.0, ge=0, lt=1, description="share of each block's output that is dropped in training")
    warm_start: bool = Field(False, description="begin with the pooler that the encoder offers, in its own size")

    @property
    def is_default_size(self) -> bool:
        """Whether no size was asked for."""
        return self.model_copy(update={"warm_start": False}) == PoolerSettings()


class LossSettings(Settings):
    """The contrastive loss (paper, eq. 5)."""

    temperature: float = Field(0.05, gt=0, description="cosine similarities are divided by it (the paper gives none)")
    negatives: Literal["in-batch", "in-batch-positives", "hard-only"] = Field(
        "in-batch",
        description="own hard negatives and all passages of the batch, or the batch's positives only, or none of the "
        "batch (eq. 5 as printed)",
    )
    symmetric: bool = Field(False, description="also tell each positive's query from the other queries")
    margin: float | None = Field(
        None, ge=0, description="leave out a batch passage whose cosine exceeds the positive's by more; None: none"
    )


class TrainingSettings(Settings):
    """How a pooler is trained."""

    epochs: int = Field(1, ge=1, description="passes over the training rows")
    batch_size: int = Field(512, ge=1, description="rows per step, over all ranks")
    lr: float = Field(5e-5, gt=0, description="learning rate of AdamW at the start")
    min_lr: float = Field(5e-7, ge=0, description="learning rate at the end of the cosine")
    weight_decay: float = Field(0.0, ge=0, description="of AdamW")
    seed: int = Field(0, ge=0, description="of initialisation and dropout, and of the order of the rows")
    unfrozen: bool = Field(False, description="train the encoder too, end to end")
    token_budget: int | None = Field(
        None, ge=1, description="padded tokens that go through the encoder together; None: by device and dtype"
    )
    chunk: int | None = Field(
        None,
        ge=1,
        description="texts in memory at once, for batches larger than memory, with the same gradients; the encoder runs "
        "twice, unless features are kept; None: the whole batch",
    )
    deduplicate: bool = Field(True, description="encode a text that occurs more than once in a step once")
    keep_features: bool = Field(False, description="keep token features on disk, so that later epochs encode nothing")
    keep_features_gb: float = Field(20.0, gt=0, description="size beyond which no more of them are kept")
    evaluate_every: int | None = Field(None, ge=1, description="steps between held-out scores; None: ten in all")
    checkpoint_every: int = Field(100, ge=1, description="steps between checkpoints")

    @model_validator(mode="after")
    def _consistent(self) -> TrainingSettings:
        if self.min_lr > self.lr:
            raise ValueError(f"min_lr {self.min_lr:g} is above lr {self.lr:g}")
        if self.unfrozen and self.keep_features:
            raise ValueError(
                "the features of an encoder that is trained change: unfrozen and keep_features exclude each other"
            )
        return self


class ContrastiveSettings(Settings):
    """A training without its encoder: the rows, and a pooler or a sweep of them."""

    data: PairSettings = PairSettings()
    pooler: PoolerSettings = PoolerSettings()
    loss: LossSettings = LossSettings()
    training: TrainingSettings = TrainingSettings()
    sweep: str | None = Field(
        None,
        description="several poolers off one forward pass: lr=5e-5,1e-4,blocks=1,2,seed=0,1 gives all combinations",
    )


class PoolSettings(ContrastiveSettings, PromptSettings):
    """One training: an encoder, the layer whose token features are pooled, and what is trained on them."""

    encoder: EncoderSettings
    layer: OneLayer = Field(
        "last", description="whose token features are pooled: last, or a number (-2 is the last block but one)"
    )

    @model_validator(mode="after")
    def _whole_encoder(self) -> PoolSettings:
        if self.training.unfrozen and self.layer != "last":
            raise ValueError("layer: unfrozen trains the whole encoder: its layer is last")
        return self


class MineSettings(Settings):
    """How hard negatives are mined for pairs of query and positive."""

    encoder: EncoderSettings
    pairs: Path = Field(description="a .jsonl, .json or .parquet file, or a folder of them, with query and positive")
    corpus: Path | None = Field(
        None, description="passages to mine from, one `text` a row (.jsonl, .json, .parquet); None: the positives"
    )
    pooling: Literal["auto", "mean", "cls", "last", "own"] = Field(
        "auto", description="of the mining encoder's last layer; auto: its own where it declares one, else mean"
    )
    negatives: int = Field(7, ge=1, description="hard negatives per query")
    depth: int = Field(100, ge=1, description="nearest passages looked at per query")
    margin: float = Field(
        0.05,
        ge=0,
        le=2,
        description="a passage must be less similar than the positive by this, or it may be one itself",
    )
    backend: Literal["torch", "faiss"] = Field("torch", description="exact search by torch, or by faiss (an extra)")
    tokens_per_batch: int | None = Field(None, ge=1, description="token budget of a batch; None: measured")

    @model_validator(mode="after")
    def _deep_enough(self) -> MineSettings:
        if self.depth < self.negatives:
            raise ValueError(f"--depth {self.depth} is below --negatives {self.negatives}: no query could have so many")
        return self
