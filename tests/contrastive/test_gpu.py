"""The same training on a GPU: pooler beside its encoder, losses as on the CPU up to rounding, resumed there."""

import numpy as np
import pytest

from frozenprobe.contrastive.run import train_pooler


@pytest.mark.gpu
@pytest.mark.parametrize("unfrozen", [False, True])
@pytest.mark.parametrize("chunk", [None, 9])
def test_a_gpu_gives_what_the_cpu_gives(tiny_bert, write_rows, rows, tmp_path, unfrozen, chunk):
    path = write_rows(rows(60))
    found = []
    for device in ("cpu", "cuda:0"):
        result = train_pooler(
            tiny_bert,
            out=tmp_path / device,
            encoder={"device": device},
            data={"train_data": str(path), "held_out": 4},
            training={"batch_size": 20, "lr": 1e-3, "unfrozen": unfrozen, "chunk": chunk},
            pooler={"heads": 2, "dropout": 0.0 if unfrozen else 0.2},
        )
        assert {parameter.device.type for parameter in result.pooler.parameters()} == {device.partition(":")[0]}
        found.append([entry["losses"]["pooler"] for entry in result.history if "losses" in entry])
    # An encoder that is trained draws its own dropout from the device's generator, so only the order of size agrees.
    assert np.allclose(*found, rtol=0.5 if unfrozen else 1e-2)


@pytest.mark.gpu
def test_bf16_features_and_a_sweep_on_a_gpu(tiny_bert, write_rows, rows):
    result = train_pooler(
        tiny_bert,
        encoder={"device": "cuda", "dtype": "bf16"},
        data={"train_data": str(write_rows(rows(60))), "held_out": 4},
        training={"batch_size": 20, "lr": 1e-3, "epochs": 2, "keep_features": True},
        pooler={"heads": 2},
        sweep="lr=1e-3,1e-4,seed=0,1",
    )
    assert len(result.poolers) == 4
    assert np.isfinite([loss for entry in result.history for loss in entry.get("losses", {}).values()]).all()
