"""How large a model is, what a step costs, and the paper's runs: tables 10 and 11, the single-scale runs, the laws.

Everything is counted from a `ModelConfig`, by arithmetic alone: torch is not needed. Norms and mask vectors are not
counted as parameters, and only matrix products as FLOPs, forward and backward (three times forward).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from crossbert.config import ModelConfig, swiglu_width
from frozenprobe.errors import SettingsError
from frozenprobe.settings import parse

TOKENS_PER_FLOP = 20  # the paper's data-to-model ratio D / F_N in its scaling sweep (section 5.1)


@dataclass(frozen=True)
class Parameters:
    """Entries of a model's matrices.

    Attributes:
        embedding: Of the tied embedding and head, V d.
        encoder: Of the encoder's blocks.
        predictor: Of the predictor's blocks (table 4).
        other: Projections between widths, Electra's generator and detector.
        mask_ratio: Share of positions that the predictor processes, r; 0 where there is no predictor.
    """

    embedding: int
    encoder: int
    predictor: int
    other: int
    mask_ratio: float

    @property
    def total(self) -> int:
        """All that is trained, the tied embedding once."""
        return self.embedding + self.encoder + self.predictor + self.other

    @property
    def non_embedding(self) -> int:
        """All but the embedding."""
        return self.total - self.embedding

    @property
    def encoder_only(self) -> int:
        """What is left when training is over: the encoder and its embedding."""
        return self.embedding + self.encoder

    @property
    def effective(self) -> float:
        """The count of table 11: (1 - r) (N_enc + V d) + r N_pred; without a predictor, the total."""
        if not self.predictor:
            return self.total
        return (1 - self.mask_ratio) * self.encoder_only + self.mask_ratio * (self.predictor + self.other)


def encoder_block(width: int) -> int:
    """Parameters of a block: 4 d^2 of attention, 3 d h of SwiGLU."""
    return 4 * width**2 + 3 * width * swiglu_width(width)


def predictor_block(width: int, context_width: int) -> int:
    """Parameters of a cross-attention block: queries and output p wide, keys and values from d to p."""
    return 2 * width**2 + 2 * context_width * width + 3 * width * swiglu_width(width)


def count_parameters(config: ModelConfig) -> Parameters:
    """Counts a model's parameters."""
    d, p, g = config.width, config.predictor_width, config.generator_width
    crossbert, electra = config.objective == "crossbert", config.objective == "electra"
    projection = p * d if p != d else 0
    generator = config.generator_layers * encoder_block(g) + (2 * d * g if g != d else 0)
    return Parameters(
        embedding=config.vocabulary * d,
        encoder=config.layers * encoder_block(d),
        predictor=config.predictor_layers * predictor_block(p, d) if crossbert else 0,
        other=projection if crossbert else generator + d if electra else 0,
        mask_ratio=config.mask_ratio if crossbert else 0.0,
    )


def positions_per_sequence(config: ModelConfig) -> int:
    """Processed positions of a sequence, as the paper counts tokens: both views under complementary masking."""
    return config.sequence_length * (2 if config.complementary else 1)


def flops_per_position(config: ModelConfig, kind: Literal["paper", "exact"]) -> float:
    """FLOPs of training per processed position, F_N.

    Args:
        config: The model.
        kind: `paper` is eq. 7 and 8: no head, and full sequences as keys even where the encoder sees half of them.
            Electra pays for generator and encoder. `exact` counts every matrix product of this implementation,
            the head on the positions that it runs on included.
    """
    if kind == "exact":
        return exact_flops(config) / positions_per_sequence(config)
    length, parameters = config.sequence_length, count_parameters(config)
    encoder = 6 * parameters.encoder + 12 * config.width * config.layers * length
    if config.objective == "crossbert":
        predictor = 6 * (parameters.predictor + parameters.other)
        predictor += 12 * config.predictor_width * config.predictor_layers * length
        return (1 - config.mask_ratio) * encoder + config.mask_ratio * predictor
    if config.objective == "electra":
        return encoder + 6 * parameters.other + 12 * config.generator_width * config.generator_layers * length
    return encoder


def paper_flops(config: ModelConfig) -> float:
    """FLOPs of one sequence as the paper counts them, both views under complementary masking."""
    return positions_per_sequence(config) * flops_per_position(config, "paper")


