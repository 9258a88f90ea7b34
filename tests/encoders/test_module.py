"""A live module as an encoder, and the trace it must not leave."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers as tf
from torch import nn

from frozenprobe.encoders.base import Batch, Encoder
from frozenprobe.encoders.contract import check_padding
from frozenprobe.encoders.module import ModuleEncoder, as_encoder
from frozenprobe.errors import EncoderError
from tests.encoders import tiny


class Plain(nn.Module):
    """A module of one's own: no config, a tensor as output."""

    def __init__(self, *, heed_mask=True, blocks=2):
        super().__init__()
        self.embedding = nn.Embedding(300, 16)
        self.stack = nn.ModuleList(nn.MultiheadAttention(16, 2, batch_first=True) for _ in range(blocks))
        self.heed_mask = heed_mask

    def forward(self, input_ids, attention_mask):
        x = self.embedding(input_ids)
        mask = ~attention_mask.bool() if self.heed_mask else None
        for block in self.stack:
            x = x + block(x, x, x, key_padding_mask=mask)[0]
        return x


def last(encoder, texts):
    batch = encoder.collate(encoder.tokenize(texts), np.arange(len(texts)))
    kept = []
    encoder.forward(batch, ("last",), lambda _, hidden: kept.append(hidden.clone()))
    return kept[0], batch


@pytest.mark.parametrize(
    ("cls", "config", "inner"),
    [
        (tf.BertForMaskedLM, lambda: tf.BertConfig(**tiny._COMMON, max_position_embeddings=64), "bert"),
        (
            tf.ModernBertForMaskedLM,
            lambda: tf.ModernBertConfig(
                **tiny._COMMON,
                max_position_embeddings=64,
                pad_token_id=0,
                bos_token_id=2,
                eos_token_id=3,
                cls_token_id=2,
                sep_token_id=3,
            ),
            "model",
        ),
    ],
)
def test_head_is_left_out(cls, config, inner):
    model = cls(config()).eval()
    encoder = ModuleEncoder(model, tiny.wordpiece(), name="run")
    assert isinstance(encoder, Encoder)
    assert encoder.info.notes == (f"measured without the head of {cls.__name__}",)
    assert encoder.info.layers == tiny.LAYERS
    hidden, batch = last(encoder, ["the fox", "a dog and a fox"])
    with torch.no_grad():
        right = getattr(model, inner)(input_ids=batch.ids, attention_mask=batch.mask.long()).last_hidden_state
    assert torch.allclose(hidden[batch.mask], right[batch.mask], atol=1e-5)
    check_padding(encoder)


def test_encoder_decoder_is_measured_at_its_encoder():
    model = tf.T5ForConditionalGeneration(tiny.t5()[0].config).eval()
    encoder = ModuleEncoder(model, tiny.unigram(), name="run")
    hidden, batch = last(encoder, ["the fox"])
    with torch.no_grad():
        right = model.get_encoder()(input_ids=batch.ids, attention_mask=batch.mask.long()).last_hidden_state
    assert torch.allclose(hidden, right, atol=1e-6)
    assert encoder.info.layers == 2
    check_padding(encoder)


def test_a_sentence_transformers_model_is_measured_at_the_transformer_inside(tmp_path):
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(tiny.save(tmp_path)), device="cpu")
    model.max_seq_length = 16
    encoder = ModuleEncoder(model, model.tokenizer, name="run")
    assert encoder.info.notes == ("measured at the transformer inside, without its own pooling",)
    assert encoder.info.max_length == 16
    hidden, batch = last(encoder, ["the fox", "a dog and a fox"])
    with torch.no_grad():
        right = model[0].auto_model.eval()(input_ids=batch.ids, attention_mask=batch.mask.long()).last_hidden_state
    assert torch.equal(hidden, right)


