"""A fake encoder with knobs: each token's vector is a fixed function of its id, type and place, and of nothing else."""

from __future__ import annotations

import hashlib
import threading

import numpy as np
import pytest
import torch

from frozenprobe.encoders.base import Batch, EncoderInfo, Tokenized

WIDTH = 16
LAYERS = 3
VOCABULARY = 1 << 24
PADDING = 0
START = 1
ROLE_TOKENS = {"query": 2, "document": 3}


class FakeEncoder:
    """Words are tokens, `[CLS]` comes first; counts what it encodes."""

    def __init__(
        self,
        *,
        max_length=64,
        padding_side="right",
        dtype=torch.float32,
        weight_seed=0,
        name="fake",
        role_in_weights=False,
        garbage=0.0,
        rows_that_fit=None,
        tokens_that_fit=None,
        poison=None,
        special=True,
        **info,
    ):
        names = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
        self.info = EncoderInfo(
            **{
                "name": name,
                "kind": "fake",
                "architecture": "FakeEncoder",
                "revision": None,
                "parameters": VOCABULARY * WIDTH,
                "parameters_without_embeddings": 0,
                "hidden_size": WIDTH,
                "layers": LAYERS,
                "max_length": max_length,
                "dtype": names[dtype],
                "attention": "none",
                "device": "cpu",
                "padding_side": padding_side,
                **info,
            }
        )
        self.dtype = dtype
        # A token's vector is a sine of its id: any vocabulary size without a table.
        self.weight = torch.randn(WIDTH, generator=torch.Generator().manual_seed(weight_seed), dtype=torch.float64)
        self.role_in_weights = role_in_weights
        self.garbage = garbage
        self.rows_that_fit = rows_that_fit
        self.tokens_that_fit = tokens_that_fit
        self.poison = poison
        self.special = special
        self.encoded = 0
        self.tokenized = 0
        self.batches = []
        self.roles = {}
        self.fingerprints = 0
        self.before_forward = lambda: None
        self.threads = set()

    @staticmethod
    def token_id(word):
        return 10 + int.from_bytes(hashlib.blake2b(word.encode(), digest_size=4).digest()) % (VOCABULARY - 10)

    def tokenize(self, texts, pairs=None, role=None):
        self.threads.add(threading.current_thread().name)
        self.tokenized += len(texts)
        rows, types, full = [], [], []
        for i, text in enumerate(texts):
            first = [START] * self.special + [self.token_id(word) for word in text.lower().split()]
            second = [] if pairs is None else [self.token_id(word) for word in pairs[i].lower().split()]
            ids, kinds = first + second, [0] * len(first) + [1] * len(second)
            full.append(len(ids))
            rows.append(ids[: self.info.max_length])
            types.append(kinds[: self.info.max_length])
        offsets = np.cumsum([0, *map(len, rows)])
        ids = np.array([token for row in rows for token in row], dtype=np.int64)
        tokens = Tokenized(
            ids,
            offsets,
            np.array([kind for row in types for kind in row], dtype=np.int64),
            np.array(full, dtype=np.int64),
        )
        self.roles[id(tokens)] = (role, tokens)
        return tokens

    def collate(self, tokens, rows):
        width = int(tokens.lengths[rows].max())
        ids = np.full((len(rows), width), PADDING)
        types, mask = np.zeros_like(ids), np.zeros(ids.shape, dtype=bool)
        for i, row in enumerate(rows):
            start, end = tokens.offsets[row], tokens.offsets[row + 1]
            place = slice(0, end - start) if self.info.padding_side == "right" else slice(width - (end - start), width)
            ids[i, place], types[i, place], mask[i, place] = tokens.ids[start:end], tokens.types[start:end], True
        self.role = self.roles[id(tokens)][0]
        return Batch(torch.from_numpy(ids), torch.from_numpy(mask), torch.from_numpy(types))

    def forward(self, batch, layers, visit):
        self.before_forward()
        if self.rows_that_fit is not None and len(batch.ids) > self.rows_that_fit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        if self.tokens_that_fit is not None and batch.ids.numel() > self.tokens_that_fit:
            raise RuntimeError(
                "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
            )
        self.encoded += len(batch.ids)
        self.batches.append(tuple(batch.ids.shape))
        places = batch.mask.cumsum(1)[..., None] / 100
        hidden = torch.sin(batch.ids[..., None] * self.weight).float() + 0.5 * batch.types[..., None] + places
        if self.role_in_weights:
            hidden = hidden + {"query": 1.0, "document": -1.0, None: 0.0}[self.role]
        if self.poison is not None:
            hidden[(batch.ids == self.token_id(self.poison)).any(1)] = torch.nan
        hidden[~batch.mask] = self.garbage
        for layer in layers:
            depth = LAYERS + 1 if layer == "last" else layer
            visit(layer, (hidden * (1 + depth)).to(self.dtype))

    def fingerprint(self):
        self.fingerprints += 1
        return hashlib.sha256(self.weight.numpy().tobytes()).hexdigest()


class PoolingFake(FakeEncoder):
    """Declares a pooling of its own, to another width."""

    def pool(self, hidden, batch):
        return torch.nn.functional.normalize(hidden[:, 0, :5], dim=-1)


@pytest.fixture
def fake():
    return FakeEncoder


@pytest.fixture
def fake_with_pooling():
    return PoolingFake


@pytest.fixture
def words():
    """Makes `n` texts of mixed length, all different."""

    def make(n, longest=30, seed=0):
        generator = np.random.default_rng(seed)
        return [
            " ".join([f"row{seed}x{i}", *(f"w{w}" for w in generator.integers(500, size=generator.integers(longest)))])
            for i in range(n)
        ]

    return make
