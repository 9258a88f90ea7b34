"""Any encoder with any pooling as an mteb encoder: everything that a DataLoader holds is encoded in one go, each text once.

mteb asks for batches of a fixed number of rows; below its DataLoader the texts are made distinct, sorted by length and cut
to a token budget (features/extract.py), and what a task asks for twice is encoded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float
from mteb.models.abs_encoder import AbsEncoder
from mteb.models.model_meta import ModelMeta, ScoringFunction
from torch import nn

from frozenprobe.encoders.base import Encoder, HasPrompts, Layer, Role
from frozenprobe.encoders.pooled import PooledEncoder
from frozenprobe.encoders.prompts import prefixed, require_no_prompts
from frozenprobe.errors import FeatureError
from frozenprobe.features.base import ExtractionReport, Inputs, View
from frozenprobe.features.cache import FeatureCache
from frozenprobe.features.extract import ExtractionProgress, extract, resolve_layer
from frozenprobe.features.pooling import ViewPooler, resolve_pooling
from frozenprobe.features.sharding import Team
from frozenprobe.settings import ExtractionSettings

if TYPE_CHECKING:
    from mteb.abstasks.task_metadata import TaskMetadata
    from mteb.types import PromptType

Backbone = Literal["frozen", "unfrozen"]

_REMEMBERED_BYTES = 1 << 30
"""Vectors of a task that are kept in memory in case it asks for the same text again."""

_MEASURED_BATCHES = 32
"""So many full batches must have been encoded before the token budget found there is kept for the run."""


class MtebEncoder(AbsEncoder):
    """An mteb encoder.

    Args:
        encoder: The encoder.
        pooler: `mean`, `cls`, `last`, `own` (the checkpoint's), `auto` (`own` where there is one, else `mean`), or a torch module
            that turns token features `[b, t, d]` and mask `[b, t]` into `[b, e]`.
        layer: Whose tokens are pooled.
        normalise: Scale vectors to length 1; an encoder's own pooling is left as it is.
        backbone: `unfrozen` where the encoder was trained along with the pooler.
        prompts: Prefixes by role, for an encoder that declares none.
        features: Token budget.
        cache: Where vectors are kept between runs.
        meta: Who the model is to mteb; None: a nameless one.

    Raises:
        EncoderError: `own` of an encoder without pooling, or a pooler that is no module.
        SettingsError: The layer is out of range, own pooling of another layer, or prompts beside the encoder's own.
    """

    mteb_model_meta: ModelMeta  # ty: ignore[incompatible-mutable-override]

    def __init__(
        self,
        encoder: Encoder,
        pooler: str | nn.Module = "auto",
        *,
        layer: Layer = "last",
        normalise: bool = True,
        backbone: Backbone = "frozen",
        prompts: dict[Role, str] | None = None,
        features: ExtractionSettings | None = None,
        cache: FeatureCache | None = None,
        meta: ModelMeta | None = None,
    ) -> None:
        self.encoder = encoder
        self.model: Any = encoder
        self.layer: Layer = resolve_layer(layer, encoder.info)
        self.pooler = resolve_pooling(pooler, encoder, self.layer) if isinstance(pooler, str) else pooler
        self.normalise = normalise and self.pooler != "own"
        self.backbone: Backbone = backbone
        if isinstance(self.pooler, str):
            self.pooled: Encoder = encoder
            self.view = View(self.layer, self.pooler)
        else:
            self.pooled = PooledEncoder(encoder, self.pooler, layer=self.layer)
            self.view = View("last", "own")
        ViewPooler(self.pooled, [self.view])
        self.prompts = {role: text for role, text in (prompts or {}).items() if text}
        require_no_prompts(encoder, self.prompts)
        self.features = features or ExtractionSettings()
        self.cache = cache
        self.mteb_model_meta = meta or ModelMeta.create_empty(overwrites={"similarity_fn_name": ScoringFunction.COSINE})
        self.team: Team | None = None
        self.on_progress: Callable[[ExtractionProgress], None] | None = None
        self.reports: list[ExtractionReport] = []
        self._fingerprint: str | None = None
        self._remembered: dict[tuple[Role | None, str], np.ndarray] = {}

    @property
    def pooling(self) -> str:
        """The pooling's name in records: a module's own `name` if it has one, else its class's."""
        if isinstance(self.pooler, str):
            return self.pooler
        return str(getattr(self.pooler, "name", type(self.pooler).__name__))

    @property
    def uses_prompts(self) -> bool:
        """Whether queries or documents have a prefix."""
        return bool(self.prompts) or isinstance(self.encoder, HasPrompts)

    def fingerprint(self) -> str:
        """A digest of the encoder and of a pooler that has weights."""
        return self._fingerprint or self.pooled.fingerprint()

    def pin(self) -> None:
        """Takes the weights as they are for good, so that they are read once and not for every list of texts."""
        self._fingerprint = self.pooled.fingerprint()
        if self.cache is not None:
            self.cache.pin(self._fingerprint)

    def width(self) -> int:
        """Length of a vector, seen on a short text."""
        return extract(self.pooled, [Inputs(["a"])], [self.view], self.features)[0].by_view[self.view].shape[1]

    def start_task(self) -> None:
        """Forgets the vectors and reports of the task before."""
        self._remembered.clear()
        self.reports = []

    def encode(
        self,
        inputs: Any,
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        prompt_type: PromptType | None = None,
        **kwargs: Any,
    ) -> Float[np.ndarray, "n e"]:
        """Encodes everything that a DataLoader holds.

        Args:
            inputs: mteb's DataLoader.
            task_metadata: The task.
            hf_split: Its split.
            hf_subset: Its subset.
            prompt_type: Whether these are queries or documents.
            **kwargs: mteb's own, such as a batch size: without effect, since batches are made by tokens.

        Returns:
            One float32 vector per row, in order.

        Raises:
            FeatureError: A text cannot be encoded, or a feature is not finite.
        """
        role = None if prompt_type is None else prompt_type.value
        texts = _texts(inputs)
        try:
            return self.vectors(texts, role)
        except FeatureError as error:
            raise FeatureError(f"{task_metadata.name}, {hf_split}, {role or 'texts'}: {error}") from error

    def vectors(self, texts: Sequence[str], role: Role | None = None) -> Float[np.ndarray, "n e"]:
        """Encodes texts in a role, each distinct one once per task.

        Raises:
            FeatureError: See `extract`.
        """
        known = self._remembered
        new = list(dict.fromkeys(text for text in texts if (role, text) not in known))
        if not new:
            return (
                np.stack([known[role, text] for text in texts])
                if len(texts)
                else np.empty((0, self.width()), np.float32)
            )
        vectors = self._extract(new, role)
        if len(new) < len(texts):
            rows = {text: row for row, text in enumerate(new)}
            everything = np.empty((len(texts), vectors.shape[1]), dtype=np.float32)
            for position, text in enumerate(texts):
                row = rows.get(text)
                everything[position] = known[role, text] if row is None else vectors[row]
        else:
            everything = vectors
        if (len(known) + len(new)) * vectors[0].nbytes <= _REMEMBERED_BYTES:
            known.update(zip(((role, text) for text in new), vectors, strict=True))
        return everything

    def _extract(self, texts: list[str], role: Role | None) -> Float[np.ndarray, "n e"]:
        inputs = Inputs(prefixed(texts, role, self.prompts), role=role)
        (features,) = extract(
            self.pooled,
            [inputs],
            [self.view],
            self.features,
            cache=self.cache,
            on_progress=self.on_progress,
            team=self.team,
        )
        report = features.report
        self.reports.append(report)
        if report.padded_tokens >= _MEASURED_BATCHES * report.tokens_per_batch:
            self.features = self.features.model_copy(update={"tokens_per_batch": report.tokens_per_batch})
        vectors = features.by_view[self.view]
        if self.normalise:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors


def _texts(inputs: Any) -> list[str]:
    """All texts of a DataLoader in its order; straight from the rows below it where they are plain."""
    rows: Any = getattr(inputs, "dataset", None)
    if "text" in (getattr(rows, "column_names", None) or ()):
        return list(rows["text"])
    return [text for batch in inputs for text in batch["text"]]
