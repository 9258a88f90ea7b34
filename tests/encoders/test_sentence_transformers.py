"""sentence-transformers folders against `SentenceTransformer.encode`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, Normalize, Pooling, Transformer

from frozenprobe.encoders.base import Encoder, HasPooling, HasPrompts
from frozenprobe.encoders.contract import check_padding
from frozenprobe.encoders.registry import load_encoder
from frozenprobe.errors import EncoderError
from frozenprobe.settings import EncoderSettings
from tests.encoders import tiny

TEXTS = ["the quick brown fox", " ".join(tiny.CORPUS * 4), "Whether", "12, 345"]


def build(folder: Path, *tail, name="bert", max_length=24, **options) -> Path:
    """Saves a sentence-transformers folder around a tiny model."""
    base = Transformer(str(tiny.save(folder.with_name(folder.name + "-base"), name)))
    model = SentenceTransformer(modules=[base, *tail], device="cpu", **options)
    model.max_seq_length = max_length
    model.save(str(folder))
    return folder


def edit(path: Path, **changes) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def load(folder: Path, **options):
    return load_encoder(EncoderSettings(ckpt=str(folder), device="cpu", **options))


def message(folder, **options):
    with pytest.raises(EncoderError) as caught:
        load(folder, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def pooled(encoder, texts, role=None, batch=3):
    tokens = encoder.tokenize(texts, role=role)
    out = []
    for start in range(0, len(texts), batch):
        padded = encoder.collate(tokens, np.arange(start, min(start + batch, len(texts))))
        encoder.forward(padded, ("last",), lambda _, hidden, b=padded: out.append(encoder.pool(hidden, b).clone()))
    return torch.cat(out).numpy()


def assert_same(ours, theirs):
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() <= 1e-5 * max(1.0, np.abs(theirs).max())


@pytest.mark.parametrize("mode", ["mean", "cls", "max", "lasttoken", "mean_sqrt_len_tokens", "weightedmean"])
def test_pooling_equals_encode(tmp_path, mode):
    folder = build(tmp_path / "st", Pooling(tiny.HIDDEN, pooling_mode=mode))
    encoder = load(folder)
    assert isinstance(encoder, Encoder)
    assert isinstance(encoder, HasPooling)
    assert not isinstance(encoder, HasPrompts)
    assert encoder.info.kind == "st"
    assert encoder.info.max_length == 24
    assert_same(pooled(encoder, TEXTS), SentenceTransformer(str(folder), device="cpu").encode(TEXTS))
    check_padding(encoder)


@pytest.mark.parametrize("name", ["roberta", "mpnet", "t5"])
def test_chain_of_modules_equals_encode(tmp_path, name):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        dense = Dense(2 * tiny.HIDDEN, 12, activation_function=torch.nn.GELU())
    folder = build(tmp_path / "st", Pooling(tiny.HIDDEN, pooling_mode=("mean", "max")), dense, Normalize(), name=name)
    ours = pooled(load(folder), TEXTS)
    assert ours.shape == (4, 12)
    assert_same(ours, SentenceTransformer(str(folder), device="cpu").encode(TEXTS))
    np.testing.assert_allclose(np.linalg.norm(ours, axis=1), 1, rtol=1e-5)


def test_older_layout_with_subfolder_lower_case_and_its_own_limit(tmp_path):
    """`0_Transformer`, `sentence_bert_config.json` with max_seq_length and do_lower_case, legacy pooling flags."""
    folder = tmp_path / "old"
    tiny.save(folder / "0_Transformer", "roberta")
    (folder / "0_Transformer" / "sentence_bert_config.json").write_text(
        json.dumps({"max_seq_length": 16, "do_lower_case": True})
    )
    (folder / "1_Pooling").mkdir()
    flags = {"word_embedding_dimension": 32, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(flags))
    kinds = [("0_Transformer", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    encoder = load(folder)
    assert encoder.info.max_length == 16
    assert encoder.tokenize(["THE FOX"]).ids.tolist() == encoder.tokenize(["the fox"]).ids.tolist()
    texts = [*TEXTS, "THE QUICK Brown"]
    assert_same(pooled(encoder, texts), SentenceTransformer(str(folder), device="cpu").encode(texts))


def test_max_length_override_beats_the_folder(tmp_path):
    folder = build(tmp_path / "st", Pooling(tiny.HIDDEN))
    assert load(folder, max_length=40).info.max_length == 40
    assert "64 positions" in message(folder, max_length=65)


def test_prompts(tmp_path):
    folder = build(tmp_path / "st", Pooling(tiny.HIDDEN), prompts={"query": "the fox: ", "document": "a dog: "})
    encoder = load(folder)
    assert isinstance(encoder, HasPrompts)
    assert (encoder.prompt("query"), encoder.prompt("document")) == ("the fox: ", "a dog: ")
    reference = SentenceTransformer(str(folder), device="cpu")
    assert_same(pooled(encoder, TEXTS, "query"), reference.encode_query(TEXTS))
    assert_same(pooled(encoder, TEXTS, "document"), reference.encode_document(TEXTS))
    assert_same(pooled(encoder, TEXTS), reference.encode(TEXTS))
    assert (
        encoder.tokenize(["x"], ["y"], role="query").ids.tolist()
        == encoder.tokenize(["the fox: x"], ["y"]).ids.tolist()
    )


def test_passage_prompt_stands_for_documents_and_default_prompt_for_no_role(tmp_path):
    folder = build(tmp_path / "st", Pooling(tiny.HIDDEN))
    edit(folder / "config_sentence_transformers.json", prompts={"passage": "a dog: "}, default_prompt_name="passage")
    encoder = load(folder)
    assert (encoder.prompt("query"), encoder.prompt("document")) == ("", "a dog: ")
    assert_same(pooled(encoder, TEXTS), SentenceTransformer(str(folder), device="cpu").encode(TEXTS))
    edit(folder / "config_sentence_transformers.json", default_prompt_name="absent")
    assert "'absent' is not among its prompts" in message(folder)


def test_prompt_left_out_of_the_pooling_is_refused(tmp_path):
    folder = build(tmp_path / "st", Pooling(tiny.HIDDEN, include_prompt=False), prompts={"query": "the fox: "})
    encoder = load(folder)
    pooled(encoder, TEXTS)
    with pytest.raises(EncoderError, match="leaves its prompt out"):
        encoder.tokenize(TEXTS, role="query")


def test_fingerprint_covers_the_modules_after_the_transformer(tmp_path):
    folder = build(tmp_path / "st", Pooling(tiny.HIDDEN), Dense(tiny.HIDDEN, 8))
    before = load(folder).fingerprint()
    assert load(folder).fingerprint() == before
    assert load(f"hf:{folder}").fingerprint() != before
    edit(folder / "1_Pooling" / "config.json", pooling_mode="cls")
    other = load(folder).fingerprint()
    assert other != before
    from safetensors.torch import load as load_weights
    from safetensors.torch import save_file

    weights = load_weights((folder / "2_Dense" / "model.safetensors").read_bytes())
    weights["linear.bias"][0] += 1
    save_file(weights, folder / "2_Dense" / "model.safetensors")
    assert load(folder).fingerprint() not in (before, other)


def test_random_init_draws_the_dense_layer_too(tmp_path):
    folder = build(tmp_path / "st", Pooling(tiny.HIDDEN), Dense(tiny.HIDDEN, 8))
    state = torch.get_rng_state()
    one, two = load(folder, random_init=True, init_seed=5), load(folder, random_init=True, init_seed=5)
    assert torch.equal(state, torch.get_rng_state())
    assert one.fingerprint() == two.fingerprint()
    trained = load(folder).tail[1].linear.weight
    assert not torch.equal(one.tail[1].linear.weight, trained)


def test_bf16_pools_in_float32(tmp_path):
    folder = build(tmp_path / "st", Pooling(tiny.HIDDEN), Normalize())
    rough = pooled(load(folder, dtype="bf16"), TEXTS)
    assert rough.dtype == np.float32
    assert np.abs(rough - pooled(load(folder), TEXTS)).max() < 0.05


# Hostile folders


def modules_of(folder: Path) -> list[dict]:
    return json.loads((folder / "modules.json").read_text())


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda m: [], "lists no modules"),
        (lambda m: {"a": 1}, "lists no modules"),
        (lambda m: [{"path": ""}], "needs a type"),
        (lambda m: m[1:], "its first module is"),
        (lambda m: [m[0] | {"type": "evil.Transformer"}, m[1]], "its first module is evil.Transformer"),
        (lambda m: [m[0], m[1] | {"type": "sentence_transformers.models.LSTM"}], "LSTM is not supported"),
        (lambda m: [m[0], m[1] | {"type": "os.system"}], "add --trust-remote-code"),
        (lambda m: [m[0]], "own pooling fails"),
        (lambda m: [m[0] | {"path": "elsewhere"}, m[1]], ""),
        (lambda m: [m[0], m[1] | {"path": "elsewhere"}], ""),
    ],
)
def test_damaged_module_list(tmp_path, change, expected):
    folder = build(tmp_path / "st", Pooling(tiny.HIDDEN))
    (folder / "modules.json").write_text(json.dumps(change(modules_of(folder))))
    assert expected in message(folder)


def test_garbage_json_and_missing_dense_weights(tmp_path):
    folder = build(tmp_path / "st", Pooling(tiny.HIDDEN), Dense(tiny.HIDDEN, 8))
    (folder / "2_Dense" / "model.safetensors").unlink()
    assert str(folder) in message(folder)
    (folder / "1_Pooling" / "config.json").write_text("{")
    assert "not valid JSON" in message(folder)
    (folder / "modules.json").write_text("{")
    assert "modules.json is not valid JSON" in message(folder)


def test_foreign_activation_needs_trust(tmp_path):
    folder = build(tmp_path / "st", Pooling(tiny.HIDDEN), Dense(tiny.HIDDEN, 8))
    edit(folder / "2_Dense" / "config.json", activation_function="evil.Activation")
    assert "add --trust-remote-code" in message(folder)


def test_foreign_module_runs_when_trusted(tmp_path):
    folder = build(tmp_path / "st", Pooling(tiny.HIDDEN))
    (folder / "doubling.py").write_text(
        "from sentence_transformers.models import Module\n"
        "class Doubling(Module):\n"
        "    def forward(self, features, **kwargs):\n"
        "        features['sentence_embedding'] = 2 * features['sentence_embedding']\n"
        "        return features\n"
        "    def save(self, output_path, *args, **kwargs):\n"
        "        pass\n"
    )
    plain = pooled(load(folder), TEXTS)
    modules = [*modules_of(folder), {"idx": 2, "name": "2", "path": "2_Doubling", "type": "doubling.Doubling"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    assert "add --trust-remote-code" in message(folder)
    assert_same(pooled(load(folder, trust_remote_code=True), TEXTS), 2 * plain)


# The real one


def test_minilm_equals_encode_and_its_file_truncation_is_neutralised(minilm):
    encoder = load(minilm)
    assert (encoder.info.max_length, encoder.info.layers, encoder.info.hidden_size) == (256, 6, 384)
    assert encoder.info.parameters_without_embeddings == 10_647_552
    long = "The tokenizer file of this model truncates at 128 tokens, its folder at 256. " * 30
    tokens = encoder.tokenize([long, "short"])
    assert tokens.lengths.tolist() == [256, 3]
    assert tokens.full_lengths[0] > 400
    texts = [long, "A short one.", "Émile's naïve café.", "two words", ""]
    assert_same(pooled(encoder, texts), SentenceTransformer(str(minilm), device="cpu").encode(texts))
    assert load(f"hf:{minilm}").info.max_length == 512
