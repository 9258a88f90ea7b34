"""What is pre-trained: one encoder under three objectives (paper, sections 2, 3 and 5.1).

The blocks are in `modeling_crossbert.py`. Here every sequence is first put into the random order of its permutation:
the first S - m slots are visible, the last m are predicted, and RoPE still gets each token's original position. So
nothing is scattered back, shapes are static (`torch.compile` makes one graph), and the two views of complementary
masking are isolated by structure, not by a mask: each token is in the encoder once, in the view that sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn import functional as F  # noqa: N812

from crossbert.config import ModelConfig, swiglu_width
from crossbert.masking import draw_uniform
from crossbert.modeling_crossbert import (
    EVERYTHING,
    CrossBertConfig,
    CrossBertModel,
    EncoderBlock,
    Predictor,
    Spans,
    rotary,
)


class Loss(NamedTuple):
    """What a step minimises.

    Attributes:
        loss: Mean over the predicted positions (Electra: the weighted sum of its two means).
        predicted: How many positions were predicted; those that the document mask drops are not (but in Electra).
        parts: The terms of a loss that has more than one, and what else is worth logging.
    """

    loss: Float[Tensor, ""]
    predicted: Int[Tensor, ""]
    parts: dict[str, Tensor]


class Prediction(NamedTuple):
    """Logits at the predicted positions, the words that stand there, and which of them count (None: all)."""

    logits: Float[Tensor, "b q v"]
    targets: Int[Tensor, "b q"]
    counted: Bool[Tensor, "b q"] | None


class PretrainingModel(nn.Module):
    """An encoder with what its objective adds to it; `build_model` makes one."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = CrossBertModel(transformers_config(config))

    def forward(
        self,
        ids: Int[Tensor, "b s"],
        permutations: Int[Tensor, "b s"],
        documents: Int[Tensor, "b s"] | None = None,
        noise: Float[Tensor, "b m"] | None = None,
    ) -> Loss:
        """The loss of a batch; all shapes are static.

        Args:
            ids: Packed tokens.
            permutations: An order of the positions of each row (`masking.draw_permutations`).
            documents: Which document each token belongs to; used by the document mask only.
            noise: What `draw_noise` gave.

        Raises:
            ValueError: The document mask is on and `documents` is missing, or the objective needs `noise`.
        """
        loss, predicted = mean_loss(self.predict(ids, permutations, documents))
        return Loss(loss, predicted, {})

    def predict(
        self, ids: Int[Tensor, "b s"], permutations: Int[Tensor, "b s"], documents: Int[Tensor, "b s"] | None = None
    ) -> Prediction:
        """Logits for the masked words; arguments as for `forward`."""
        raise NotImplementedError

    def draw_noise(
        self, seed: int, step: int, indices: Sequence[int] | Int[Tensor, " n"]
    ) -> Float[Tensor, "n m"] | None:
        """Random numbers that a step needs besides its permutations, by the sequences' places in the global batch."""
        return None

    def shardable(self) -> list[nn.Module]:
        """The transformer blocks in order, for `fully_shard` and activation checkpointing."""
        return list(self.encoder.blocks)

    def logits(self, hidden: Float[Tensor, "*n d"]) -> Float[Tensor, "*n v"]:
        """The head: the embedding itself, so that there is no second matrix that could come apart from it."""
        return F.linear(hidden, self.encoder.embedding.weight)

    @torch.no_grad()
    def init_weights(self, seed: int) -> None:
        """Draws every matrix and mask vector from N(0, init_std) and sets norms to 1, alike on every device and rank."""
        norms = {id(module.weight) for module in self.modules() if isinstance(module, nn.RMSNorm)}
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.parameters():
            if id(parameter) in norms:
                parameter.fill_(1.0)
                continue
            drawn = torch.empty(parameter.shape).normal_(0.0, self.config.init_std, generator=generator)
            if isinstance(parameter, DTensor):
                drawn = distribute_tensor(drawn.to(parameter.device), parameter.device_mesh, parameter.placements)
            parameter.copy_(drawn)


