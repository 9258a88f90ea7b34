"""CrossBERT's architecture, and its two faces in transformers: the encoder and the masked language model.

This file is the one place where the architecture is written down: pre-training builds on it, and an exported checkpoint
carries a copy of it, so that `AutoModel.from_pretrained(folder, trust_remote_code=True)` works where nothing but torch
and transformers is installed. The flat baselines (BERT, Electra) are the same encoder with another objective.

The encoder sees visible tokens only, each at its original position (RoPE). The predictor's blocks only cross-attend:
`<MASK>` placeholders query the encoder's outputs, and never see each other. RMSNorm, SwiGLU, no biases, tied head.
Letters in shapes: b rows, t tokens, q queries, k keys, d encoder width, p predictor width, h heads.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, MaskedLMOutput
from transformers.utils import ModelOutput

Spans = tuple[tuple[slice, slice], ...]  # which queries see which keys: (queries, keys), in the order of the queries
EVERYTHING: Spans = ((slice(None), slice(None)),)


class CrossBertConfig(PretrainedConfig):
    """Shape of an exported CrossBERT, BERT or Electra, in the names that transformers uses."""

    model_type = "crossbert"
    _auto_class = "AutoConfig"  # saving writes this file beside the weights, as of every class that has one

    def __init__(
        self,
        objective="crossbert",  # crossbert, bert or electra: which head belongs to the encoder
        vocab_size=50265,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=28,
        num_attention_heads=12,
        predictor_hidden_size=768,
        predictor_intermediate_size=2048,
        predictor_num_hidden_layers=6,
        predictor_num_attention_heads=12,
        max_position_embeddings=512,
        rope_theta=10000.0,
        rms_norm_eps=1e-5,
        initializer_range=0.02,
        mask_token_id=None,
        **kwargs,
    ):
        self.objective = objective
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.predictor_hidden_size = predictor_hidden_size
        self.predictor_intermediate_size = predictor_intermediate_size
        self.predictor_num_hidden_layers = predictor_num_hidden_layers
        self.predictor_num_attention_heads = predictor_num_attention_heads
        self.max_position_embeddings = max_position_embeddings
        self.rope_theta = rope_theta
        self.rms_norm_eps = rms_norm_eps
        self.initializer_range = initializer_range
        self.mask_token_id = mask_token_id
        super().__init__(**kwargs)


def rotary(positions: Tensor, head_width: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every position, [b, 1, t, head_width / 2] in float32, from positions [b, t] of each row.

    Computed anew in each pass: a table kept as a buffer would be lost where transformers loads on the meta device.
    """
    exponents = torch.arange(0, head_width, 2, device=positions.device, dtype=torch.float32) / head_width
    angles = positions[:, None, :, None].float() * theta**-exponents
    return angles.cos(), angles.sin()


def rotate(states: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """Rotates queries or keys [b, h, t, head_width] by their positions."""
    cos, sin = tables
    first, second = states.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(states.dtype)


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, spans: Spans) -> Tensor:
    """Attention of each span of queries over its own span of keys, [b, q, d]; `mask` [b, 1, q or 1, k] is True where seen."""
    outputs = []
    for seeing, seen in spans:
        part = None if mask is None else mask[:, :, seeing if mask.shape[2] > 1 else slice(None), seen]
        outputs.append(_attention(queries[:, :, seeing], keys[:, :, seen], values[:, :, seen], part))
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)
    return output.transpose(1, 2).flatten(2)


def _attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Scaled dot-product attention, spelled out for training on a CPU, whose fused kernel is slow backwards.

    A query that sees no key gets zeros, from both.
    """
    if queries.device.type != "cpu" or not torch.is_grad_enabled():
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
    scores = (queries @ keys.transpose(-1, -2)).float() * queries.shape[-1] ** -0.5
    if mask is None:
        return scores.softmax(dim=-1).to(values.dtype) @ values
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)  # of infinities alone the softmax is NaN
    return scores.softmax(dim=-1).to(values.dtype) @ values * mask.any(dim=-1, keepdim=True)


class SelfAttention(nn.Module):
    """Multi-head self-attention with rotary positions: 4 d^2 parameters."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, hidden: Tensor, tables: tuple[Tensor, Tensor], mask: Tensor | None, spans: Spans) -> Tensor:
        """Attended states [b, t, d]."""
        queries, keys, values = self.qkv(hidden).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        return self.out(attend(rotate(queries, tables), rotate(keys, tables), values, mask, spans))


