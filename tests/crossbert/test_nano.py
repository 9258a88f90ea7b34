"""The CrossBERT that ships with the package: there, small, found by its name, and better than its own random weights."""

import json
import re

import pytest
from transformers import AutoModelForMaskedLM, AutoTokenizer

import frozenprobe
from crossbert.probe import NANO
from frozenprobe.encoders.base import HasWarmPooler
from frozenprobe.errors import EncoderError


def test_it_is_small_and_says_nothing_of_where_it_was_made():
    files = {path.name: path for path in NANO.iterdir()}
    assert sum(path.stat().st_size for path in files.values()) <= 8_000_000
    config = json.loads(files["config.json"].read_text())
    assert config["objective"] == "crossbert"
    assert config["training_flops"] > 1e14
    texts = {
        name: path.read_text()
        for name, path in files.items()
        if path.suffix in (".json", ".md") and name != "tokenizer.json"
    }
    assert not [name for name, text in texts.items() if re.search(r'"/\w+/', text)]


def test_its_name_is_enough():
    encoder = frozenprobe.load_encoder("crossbert:nano")
    assert encoder.info.name == "nano"
    assert isinstance(encoder, HasWarmPooler)
    with pytest.raises(EncoderError, match="micro"):
        frozenprobe.load_encoder("crossbert:micro")


def test_it_fills_in_a_word():
    tokenizer, model = AutoTokenizer.from_pretrained(NANO), AutoModelForMaskedLM.from_pretrained(NANO)
    batch = tokenizer(f"He shut the{tokenizer.mask_token} and went out of the room.", return_tensors="pt")
    place = (batch["input_ids"][0] == tokenizer.mask_token_id).nonzero().item()
    best = model(**batch).logits[0, place].topk(50).indices
    assert " door" in [tokenizer.decode(word) for word in best]


@pytest.mark.slow
def test_training_shows_on_sst2(real_data):
    """A small form of what `benchmarks/nano.py` measures."""
    options = {
        "tasks": "sst2",
        "data_dir": str(real_data),
        "probes": {"max_train": 4000, "draws": 1, "regimes": "4000"},
    }
    found = []
    for random_init in (False, True):
        frame = frozenprobe.evaluate_glue("crossbert:nano", encoder={"random_init": random_init}, **options)
        chosen = frame[frame.is_headline & (frame.probe == "ridge") & (frame.protocol == "honest")]
        found.append(float(chosen.value.iloc[-1]))
    assert found[0] > found[1] + 0.03
