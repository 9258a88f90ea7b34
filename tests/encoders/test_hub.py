"""Hub ids against a hub on the loopback address, in a process of its own (the endpoint is read at import)."""

from __future__ import annotations

import json

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, Pooling, Transformer

from tests.encoders import tiny
from tests.hub import COMMIT, serve_hub

PROGRAM = """
import json, sys
from frozenprobe.encoders.registry import load_encoder
from frozenprobe.errors import EncoderError
from frozenprobe.settings import EncoderSettings
answers = []
for options in json.loads(sys.argv[1]):
    try:
        encoder = load_encoder(EncoderSettings(device="cpu", **options))
        info = encoder.info
        answers.append([info.kind, info.name, info.revision, info.max_length, encoder.fingerprint()])
    except EncoderError as error:
        answers.append(str(error))
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("hub")
    owner = root / "models" / "owner"
    tiny.save(owner / "bert")
    tiny.save_remote_code(owner / "remote")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        modules = [Transformer(str(owner / "bert")), Pooling(tiny.HIDDEN), Dense(tiny.HIDDEN, 8)]
    model = SentenceTransformer(modules=modules, device="cpu")
    model.max_seq_length = 24
    model.save(str(owner / "sentences"))
    return root


def ask(hub, *options, offline=False):
    done = hub.run_python(
        f"import sys; sys.argv.append({json.dumps(options)!r}){PROGRAM}",
        env={"HF_HUB_DOWNLOAD_TIMEOUT": "5", "HF_HUB_OFFLINE": "1" if offline else "0"},
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout.splitlines()[-1])
    assert not any("\n" in answer for answer in answers if isinstance(answer, str))
    return answers


def test_hub_ids(root):
    with serve_hub(root) as hub:
        bert, pinned, sentences, remote, trusted, revision, missing, local = ask(
            hub,
            {"ckpt": "owner/bert"},
            {"ckpt": "hf:owner/bert", "revision": COMMIT},
            {"ckpt": "owner/sentences"},
            {"ckpt": "owner/remote"},
            {"ckpt": "owner/remote", "trust_remote_code": True},
            {"ckpt": "owner/bert", "revision": "nowhere"},
            {"ckpt": "owner/nothing"},
            {"ckpt": str(root / "models" / "owner" / "bert")},
        )
        assert bert[:4] == ["hf", "owner/bert", COMMIT, 64]
        assert pinned == bert
        assert sentences[:4] == ["st", "owner/sentences", COMMIT, 24]
        assert "add --trust-remote-code" in remote
        assert trusted[:3] == ["hf", "owner/remote", COMMIT]
        assert "owner/bert" in revision
        assert "nowhere" in revision
        assert "owner/nothing" in missing
        assert local[4] == bert[4]  # the same weights under another name
        # Without the hub what was downloaded still loads, as what it was.
        hub.requests.clear()
        answers = ask(hub, {"ckpt": "owner/bert"}, {"ckpt": "owner/sentences"}, offline=True)
        assert answers == [bert, sentences]
        assert hub.requests == []


@pytest.mark.slow  # the hub's client waits longer before each of its retries
def test_connection_cut_in_the_middle(root):
    with serve_hub(root) as hub:
        hub.cut.add("model.safetensors")
        (cut,) = ask(hub, {"ckpt": "owner/bert"})
        assert isinstance(cut, str)
        assert "owner/bert" in cut
        hub.cut.clear()
        (whole,) = ask(hub, {"ckpt": "owner/bert"})
        assert whole[:3] == ["hf", "owner/bert", COMMIT]