class CrossAttention(nn.Module):
    """Multi-head attention of p-wide queries over d-wide outputs of the encoder: 2 p^2 + 2 d p parameters."""

    def __init__(self, width: int, context_width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(context_width, 2 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(
        self,
        hidden: Tensor,
        context: Tensor,
        tables: tuple[Tensor, Tensor],
        context_tables: tuple[Tensor, Tensor],
        mask: Tensor | None,
        spans: Spans,
    ) -> Tensor:
        """Attended queries [b, q, p] of [b, q, p], from a context [b, k, d]."""
        queries = self.q(hidden).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        keys, values = self.kv(context).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        return self.out(attend(rotate(queries, tables), rotate(keys, context_tables), values, mask, spans))


class SwiGLU(nn.Module):
    """Gated feed-forward layer: 3 d h parameters."""

    def __init__(self, width: int, intermediate: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(width, 2 * intermediate, bias=False)
        self.down = nn.Linear(intermediate, width, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Same shape out as in."""
        gate, up = self.gate_up(hidden).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class EncoderBlock(nn.Module):
    """Pre-norm transformer block: self-attention, then SwiGLU."""

    def __init__(self, width: int, intermediate: int, heads: int, eps: float) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(width, eps)
        self.attention = SelfAttention(width, heads)
        self.mlp_norm = nn.RMSNorm(width, eps)
        self.mlp = SwiGLU(width, intermediate)

    def forward(
        self, hidden: Tensor, tables: tuple[Tensor, Tensor], mask: Tensor | None = None, spans: Spans = EVERYTHING
    ) -> Tensor:
        """Hidden states [b, t, d] of hidden states [b, t, d]."""
        hidden = hidden + self.attention(self.attention_norm(hidden), tables, mask, spans)
        return hidden + self.mlp(self.mlp_norm(hidden))


class PredictorBlock(nn.Module):
    """Pre-norm block that only cross-attends to the encoder's outputs: queries do not see each other."""

    def __init__(self, width: int, intermediate: int, context_width: int, heads: int, eps: float) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(width, eps)
        self.attention = CrossAttention(width, context_width, heads)
        self.mlp_norm = nn.RMSNorm(width, eps)
        self.mlp = SwiGLU(width, intermediate)

    def forward(
        self,
        hidden: Tensor,
        context: Tensor,
        tables: tuple[Tensor, Tensor],
        context_tables: tuple[Tensor, Tensor],
        mask: Tensor | None = None,
        spans: Spans = EVERYTHING,
    ) -> Tensor:
        """Queries [b, q, p] of queries [b, q, p], from a context [b, k, d]."""
        attended = self.attention(self.attention_norm(hidden), context, tables, context_tables, mask, spans)
        hidden = hidden + attended
        return hidden + self.mlp(self.mlp_norm(hidden))


class Predictor(nn.Module):
    """Reads the encoder's outputs out at given positions; every query starts as the same `<MASK>` vector."""

    def __init__(self, config: CrossBertConfig) -> None:
        super().__init__()
        width, intermediate = config.predictor_hidden_size, config.predictor_intermediate_size
        heads = config.predictor_num_attention_heads
        self.head_width, self.theta = width // heads, config.rope_theta
        self.mask = nn.Parameter(torch.empty(width))
        self.blocks = nn.ModuleList(
            PredictorBlock(width, intermediate, config.hidden_size, heads, config.rms_norm_eps)
            for _ in range(config.predictor_num_hidden_layers)
        )
        self.norm = nn.RMSNorm(width, config.rms_norm_eps)
        self.projection = (
            nn.Identity() if width == config.hidden_size else nn.Linear(width, config.hidden_size, bias=False)
        )

    def read(
        self,
        context: Tensor,
        positions: Tensor,
        context_positions: Tensor,
        mask: Tensor | None = None,
        spans: Spans = EVERYTHING,
    ) -> Tensor:
        """Readouts [b, q, p] at `positions` [b, q], from outputs [b, k, d] at `context_positions` [b, k]."""
        tables = rotary(positions, self.head_width, self.theta)
        context_tables = rotary(context_positions, self.head_width, self.theta)
        hidden = self.mask.expand(*positions.shape, -1)
        for block in self.blocks:
            hidden = block(hidden, context, tables, context_tables, mask, spans)
        return self.norm(hidden)

    def forward(
        self,
        context: Tensor,
        positions: Tensor,
        context_positions: Tensor,
        mask: Tensor | None = None,
        spans: Spans = EVERYTHING,
    ) -> Tensor:
        """The same as wide as the encoder, [b, q, d], for the tied head."""
        return self.projection(self.read(context, positions, context_positions, mask, spans))


class CrossBertPreTrainedModel(PreTrainedModel):
    """What transformers asks of all models of one kind."""

    config: CrossBertConfig
    config_class = CrossBertConfig
    base_model_prefix = "encoder"
    _no_split_modules = ["EncoderBlock", "PredictorBlock"]  # noqa: RUF012
    _supports_sdpa = True

    def __init__(self, config: CrossBertConfig) -> None:
        super().__init__(config)
        if config._attn_implementation not in (None, "sdpa"):
            raise ValueError(f"CrossBERT runs with attn_implementation sdpa, not {config._attn_implementation}")

    def answer(self, output: ModelOutput, return_dict: bool | None) -> ModelOutput | tuple:
        """What was asked for: the output, or a tuple of what is in it."""
        wanted = self.config.return_dict if return_dict is None else return_dict
        return output if wanted else output.to_tuple()

    def _init_weights(self, module: nn.Module) -> None:
        std = self.config.initializer_range
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=std)
        elif isinstance(module, nn.RMSNorm):
            nn.init.ones_(module.weight)
        if isinstance(mask := getattr(module, "mask", None), nn.Parameter):
            nn.init.normal_(mask, std=std)


class CrossBertModel(CrossBertPreTrainedModel):
    """The encoder: embedding, blocks and final norm, whose output is the feature."""

    _auto_class = "AutoModel"
    embedding: nn.Embedding
    _keys_to_ignore_on_load_unexpected = [r"^predictor\.", r"^mask$"]  # noqa: RUF012 (the head, when loaded without it)

    def __init__(self, config: CrossBertConfig) -> None:
        super().__init__(config)
        width, intermediate = config.hidden_size, config.intermediate_size
        heads, eps = config.num_attention_heads, config.rms_norm_eps
        self.embedding = nn.Embedding(config.vocab_size, width)
        self.blocks = nn.ModuleList(
            EncoderBlock(width, intermediate, heads, eps) for _ in range(config.num_hidden_layers)
        )
        self.norm = nn.RMSNorm(width, eps)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        """The word embedding, which is the head's matrix too."""
        return self.embedding

    def set_input_embeddings(self, value):
        """Replaces the word embedding."""
        self.embedding = value

    def encode(
        self,
        hidden: Tensor,
        positions: Tensor,
        mask: Tensor | None = None,
        spans: Spans = EVERYTHING,
        states: list[Tensor] | None = None,
    ) -> Tensor:
        """Final hidden states [b, t, d] of embedded tokens [b, t, d] at `positions` [b or 1, t].

        `mask` and `spans` as in `attend`. Where given, `states` receives the embeddings and all but the last block.
        """
        config = self.config
        tables = rotary(positions, config.hidden_size // config.num_attention_heads, config.rope_theta)
        for block in self.blocks:
            if states is not None:
                states.append(hidden)
            hidden = block(hidden, tables, mask, spans)
        return self.norm(hidden)

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        inputs_embeds=None,
        output_hidden_states=None,
        return_dict=None,
        **kwargs,
    ):
        """Hidden states [b, t, d] of padded ids [b, t]; the last of `hidden_states` is after the final norm."""
        hidden = self.embedding(input_ids) if inputs_embeds is None else inputs_embeds
        if position_ids is None:
            position_ids = torch.arange(hidden.shape[1], device=hidden.device)[None]
        mask = None if attention_mask is None else attention_mask.bool()[:, None, None, :]
        wanted = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        states: list[Tensor] | None = [] if wanted else None
        last = self.encode(hidden, position_ids, mask, states=states)
        output = BaseModelOutput(last_hidden_state=last, hidden_states=None if states is None else (*states, last))
        return self.answer(output, return_dict)


class CrossBertForMaskedLM(CrossBertPreTrainedModel):
    """Predicts the tokens that stand as `mask_token_id` in the input.

    CrossBERT hides them from the encoder and lets the predictor read them out; BERT puts its mask vector in their place.
    """

    _auto_class = "AutoModelForMaskedLM"

    def __init__(self, config: CrossBertConfig) -> None:
        super().__init__(config)
        if config.objective not in ("crossbert", "bert"):
            raise ValueError(f"a checkpoint trained as {config.objective} has no masked-LM head: use AutoModel")
        self.encoder = CrossBertModel(config)
        if config.objective == "crossbert":
            self.predictor = Predictor(config)
        else:
            self.mask = nn.Parameter(torch.empty(config.hidden_size))
        self.post_init()

    def forward(
        self,
        input_ids,
        attention_mask=None,
        labels=None,
        position_ids=None,
        output_hidden_states=None,
        return_dict=None,
        **kwargs,
    ):
        """Logits [b, t, vocabulary], and the mean loss over the positions whose label is not -100.

        Hidden states are the encoder's; CrossBERT's at a masked position are of a query that nobody reads.
        """
        if self.config.mask_token_id is None:
            raise ValueError("the configuration names no mask_token_id")
        present = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        masked = input_ids == self.config.mask_token_id
        embedded = self.encoder.embedding(input_ids)
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        asked = {"position_ids": position_ids, "output_hidden_states": output_hidden_states, "return_dict": True}
        if self.config.objective == "crossbert":
            visible = present.bool() & ~masked
            # A row of nothing but masks would have no key: it reads its own placeholders.
            visible = visible | present.bool() & ~visible.any(dim=1, keepdim=True)
            encoded = self.encoder(inputs_embeds=embedded, attention_mask=visible, **asked)
            positions, mask = position_ids.expand_as(input_ids), visible[:, None, None, :]
            readout = self.predictor(encoded.last_hidden_state, positions, position_ids, mask)
        else:
            embedded = torch.where(masked[..., None], self.mask.to(embedded.dtype), embedded)
            encoded = self.encoder(inputs_embeds=embedded, attention_mask=present, **asked)
            readout = encoded.last_hidden_state
        logits = F.linear(readout, self.encoder.embedding.weight)
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        output = MaskedLMOutput(loss=loss, logits=logits, hidden_states=encoded.hidden_states)
        return self.answer(output, return_dict)
