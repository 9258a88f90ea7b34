"""The shape of a model that is pre-trained, as one frozen settings class for all three objectives.

What is left out follows from the objective and from the encoder, as the paper chose (sections 3 and 5.1). A parsed
`ModelConfig` holds every number, so that what a checkpoint stores can be read without defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from pydantic import Field, model_validator

from frozenprobe.settings import Settings

Objective = Literal["crossbert", "bert", "electra"]
ROBERTA_VOCABULARY = 50265
MASK_RATIOS = {"crossbert": 0.5, "bert": 0.2, "electra": 0.15}
# The settings that only one objective has.
OWNERS: dict[str, Objective] = {
    "predictor_width": "crossbert",
    "predictor_layers": "crossbert",
    "predictor_heads": "crossbert",
    "complementary": "crossbert",
    "logits_everywhere": "bert",
    "generator_width": "electra",
    "generator_layers": "electra",
    "generator_heads": "electra",
    "replaced_token_weight": "electra",
}


def swiglu_width(width: int) -> int:
    """Hidden size of a block's SwiGLU, h(d): 8/3 of the width, rounded up to a multiple of 256 (fits tables 10 and 11)."""
    return 256 * -(-int(8 * width / 3) // 256)


def _for(objective: Objective, value: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    """A default that follows from the fields before it; nothing (0 or False) under another objective."""

    def default(before: dict[str, Any]) -> Any:
        # A field that was refused is missing here; its own error is the one that is reported.
        known = {"objective": objective, "width": 2, "layers": 1, "heads": 1} | before
        return value(known) if known["objective"] == objective else type(value(known))()

    return default


def _same_head_width(width: str) -> Callable[[dict[str, Any]], int]:
    return lambda known: max(1, known.get(width, 2) * known["heads"] // known["width"])


class ModelConfig(Settings):
    """A model and its objective. The defaults are the paper's single-scale encoder of 28 blocks, 768 wide."""

    objective: Objective = Field(
        "crossbert", description="crossbert, bert (flat masked-LM) or electra (replaced-token detection)"
    )
    vocabulary: int = Field(ROBERTA_VOCABULARY, ge=2, description="words of the tokenizer")
    width: int = Field(768, ge=2, description="of the encoder, d")
    layers: int = Field(28, ge=1, description="blocks of the encoder, L")
    heads: int = Field(12, ge=1, description="attention heads of the encoder")
    predictor_width: int = Field(
        default_factory=_for("crossbert", lambda known: known["width"]), ge=0, description="p; default: d"
    )
    predictor_layers: int = Field(
        default_factory=_for("crossbert", lambda known: max(1, known["layers"] // 4)),
        ge=0,
        description="cross-attention blocks of the predictor; default: a quarter of L",
    )
    predictor_heads: int = Field(
        default_factory=_for("crossbert", _same_head_width("predictor_width")),
        ge=0,
        description="default: heads as wide as the encoder's",
    )
    sequence_length: int = Field(512, ge=2, description="positions of a packed sequence, S")
    mask_ratio: float = Field(
        default_factory=lambda before: MASK_RATIOS[before.get("objective", "crossbert")],
        gt=0,
        lt=1,
        description="share of S that is predicted; default: crossbert 0.5, bert 0.2, electra 0.15",
    )
    complementary: bool = Field(
        default_factory=_for("crossbert", lambda _: True),
        description="two views of each sequence, each predicting what the other sees (CMS); default: yes",
    )
    logits_everywhere: bool = Field(
        False, description="BERT's head on all positions, not on predicted ones alone: slower, the same loss"
    )
    generator_width: int = Field(
        default_factory=_for("electra", lambda known: known["width"]), ge=0, description="default: d"
    )
    generator_layers: int = Field(
        default_factory=_for("electra", lambda known: max(1, known["layers"] // 9)),
        ge=0,
        description="blocks of Electra's generator; default: a ninth of L (the paper's 28 have 3)",
    )
    generator_heads: int = Field(
        default_factory=_for("electra", _same_head_width("generator_width")),
        ge=0,
        description="default: heads as wide as the encoder's",
    )
    replaced_token_weight: float = Field(
        default_factory=_for("electra", lambda _: 50.0), ge=0, description="of the replaced-token loss; default: 50"
    )
    init_std: float = Field(0.02, gt=0, description="standard deviation of initial weights; 0.015 in the paper's 2B")
    rope_theta: float = Field(1e4, gt=0, description="base of the rotary frequencies")
    norm_eps: float = Field(1e-5, gt=0, description="epsilon of RMSNorm")
    document_mask: bool = Field(False, description="tokens see only their own document of a packed sequence")

    @model_validator(mode="after")
    def _possible(self) -> ModelConfig:
        for name, owner in OWNERS.items():
            if owner != self.objective and getattr(self, name):
                raise ValueError(f"{name} belongs to objective {owner}, not to {self.objective}")
        for part in ("", "predictor_", "generator_"):
            if part and OWNERS[f"{part}width"] != self.objective:
                continue
            width, layers, heads = (getattr(self, part + name) for name in ("width", "layers", "heads"))
            if min(width, layers, heads) < 1:
                raise ValueError(f"{part}width, {part}layers and {part}heads must be at least 1")
            if width % (2 * heads):
                raise ValueError(
                    f"{part}width {width} over {part}heads {heads}: every head needs the same even number of dimensions"
                )
        if not 1 <= self.masked < self.sequence_length:
            raise ValueError(
                f"mask_ratio {self.mask_ratio:g} of sequence_length {self.sequence_length} predicts {self.masked} "
                "positions; at least one must be predicted and one visible"
            )
        return self

    @property
    def masked(self) -> int:
        """Predicted positions of a view, floor(S r)."""
        return int(self.sequence_length * self.mask_ratio + 1e-9)  # 0.29 * 100 is 28.999...

    @property
    def visible(self) -> int:
        """Visible positions of a view."""
        return self.sequence_length - self.masked
