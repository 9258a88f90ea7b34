"""Who claims a checkpoint, and what a user reads when nobody does."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch
import transformers as tf
from safetensors.torch import load as load_weights
from safetensors.torch import save_file

from frozenprobe.encoders import registry
from frozenprobe.encoders.huggingface import is_hub_id
from frozenprobe.encoders.module import ModuleEncoder
from frozenprobe.encoders.registry import load_encoder
from frozenprobe.errors import EncoderError
from frozenprobe.settings import EncoderSettings
from tests.encoders import tiny


class Plugin:
    """An adapter that claims folders with its marker, and loads a fixed encoder."""

    def __init__(self, scheme="mine", priority=30, encoder=None, failure=None):
        self.scheme, self.priority, self.encoder, self.failure = scheme, priority, encoder, failure

    def sniff(self, path):
        if self.failure == "sniff":
            raise RuntimeError("sniffing is broken")
        return self.priority if (Path(path) / "mine.json").exists() else 0

    def load(self, settings, path):
        if self.failure == "load":
            raise RuntimeError("first line\nsecond line")
        return self.encoder


@pytest.fixture
def install(monkeypatch):
    """Puts entry points beside the real ones: name -> adapter, or the exception its import raises."""

    class Entry:
        def __init__(self, name, adapter, value):
            self.name, self.adapter, self.value = name, adapter, value

        def load(self):
            if isinstance(self.adapter, Exception):
                raise self.adapter
            return self.adapter

    real = list(metadata.entry_points(group=registry.GROUP))
    assert {entry.name for entry in real} >= {"hf", "st"}
    added = []

    def entry_points(*, group):
        assert group == registry.GROUP
        return [*real, *added]

    monkeypatch.setattr(metadata, "entry_points", entry_points)

    def add(name, adapter, value=None):
        added.append(Entry(name, adapter, value or f"plugin_{len(added)}:adapter"))

    return add


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("registry") / "bert")


@pytest.fixture
def copied(folder, tmp_path):
    return Path(shutil.copytree(folder, tmp_path / "bert"))


def load(ckpt, **options):
    return load_encoder(EncoderSettings(ckpt=str(ckpt), device="cpu", **options))


def message(ckpt, **options):
    with pytest.raises(EncoderError) as caught:
        load(ckpt, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_folder_and_scheme(folder):
    assert load(folder).info.name == "bert"
    assert load(f"hf:{folder}").info.kind == "hf"


def test_home_folder_and_relative_folder(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder.parent))
    monkeypatch.chdir(folder.parent)
    assert load("~/bert").info.name == load("./bert").info.name == load("bert").info.name == "bert"


def test_sniffing_imports_nothing_heavy(folder):
    code = (
        "import sys; from frozenprobe.encoders.registry import claim, find_adapters\n"
        f"adapter, path = claim({str(folder)!r}, *find_adapters())\n"
        "assert adapter.scheme == 'hf'\n"
        "heavy = {'torch', 'transformers', 'sentence_transformers'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# Plug-ins


def test_plugin_is_found_and_loads(install, copied):
    model, tokenizer = tiny.make("bert")
    encoder = ModuleEncoder(model, tokenizer, name="from the plug-in")
    install("mine", Plugin(encoder=encoder))
    (copied / "mine.json").touch()
    assert load(copied) is encoder
    assert load(f"mine:{copied}") is encoder
    assert load(f"hf:{copied}").info.kind == "hf"


def test_two_equal_claims_name_both(install, copied):
    install("mine", Plugin())
    install("yours", Plugin("yours"))
    (copied / "mine.json").touch()
    text = message(copied)
    assert "claimed by mine and yours alike" in text
    assert f"mine:{copied} or yours:{copied}" in text


def test_the_higher_claim_wins(install, copied):
    install("mine", Plugin(priority=5))
    (copied / "mine.json").touch()
    assert load(copied).info.kind == "hf"


@pytest.mark.parametrize(
    ("adapter", "reason"),
    [
        (ImportError("no module named its_dependency"), "its_dependency"),
        (object(), "is no adapter"),
        (Plugin("other"), "its scheme is 'other'"),
        (Plugin(failure="sniff"), "sniffing is broken"),
    ],
    ids=["import", "shape", "name", "sniff"],
)
def test_broken_plugin_is_named_and_harms_nobody(install, folder, tmp_path, adapter, reason):
    install("mine", adapter)
    with pytest.warns(UserWarning, match=f"'mine' is left out: .*{reason}"):
        assert load(folder).info.kind == "hf"
    with pytest.warns(UserWarning, match="'mine'"):
        assert f"the plug-in 'mine' is broken: {message(tmp_path).rsplit('is broken: ')[-1]}" in message(tmp_path)
    if reason != "sniffing is broken":
        assert reason in message("mine:whatever")


def test_a_scheme_registered_twice_is_broken(install, folder):
    install("mine", Plugin(), "one:adapter")
    install("mine", Plugin(), "two:adapter")
    assert "registered twice, by one:adapter and two:adapter" in message("mine:x")


def test_failing_and_wrong_load_name_the_adapter(install, copied):
    install("mine", Plugin(failure="load"))
    (copied / "mine.json").touch()
    assert "the adapter 'mine' failed" in message(copied)
    install("yours", Plugin("yours", encoder="not an encoder"))
    assert "'yours' returned str, which is no Encoder" in message(f"yours:{copied}")


# Hostile input


@pytest.mark.parametrize("ckpt", [" ", "\t\n"])
def test_empty(ckpt):
    assert "--ckpt is empty" in message(ckpt)


def test_unknown_scheme():
    text = message("gguf:model")
    assert "unknown scheme 'gguf'" in text
    assert "hf:, st:" in text
    assert "must follow the colon" in message("hf: ")


@pytest.mark.parametrize("ckpt", ["/no/such/folder", "./nowhere", "a/b/c", "../x", "no such folder"])
def test_missing_folder(ckpt, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert "there is no such folder" in message(ckpt)
    assert "no folder" in message(f"hf:{ckpt}")


def test_folder_without_config(tmp_path):
    assert "it is empty" in message(tmp_path)
    (tmp_path / "weights.bin").touch()
    text = message(tmp_path)
    assert "weights.bin" in text
    assert "expected config.json" in text
    assert "no config.json" in message(f"hf:{tmp_path}")
    assert "no modules.json" in message(f"st:{tmp_path}")


def test_file_instead_of_folder(folder):
    assert "is a file" in message(folder / "config.json")
    assert "is a file" in message(f"hf:{folder / 'config.json'}")


@pytest.mark.parametrize("content", ["", "{", "\x00\x01", "[1, 2]", '"text"'])
def test_garbage_config(copied, content):
    (copied / "config.json").write_text(content)
    text = message(copied)
    assert str(copied) in text


@pytest.mark.parametrize("keep", [0, 7, 100, 5000, -1])
def test_truncated_weights(copied, keep):
    weights = copied / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    assert "weights file is damaged" in message(copied)


def test_damaged_pickle_weights(copied):
    (copied / "model.safetensors").unlink()
    (copied / "pytorch_model.bin").write_bytes(b"not a checkpoint")
    assert "damaged" in message(copied)


def test_weights_are_never_unpickled(copied, tmp_path):
    (copied / "model.safetensors").unlink()
    witness = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return (open, (str(witness), "w"))

    torch.save({"weights": Evil()}, copied / "pytorch_model.bin")
    assert str(copied) in message(copied)
    assert not witness.exists()


def test_missing_weights_file(copied):
    (copied / "model.safetensors").unlink()
    assert "model.safetensors" in message(copied)


def test_missing_weights_are_no_silent_random_weights(copied):
    weights = load_weights((copied / "model.safetensors").read_bytes())
    lost = weights.pop("encoder.layer.1.output.dense.weight")
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    text = message(copied)
    assert "lacks 1 weights" in text
    assert "encoder.layer.1.output.dense.weight" in text
    weights["encoder.layer.1.output.dense.weight"] = lost[:, :-1].contiguous()
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    assert "has in another shape 1 weights" in message(copied)


def test_pooler_may_be_missing(copied):
    weights = {
        k: v
        for k, v in load_weights((copied / "model.safetensors").read_bytes()).items()
        if not k.startswith("pooler.")
    }
    assert len(weights) < len(load_weights((copied / "model.safetensors").read_bytes()))
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    assert load(copied).info.notes == ()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite(copied, value):
    weights = load_weights((copied / "model.safetensors").read_bytes())
    weights["encoder.layer.0.attention.self.query.weight"][2, 3] = value
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    text = message(copied)
    assert "encoder.layer.0.attention.self.query.weight is not finite" in text


def test_weights_beyond_the_range_of_fp16(copied):
    weights = load_weights((copied / "model.safetensors").read_bytes())
    weights["encoder.layer.0.attention.self.query.weight"][0, 0] = 1e6
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    assert "--dtype bf16" in message(copied, dtype="fp16")
    assert load(copied).info.dtype == "fp32"


def test_unknown_architecture(copied):
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"model_type": "no-such-model"}))
    assert "does not know this architecture" in message(copied)
    (copied / "config.json").write_text("{}")
    assert str(copied) in message(copied)


def test_vision_model_is_refused(tmp_path):
    config = tf.ViTConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=32
    )
    tf.ViTModel(config).save_pretrained(tmp_path)
    tiny.wordpiece().save_pretrained(tmp_path)
    assert "ViTModel cannot be run on token ids" in message(tmp_path)


def test_missing_tokenizer(copied):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (copied / name).unlink()
    assert "tokenizer" in message(copied)


def test_garbage_tokenizer(copied):
    (copied / "tokenizer.json").write_text('{"version": "1.0", "trunc')
    assert str(copied) in message(copied)


@pytest.mark.parametrize("library", ["sentencepiece", "protobuf", "tiktoken"])
def test_missing_vocabulary_library_names_the_extra(copied, monkeypatch, library):
    def refuse(*_, **__):
        raise ImportError(f"requires the {library} library but it was not found\nin your environment")

    monkeypatch.setattr(tf.AutoTokenizer, "from_pretrained", refuse)
    monkeypatch.setattr("frozenprobe.encoders.loading.find_spec", lambda name: None)
    assert "pip install 'frozenprobe[deberta]'" in message(copied)


def test_tokenizer_of_another_model(copied):
    config = tf.BertConfig(**{**tiny._COMMON, "vocab_size": 20}, max_position_embeddings=64)
    tf.BertModel(config).save_pretrained(copied)
    assert "do not belong together" in message(copied)


def test_revision_goes_with_a_hub_id(folder):
    assert "is a local folder" in message(folder, revision="main")


@pytest.mark.parametrize(
    ("asked", "expected"), [(None, 64), (16, 16), (64, 64), (65, "more than the 64 positions"), (2, "at least 3")]
)
def test_max_length(folder, asked, expected):
    if isinstance(expected, int):
        assert load(folder, max_length=asked).info.max_length == expected
    else:
        assert expected in message(folder, max_length=asked)


@pytest.mark.parametrize(
    ("path", "right"),
    [
        ("bert-base-uncased", True),
        ("google/electra-base-discriminator", True),
        ("a/b/c", False),
        ("/a", False),
        ("a/", False),
        ("../a", False),
        ("a b", False),
        ("", False),
    ],
)
def test_shape_of_a_hub_id(path, right):
    assert is_hub_id(path) is right


def test_unreachable_hub_is_one_line(monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert "nobody/nothing-here" in message("nobody/nothing-here")
    assert "nobody/nothing-here" in message("st:nobody/nothing-here")
