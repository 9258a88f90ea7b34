"""Sweeps: what they stand for, and what they refuse."""

import pytest

from frozenprobe.contrastive.settings import PoolSettings
from frozenprobe.contrastive.sweep import candidates
from frozenprobe.errors import SettingsError
from frozenprobe.settings import parse


def settings(**values):
    return parse(PoolSettings, {"encoder": {"ckpt": "x"}, **values})


def test_all_combinations_in_the_order_of_their_values():
    found = candidates(settings(sweep="lr=1e-4, 5e-5, blocks=1,2, temperature=0.1", training={"seed": 3}))
    assert [(c.lr, c.pooler.blocks, c.loss.temperature, c.seed) for c in found] == [
        (1e-4, 1, 0.1, 3),
        (1e-4, 2, 0.1, 3),
        (5e-5, 1, 0.1, 3),
        (5e-5, 2, 0.1, 3),
    ]
    assert found[0].name == "lr=1e-4,blocks=1,temperature=0.1"


def test_a_warm_start_has_its_own_size_once():
    found = candidates(settings(sweep="warm-start=false,true,blocks=1,2,lr=1e-4", pooler={"heads": 2}))
    assert [(c.pooler.warm_start, c.pooler.blocks, c.pooler.heads) for c in found] == [
        (False, 1, 2),
        (False, 2, 2),
        (True, 2, None),
    ]
    assert found[2].name == "warm_start=true,lr=1e-4"


def test_without_a_sweep_there_is_one():
    (found,) = candidates(settings(pooler={"blocks": 3}))
    assert (found.name, found.pooler.blocks, found.lr, found.min_lr) == ("pooler", 3, 5e-5, 5e-7)


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        ("", "empty"),
        ("0.1,0.2", "expected name=value"),
        ("lr=", "expected name=value"),
        ("batch_size=3", "'batch_size' cannot be swept"),
        ("lr=1e-4,lr=1e-5", "stands there twice"),
        ("lr=abc", "training.lr"),
        ("lr=-1", "training.lr"),
        ("lr=1e-9", "min_lr"),
        ("blocks=0", "pooler.blocks"),
    ],
)
def test_what_cannot_be_read_is_one_line(sweep, message):
    with pytest.raises(SettingsError, match=message):
        candidates(settings(sweep=sweep))


def test_end_to_end_training_is_no_sweep():
    with pytest.raises(SettingsError, match="one at a time"):
        candidates(settings(sweep="lr=1e-4", training={"unfrozen": True}))
