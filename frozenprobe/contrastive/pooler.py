"""The pooler: learned queries that cross-attend to frozen token features (paper, section 4.2, "Contrastive probing").

Any pooler is a module `(token features [b, t, d], mask [b, t]) -> [b, e]`, its output of unit length. One query
attends at a cost of `2 d` per token and head instead of the `4 d p` that projecting every token to keys and values
would take: the projections are moved to the query's side, which is the same function.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import nn
from torch.nn import functional

from frozenprobe.contrastive.settings import PoolerSettings
from frozenprobe.encoders.base import Encoder, HasWarmPooler
from frozenprobe.errors import EncoderError, SettingsError
from frozenprobe.features.pooling import POOLINGS

METHOD = "contrastive"
"""What a trained pooler is called in records and on leaderboards."""

_HEAD_WIDTH = 64
_STD = 0.02


class CrossAttentionBlock(nn.Module):
    """A pre-norm transformer block whose queries attend to the token features and not to each other.

    Args:
        width: Width `p` of the queries.
        token_width: Width `d` of the token features.
        heads: Attention heads; they divide the width.
        dropout: Share of the attention's and of the feed-forward's output that is dropped in training.
        number: Place among the pooler's blocks.
    """

    def __init__(self, width: int, token_width: int, heads: int, dropout: float, number: int = 0) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(token_width, width, bias=False)
        self.value = nn.Linear(token_width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.feed_norm = nn.LayerNorm(width)
        self.feed_in = nn.Linear(width, 4 * width)
        self.feed_out = nn.Linear(4 * width, width)
        self.attention_dropout = RowDropout(dropout, 2 * number)
        self.feed_dropout = RowDropout(dropout, 2 * number + 1)
        self._first = number == 0

    def initialise(self, generator: torch.Generator) -> None:
        """Draws the weights: the first block begins as a rotated mean of the tokens, the others as nothing."""
        for linear in (self.query, self.key, self.feed_in):
            nn.init.normal_(linear.weight, std=_STD, generator=generator)
        for linear in (self.value, self.out):
            nn.init.orthogonal_(linear.weight, generator=generator)
        if not self._first:
            nn.init.zeros_(self.out.weight)
        for parameter in (self.feed_in.bias, self.feed_out.weight, self.feed_out.bias):
            nn.init.zeros_(parameter)

    def forward(
        self,
        x: Float[torch.Tensor, "b n p"],
        tokens: Float[torch.Tensor, "b t d"],
        mask: Bool[torch.Tensor, "b t"],
        noise: Int[torch.Tensor, " b"] | None = None,
    ) -> Float[torch.Tensor, "b n p"]:
        """One block; `x` may have a batch of 1, which stands for the same queries in every row."""
        d = tokens.shape[2]
        queries = self.query(self.attention_norm(x)).unflatten(2, (self.heads, -1))
        head_width = queries.shape[-1]
        keys = self.key.weight.view(self.heads, head_width, d)
        values = self.value.weight.view(self.heads, head_width, d)
        # q . (K x) = (K' q) . x, and a weighted mean of V x is V times the weighted mean of x.
        lifted = torch.einsum("bnhc,hcd->bnhd", queries, keys).flatten(1, 2) * head_width**-0.5
        scores = (lifted @ tokens.transpose(1, 2)).masked_fill(~mask[:, None], -torch.inf)
        context = (scores.softmax(-1) @ tokens).unflatten(1, (-1, self.heads))
        attended = torch.einsum("bnhd,hcd->bnhc", context, values).flatten(2)
        x = x + self.attention_dropout(self.out(attended), noise)
        fed = self.feed_out(functional.gelu(self.feed_in(self.feed_norm(x))))
        return x + self.feed_dropout(fed, noise)


class AttentionPooler(nn.Module):
    """Learned queries and cross-attention blocks.

    A fresh pooler is a mean over the layer-normed tokens, seen through a rotation where the widths allow one: blocks after the
    first, and every feed-forward, begin as nothing and grow in training.

    Args:
        settings: Its size.
        token_width: Width `d` of the token features.
        seed: Of the initialisation.

    Raises:
        SettingsError: The heads do not divide the width.
    """

    name = METHOD

    def __init__(self, settings: PoolerSettings, token_width: int, seed: int = 0) -> None:
        super().__init__()
        width = settings.width or token_width
        heads = settings.heads or max(1, width // _HEAD_WIDTH)
        if width % heads:
            raise SettingsError(f"--heads {heads} do not divide the pooler's width of {width}")
        self.token_width = token_width
        self.dimensions = settings.dimensions or width
        self.queries = nn.Parameter(torch.empty(settings.queries, width))
        blocks = [
            CrossAttentionBlock(width, token_width, heads, settings.dropout, number)
            for number in range(settings.blocks)
        ]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width)
        projected = settings.queries > 1 or self.dimensions != width
        self.project = nn.Linear(settings.queries * width, self.dimensions, bias=False) if projected else nn.Identity()
        generator = torch.Generator().manual_seed(seed)
        nn.init.normal_(self.queries, std=_STD, generator=generator)
        for block in blocks:
            block.initialise(generator)
        if isinstance(self.project, nn.Linear):
            nn.init.orthogonal_(self.project.weight, generator=generator)

    def forward(
        self,
        tokens: Float[torch.Tensor, "b t d"],
        mask: Bool[torch.Tensor, "b t"],
        noise: Int[torch.Tensor, " b"] | None = None,
    ) -> Float[torch.Tensor, "b e"]:
        """Pools token features, in float32.

        Args:
            tokens: Token features; what stands in padding does not matter.
            mask: True on every token that is not padding.
            noise: One number per text, from which its dropout follows; None in training: drawn by torch.
        """
        tokens = functional.layer_norm(tokens.float(), (self.token_width,)).masked_fill(~mask[..., None], 0)
        x = self.queries[None]
        for block in self.blocks:
            x = block(x, tokens, mask, noise)
        return functional.normalize(self.project(self.norm(x).flatten(1)), dim=-1)


class RowDropout(nn.Module):
    """Dropout that is a function of each row's own number, so that chunks, ranks and a resume change nothing.

    Args:
        share: What is dropped in training.
        place: Tells the dropouts of one pooler apart.
    """

    def __init__(self, share: float, place: int) -> None:
        super().__init__()
        self.share = share
        self.place = place

    def forward(
        self, x: Float[torch.Tensor, "b n p"], noise: Int[torch.Tensor, " b"] | None
    ) -> Float[torch.Tensor, "b n p"]:
        """Drops and rescales in training."""
        if not self.training or not self.share:
            return x
        if noise is None:
            noise = torch.randint(1 << 62, (len(x),), device=x.device)
        units = x[0].numel()
        counters = torch.arange(self.place * units, (self.place + 1) * units, device=x.device)
        uniform = (_mixed(_mixed(noise)[:, None] + counters) >> 40) & 0xFFFFFF
        return x * (uniform >= self.share * (1 << 24)).view(x.shape) / (1 - self.share)


def _mixed(z: Int[torch.Tensor, "..."]) -> Int[torch.Tensor, "..."]:
    """Each number well mixed: splitmix64 in wrapping int64, whose right shifts must not drag the sign along."""
    z = z * -7046029254386353131 + 1442695040888963407
    z = (z ^ ((z >> 30) & ((1 << 34) - 1))) * -4658895280553007687
    z = (z ^ ((z >> 27) & ((1 << 37) - 1))) * -7723592293110705685
    return z ^ ((z >> 31) & ((1 << 33) - 1))


class WarmPooler(nn.Module):
    """The pooler that an encoder offers (`HasWarmPooler`), trainable, its output normalised."""

    name = METHOD

    def __init__(self, encoder: HasWarmPooler) -> None:
        super().__init__()
        self.inner = encoder.warm_pooler()

    def forward(
        self,
        tokens: Float[torch.Tensor, "b t d"],
        mask: Bool[torch.Tensor, "b t"],
        noise: Int[torch.Tensor, " b"] | None = None,
    ) -> Float[torch.Tensor, "b e"]:
        """See `AttentionPooler.forward`; such a pooler has no dropout of ours, so `noise` is without effect."""
        return functional.normalize(self.inner(tokens.float(), mask), dim=-1)


class BaselinePooler(nn.Module):
    """Mean, first-token or last-token pooling, normalised: what a trained pooler is compared with."""

    def __init__(self, pooling: str) -> None:
        super().__init__()
        if pooling not in POOLINGS:
            raise SettingsError(f"{pooling!r} is no pooling without training; allowed are {', '.join(POOLINGS)}")
        self.pooling = pooling

    def forward(
        self,
        tokens: Float[torch.Tensor, "b t d"],
        mask: Bool[torch.Tensor, "b t"],
        noise: Int[torch.Tensor, " b"] | None = None,
    ) -> Float[torch.Tensor, "b d"]:
        """See `AttentionPooler.forward`."""
        return functional.normalize(POOLINGS[self.pooling](tokens, mask), dim=-1)


def build_pooler(settings: PoolerSettings, encoder: Encoder, seed: int = 0) -> AttentionPooler | WarmPooler:
    """A pooler for an encoder's token features, on the CPU, to be trained.

    Raises:
        SettingsError: The heads do not divide the width, or a size is asked of a warm start.
        EncoderError: A warm start from an encoder that offers no pooler.
    """
    if not settings.warm_start:
        return AttentionPooler(settings, encoder.info.hidden_size, seed)
    if not isinstance(encoder, HasWarmPooler):
        raise EncoderError(f"{encoder.info.name} offers no pooler to start from; leave out --warm-start")
    if not settings.is_default_size:
        raise SettingsError("--warm-start takes the encoder's own pooler as it is; leave out its size")
    return WarmPooler(encoder).cpu()