def exact_flops(config: ModelConfig) -> int:
    """FLOPs of every matrix product of one sequence, forward and backward."""
    s, m, v = config.sequence_length, config.masked, config.visible
    d, p, g, words = config.width, config.predictor_width, config.generator_width, config.vocabulary
    products = 0  # multiply-adds of the forward pass

    def stack(layers: int, width: int, tokens: int, pairs: int) -> int:
        """Self-attention blocks over `tokens`, of which `pairs` (query, key) meet: their scores and weighted sums."""
        return layers * (tokens * encoder_block(width) + 2 * width * pairs)

    if config.objective == "crossbert":
        # (queries, keys) of the predictor, one entry per view; the encoder sees the keys.
        views = [(m, v), (v, m)] if config.complementary else [(m, v)]
        for queries, keys in views:
            products += stack(config.layers, d, keys, keys * keys)
            own = 2 * p**2 + 3 * p * swiglu_width(p)
            products += config.predictor_layers * (queries * own + keys * 2 * d * p + 2 * p * queries * keys)
            products += queries * (p * d if p != d else 0) + queries * words * d
    elif config.objective == "bert":
        products += stack(config.layers, d, s, s * s) + (s if config.logits_everywhere else m) * words * d
    else:
        products += stack(config.layers, d, s, s * s) + s * d
        products += stack(config.generator_layers, g, s, s * s) + (s + m) * (d * g if g != d else 0) + m * words * d
    return 6 * products


@dataclass(frozen=True)
class PowerLaw:
    """y = coefficient x^exponent."""

    coefficient: float
    exponent: float

    def __call__(self, x: float) -> float:
        """The law's value at x."""
        return self.coefficient * x**self.exponent

    def __str__(self) -> str:
        return f"{self.coefficient:.4g} C^{self.exponent:.3f}"


@dataclass(frozen=True)
class Laws:
    """Learning rate and batch size (in processed positions) by the compute C = D F_N of a run (section 5.1)."""

    learning_rate: PowerLaw
    batch: PowerLaw


LAWS = {
    "crossbert": Laws(PowerLaw(564.6, -0.279), PowerLaw(1e4, 0.092)),
    "bert": Laws(PowerLaw(69.18, -0.24), PowerLaw(17.38, 0.24)),
}


@dataclass(frozen=True)
class Published:
    """A run of the paper, as printed.

    Attributes:
        source: Where it is printed.
        model: The model; its counts are not printed values but follow from `count_parameters`.
        parameters_m: Millions of parameters, as `counted`.
        counted: Which count that is: `total`, `effective`, or `untied`, the total with a head of its own.
        flops: Of the whole run.
        steps: Of the optimiser.
        tokens_b: Billions of processed positions.
        batch_tokens: Processed positions of a step.
        learning_rate: At its peak.
        min_learning_rate: At the end of the cosine.
        betas: Of AdamW.
        gpus: That it ran on, where printed.
        gradient_accumulation: Where printed.
    """

    source: str
    model: ModelConfig
    parameters_m: float
    counted: Literal["total", "effective", "untied"]
    flops: float
    steps: int
    tokens_b: float
    batch_tokens: int
    learning_rate: float
    min_learning_rate: float = 1e-6
    betas: tuple[float, float] = (0.90, 0.95)
    gpus: int | None = None
    gradient_accumulation: int | None = None

    @property
    def sequences_per_step(self) -> int:
        """Distinct sequences of a step."""
        return self.batch_tokens // positions_per_sequence(self.model)


