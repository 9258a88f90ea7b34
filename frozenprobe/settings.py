"""Every option of an evaluation, as frozen pydantic models shared by the command line, Python and TOML.

A default is written here and nowhere else. An unknown key or an impossible value is an error that says what is allowed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

Layer = int | Literal["last"]
Pooling = Literal["mean", "cls", "max", "last", "first-last-mean", "own"]
PairForm = Literal["joint", "siamese"]
Standardisation = Literal["none", "centre", "standard"]
Distance = Literal["l2", "cosine"]


def _split_commas(value: object) -> object:
    """Lets "a,b" stand for ("a", "b") wherever a list is expected."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def _as_layers(value: object) -> object:
    """ "all", "last" or any list of block numbers; "-1" is "last"."""
    if value == "all":
        return "all"
    if isinstance(value, int):
        value = (value,)
    parts = _split_commas(value)
    if not isinstance(parts, (tuple, list)):
        return parts
    layers = []
    for part in parts:
        layer = part if part == "last" else int(part)
        layers.append("last" if layer == -1 else layer)
    return tuple(dict.fromkeys(layers))


class Settings(BaseModel):
    """Base of all settings: immutable, and closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class EncoderSettings(Settings):
    """Which encoder is measured, and how it is run."""

    ckpt: str = Field(min_length=1, description="hub id, folder, or scheme:path (hf:, st:, or a plug-in's)")
    revision: str | None = Field(None, description="hub revision: branch, tag or commit")
    dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, mps")
    max_length: int | None = Field(
        None, ge=2, description="tokens per input, special tokens included; None: the encoder's own"
    )
    attn: Literal["auto", "sdpa", "eager", "flash_attention_2"] = "auto"
    trust_remote_code: bool = False
    random_init: bool = Field(
        False, description="same architecture and tokenizer, weights drawn anew: the floor of every score"
    )
    seed: int = Field(0, ge=0, description="of the random initialisation")


class FeatureSettings(Settings):
    """Which vectors are taken from the one forward pass, and where they are kept."""

    layers: Annotated[Literal["all"] | tuple[Layer, ...], BeforeValidator(_as_layers)] = ("last",)
    poolings: Annotated[tuple[Pooling, ...], BeforeValidator(_split_commas)] = Field(("mean",), min_length=1)
    tokens_per_batch: int | None = Field(
        None, ge=1, description="token budget of a batch; None: measured in the first batches"
    )
    cache: bool = True
    cache_dir: Path | None = Field(None, description="None: $FROZENPROBE_CACHE, else ~/.cache/frozenprobe")
    cache_limit_gb: float = Field(20.0, gt=0)


class RidgeSettings(Settings):
    """The ridge sweep (paper, eq. 2 and 3)."""

    lambda_min: float = Field(1.0, gt=0)
    lambda_max: float = Field(1e4, gt=0)
    lambdas: int = Field(13, ge=1, description="how many, log-spaced")
    standardisation: Standardisation = Field("centre", description="of the features, fitted on the fitting rows only")
    intercept: bool = Field(True, description="False, with standardisation none: eq. 3 exactly as printed")
    scale_with_n: bool = Field(False, description="lambda is multiplied by the number of fitting rows")
    solver: Literal["auto", "eigh", "solve"] = "auto"


class KnnSettings(Settings):
    """The kNN probe (paper, eq. 4)."""

    ks: Annotated[tuple[Annotated[int, Field(ge=1)], ...], BeforeValidator(_split_commas)] = Field(
        (1, 3, 10, 30), min_length=1
    )
    distances: Annotated[tuple[Distance, ...], BeforeValidator(_split_commas)] = Field(("l2", "cosine"), min_length=1)
    backend: Literal["torch", "faiss"] = "torch"


class ProbeSettings(Settings):
    """What is fitted on the features, and how it is scored."""

    regimes: Annotated[tuple[Annotated[int, Field(ge=1)], ...], BeforeValidator(_split_commas)] = Field(
        (1, 10, 100, 1000), description="train sizes below the largest, which is always all of max_train"
    )
    draws: int = Field(5, ge=1, description="random subsets per regime below the largest")
    max_train: Annotated[int, Field(ge=1)] | Literal["all"] = 10_000
    seed: int = Field(0, ge=0)
    bootstrap: int = Field(1000, ge=0, description="replicates of every 95% interval; 0: no intervals")
    control: bool = Field(False, description="also fit on shuffled train labels (random-label control)")
    ridge: RidgeSettings = RidgeSettings()
    knn: KnnSettings = KnnSettings()

    @field_validator("regimes")
    @classmethod
    def _ascending(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(set(value)))
