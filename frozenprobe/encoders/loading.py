"""From a hub id or a local folder to a `TransformerEncoder`, refusing everything that would score the wrong weights.

Weights that the checkpoint lacks, weights that are not finite and code that nobody asked to run are errors with one
line. Heads are dropped: a masked-LM checkpoint loads as its bare encoder, an encoder-decoder as its encoder half.
"""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding, AutoTokenizer
from transformers.utils import logging as transformers_logging
from transformers.utils.hub import cached_file

from frozenprobe import ranks
from frozenprobe.encoders.buffers import has_unsaved_tensors, repair_unsaved_tensors
from frozenprobe.encoders.fingerprint import is_pooler
from frozenprobe.encoders.lengths import resolve_max_length
from frozenprobe.encoders.transformer import DTYPES, Origin, TransformerEncoder
from frozenprobe.errors import EncoderError, FrozenprobeError
from frozenprobe.settings import EncoderSettings

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_TEXT_ENCODING = ("t5", "mt5", "umt5")  # AutoModel would build their decoders too
_VOCABULARY_LIBRARIES = {"sentencepiece": "sentencepiece", "protobuf": "google.protobuf", "tiktoken": "tiktoken"}


def load_transformer(
    settings: EncoderSettings,
    path: str,
    *,
    kind: str = "hf",
    subfolder: str = "",
    declared_max_length: int | None = None,
    lower_case: bool = False,
    notes: tuple[str, ...] = (),
) -> TransformerEncoder:
    """Loads config, tokenizer and weights.

    Args:
        settings: How the encoder is run.
        path: Hub id or folder.
        kind: Adapter name for the record.
        subfolder: Where in the repository or folder the transformer lies.
        declared_max_length: A limit that the folder declares outside its tokenizer.
        lower_case: Lower-case every text first.
        notes: What the record should say besides.

    Returns:
        The encoder, frozen, in eval mode, on its device.

    Raises:
        EncoderError: Anything is missing, damaged or unsupported; the line says what and what to do.
    """
    folder = Path(path)
    if folder.is_dir() and settings.revision is not None:
        raise EncoderError(f"--revision {settings.revision} goes with a hub id, but {path} is a local folder")
    device = resolve_device(settings.device)
    with quiet_transformers(), _one_line(path, settings):
        source: dict[str, Any] = {"revision": settings.revision or "main", "subfolder": subfolder}
        source["trust_remote_code"] = settings.trust_remote_code
        commit = None if folder.is_dir() else resolve_commit(path, settings.revision, subfolder=subfolder)
        # One commit for everything that follows, even if the branch moves meanwhile.
        source["revision"] = commit or source["revision"]
        config = AutoConfig.from_pretrained(path, **source)
        tokenizer = _load_tokenizer(path, source)
        model, model_notes = _load_model(settings, path, config, source)
        model = model.eval().requires_grad_(False).to(device)
        require_finite(path, model, settings.dtype)
        max_length, length_notes = resolve_max_length(
            model, model.config, tokenizer, asked=settings.max_length, declared=declared_max_length
        )
        name = folder.resolve().name if folder.is_dir() else path
        if settings.random_init:
            name = f"{name} (random init, seed {settings.init_seed})"
        origin = Origin(name, kind, commit, (*notes, *model_notes, *length_notes))
        return TransformerEncoder(model, tokenizer, origin, max_length=max_length, lower_case=lower_case)


def resolve_device(wish: str) -> torch.device:
    """The device for `auto`, `cpu`, `cuda`, `cuda:1` or `mps`; of several ranks on a machine each takes a GPU of its own.

    Raises:
        EncoderError: It is not there.
    """
    place = ranks.local_rank()
    if wish in ("auto", "cuda") and place and torch.cuda.is_available():
        gpus = torch.cuda.device_count()
        if place >= gpus > 1:
            raise EncoderError(f"there is no GPU for each rank: start {gpus} on this machine, or use --device cpu")
        return torch.device("cuda", ranks.own_gpu())
    if wish == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(wish)
    except RuntimeError as error:
        raise EncoderError(f"--device {wish} is no device: use auto, cpu, cuda, cuda:1 or mps") from error
    count = torch.cuda.device_count() if device.type == "cuda" else int(torch.backends.mps.is_available())
    if device.type not in ("cpu", "cuda", "mps") or (device.type != "cpu" and (device.index or 0) >= count):
        raise EncoderError(f"--device {wish} is not on this machine: use --device auto or cpu")
    return device


