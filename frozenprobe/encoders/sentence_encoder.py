"""A sentence-transformers model as an encoder: its own length limit, pooling and prompts.

Implements `Encoder`, `HasPooling` and, where prompts are declared, `HasPrompts` (`base.py`). The transformer inside is
loaded like any other (`loading.py`); the modules after it run in float32 on its last hidden states.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import nn
from transformers.utils.hub import cached_file

from frozenprobe.encoders.base import Batch, Layer, Role, Tokenized, Visit
from frozenprobe.encoders.fingerprint import digest, weights_digest
from frozenprobe.encoders.loading import explain, load_transformer, resolve_commit
from frozenprobe.encoders.transformer import TransformerEncoder
from frozenprobe.errors import EncoderError, FrozenprobeError
from frozenprobe.settings import EncoderSettings

_TAIL = ("Pooling", "Dense", "Normalize", "LayerNorm", "Dropout")
_HOMES = (
    "sentence_transformers.sentence_transformer.modules",
    "sentence_transformers.models",
)  # newer and older releases
_TRANSFORMER_CONFIGS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
_ARGUMENTS = ("model_args", "tokenizer_args", "config_args", "model_kwargs", "processor_kwargs", "config_kwargs")
_PROMPT_NAMES: dict[str, tuple[str, ...]] = {"query": ("query",), "document": ("document", "passage", "corpus")}


class SentenceEncoder:
    """A transformer followed by pooling and what comes after it; its parts are the attributes of the arguments' names.

    Args:
        transformer: The transformer inside.
        tail: The modules after it, in order.
        prompts: Prefixes by prompt name.
        default_prompt: The prefix of texts without a role.
        description: JSON of the modules' settings, for the fingerprint.

    Raises:
        EncoderError: The modules do not produce one vector per text.
    """

    def __init__(
        self,
        transformer: TransformerEncoder,
        tail: Sequence[nn.Module],
        *,
        prompts: dict[str, str],
        default_prompt: str,
        description: str,
    ) -> None:
        self.info = transformer.info
        self.transformer = transformer
        self.tail = nn.ModuleList(tail).eval().requires_grad_(False).to(transformer.device)
        self.prompts = prompts
        self.default_prompt = default_prompt
        self._description = description
        self._pools_prompt = all(getattr(module, "include_prompt", True) for module in tail)
        batch = self.collate(self.tokenize(["a", "the probe has padding"]), np.arange(2))
        self.forward(batch, ("last",), lambda _, hidden: self._check_pooling(hidden, batch))

    def tokenize(self, texts: Sequence[str], pairs: Sequence[str] | None = None, role: Role | None = None) -> Tokenized:
        """Tokenises, with the prompt of the role (or the default prompt) before each first text.

        Raises:
            EncoderError: A text cannot be tokenised, or the model's pooling would have to leave the prompt out.
        """
        prefix = self.default_prompt if role is None else self._prompt(role)
        if prefix:
            if not self._pools_prompt:
                raise EncoderError(f"{self.info.name} leaves its prompt out of its pooling, which is not supported")
            texts = [prefix + text for text in texts]
        return self.transformer.tokenize(texts, pairs)

    def collate(self, tokens: Tokenized, rows: Int[np.ndarray, " b"]) -> Batch:
        """Pads the rows to the longest of them, on the device."""
        return self.transformer.collate(tokens, rows)

    def forward(self, batch: Batch, layers: Sequence[Layer], visit: Visit) -> None:
        """Runs the transformer once; see `Encoder.forward`."""
        self.transformer.forward(batch, layers, visit)

    def pool(self, hidden: Float[torch.Tensor, "b t d"], batch: Batch) -> Float[torch.Tensor, "b e"]:
        """Pools the last hidden states as `SentenceTransformer.encode` does, in float32.

        Args:
            hidden: What `forward` gave for `last`.
            batch: The batch it came from.

        Returns:
            One vector per text, normalised if the model says so.
        """
        features: dict[str, Any] = {
            "token_embeddings": hidden.float(),
            "attention_mask": batch.mask.long(),
            "input_ids": batch.ids,
        }
        with torch.inference_mode():
            for module in self.tail:
                features = module(features)
        return features["sentence_embedding"]

    def fingerprint(self) -> str:
        """The transformer's digest, with the weights and settings of the modules after it, and the prompts."""
        own = json.dumps([self.prompts, self.default_prompt], sort_keys=True)
        return digest(self.transformer.fingerprint(), weights_digest(self.tail), self._description, own)

    def trainable(self) -> nn.Module:
        """A copy of the transformer to be finetuned; see `Finetunable`."""
        return self.transformer.trainable()

    def _prompt(self, role: Role) -> str:
        return next((self.prompts[name] for name in _PROMPT_NAMES[role] if name in self.prompts), "")

    def _check_pooling(self, hidden: torch.Tensor, batch: Batch) -> None:
        try:
            vectors = self.pool(hidden, batch)
        except Exception as error:
            raise EncoderError(f"{self.info.name}: its own pooling fails: {type(error).__name__}: {error}") from error
        if vectors.ndim != 2 or len(vectors) != len(hidden):
            raise EncoderError(
                f"{self.info.name}: its own pooling gives shape {list(vectors.shape)}, not a vector each"
            )


