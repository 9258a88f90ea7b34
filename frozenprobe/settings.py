"""Every option of an evaluation, as frozen pydantic models shared by the command line, Python and TOML.

A default is written here and nowhere else. An unknown key or an impossible value is an error that says what is allowed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from frozenprobe.errors import SettingsError

Layer = int | Literal["last"]
Role = Literal["query", "document"]
Pooling = Literal["mean", "cls", "max", "last", "first-last-mean", "own"]
PairForm = Literal["joint", "siamese"]
TaskCategory = Literal[
    "Classification", "Clustering", "PairClassification", "Reranking", "Retrieval", "STS", "Summarization"
]
Standardisation = Literal["none", "centre", "standard"]
Distance = Literal["l2", "cosine"]


def _split_commas(value: object) -> object:
    """Lets "a,b" stand for ("a", "b") wherever a list is expected."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


Value = TypeVar("Value")
CommaSeparated = Annotated[tuple[Value, ...], BeforeValidator(_split_commas)]
Checked = TypeVar("Checked", bound=BaseModel)
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0)]


def _as_layers(value: object) -> object:
    """Reads `all`, `last` or a list of block numbers; -1 is `last`."""
    if value == "all":
        return "all"
    if isinstance(value, (int, float)):
        value = (value,)
    parts = _split_commas(value)
    if not isinstance(parts, (tuple, list)):
        return parts
    layers = []
    for part in parts:
        try:
            if isinstance(part, bool) or (isinstance(part, float) and not part.is_integer()):
                raise ValueError
            layer = part if part == "last" else int(part)
        except (TypeError, ValueError):
            raise ValueError(f"{part!r} is no layer; allowed are all, last and numbers such as 0,6,-2") from None
        layers.append("last" if layer == -1 else layer)
    return tuple(dict.fromkeys(layers))


def _as_layer(value: object) -> object:
    """Reads `last` or one block number; -1 is `last`."""
    layers = _as_layers(value)
    if isinstance(layers, tuple) and len(layers) == 1:
        return layers[0]
    raise ValueError(f"{value!r} is not one layer; allowed are last and numbers such as 6 or -2")


OneLayer = Annotated[Layer, BeforeValidator(_as_layer)]