def resolve_commit(path: str, revision: str | None, name: str = "config.json", subfolder: str = "") -> str | None:
    """The commit that a branch or tag of a hub repository stands for now, read off the cache's folder names.

    Args:
        path: Hub id.
        revision: Branch, tag or commit; None: `main`.
        name: A file that the repository is sure to have.
        subfolder: Where it lies.

    Raises:
        OSError: The repository, revision or file does not exist, or the hub cannot be reached.
    """
    where = cached_file(path, name, revision=revision or "main", subfolder=subfolder)
    parts = Path(where).parts if where is not None else ()
    return parts[parts.index("snapshots") + 1] if "snapshots" in parts else None


def _load_tokenizer(path: str, source: dict[str, Any]) -> Any:
    tokenizer: Any = AutoTokenizer.from_pretrained(path, **source)
    # Without vocabulary files transformers 5 makes an empty tokenizer that turns every word into [UNK].
    if not set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens):
        raise EncoderError(f"{path} has no tokenizer: tokenizer.json or the vocabulary files are missing")
    return tokenizer


def _load_model(
    settings: EncoderSettings, path: str, config: Any, source: dict[str, Any]
) -> tuple[nn.Module, tuple[str, ...]]:
    """The bare encoder on the CPU, and notes."""
    auto = AutoModelForTextEncoding if config.model_type in _TEXT_ENCODING else AutoModel
    wishes: dict[str, Any] = {"dtype": DTYPES[settings.dtype]}
    told: dict[str, Any] = {"output_loading_info": True, "ignore_mismatched_sizes": True}  # judged below, by name
    if settings.attn != "auto":  # by default transformers takes sdpa where the class supports it, else eager
        wishes["attn_implementation"] = settings.attn
    if settings.attn == "flash_attention_2" and settings.dtype == "fp32":
        raise EncoderError("--attn flash_attention_2 needs --dtype bf16 or fp16")
    trust = source["trust_remote_code"]
    # What code outside transformers draws while it is built must not move the caller's random stream.
    with torch.random.fork_rng(devices=[]):
        if settings.random_init:
            torch.manual_seed(settings.init_seed)
            # Drawn in float32 whatever the dtype, then loaded like a checkpoint, so that dtype rules apply alike.
            built = auto.from_config(
                copy.deepcopy(config), trust_remote_code=trust, **{**wishes, "dtype": torch.float32}
            )
            model, info = type(built).from_pretrained(
                None, config=config, state_dict=built.state_dict(), **told, **wishes
            )
        else:
            model, info = auto.from_pretrained(path, config=config, **told, **source, **wishes)
        notes = _repair(model, lambda: auto.from_config(copy.deepcopy(config), trust_remote_code=trust, **wishes))
    if settings.random_init:
        notes += (f"random weights, seed {settings.init_seed}: not the checkpoint's",)
    if model.config.is_encoder_decoder and auto is AutoModel:
        notes += (f"only the encoder of {type(model).__name__} is measured",)
        model = model.get_encoder()
    _require_complete(path, info, model)
    # The pooler is a head that no hidden state depends on; the classes of transformers skip it where it is None.
    if getattr(model, "pooler", None) is not None and _is_native(model):
        model.pooler = None
    return model, notes


def _repair(model: nn.Module, build: Any) -> tuple[str, ...]:
    """Repairs what a class outside transformers computes in `__init__` (classes inside know how to redo it)."""
    if _is_native(model) or not has_unsaved_tensors(model):
        return ()
    repaired = repair_unsaved_tensors(model, build)
    if not repaired:
        return ()
    return (f"recomputed {len(repaired)} buffers that loading had left undefined: {_some(repaired)}",)


def _is_native(model: nn.Module) -> bool:
    return type(model).__module__.startswith("transformers.models.")