class CrossBert(PretrainingModel):
    """Encoder over visible tokens, predictor over their outputs; with or without complementary masking (CMS)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.predictor = Predictor(self.encoder.config)

    def shardable(self) -> list[nn.Module]:
        """The encoder's blocks, then the predictor's."""
        return [*self.encoder.blocks, *self.predictor.blocks]

    def predict(
        self, ids: Int[Tensor, "b s"], permutations: Int[Tensor, "b s"], documents: Int[Tensor, "b s"] | None = None
    ) -> Prediction:
        """Logits for the masked words; under CMS for every word, from the view that does not see it."""
        visible = self.config.visible
        context, queries, own, across = _views(permutations, visible, self.config.complementary)
        seen, targets, *_ = _views(ids.gather(1, permutations), visible, self.config.complementary)
        self_mask = cross_mask = counted = None
        if self.config.document_mask:
            inside, outside, *_ = _views(_documents(documents, permutations), visible, self.config.complementary)
            self_mask, _ = same_document(inside, inside, own)
            cross_mask, counted = same_document(outside, inside, across)
        hidden = self.encoder.encode(self.encoder.embedding(seen), context, self_mask, own)
        readout = self.predictor(hidden, queries, context, cross_mask, across)
        return Prediction(self.logits(readout), targets, counted)


class Bert(PretrainingModel):
    """The flat baseline: every masked token is a mask vector among the visible ones (masked-LM)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.mask = nn.Parameter(torch.empty(config.width))

    def predict(
        self, ids: Int[Tensor, "b s"], permutations: Int[Tensor, "b s"], documents: Int[Tensor, "b s"] | None = None
    ) -> Prediction:
        """Logits for the masked words; the head runs on their positions only, unless `logits_everywhere`."""
        visible = self.config.visible
        ids = ids.gather(1, permutations)
        mask, counted = _flat_mask(self.config, documents, permutations)
        embedded = mask_tail(self.encoder.embedding(ids[:, :visible]), self.mask, self.config.masked)
        hidden = self.encoder.encode(embedded, permutations, mask)
        if self.config.logits_everywhere:
            return Prediction(self.logits(hidden)[:, visible:], ids[:, visible:], counted)
        return Prediction(self.logits(hidden[:, visible:]), ids[:, visible:], counted)


class Electra(PretrainingModel):
    """Replaced-token detection: a small generator fills in masked words, the encoder tells which were replaced."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.generator = Generator(config)
        self.discriminator = nn.Linear(config.width, 1, bias=False)

    def shardable(self) -> list[nn.Module]:
        """The generator's blocks, then the encoder's."""
        return [*self.generator.blocks, *self.encoder.blocks]

    def draw_noise(
        self, seed: int, step: int, indices: Sequence[int] | Int[Tensor, " n"]
    ) -> Float[Tensor, "n m"] | None:
        """One uniform number for each word that the generator samples."""
        return draw_uniform(seed, step, indices, self.config.masked)

    def predict(
        self, ids: Int[Tensor, "b s"], permutations: Int[Tensor, "b s"], documents: Int[Tensor, "b s"] | None = None
    ) -> Prediction:
        """The generator's logits for the masked words."""
        visible = self.config.visible
        ids = ids.gather(1, permutations)
        mask, counted = _flat_mask(self.config, documents, permutations)
        embedded = mask_tail(self.encoder.embedding(ids[:, :visible]), self.generator.mask, self.config.masked)
        hidden = self.generator(embedded, permutations, mask, self.config.masked)
        return Prediction(self.logits(hidden), ids[:, visible:], counted)

    def forward(
        self,
        ids: Int[Tensor, "b s"],
        permutations: Int[Tensor, "b s"],
        documents: Int[Tensor, "b s"] | None = None,
        noise: Float[Tensor, "b m"] | None = None,
    ) -> Loss:
        """Masked-LM loss of the generator plus weighted loss of the detection, which is a mean over all positions.

        Both are divided by numbers that every batch has, so that a batch cut in pieces has the same loss: what the document
        mask drops counts as 0 among the masked words.
        """
        if noise is None:
            raise ValueError("Electra samples from its generator: pass what draw_noise gives")
        prediction = self.predict(ids, permutations, documents)
        masked_lm, counted = mean_loss(prediction)
        masked = torch.full_like(counted, prediction.targets.numel())
        masked_lm = masked_lm * (counted / masked)
        sampled = sample(prediction.logits, noise)
        ids = ids.gather(1, permutations)
        mask, _ = _flat_mask(self.config, documents, permutations)
        shown = torch.cat((ids[:, : self.config.visible], sampled), dim=1)
        hidden = self.encoder.encode(self.encoder.embedding(shown), permutations, mask)
        scores = self.discriminator(hidden).squeeze(-1).float()
        replaced = (shown != ids).float()  # a sample that hits the word itself counts as original
        detection = F.binary_cross_entropy_with_logits(scores, replaced)
        parts = {"masked_lm": masked_lm.detach(), "detection": detection.detach(), "replaced": replaced.mean()}
        return Loss(masked_lm + self.config.replaced_token_weight * detection, masked, parts)