class PromptedSentenceEncoder(SentenceEncoder):
    """A `SentenceEncoder` that declares prompts for queries or documents (`HasPrompts`)."""

    def prompt(self, role: Role) -> str:
        """The prefix for a role; may be empty. `tokenize` puts it there."""
        return self._prompt(role)


def load_sentence_encoder(settings: EncoderSettings, path: str) -> SentenceEncoder:
    """Loads a sentence-transformers folder or hub repository.

    Args:
        settings: How the encoder is run.
        path: Hub id or folder.

    Returns:
        The encoder, with prompts if it declares any.

    Raises:
        EncoderError: Its first module is no Transformer, a module is unsupported, or a file is missing or damaged.
    """
    try:
        if not Path(path).is_dir():  # one commit for every file, even if the branch moves meanwhile
            commit = resolve_commit(path, settings.revision, "modules.json")
            settings = settings.model_copy(update={"revision": commit})
        revision = settings.revision
        modules = _read_json(path, "modules.json", revision)
        first, *rest = _module_list(path, modules)
        folder = first["path"]
        own = next((c for name in _TRANSFORMER_CONFIGS if (c := _read_json(path, name, revision, folder))), {})
        if "message" in (own.get("modality_config") or {}):
            raise EncoderError(f"{path} reads chat messages, not plain texts: it is not supported")
        transformer = load_transformer(
            settings,
            path,
            kind="st",
            subfolder=folder,
            declared_max_length=_declared_length(path, own),
            lower_case=bool(own.get("do_lower_case")),
            notes=_ignored(own),
        )
        with torch.random.fork_rng(devices=[]):  # building a layer draws weights, even if the file's replace them
            tail = [_load_module(settings, path, entry, revision) for entry in rest]
            if settings.random_init:
                _draw_anew(tail, settings.init_seed)
        configs = [_read_json(path, "config.json", revision, entry["path"]) for entry in rest if entry["path"]]
        prompts, default_prompt = _declared_prompts(path, revision)
        roles = [name for names in _PROMPT_NAMES.values() for name in names]
        cls = PromptedSentenceEncoder if any(prompts.get(name) for name in roles) else SentenceEncoder
        return cls(
            transformer,
            tail,
            prompts=prompts,
            default_prompt=default_prompt,
            description=json.dumps([[entry["type"] for entry in rest], configs], sort_keys=True),
        )
    except FrozenprobeError:
        raise
    except Exception as error:
        raise EncoderError(explain(path, error, settings)) from error


