"""A small encoder whose file is copied into a checkpoint folder as remote code by `tiny.save_remote_code`."""

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput


class TinyRemoteConfig(PretrainedConfig):
    model_type = "tiny-remote"

    def __init__(self, vocab_size=300, hidden_size=32, num_hidden_layers=3, heads=4, max_length=64, **kwargs):
        super().__init__(**kwargs)
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.heads = heads
        self.table_length = max_length


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = config.heads
        self.norm = nn.LayerNorm(config.hidden_size)
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.out = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x, mask, rotation):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, self.heads, 3 * d // self.heads).transpose(1, 2).chunk(3, dim=-1)
        q, k = (self.rotate(part, rotation[:t]) for part in (q, k))
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :].bool())
        return x + self.out(y.transpose(1, 2).reshape(b, t, d))

    @staticmethod
    def rotate(x, rotation):
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * rotation).flatten(-2).type_as(x)


class TinyRemoteModel(PreTrainedModel):
    config_class = TinyRemoteConfig

    def __init__(self, config):
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.final_norm = nn.LayerNorm(config.hidden_size)
        half = config.hidden_size // config.heads // 2
        angles = torch.outer(torch.arange(config.table_length).float(), 10000.0 ** (-torch.arange(half).float() / half))
        self.register_buffer("rotation", torch.polar(torch.ones_like(angles), angles), persistent=False)
        self.post_init()

    def forward(self, input_ids, attention_mask=None, **kwargs):
        x = self.embedding(input_ids)
        for block in self.blocks:
            x = block(x, attention_mask, self.rotation)
        return BaseModelOutput(last_hidden_state=self.final_norm(x))