# id, parameters (M), FLOPs, width, layers, heads, steps, tokens (B), batch tokens, GPUs, gradient accumulation, learning rate
TABLE_10 = (
    (0, 76.73, 2.17e18, 576, 12, 9, 15019, 6.58, 438272, 4, 1, 2.75e-3),
    (1, 103.28, 4.64e18, 640, 14, 10, 18268, 9.63, 527360, 1, 5, 2.29e-3),
    (2, 151.85, 1.14e19, 768, 16, 12, 24783, 15.10, 609280, 1, 7, 1.85e-3),
    (3, 226.70, 2.83e19, 896, 18, 14, 29287, 23.78, 812032, 1, 13, 1.48e-3),
    (4, 334.06, 6.73e19, 1024, 22, 16, 36291, 36.68, 1010688, 3, 7, 1.21e-3),
    (5, 503.81, 1.65e20, 1152, 28, 9, 46771, 57.47, 1228800, 6, 5, 9.72e-4),
    (6, 795.27, 4.24e20, 1408, 30, 11, 58575, 92.13, 1572864, 16, 3, 7.75e-4),
    (7, 1208.24, 1.00e21, 1664, 33, 13, 72072, 141.70, 1966080, 40, 3, 6.30e-4),
)
# The same with the predictor's layers after the encoder's; its width and heads are the encoder's.
TABLE_11 = (
    (0, 61.80, 1.92e18, 640, 15, 3, 10, 13745, 6.19, 450560, 1, 5, 4.51e-3),
    (1, 93.62, 4.91e18, 768, 17, 4, 12, 19749, 9.91, 501760, 1, 7, 3.47e-3),
    (2, 138.58, 1.15e19, 896, 19, 4, 14, 26978, 15.19, 563200, 1, 11, 2.73e-3),
    (3, 205.57, 2.72e19, 1024, 23, 5, 16, 39850, 23.34, 585728, 1, 13, 2.15e-3),
    (4, 315.61, 6.83e19, 1152, 29, 7, 9, 53691, 36.95, 688128, 3, 7, 1.67e-3),
    (5, 494.24, 1.70e20, 1408, 31, 7, 11, 79141, 58.35, 737280, 6, 5, 1.29e-3),
    (6, 757.47, 4.07e20, 1664, 34, 8, 13, 114660, 90.17, 786432, 16, 3, 1.01e-3),
    (7, 1176.29, 9.99e20, 1920, 41, 10, 15, 176106, 141.38, 802816, 56, 1, 9.00e-4),
    (8, 5411.7, 5.0e21, 2560, 52, 13, 20, 304688, 319.49, 1048576, 128, 1, 6.00e-4),
)


def _model(objective: str, **shape: Any) -> ModelConfig:
    return parse(ModelConfig, {"objective": objective, **shape})


def _named() -> dict[str, Published]:
    named = {}
    for row, millions, flops, width, layers, heads, steps, tokens, batch, gpus, accumulation, rate in TABLE_10:
        model = _model("bert", width=width, layers=layers, heads=heads)
        named[f"bert-{millions:.0f}m"] = Published(
            f"table 10, row {row}", model, millions, "total", flops, steps, tokens, batch, rate,
            gpus=gpus, gradient_accumulation=accumulation,
        )  # fmt: skip
    for row, millions, flops, width, layers, deep, heads, steps, tokens, batch, gpus, accumulation, rate in TABLE_11:
        # Only row 8 prints an untied total; it is the 2B whose initialisation had to be smaller (appendix I).
        last = row == 8
        model = _model(
            "crossbert",
            width=width,
            layers=layers,
            heads=heads,
            predictor_layers=deep,
            init_std=0.015 if last else 0.02,
        )
        named[f"crossbert-{millions:.0f}m"] = Published(
            f"table 11, row {row}", model, millions, "untied" if last else "effective", flops, steps, tokens, batch,
            rate, gpus=gpus, gradient_accumulation=accumulation,
        )  # fmt: skip
    # The single-scale runs of table 3: 28 x 768, 6e-4, "50B tokens" (130k steps reproduce all three FLOPs).
    for name, model, millions, flops in (
        ("bert-239m", _model("bert"), 239, 6.8e19),
        ("crossbert-279m", _model("crossbert", predictor_layers=6), 279, 4.1e19),
        ("electra-258m", _model("electra"), 258, 7.5e19),
    ):
        named[name] = Published("table 3", model, millions, "total", flops, 130_000, 50, 393_216, 6e-4)
    return named


NAMED: dict[str, Published] = _named()
"""The paper's runs by name, such as `crossbert-62m`; sizes are as printed."""


def named(name: str) -> Published:
    """The run of a name.

    Raises:
        SettingsError: There is none.
    """
    if name not in NAMED:
        raise SettingsError(f"there is no configuration {name!r}; known are {', '.join(NAMED)}")
    return NAMED[name]