def _require_complete(path: str, info: dict[str, Any], model: nn.Module) -> None:
    """Every weight that the hidden states depend on came from the checkpoint, in its shape, and no block was left over."""
    left_over = _blocks_left_over(model, info["unexpected_keys"])
    if left_over:
        raise EncoderError(
            f"{path}: the checkpoint holds blocks that its config.json does not declare ({_some(left_over)}); is the "
            "number of layers wrong?"
        )
    misshapen = [key for key, *_ in info["mismatched_keys"]]
    lost = sorted(key for key in info["missing_keys"] if not (is_pooler(key) or key.startswith("decoder.")))
    lost = [key for key in lost if not key.endswith("position_ids")]
    for keys, what in ((lost, "lacks"), (sorted(misshapen), "has in another shape")):
        if keys:
            raise EncoderError(
                f"{path}: the checkpoint {what} {len(keys)} weights of the encoder ({_some(keys)}), which would be "
                "random; is it for another architecture? --random-init asks for random weights"
            )


def _blocks_left_over(model: nn.Module, unexpected: Any) -> list[str]:
    """Weights of the checkpoint that are named as those of this model are, but for the number of a block."""
    prefix = f"{model.base_model_prefix}." if getattr(model, "base_model_prefix", "") else ""
    known = {_NUMBER.sub("#", name) for name, _ in model.named_parameters()}
    return sorted(key for key in unexpected if _NUMBER.sub("#", key.removeprefix(prefix)) in known)


def require_finite(path: str, model: nn.Module, dtype: str) -> None:
    """Checks the weights.

    Raises:
        EncoderError: One is NaN or infinite.
    """
    for name, weight in model.named_parameters():
        if weight.numel() == 0 or is_pooler(name):
            continue
        low, high = weight.aminmax()
        if not bool(torch.isfinite(low) & torch.isfinite(high)):
            hint = "; --dtype bf16 or fp32 has the range" if dtype == "fp16" else ": the checkpoint is damaged"
            raise EncoderError(f"{path}: weight {name} is not finite (NaN or infinity) in {dtype}{hint}")


def _some(names: Any) -> str:
    names = list(names)
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


@contextmanager
def quiet_transformers() -> Generator[None]:
    """No load report (every head of a masked-LM checkpoint is one) and no progress bars; settings are put back."""
    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(logging.CRITICAL)
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()


@contextmanager
def _one_line(path: str, settings: EncoderSettings) -> Generator[None]:
    """Turns whatever transformers, safetensors or foreign model code raise into one line of advice."""
    try:
        yield
    except FrozenprobeError:
        raise
    except Exception as error:
        raise EncoderError(explain(path, error, settings)) from error


def explain(path: str, error: Exception, settings: EncoderSettings) -> str:
    """One line for an exception met on loading: what happened and what to do."""
    text = " ".join(str(error).split()) or type(error).__name__
    lower = text.lower()
    if "trust_remote_code" in text and not settings.trust_remote_code:
        return f"{path} brings its own model code, which runs only when asked for: add --trust-remote-code"
    if any(library in lower and find_spec(module) is None for library, module in _VOCABULARY_LIBRARIES.items()):
        return f"{path}: the tokenizer needs a library that is missing: pip install 'frozenprobe[deberta]' ({_short(text)})"
    if (
        "attn_implementation" in text
        or "attention implementation" in lower
        or "flash" in lower
        or "scaled_dot" in lower
    ):
        return f"{path}: --attn {settings.attn} is not supported here; use --attn auto ({_short(text)})"
    if type(error).__name__ == "UnpicklingError":
        return f"{path}: the weights file is damaged or holds more than weights, and is not unpickled; use safetensors"
    if type(error).__name__ == "SafetensorError" or "PytorchStreamReader" in text:
        return f"{path}: the weights file is damaged; download it again ({_short(text)})"
    if "does not recognize this architecture" in text or "Unrecognized" in text:
        return f"{path}: transformers {transformers.__version__} does not know this architecture ({_short(text)})"
    if "JSON" in text or "json" in type(error).__module__:
        return f"{path}: a configuration file is not valid JSON ({_short(text)})"
    if isinstance(error, OSError):
        return f"{path} could not be loaded as a local folder or a hub id: {_short(text)}"
    return f"{path} could not be loaded: {type(error).__name__}: {_short(text)}"


def _short(text: str, limit: int = 240) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."
