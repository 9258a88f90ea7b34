"""End-to-end training of a tiny encoder: it moves, its dropout replays, and the pooler belongs to what came out."""

import numpy as np
import pytest
import torch

from frozenprobe.contrastive.distributed import Ranks
from frozenprobe.contrastive.features import FeatureSource
from frozenprobe.contrastive.loss import Targets
from frozenprobe.contrastive.pooler import build_pooler
from frozenprobe.contrastive.run import train_pooler
from frozenprobe.contrastive.saving import load_pooler
from frozenprobe.contrastive.settings import LossSettings, PoolerSettings
from frozenprobe.contrastive.sweep import Candidate
from frozenprobe.contrastive.trainee import Side, Trainee, backward
from frozenprobe.encoders.registry import load_encoder
from frozenprobe.encoders.transformer import Origin, TransformerEncoder
from frozenprobe.errors import EncoderError
from frozenprobe.settings import EncoderSettings
from tests.contrastive.test_features import TEXTS, batch_of


def test_it_trains_the_encoder_and_resumes_bit_for_bit(tiny_bert, write_rows, rows, tmp_path):
    path = write_rows(rows(40, negatives=1))
    settings = {
        "data": {"train_data": str(path), "held_out": 3},
        "training": {"batch_size": 12, "lr": 1e-3, "unfrozen": True, "chunk": 5, "checkpoint_every": 1},
        "pooler": {"blocks": 1, "heads": 2},
    }
    whole = train_pooler(tiny_bert, out=tmp_path / "whole", **settings)

    def interrupt(progress):
        if progress.step == 2:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        train_pooler(tiny_bert, out=tmp_path / "out", on_progress=interrupt, **settings)
    again = train_pooler(tiny_bert, out=tmp_path / "out", **settings)
    assert again.history == whole.history
    assert again.encoder.fingerprint() == whole.encoder.fingerprint()
    before = load_encoder(EncoderSettings(ckpt=str(tiny_bert)))
    assert again.encoder.fingerprint() != before.fingerprint()
    folder = tmp_path / "out/poolers/pooler"
    load_pooler(folder, again.encoder)
    with pytest.raises(EncoderError, match="belongs to one encoder"):
        load_pooler(folder, before)
    # The scores of the run are those of what was saved.
    finished = train_pooler(tiny_bert, out=tmp_path / "out", **settings)
    assert finished.results == again.results


@pytest.mark.parametrize("chunk", [4, 100])
def test_recomputed_blocks_repeat_the_encoders_own_dropout(tiny_bert, chunk):
    gradients = []
    for recompute in (False, True):
        encoder = load_encoder(EncoderSettings(ckpt=str(tiny_bert)))
        module = encoder.trained_module().requires_grad_(True)
        assert module.config.hidden_dropout_prob > 0
        source = FeatureSource(encoder, tokens=300, chunk=chunk)
        pooler = build_pooler(PoolerSettings(heads=2), encoder, seed=1)
        candidate = Candidate("pooler", PoolerSettings(heads=2), LossSettings(), 1e-3, 1e-4, 0.0, 1)
        trainee = Trainee(candidate, pooler, 32, 10, Ranks(), encoder=module)
        module.train()
        sides = []
        for texts in (TEXTS[:6], TEXTS[10:22]):
            batch = batch_of(source, texts)
            blocks = source.trained(batch, np.arange(len(texts)), encoder)
            sides.append(Side(blocks, batch.keys, None, len(texts)))
        known = torch.zeros(6, 12, dtype=torch.bool)
        known[torch.arange(6), torch.arange(6)] = True
        targets = Targets(torch.arange(6), torch.arange(6), torch.arange(6, 12)[:, None], known)
        backward([trainee], 0, sides, targets, recompute=recompute)
        gradients.append(torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None]))
    assert float(gradients[0].abs().max()) > 1e-4
    assert torch.allclose(gradients[0], gradients[1], atol=1e-6 * max(1.0, float(gradients[0].abs().max())))


def test_a_warm_start_goes_on_end_to_end(tiny_bert, write_rows, rows, tmp_path):
    """What comes out is a plain transformers folder, so the pooler's make-up is known from where it came."""

    class Warm(TransformerEncoder):
        def warm_pooler(self):
            return FirstToken()

    plain = load_encoder(EncoderSettings(ckpt=str(tiny_bert)))
    encoder = Warm(plain.model, plain._tokenizer.tokenizer, Origin("warm", "test"), max_length=128)
    result = train_pooler(
        encoder,
        out=tmp_path / "out",
        data={"train_data": str(write_rows(rows(20))), "held_out": 0},
        training={"unfrozen": True, "batch_size": 10},
        pooler={"warm_start": True},
    )
    folder = tmp_path / "out/poolers/pooler"
    loaded = load_pooler(folder, result.encoder, origin=encoder)
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), result.pooler.parameters(), strict=True))
    with pytest.raises(EncoderError, match="give it as origin"):
        load_pooler(folder, result.encoder)


class FirstToken(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(32, 8)

    def forward(self, tokens, mask):
        return self.linear(tokens[:, 0])


def test_half_precision_weights_are_refused(tiny_bert, write_rows, rows):
    path = write_rows(rows(10))
    with pytest.raises(EncoderError, match="needs weights in fp32"):
        train_pooler(
            tiny_bert,
            encoder={"dtype": "bf16"},
            data={"train_data": str(path)},
            training={"unfrozen": True},
            pooler={"heads": 2},
        )
