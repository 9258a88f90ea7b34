"""The exported folder: loads where frozenprobe is not, and gives the same vectors."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from frozenprobe.encoders.registry import load_encoder
from frozenprobe.errors import EncoderError, RecordError
from frozenprobe.settings import EncoderSettings

TEXTS = ["a", "some words, and some more of them", "so many words " * 60, "naïve words"]


@pytest.fixture(scope="module")
def module():
    from frozenprobe.suites.mteb import export as module

    return module


@pytest.fixture(scope="module")
def mteb_encoder():
    from frozenprobe.suites.mteb.adapter import MtebEncoder

    return MtebEncoder


def assert_same(model, folder, **options):
    loaded = SentenceTransformer(str(folder), device="cpu", **options)
    for texts in (TEXTS, TEXTS[:1]):
        np.testing.assert_allclose(loaded.encode(texts), model.vectors(texts), atol=1e-5)
    return loaded


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("normalise", [True, False])
def test_a_plain_pooling_becomes_sentence_transformers_own_modules(
    tiny, mteb_encoder, module, tmp_path, pooling, normalise
):
    model = mteb_encoder(tiny, pooling, normalise=normalise)
    module.export(model, tmp_path / "model")
    loaded = assert_same(model, tmp_path / "model")
    assert loaded.max_seq_length == 128
    assert len(loaded) == 3 if normalise else 2


def test_it_is_a_checkpoint_of_frozenprobe_again(tiny, mteb_encoder, module, tmp_path):
    model = mteb_encoder(tiny, "cls")
    module.export(model, tmp_path / "model")
    again = mteb_encoder(load_encoder(EncoderSettings(ckpt=str(tmp_path / "model"))))
    assert again.pooling == "own"
    np.testing.assert_allclose(again.vectors(TEXTS), model.vectors(TEXTS), atol=1e-6)


def test_the_checkpoints_own_pooling_and_prompts_are_kept(tiny, mteb_encoder, module, tmp_path):
    first = tmp_path / "first"
    module.export(mteb_encoder(tiny, "mean", prompts={"query": "find: "}), first)
    encoder = load_encoder(EncoderSettings(ckpt=str(first), max_length=20))
    model = mteb_encoder(encoder)
    module.export(model, tmp_path / "second")
    loaded = assert_same(model, tmp_path / "second")
    assert loaded.max_seq_length == 20
    np.testing.assert_allclose(loaded.encode_query(TEXTS), model.vectors(TEXTS, "query"), atol=1e-5)
    np.testing.assert_allclose(loaded.encode_document(TEXTS), model.vectors(TEXTS, "document"), atol=1e-5)
    assert abs(loaded.encode_query(TEXTS) - loaded.encode_document(TEXTS)).max() > 1e-3


def test_a_pooler_of_its_own_gives_the_same_vectors_and_loads_only_with_trust(
    tiny, mteb_encoder, module, pooler, tmp_path
):
    model = mteb_encoder(tiny, pooler)
    module.export(model, tmp_path / "model")
    loaded = assert_same(model, tmp_path / "model", trust_remote_code=True)
    assert loaded.encode(["a"]).shape == (1, 12)
    with pytest.raises(Exception, match="trust_remote_code"):
        SentenceTransformer(str(tmp_path / "model"), device="cpu")
    again = mteb_encoder(load_encoder(EncoderSettings(ckpt=str(tmp_path / "model"), trust_remote_code=True)))
    np.testing.assert_allclose(again.vectors(TEXTS), model.vectors(TEXTS), atol=1e-5)


@pytest.mark.slow
def test_a_pooler_of_its_own_loads_where_frozenprobe_is_not_and_can_be_saved_again(
    tiny, mteb_encoder, module, pooler, tmp_path
):
    model = mteb_encoder(tiny, pooler)
    module.export(model, tmp_path / "model")
    expected = model.vectors(TEXTS)
    np.save(tmp_path / "expected.npy", expected)
    (tmp_path / "texts.json").write_text(json.dumps(TEXTS))
    script = (
        "import sys, json, numpy; sys.modules['frozenprobe'] = None\n"
        "from sentence_transformers import SentenceTransformer\n"
        "model = SentenceTransformer('model', device='cpu', trust_remote_code=True)\n"
        "texts = json.load(open('texts.json')); expected = numpy.load('expected.npy')\n"
        "numpy.testing.assert_allclose(model.encode(texts), expected, atol=1e-5)\n"
        "numpy.testing.assert_allclose(model.encode(texts[2:3]), expected[2:3], atol=1e-5)\n"
        "model.save('again')\n"
        "model = SentenceTransformer('again', device='cpu', trust_remote_code=True)\n"
        "numpy.testing.assert_allclose(model.encode(texts), expected, atol=1e-5)\n"
        "assert model.get_sentence_embedding_dimension() == 12\n"
    )
    finished = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert finished.returncode == 0, finished.stderr


def test_an_inner_layer_and_a_pooler_that_cannot_be_traced_are_refused_in_one_line(
    tiny, mteb_encoder, module, tmp_path
):
    with pytest.raises(EncoderError, match="pools the last layer only"):
        module.export(mteb_encoder(tiny, layer=1), tmp_path / "model")

    class Moody(torch.nn.Module):
        def forward(self, tokens, mask):
            return tokens.mean(1) * (1 if float(tokens.sum()) > 0 else -1)

    with pytest.raises(EncoderError, match=r"Moody cannot be exported by torch\.export") as caught:
        module.export(mteb_encoder(tiny, Moody()), tmp_path / "model")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_it_stays_and_anothers_is_not_overwritten(tiny, mteb_encoder, module, tmp_path):
    folder = tmp_path / "model"
    module.export(mteb_encoder(tiny, "mean"), folder)
    before = (folder / "model.safetensors").stat().st_mtime_ns
    module.export(mteb_encoder(tiny, "mean"), folder)
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    with pytest.raises(RecordError, match="holds something else"):
        module.export(mteb_encoder(tiny, "cls"), folder)