class Generator(nn.Module):
    """Electra's masked language model; embedding and head are the discriminator's."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, heads = config.generator_width, config.generator_heads
        self.head_width, self.theta = width // heads, config.rope_theta
        self.mask = nn.Parameter(torch.empty(config.width))
        same = width == config.width
        self.narrow = nn.Identity() if same else nn.Linear(config.width, width, bias=False)
        self.blocks = nn.ModuleList(
            EncoderBlock(width, swiglu_width(width), heads, config.norm_eps) for _ in range(config.generator_layers)
        )
        self.norm = nn.RMSNorm(width, config.norm_eps)
        self.widen = nn.Identity() if same else nn.Linear(width, config.width, bias=False)

    def forward(
        self,
        embedded: Float[Tensor, "b s d"],
        positions: Int[Tensor, "b s"],
        mask: Bool[Tensor, "b 1 s s"] | None,
        masked: int,
    ) -> Float[Tensor, "b m d"]:
        """Hidden states of the last `masked` slots, for the tied head."""
        tables = rotary(positions, self.head_width, self.theta)
        hidden = self.narrow(embedded)
        for block in self.blocks:
            hidden = block(hidden, tables, mask)
        return self.widen(self.norm(hidden[:, -masked:]))


def build_model(config: ModelConfig) -> PretrainingModel:
    """The model of a configuration, with weights drawn from seed 0; without weights under `torch.device("meta")`.

    No random state is touched.
    """
    models: dict[str, type[PretrainingModel]] = {"crossbert": CrossBert, "bert": Bert, "electra": Electra}
    device = torch.empty(0).device  # get_default_device of older versions does not know of `with torch.device`
    with torch.device("meta"):  # else transformers would draw weights of its own
        model = models[config.objective](config)
    if device.type != "meta":
        model.to_empty(device=device).init_weights(seed=0)
    return model


def transformers_config(config: ModelConfig, **extra: int | None) -> CrossBertConfig:
    """The same shape in the names of transformers; `extra` are the tokenizer's ids."""
    return CrossBertConfig(
        objective=config.objective,
        vocab_size=config.vocabulary,
        hidden_size=config.width,
        intermediate_size=swiglu_width(config.width),
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        predictor_hidden_size=config.predictor_width,
        predictor_intermediate_size=swiglu_width(config.predictor_width),
        predictor_num_hidden_layers=config.predictor_layers,
        predictor_num_attention_heads=config.predictor_heads,
        max_position_embeddings=config.sequence_length,
        rope_theta=config.rope_theta,
        rms_norm_eps=config.norm_eps,
        initializer_range=config.init_std,
        **extra,
    )