def _module_list(path: str, modules: Any) -> list[dict[str, str]]:
    """The entries of modules.json, checked: a Transformer first, then modules that work on its output."""
    if not isinstance(modules, list) or not modules:
        raise EncoderError(f"{path}: modules.json lists no modules")
    if not all(isinstance(m, dict) and isinstance(m.get("type"), str) for m in modules):
        raise EncoderError(f"{path}: modules.json is damaged: every module needs a type")
    entries = [{"type": m["type"], "path": m.get("path") or ""} for m in modules]
    first = entries[0]["type"]
    if first.rsplit(".", 1)[-1] != "Transformer" or not _is_own(first):
        raise EncoderError(
            f"{path}: its first module is {first}; only models that start with a Transformer have layers"
        )
    for entry in entries[1:]:
        if _is_own(entry["type"]) and entry["type"].rsplit(".", 1)[-1] not in _TAIL:
            raise EncoderError(f"{path}: its module {entry['type']} is not supported; known are {', '.join(_TAIL)}")
    return entries


def _declared_prompts(path: str, revision: str | None) -> tuple[dict[str, str], str]:
    """Prefixes by prompt name, and the one for texts without a role."""
    config = _read_json(path, "config_sentence_transformers.json", revision) or {}
    prompts = {name: text for name, text in (config.get("prompts") or {}).items() if text is not None}
    default = config.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise EncoderError(f"{path}: the default prompt {default!r} is not among its prompts {sorted(prompts)}")
    return prompts, "" if default is None else prompts[default]


def _declared_length(path: str, own: dict[str, Any]) -> int | None:
    length = own.get("max_seq_length")
    if length is None:
        return None
    if not isinstance(length, int) or length < 1:
        raise EncoderError(f"{path}: max_seq_length {length!r} in its configuration is no length")
    return length


def _ignored(own: dict[str, Any]) -> tuple[str, ...]:
    return tuple(
        f"{name} {own[name]} of the folder's configuration is not applied" for name in _ARGUMENTS if own.get(name)
    )


def _load_module(settings: EncoderSettings, path: str, entry: dict[str, str], revision: str | None) -> nn.Module:
    config = _read_json(path, "config.json", revision, entry["path"]) if entry["path"] else None
    activation = str((config or {}).get("activation_function", "torch."))
    if not settings.trust_remote_code and not activation.startswith("torch."):
        raise EncoderError(f"{path}: its activation {activation} is foreign code: add --trust-remote-code")
    cls = _module_class(settings, path, entry["type"], revision)
    return cls.load(
        path, subfolder=entry["path"], revision=revision, trust_remote_code=settings.trust_remote_code
    ).float()


def _module_class(settings: EncoderSettings, path: str, reference: str, revision: str | None) -> Any:
    home, _, name = reference.rpartition(".")
    if _is_own(reference):
        for candidate in _HOMES:
            try:
                return getattr(importlib.import_module(candidate), name)
            except ModuleNotFoundError:
                continue
        raise EncoderError(f"{path}: the installed sentence-transformers has no module {reference}")
    if not settings.trust_remote_code:
        raise EncoderError(f"{path}: its module {reference} is foreign code: add --trust-remote-code")
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    try:
        return get_class_from_dynamic_module(reference, path, revision=revision)
    except (OSError, ValueError):  # no such file in the repository: then it names an installed package
        return getattr(importlib.import_module(home), name)


def _draw_anew(modules: Sequence[nn.Module], seed: int) -> None:
    torch.manual_seed(seed)
    for module in modules:
        for part in module.modules():
            reset = getattr(part, "reset_parameters", None)
            if callable(reset):
                reset()


def _is_own(reference: str) -> bool:
    return reference.startswith("sentence_transformers.")


def _read_json(path: str, name: str, revision: str | None, subfolder: str = "") -> Any:
    """The parsed file, or None where there is none."""
    found = cached_file(
        path,
        name,
        revision=revision,
        subfolder=subfolder,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    if found is None:
        return None
    try:
        with open(found, encoding="utf-8") as file:
            return json.load(file)
    except ValueError as error:
        raise EncoderError(f"{path}: {name} is not valid JSON ({error})") from error
