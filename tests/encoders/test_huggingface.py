"""Every architecture through the real loading path, against transformers used plainly."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as tf
from safetensors.torch import load as load_weights
from safetensors.torch import save_file

from frozenprobe.encoders.contract import check_padding
from frozenprobe.encoders.registry import load_encoder
from frozenprobe.errors import EncoderError
from frozenprobe.settings import EncoderSettings
from tests.encoders import tiny
from tests.encoders.remote_model import TinyRemoteConfig, TinyRemoteModel

PAIRS = ["a dog", "it", "the same, or not?", "", "12"]


def load(folder: Path, **options):
    return load_encoder(EncoderSettings(ckpt=str(folder), device="cpu", **options))


def run(encoder, texts, pairs=None, layers=("last",), batch=50):
    """Hidden states of every text, padding removed, in input order, batch by batch."""
    tokens = encoder.tokenize(texts, pairs)
    kept = {layer: [] for layer in layers}
    for start in range(0, len(texts), batch):
        rows = np.arange(start, min(start + batch, len(texts)))
        padded = encoder.collate(tokens, rows)
        encoder.forward(
            padded,
            layers,
            lambda layer, hidden, mask=padded.mask: kept[layer].extend(
                h[m].clone() for h, m in zip(hidden, mask, strict=True)
            ),
        )
    return kept


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}

    def folder(name: str) -> Path:
        if name not in made:
            made[name] = tiny.save(tmp_path_factory.mktemp("tiny") / name, name)
        return made[name]

    return folder


def plain(folder: Path, texts, pairs=None, padding_side="right"):
    """What transformers gives by itself: last hidden states and hidden_states, padding removed."""
    tokenizer = tf.AutoTokenizer.from_pretrained(folder, padding_side=padding_side)
    cls = tf.AutoModelForTextEncoding if "t5" in folder.name else tf.AutoModel
    model = cls.from_pretrained(folder).eval()
    if folder.name == "bart":
        model = model.get_encoder()
    encoded = tokenizer(texts, pairs, padding=True, truncation="longest_first", max_length=64, return_tensors="pt")
    if folder.name == "roberta":
        assert "token_type_ids" not in encoded
    with torch.no_grad():
        out = model(**encoded, output_hidden_states=True)
    mask = encoded["attention_mask"].bool()

    def strip(hidden):
        return [h[m] for h, m in zip(hidden, mask, strict=True)]

    return strip(out.last_hidden_state), [strip(hidden) for hidden in out.hidden_states]


def hooks(model):
    return [(list(m._forward_hooks), list(m._forward_pre_hooks)) for m in model.modules()]


def close(one, other, tolerance=1e-5):
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert a.shape == b.shape
        assert float((a - b).norm()) <= tolerance * max(float(b.norm()), 1e-6)


@pytest.mark.parametrize("name", tiny.ARCHITECTURES)
@pytest.mark.parametrize("paired", [False, True], ids=["single", "pair"])
def test_equals_plain_transformers_at_every_layer(folders, name, paired):
    folder = folders(name)
    encoder = load(folder)
    pairs = PAIRS if paired else None
    depth = encoder.info.layers
    assert depth == (2 if name == "t5" else tiny.LAYERS)
    assert encoder.info.hidden_size == tiny.HIDDEN
    assert encoder.info.notes == ()
    ours = run(encoder, tiny.TEXTS, pairs, layers=(*range(depth + 1), "last"))
    last, hidden = plain(folder, tiny.TEXTS, pairs)
    close(ours["last"], last)
    for layer in range(depth):
        close(ours[layer], hidden[layer])
    # The raw output of the last block; where the model ends in a norm, transformers lists the normed one instead.
    if name in ("modernbert", "eurobert", "t5"):
        norm = {"modernbert": "final_norm", "eurobert": "norm", "t5": "encoder.final_layer_norm"}[name]
        with torch.no_grad():
            close([encoder.model.get_submodule(norm)(h) for h in ours[depth]], last)
        assert float((ours[depth][0] - last[0]).norm()) > 1e-3
    else:
        close(ours[depth], last)


@pytest.mark.parametrize("name", [*tiny.ARCHITECTURES, *tiny.OTHERS])
def test_batch_does_not_matter(folders, name):
    encoder = load(folders(name))
    check_padding(encoder)
    rng = np.random.default_rng(0)
    words = " ".join(tiny.CORPUS).split()
    texts = [" ".join(rng.choice(words, size=rng.integers(1, 25))) for _ in range(50)]
    order = rng.permutation(50)
    alone = run(encoder, texts, batch=1)["last"]
    for batch in (7, 50):
        shuffled = run(encoder, [texts[i] for i in order], batch=batch)["last"]
        close(shuffled, [alone[i] for i in order])


@pytest.mark.parametrize("name", ["bart", "llama", "gpt2"])
def test_other_kinds_equal_plain_transformers(folders, name):
    encoder = load(folders(name))
    assert encoder.info.layers == tiny.LAYERS
    texts = [text or "x" for text in tiny.TEXTS]
    ours = run(encoder, texts, layers=(0, 1, 2, "last"))
    last, hidden = plain(folders(name), texts)
    close(ours["last"], last)
    for layer in range(3):
        close(ours[layer], hidden[layer])
    assert encoder.info.padding_side == ("left" if name == "llama" else "right")
    if name == "gpt2":
        assert any("padded on the right" in note for note in encoder.info.notes)
    if name == "bart":
        assert encoder.info.notes == ("only the encoder of BartModel is measured",)


def test_shared_blocks_fall_back_to_hidden_states(folders):
    encoder = load(folders("albert"))
    assert any("hidden_states" in note for note in encoder.info.notes)
    ours = run(encoder, tiny.TEXTS, layers=(0, 1, 2, 3, "last"))
    last, hidden = plain(folders("albert"), tiny.TEXTS)
    close(ours["last"], last)
    for layer in range(4):
        close(ours[layer], hidden[layer])


def test_electra_layer_0_is_behind_the_projection(folders):
    encoder = load(folders("electra"))
    (hidden,) = run(encoder, ["the fox"], layers=(0,))[0]
    assert hidden.shape[1] == tiny.HIDDEN


def test_unknown_layer_is_refused_and_hooks_are_gone(folders):
    encoder = load(folders("bert"))
    with pytest.raises(EncoderError, match=r"no layer 4.*0 \.\.\. 3 and last"):
        run(encoder, ["a"], layers=(4,))
    tokens = encoder.tokenize(["a"])
    before = hooks(encoder.model)

    def fail(layer, hidden):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        encoder.forward(encoder.collate(tokens, np.arange(1)), (0, 1, "last"), fail)
    assert hooks(encoder.model) == before


def test_layers_are_visited_in_order_and_without_gradients(folders):
    encoder = load(folders("bert"))
    seen = []
    encoder.forward(
        encoder.collate(encoder.tokenize(["a"]), np.arange(1)),
        ("last", 2, 0, 2),
        lambda layer, hidden: seen.append((layer, hidden.requires_grad)),
    )
    assert seen == [(0, False), (2, False), ("last", False)]


def test_masked_lm_checkpoint_loads_as_its_encoder(tmp_path, recwarn, capfd):
    model = tf.BertForMaskedLM(tf.BertConfig(**tiny._COMMON, max_position_embeddings=64)).eval()
    model.save_pretrained(tmp_path)
    tiny.wordpiece().save_pretrained(tmp_path)
    encoder = load(tmp_path)
    assert encoder.info.architecture == "BertModel"
    assert encoder.info.notes == ()
    encoded = tiny.wordpiece()(["the fox"], return_tensors="pt")
    with torch.no_grad():
        right = model.bert(**encoded).last_hidden_state
    close(run(encoder, ["the fox"])["last"], list(right))
    # The pooler it lacks is drawn at random, and must not make the fingerprint random.
    assert encoder.fingerprint() == load(tmp_path).fingerprint()
    assert "LOAD REPORT" not in capfd.readouterr().err


def test_parameters_are_counted(folders):
    info = load(folders("bert")).info
    block = 4 * (32 * 32 + 32) + (32 * 64 + 64) + (64 * 32 + 32) + 4 * 32
    assert info.parameters_without_embeddings == 3 * block + 2 * 32
    assert info.parameters == info.parameters_without_embeddings + (300 + 64 + 2) * 32


@pytest.mark.parametrize("name", ["bert", "deberta_v3", "t5", "modernbert", "eurobert"])
def test_bf16_is_near_fp32(folders, name):
    exact = run(load(folders(name)), tiny.TEXTS)["last"]
    encoder = load(folders(name), dtype="bf16")
    assert encoder.info.dtype == "bf16"
    rough = run(encoder, tiny.TEXTS)["last"]
    assert rough[0].dtype == torch.bfloat16
    close([h.float() for h in rough], exact, tolerance=0.1)
    check_padding(encoder)


def test_fp16_loads(folders):
    assert run(load(folders("bert"), dtype="fp16"), ["the fox"])["last"][0].dtype == torch.float16


def test_attention_is_recorded_and_refused_where_unsupported(folders):
    assert load(folders("bert")).info.attention == "sdpa"
    assert load(folders("bert"), attn="eager").info.attention == "eager"
    assert load(folders("deberta_v3")).info.attention == "eager"
    with pytest.raises(EncoderError, match="--attn sdpa is not supported"):
        load(folders("deberta_v3"), attn="sdpa")
    with pytest.raises(EncoderError, match="--attn flash_attention_2 is not supported"):
        load(folders("bert"), attn="flash_attention_2", dtype="bf16")
    with pytest.raises(EncoderError, match="needs --dtype bf16"):
        load(folders("bert"), attn="flash_attention_2")


@pytest.mark.parametrize("device", ["cuda:99", "gpu", "tpu", "meta"])
def test_absent_device_is_refused(folders, device):
    with pytest.raises(EncoderError, match="--device"):
        load_encoder(EncoderSettings(ckpt=str(folders("bert")), device=device))


def test_random_init_is_seeded_and_leaves_the_random_state(folders):
    for dtype in ("fp32", "bf16"):
        state = torch.get_rng_state()
        one, two, other = (load(folders("bert"), random_init=True, init_seed=seed, dtype=dtype) for seed in (1, 1, 2))
        assert torch.equal(state, torch.get_rng_state())
        assert one.fingerprint() == two.fingerprint() != other.fingerprint()
        assert one.fingerprint() != load(folders("bert"), dtype=dtype).fingerprint()
        assert "random init" in one.info.name
    exact = load(folders("bert"), random_init=True, init_seed=1).model.state_dict()
    for name, weight in one.model.state_dict().items():
        if weight.is_floating_point():
            assert torch.equal(weight, exact[name].to(torch.bfloat16))


@pytest.mark.parametrize("name", ["t5", "modernbert", "bart"])
def test_random_init_of_other_architectures(folders, name):
    encoder = load(folders(name), random_init=True, init_seed=1, dtype="bf16")
    assert encoder.fingerprint() != load(folders(name), dtype="bf16").fingerprint()
    check_padding(encoder)


def test_fingerprint_sees_one_weight_and_forgets_it(tmp_path):
    folder = tiny.save(tmp_path / "same-name")
    before = load(folder).fingerprint()
    weights = load_weights((folder / "model.safetensors").read_bytes())
    name = "encoder.layer.1.output.dense.bias"
    weights[name][3] += 1e-3
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    after = load(folder).fingerprint()
    assert after != before
    weights[name][3] -= 1e-3
    weights[name][3] = load_weights((tiny.save(tmp_path / "copy") / "model.safetensors").read_bytes())[name][3]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert load(folder).fingerprint() == before == load(tmp_path / "copy").fingerprint()


def test_fingerprint_sees_tokenizer_and_config(tmp_path):
    folder = tiny.save(tmp_path)
    before = load(folder).fingerprint()
    path = folder / "tokenizer.json"
    kept = path.read_text()
    path.write_text(
        kept.replace('"lowercase":true', '"lowercase":false').replace('"lowercase": true', '"lowercase": false')
    )
    assert load(folder).fingerprint() != before
    path.write_text(kept)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 1e-3}))
    assert load(folder).fingerprint() != before


# Remote code


def test_remote_code_needs_to_be_asked_for(tmp_path):
    folder = tiny.save_remote_code(tmp_path / "neo")
    with pytest.raises(EncoderError, match="add --trust-remote-code"):
        load(folder)


def test_remote_code_equals_the_model_built_directly(tmp_path):
    folder = tiny.save_remote_code(tmp_path / "neo", seed=3)
    direct = TinyRemoteModel(TinyRemoteConfig()).eval()
    direct.load_state_dict(load_weights((folder / "model.safetensors").read_bytes()))
    state = torch.get_rng_state()
    encoder = load(folder, trust_remote_code=True)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(encoder.model.rotation, direct.rotation)
    assert any("rotation" in note for note in encoder.info.notes)
    assert encoder.info.layers == tiny.LAYERS
    texts = tiny.TEXTS[:3]
    encoded = tiny.wordpiece()(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        right = direct(encoded["input_ids"], encoded["attention_mask"]).last_hidden_state
    mask = encoded["attention_mask"].bool()
    close(run(encoder, texts)["last"], [h[m] for h, m in zip(right, mask, strict=True)])
    hidden = run(encoder, texts, layers=(0, 3, "last"))
    with torch.no_grad():
        close([direct.final_norm(h) for h in hidden[3]], hidden["last"])
        close(hidden[0], [direct.embedding(row[m]) for row, m in zip(encoded["input_ids"], mask, strict=True)])
    check_padding(encoder)


def test_remote_code_is_part_of_the_fingerprint(tmp_path):
    folder = tiny.save_remote_code(tmp_path / "neo")
    before = load(folder, trust_remote_code=True).fingerprint()
    code = folder / "modeling_tiny.py"
    code.write_text(code.read_text().replace("10000.0", "20000.0"))
    assert load(folder, trust_remote_code=True).fingerprint() != before