def mean_loss(prediction: Prediction) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
    """Mean cross-entropy in float32 over the positions that count, and their number."""
    logits, targets = prediction.logits.flatten(0, 1).float(), prediction.targets.flatten()
    if prediction.counted is None:
        return F.cross_entropy(logits, targets), torch.tensor(targets.numel(), device=targets.device)
    counted = prediction.counted.flatten()
    losses = F.cross_entropy(logits, targets, reduction="none")
    predicted = counted.sum()
    return torch.where(counted, losses, 0.0).sum() / predicted.clamp(min=1), predicted


def mask_tail(visible: Float[Tensor, "b v d"], mask: Float[Tensor, " d"], count: int) -> Float[Tensor, "b s d"]:
    """The visible embeddings, followed by `count` mask vectors."""
    return torch.cat((visible, mask.to(visible.dtype).expand(len(visible), count, -1)), dim=1)


@torch.no_grad()
def sample(logits: Float[Tensor, "b m v"], uniform: Float[Tensor, "b m"]) -> Int[Tensor, "b m"]:
    """One word from each distribution by inverting its cumulative sum: one random number a word, not one a logit."""
    cumulative = logits.float().softmax(dim=-1).cumsum(dim=-1)
    wanted = uniform[..., None] * cumulative[..., -1:]  # rounding may leave the sum short of 1
    return torch.searchsorted(cumulative, wanted, right=True).squeeze(-1).clamp(max=logits.shape[-1] - 1)


def same_document(
    queries: Int[Tensor, "b q"], keys: Int[Tensor, "b k"], spans: Spans
) -> tuple[Bool[Tensor, "b 1 q k"], Bool[Tensor, "b q"]]:
    """Which keys are of a query's document, and which queries have any; those that have none see every key."""
    same = queries[:, :, None] == keys[:, None, :]
    found = torch.cat([same[:, seeing, seen].any(dim=-1) for seeing, seen in spans], dim=1)
    return (same | ~found[..., None])[:, None], found


def _flat_mask(
    config: ModelConfig, documents: Tensor | None, permutations: Tensor
) -> tuple[Bool[Tensor, "b 1 s s"] | None, Bool[Tensor, "b m"] | None]:
    """The document mask of a flat model, and which predictions count: those whose document has a visible token."""
    if not config.document_mask:
        return None, None
    ordered = _documents(documents, permutations)
    mask, _ = same_document(ordered, ordered, EVERYTHING)
    _, counted = same_document(ordered[:, config.visible :], ordered[:, : config.visible], EVERYTHING)
    return mask, counted


def _documents(documents: Tensor | None, permutations: Tensor) -> Int[Tensor, "b s"]:
    if documents is None:
        raise ValueError("the document mask needs the document of every token")
    return documents.gather(1, permutations)


def _views(
    ordered: Int[Tensor, "b s"], visible: int, complementary: bool
) -> tuple[Int[Tensor, "r k"], Int[Tensor, "r q"], Spans, Spans]:
    """What the encoder sees and what is predicted, of values in permuted order; who attends to whom in both.

    Returns:
        Context values, predicted values, spans of self-attention, spans of cross-attention. Halves are stacked as
        rows of one dense batch; unequal views share a row, whose linear layers run once, and attend by spans.
    """
    length = ordered.shape[1]
    if not complementary:
        return ordered[:, :visible], ordered[:, visible:], EVERYTHING, EVERYTHING
    if 2 * visible == length:
        halves = ordered.unflatten(1, (2, visible))
        return halves.flatten(0, 1), halves.flip(1).flatten(0, 1), EVERYTHING, EVERYTHING
    first, second = slice(None, visible), slice(visible, None)
    return ordered, ordered, ((first, first), (second, second)), ((first, second), (second, first))