class Settings(BaseModel):
    """Base of all settings: immutable, closed to unknown keys, numbers finite, texts printable."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _plain(cls, value: object, info: ValidationInfo) -> object:
        annotation = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and bool not in (annotation, *get_args(annotation)):
            raise ValueError("a truth value is not allowed here")
        if isinstance(value, str) and any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in value):
            raise ValueError("holds a character that is no valid text")
        return value


class EncoderSettings(Settings):
    """Which encoder is measured, and how it is run."""

    ckpt: str = Field(min_length=1, description="hub id, folder, or scheme:path (hf:, st:, or a plug-in's)")
    name: str | None = Field(None, description="what it is called in tables; None: the hub id or the folder's name")
    revision: str | None = Field(None, description="hub revision: branch, tag or commit")
    dtype: Literal["fp32", "bf16", "fp16"] = Field("fp32", description="of weights and activations")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, mps")
    max_length: int | None = Field(
        None, ge=2, description="tokens per input, special tokens included; None: the encoder's own"
    )
    attn: Literal["auto", "sdpa", "eager", "flash_attention_2"] = Field(
        "auto", description="attention kernel; auto: sdpa where the model has it, else eager"
    )
    trust_remote_code: bool = Field(False, description="run Python code that comes with the checkpoint")
    random_init: bool = Field(
        False, description="same architecture and tokenizer, weights drawn anew: the floor of every score"
    )
    init_seed: int = Field(0, ge=0, description="of the random initialisation")


class ExtractionSettings(Settings):
    """How the forward pass is run, and where its vectors are kept."""

    tokens_per_batch: int | None = Field(
        None, ge=1, description="token budget of a batch; None: measured in the first batches"
    )
    rank_timeout: float = Field(
        600.0, gt=0, description="with several ranks: seconds without an answer after which one counts as lost"
    )
    cache: bool = Field(True, description="keep features and reuse them")
    cache_dir: Path | None = Field(None, description="None: $FROZENPROBE_CACHE, else ~/.cache/frozenprobe")
    cache_limit_gb: float = Field(20.0, gt=0, description="size at which the least recently used are dropped")


class FeatureSettings(ExtractionSettings):
    """Which vectors are taken from the one forward pass."""

    layers: Annotated[Literal["all"] | tuple[Layer, ...], BeforeValidator(_as_layers)] = Field(
        ("last",), description="last, all, or numbers: 0 is the embedding output, -2 the last block but one"
    )
    poolings: CommaSeparated[Pooling] = Field(
        ("mean",), min_length=1, description="any of mean, cls, max, last, first-last-mean, own"
    )


class PromptSettings(Settings):
    """What is put before texts, for an encoder that declares no prompts of its own."""

    query_prompt: str | None = Field(None, description="put before every query; None: the checkpoint's own")
    document_prompt: str | None = Field(None, description="put before every document; None: the checkpoint's own")

    @property
    def prompts(self) -> dict[Role, str]:
        """The prefixes asked for, by role."""
        asked: dict[Role, str] = {"query": self.query_prompt or "", "document": self.document_prompt or ""}
        return {role: text for role, text in asked.items() if text}


class RidgeSettings(Settings):
    """The ridge sweep (paper, eq. 2 and 3)."""

    lambda_min: float = Field(1.0, gt=0, le=1e30, description="weakest regularisation")
    lambda_max: float = Field(1e4, gt=0, le=1e30, description="strongest regularisation")
    lambdas: int = Field(13, ge=1, le=1000, description="how many, log-spaced")
    standardisation: Standardisation = Field("centre", description="of the features, fitted on the fitting rows only")
    intercept: bool = Field(True, description="False, with standardisation none: eq. 3 exactly as printed")
    scale_with_n: bool = Field(False, description="lambda is multiplied by the number of fitting rows")
    solver: Literal["auto", "eigh", "solve"] = Field("auto", description="auto: solve on a GPU, eigh elsewhere")

    @model_validator(mode="after")
    def _consistent(self) -> RidgeSettings:
        if self.lambda_max < self.lambda_min:
            raise ValueError(f"lambda_max {self.lambda_max:g} is below lambda_min {self.lambda_min:g}")
        if self.lambdas == 1 and self.lambda_max > self.lambda_min:
            raise ValueError("a grid of one lambda needs lambda_min and lambda_max to be equal")
        if not self.intercept and self.standardisation != "none":
            raise ValueError("eq. 3 as printed (no intercept) goes with standardisation none")
        return self


class KnnSettings(Settings):
    """The kNN probe (paper, eq. 4)."""

    ks: CommaSeparated[Count] = Field((1, 3, 10, 30), min_length=1, description="neighbours that vote")
    distances: CommaSeparated[Distance] = Field(("l2", "cosine"), min_length=1, description="l2, cosine or both")
    backend: Literal["torch", "faiss"] = Field("torch", description="exact search by torch, or by faiss (an extra)")


class ProbeSettings(Settings):
    """What is fitted on the features, and how it is scored."""

    regimes: CommaSeparated[Count] = Field(
        (1, 10, 100, 1000), description="train sizes below the largest, which is always all of max_train"
    )
    draws: int = Field(5, ge=1, description="random subsets per regime below the largest")
    max_train: Count | Literal["all"] = Field(10_000, description="train rows that both probes see at most, or all")
    max_evaluated: Count | Literal["all"] = Field(
        "all", description="rows scored per split; fewer than all make a subset, and the scores are named so"
    )
    seed: int = Field(0, ge=0, description="of subsets, draws and bootstrap")
    bootstrap: int = Field(1000, ge=0, description="replicates of every 95% interval; 0: no intervals")
    control: bool = Field(False, description="also fit on shuffled train labels (random-label control)")
    ridge: RidgeSettings = RidgeSettings()
    knn: KnnSettings = KnnSettings()

    @field_validator("regimes")
    @classmethod
    def _ascending(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(set(value)))


class FinetuneSettings(Settings):
    """Full finetuning, for comparison; None: what the standard recipe for so many train rows says (suites/finetune.py)."""

    learning_rate: float | None = Field(None, gt=0, description="peak; None: 2e-5")
    epochs: int | None = Field(None, ge=1, description="None: 10 below 10,000 train rows, else 3")
    batch_size: int | None = Field(None, ge=1, description="rows; None: 16 below 10,000 train rows, else 32")
    warmup: float | None = Field(None, ge=0, le=1, description="share of steps; None: 0.06 below 10,000 rows, else 0.1")
    weight_decay: float | None = Field(None, ge=0, description="None: 0.1 below 10,000 train rows, else 0.01")
    dropout: float = Field(0.1, ge=0, lt=1, description="before the classifier")
    seeds: CommaSeparated[Seed] = Field((0, 1, 2), min_length=1, description="one training each; scores are means")
    max_train: Count | Literal["all"] = Field("all", description="train rows used at most, or all")


class GlueSettings(Settings):
    """One evaluation: an encoder, the features taken from it, the probes fitted on them, the tasks they are scored on."""

    encoder: EncoderSettings
    features: FeatureSettings = FeatureSettings()
    probes: ProbeSettings = ProbeSettings()
    finetune: FinetuneSettings = FinetuneSettings()
    unfrozen: bool = Field(False, description="full finetuning instead of frozen probes, for comparison")
    suite: Literal["glue", "builtin"] = Field(
        "glue", description="the benchmark, or the small suite that needs no data"
    )
    tasks: CommaSeparated[str] | None = Field(None, description="comma-separated names; None: the suite's own list")
    task_files: CommaSeparated[Path] = Field((), description="TOML files of your own tasks")
    pair_form: Literal["joint", "siamese", "both"] = Field(
        "joint", description="a pair as one sequence, or as [u, v, |u-v|, u*v]"
    )
    data_dir: Path | None = Field(None, description="local data in the hub's layout; None: the hub")
    data_revision: str | None = Field(None, description="hub revision of the data set")

    @model_validator(mode="after")
    def _consistent(self) -> GlueSettings:
        if self.unfrozen and self.pair_form != "joint":
            raise ValueError("--unfrozen reads a pair as one sequence: it goes with --pair-form joint")
        if len(set(self.finetune.seeds)) < len(self.finetune.seeds):  # a training twice would narrow the interval
            raise ValueError("--finetune-seeds: every seed stands there once")
        return self

    @property
    def pair_forms(self) -> tuple[PairForm, ...]:
        """The pair forms asked for."""
        return ("joint", "siamese") if self.pair_form == "both" else (self.pair_form,)


class CompareSettings(Settings):
    """Which answers of two or more runs are compared, and how often they are resampled."""

    probe: Literal["ridge", "knn"] = Field("ridge", description="whose answers are compared")
    protocol: Literal["honest", "paper"] = Field(
        "honest", description="chosen inside train, or best on the reported split (optimistic)"
    )
    pair_form: PairForm | None = Field(None, description="of pair tasks; None: the one that all runs hold")
    replicates: int = Field(10_000, ge=1, description="paired resamples; a p-value is never below 2 / (replicates + 1)")
    seed: int = Field(0, ge=0, description="of the resamples")


class Cost(Settings):
    """What an encoder cost, for those that cannot tell it themselves."""

    params: float | None = Field(None, gt=0, description="parameters")
    flops: float | None = Field(None, gt=0, description="of training")
    tokens_per_s: float | None = Field(None, gt=0, description="training throughput")


class SlurmSettings(Settings):
    """What each job of a sweep asks of SLURM."""

    partition: str | None = Field(None, description="None: the cluster's default")
    account: str | None = Field(None, description="None: your default")
    gpus: int = Field(1, ge=0, description="GPUs of a job, all of which its evaluation uses; 0: a CPU job")
    cpus: int = Field(8, ge=1, description="cores of a job, shared by its ranks")
    memory_gb: int = Field(64, ge=1, description="memory of a job")
    minutes: int = Field(120, ge=1, description="time limit of a job")
    parallel: int = Field(16, ge=1, description="jobs that run at the same time at most")


class SweepSettings(GlueSettings):
    """The same evaluation of many checkpoints."""

    ckpts: CommaSeparated[str] = Field(
        min_length=1,
        description="checkpoints: patterns such as 'runs/*/step-*', a scheme (crossbert:) in front if needed",
    )
    launcher: Literal["local", "slurm", "submitit-local"] = Field(
        "local", description="one after the other in this process, a SLURM job each, or a submitit process each"
    )
    slurm: SlurmSettings = SlurmSettings()

    def of(self, ckpt: str, name: str) -> GlueSettings:
        """The evaluation of one checkpoint."""
        shared = {field: getattr(self, field) for field in GlueSettings.model_fields}
        encoder = self.encoder.model_copy(update={"ckpt": ckpt, "name": name})
        return GlueSettings.model_validate({**shared, "encoder": encoder})


class CallbackSettings(Settings):
    """Frozen scores while a model is trained: when, of what, how fast, and what happens when they fail."""

    name: str = Field("model", min_length=1, description="the run's name in records")
    out: Path | None = Field(None, description="folder for records, one run per step; None: scores are only logged")

    every: Count | None = Field(None, description="steps between evaluations; None, without at: every call evaluates")
    at: CommaSeparated[Annotated[int, Field(ge=0)]] = Field((), description="steps evaluated besides those of every")
    on_start: bool = Field(False, description="also before the first step")
    at_end: bool = Field(True, description="also after the last step")

    suite: Literal["glue", "builtin"] = Field("glue", description="see `frozenprobe glue`")
    tasks: CommaSeparated[str] | None = Field(None, description="names, in the order of the suite; None: all of it")
    task_files: CommaSeparated[Path] = Field((), description="TOML files of your own tasks")
    pair_form: PairForm = Field("joint", description="see `frozenprobe glue`")
    data_dir: Path | None = Field(None, description="local data in the hub's layout; None: the hub")
    data_revision: str | None = Field(None, description="hub revision of the data set")
    max_train: Count | Literal["all"] = Field(1000, description="train rows per task, the same ones every time")
    max_evaluated: Count | Literal["all"] = Field("all", description="rows scored per split, the same ones every time")
    seed: int = Field(0, ge=0, description="chooses those rows")
    bootstrap: int = Field(1000, ge=0, description="replicates of every 95% interval in the records; 0: no intervals")

    part: str = Field("", description="the submodule that gives hidden states, as `encoder`; empty: found out")
    max_length: int | None = Field(None, ge=2, description="tokens per input; None: the model's own")
    tokens_per_batch: int | None = Field(None, ge=1, description="token budget; None: measured in the first evaluation")

    max_seconds: float | None = Field(
        None, gt=0, description="time limit of an evaluation; tasks that do not fit are left out"
    )
    on_failure: Literal["continue", "stop"] = Field("continue", description="what training does after a failed one")
    mode: Literal["blocking", "process"] = Field(
        "blocking", description="evaluate while training waits, or a snapshot of the weights in another process"
    )
    queue: Count = Field(1, description="snapshots that may wait for the other process")
    when_behind: Literal["skip", "merge"] = Field(
        "skip", description="with a full queue: leave the new snapshot out, or put it in place of the last one waiting"
    )
    device: str = Field("cpu", description="of the other process")
    threads: Count = Field(1, description="of the other process, on a CPU")

    def glue_settings(self, step: int) -> GlueSettings:
        """The evaluation of one step, as `frozenprobe glue` knows it."""
        return GlueSettings(
            encoder=EncoderSettings(ckpt=self.name, name=f"{self.name} step {step}", max_length=self.max_length),
            features=FeatureSettings(cache=False, tokens_per_batch=self.tokens_per_batch),  # no weights come twice
            probes=ProbeSettings(
                regimes=(),
                max_train=self.max_train,
                max_evaluated=self.max_evaluated,
                seed=self.seed,
                bootstrap=self.bootstrap,
            ),
            suite=self.suite,
            tasks=self.tasks,
            task_files=self.task_files,
            pair_form=self.pair_form,
            data_dir=self.data_dir,
            data_revision=self.data_revision,
        )


def parse(model: type[Checked], values: dict[str, Any]) -> Checked:
    """Validates plain values into settings.

    Raises:
        SettingsError: One line that names the first wrong option and says what is allowed.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        owner: type[BaseModel] = model
        names = []
        for part in map(str, first["loc"]):  # beyond the last field pydantic names validators of its own
            field = owner.model_fields.get(part)
            if field is None and first["type"] != "extra_forbidden":
                break
            names.append(part)
            if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
                break
            owner = field.annotation
        messages = dict.fromkeys(
            issue["msg"].removeprefix("Value error, ").removeprefix("Input ")
            for issue in error.errors()
            if issue["loc"][: len(names)] == first["loc"][: len(names)]
        )
        name = ".".join(names)
        if first["type"] == "extra_forbidden":
            raise SettingsError(f"unknown setting {name}; allowed are {', '.join(owner.model_fields)}") from None
        if first["type"] == "missing":
            raise SettingsError(f"{name} is required") from None
        if not names:  # what the settings as a whole are guilty of names them itself
            raise SettingsError(" or ".join(messages)) from None
        given = "" if isinstance(first["input"], dict) else f" (got {first['input']!r})"
        raise SettingsError(f"{name}: {' or '.join(messages)}{given}") from None


def differences(old: dict[str, Any], new: dict[str, Any]) -> str:
    """The first few settings in which two runs differ, in words; empty where they are the same."""
    old_flat, new_flat = _flatten(old), _flatten(new)
    names = [name for name in sorted(old_flat | new_flat) if old_flat.get(name) != new_flat.get(name)]
    shown = [f"{name} was {old_flat.get(name)}, is {new_flat.get(name)}" for name in names[:3]]
    return ", ".join(shown) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = json.loads(json.dumps(value))
    return flat
