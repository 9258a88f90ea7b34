"""The callback for Lightning; needs Lightning."""

from __future__ import annotations

import importlib.util
import sys

import pytest
import torch

from frozenprobe.errors import SettingsError
from tests.callbacks.conftest import FAST, make_model, seed_everything
from tests.encoders import tiny

INSTALLED = any(importlib.util.find_spec(name) for name in ("lightning", "pytorch_lightning"))


def test_what_to_install_is_said(monkeypatch):
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "frozenprobe.callbacks.lightning", raising=False)
    with pytest.raises(SettingsError, match="Lightning is not installed: pip install"):
        from frozenprobe.callbacks import FrozenProbeLightningCallback  # noqa: F401


@pytest.mark.skipif(not INSTALLED, reason="Lightning is not installed")
def test_losses_are_those_without_and_checkpoints_can_go_by_the_scores(tmp_path):
    try:
        import lightning.pytorch as pl
        from lightning.pytorch.callbacks import ModelCheckpoint
        from lightning.pytorch.loggers import CSVLogger
    except ImportError:
        import pytorch_lightning as pl
        from pytorch_lightning.callbacks import ModelCheckpoint
        from pytorch_lightning.loggers import CSVLogger

    from frozenprobe.callbacks import FrozenProbeLightningCallback

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = make_model()
            self.losses = []

        def training_step(self, batch, index):
            loss = self.model(input_ids=batch, labels=batch).loss
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    def train(*callbacks):
        seed_everything()
        module = Module()
        data = torch.utils.data.DataLoader(torch.randint(5, 80, (24, 8)), batch_size=4, shuffle=True)
        trainer = pl.Trainer(
            max_steps=6,
            accelerator="cpu",
            devices=1,
            callbacks=list(callbacks),
            logger=CSVLogger(tmp_path / "log"),
            default_root_dir=tmp_path,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, data)
        return module, trainer

    checkpoint = ModelCheckpoint(tmp_path / "best", monitor="frozen_mean_ridge", mode="max", every_n_train_steps=2)
    probe = FrozenProbeLightningCallback(tiny.wordpiece(), part="model", every=2, **FAST)
    assert train()[0].losses == train(probe, checkpoint)[0].losses
    assert checkpoint.best_model_score is not None
    assert len(list((tmp_path / "frozenprobe").glob("step-*"))) == 3