def test_nothing_is_disturbed():
    model, tokenizer = tiny.make("bert")
    model.train()
    model.encoder.layer[1].eval()  # a frozen block in the middle of a training model
    modes = {name: module.training for name, module in model.named_modules()}
    assert set(modes.values()) == {True, False}
    ids = torch.tensor([[2, 40, 41, 3]])
    model(input_ids=ids).last_hidden_state.sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    weights = {name: p.clone() for name, p in model.state_dict().items()}
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    attributes = [set(vars(m)) for m in model.modules()]
    state = torch.get_rng_state()

    encoder = ModuleEncoder(model, tokenizer, name="run")
    first, _ = last(encoder, ["the fox jumps"])
    again, _ = last(encoder, ["the fox jumps"])
    encoder.fingerprint()
    check_padding(encoder)

    assert torch.equal(first, again)  # no dropout
    assert torch.equal(state, torch.get_rng_state())
    assert modes == {name: module.training for name, module in model.named_modules()}
    assert all(torch.equal(p.grad, gradients[name]) for name, p in model.named_parameters() if p.grad is not None)
    assert all(torch.equal(p, weights[name]) for name, p in model.state_dict().items())
    assert all(p.requires_grad for p in model.parameters())
    assert hooks == [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    assert attributes == [set(vars(m)) for m in model.modules()]
    model(input_ids=ids).last_hidden_state.sum().backward()  # training goes on


def test_modes_come_back_after_a_failure():
    model, tokenizer = tiny.make("bert")
    model.train()
    encoder = ModuleEncoder(model, tokenizer, name="run")
    batch = encoder.collate(encoder.tokenize(["a"]), np.arange(1))
    with pytest.raises(ZeroDivisionError):
        encoder.forward(batch, ("last",), lambda layer, hidden: 1 / 0)
    assert all(module.training for module in model.modules())


def test_what_a_module_caches_or_draws_in_the_pass_does_not_hurt_training():
    class Caching(Plain):
        table = None

        def forward(self, input_ids, attention_mask):
            if self.table is None:
                self.table = torch.linspace(1, 2, 16)
            noise = 1e-7 * torch.rand(16)  # drawn even in eval mode
            return super().forward(input_ids, attention_mask) * self.table + noise

    model = Caching().train()
    state = torch.get_rng_state()
    encoder = ModuleEncoder(model, tiny.wordpiece(), name="run")
    last(encoder, ["the fox"])
    assert torch.equal(state, torch.get_rng_state())
    ids = torch.tensor([[2, 40, 3]])
    model(ids, torch.ones_like(ids)).sum().backward()


def test_a_module_of_ones_own():
    model = Plain()
    encoder = as_encoder(model, tiny.wordpiece(), name="mine")
    assert (encoder.info.layers, encoder.info.hidden_size, encoder.info.kind) == (2, 16, "module")
    hidden, batch = last(encoder, ["the fox", "a dog and a fox"])
    model.eval()
    with torch.no_grad():
        assert torch.equal(hidden, model(batch.ids, batch.mask.long()))
    check_padding(encoder)
    assert as_encoder(encoder) is encoder


def test_only_the_last_layer_where_blocks_are_not_found():
    encoder = as_encoder(Plain(blocks=0), tiny.wordpiece())
    assert encoder.info.layers == 0
    assert encoder.info.notes == ("blocks not found: only the last layer can be read",)
    with pytest.raises(EncoderError, match="has layers last only"):
        encoder.forward(encoder.collate(encoder.tokenize(["a"]), np.arange(1)), (0,), lambda *_: None)


def test_fingerprint_follows_step_or_weights():
    model, tokenizer = tiny.make("bert")
    at_step = ModuleEncoder(model, tokenizer, name="run", step=7)
    before = at_step.fingerprint()
    assert before.startswith("run ")
    assert before.endswith(" step 7")
    with torch.no_grad():
        model.encoder.layer[1].output.dense.weight *= 1.01
    assert at_step.fingerprint() != before  # another model under the same name and step is told apart
    encoder = ModuleEncoder(model, tokenizer, name="run")
    before = encoder.fingerprint()
    with torch.no_grad():
        model.encoder.layer[0].output.dense.bias[0] += 1e-3
    changed = encoder.fingerprint()
    assert changed != before
    with torch.no_grad():
        model.pooler.dense.bias[0] += 1  # no hidden state depends on it
    assert encoder.fingerprint() == changed


def test_max_length_comes_from_the_model_or_the_caller():
    model, tokenizer = tiny.make("bert")
    assert ModuleEncoder(model, tokenizer, name="run").info.max_length == 64
    assert ModuleEncoder(model, tokenizer, name="run", max_length=16).info.max_length == 16
    with pytest.raises(EncoderError, match="64 positions"):
        ModuleEncoder(model, tokenizer, name="run", max_length=100)


def test_roberta_positions_start_behind_the_padding_id():
    model, tokenizer = tiny.make("roberta")  # 66 rows, of which 64 can be used
    tokenizer.model_max_length = 10**30
    assert ModuleEncoder(model, tokenizer, name="run").info.max_length == 64


def test_compiled_and_replicated_wrappers_are_looked_through():
    model, tokenizer = tiny.make("bert")
    encoder = ModuleEncoder(torch.compile(model), tokenizer, name="run")
    assert encoder.info.architecture == "BertModel"
    assert encoder.model is model


@pytest.mark.parametrize(
    ("model", "tokenizer", "expected"),
    [
        ("text", tiny.wordpiece, "is no torch.nn.Module"),
        (Plain, lambda: None, "is no transformers tokenizer"),
        (nn.Module, tiny.wordpiece, "has no parameters"),
        (lambda: nn.Linear(3, 3), tiny.wordpiece, "cannot be run on token ids"),
        (lambda: tf.BertModel(tf.BertConfig(**{**tiny._COMMON, "vocab_size": 9})), tiny.wordpiece, "belong together"),
    ],
)
def test_what_is_no_encoder_is_refused(model, tokenizer, expected):
    with pytest.raises(EncoderError, match=expected) as caught:
        as_encoder(model() if callable(model) else model, tokenizer())
    assert "\n" not in str(caught.value)


# The contract


def test_a_model_that_ignores_the_mask_is_detected():
    with pytest.raises(EncoderError, match="attention mask is ignored"):
        check_padding(as_encoder(Plain(heed_mask=False), tiny.wordpiece()))


@pytest.mark.parametrize("name", ["bert", "deberta_v3", "t5"])
def test_an_adapter_that_drops_the_mask_is_detected(name):
    class Careless(ModuleEncoder):
        def collate(self, tokens, rows):
            batch = super().collate(tokens, rows)
            return Batch(ids=batch.ids, mask=batch.mask, types=batch.types)

        def _arguments(self, batch):
            return super()._arguments(batch) | {"attention_mask": torch.ones_like(batch.ids)}

    encoder = Careless(*tiny.make(name), name="careless")
    with pytest.raises(EncoderError, match="attention mask is ignored"):
        check_padding(encoder)
    check_padding(ModuleEncoder(*tiny.make(name), name="careful"))


def test_nan_hidden_states_do_not_pass_the_check():
    class Broken(Plain):
        def forward(self, input_ids, attention_mask):
            return super().forward(input_ids, attention_mask) * float("nan")

    with pytest.raises(EncoderError):
        check_padding(as_encoder(Broken(), tiny.wordpiece()))
