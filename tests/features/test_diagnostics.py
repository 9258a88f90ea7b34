"""Signs of collapse, on clouds whose shape is known."""

from __future__ import annotations

import json

import numpy as np
import pytest

from frozenprobe.features.diagnostics import SAMPLE, diagnose


def test_a_ball_has_full_rank_and_no_warnings():
    cloud = np.random.default_rng(0).normal(size=(20_000, 32)).astype(np.float32)
    found = diagnose(cloud)
    assert found.rows == SAMPLE
    assert 31.5 < found.effective_rank <= 32
    assert found.top_share < 0.05
    assert abs(found.mean_cosine) < 0.02
    assert found.norm_mean == pytest.approx(np.sqrt(32), rel=0.02)
    assert found.norm_spread == pytest.approx(np.linalg.norm(cloud, axis=1).std() / np.sqrt(32), rel=0.05)
    assert found.warnings == ()
    assert diagnose(cloud) == found


@pytest.mark.parametrize("shape", [(500, 40), (30, 200)])
def test_effective_rank_equals_a_float64_computation(shape):
    generator = np.random.default_rng(1)
    cloud = (generator.normal(size=shape) * np.geomspace(1, 1e-2, shape[1]) + 50).astype(np.float32)
    values = np.linalg.svd(cloud.astype(np.float64) - cloud.mean(0, dtype=np.float64), compute_uv=False) ** 2
    shares = values[values > 0] / values.sum()
    found = diagnose(cloud)
    assert found.effective_rank == pytest.approx(np.exp(-(shares * np.log(shares)).sum()), rel=1e-2)
    assert found.top_share == pytest.approx(shares.max(), rel=1e-3)


def test_a_line_a_cone_and_dead_dimensions_are_told():
    generator = np.random.default_rng(2)
    line = np.outer(generator.normal(size=500), generator.normal(size=100)).astype(np.float32)
    assert diagnose(line).effective_rank == pytest.approx(1, abs=0.05)
    assert any("few directions" in line for line in diagnose(line).warnings)
    cone = (generator.normal(size=(500, 100)) + 100).astype(np.float32)
    assert diagnose(cone).mean_cosine > 0.99
    assert any("same way" in line for line in diagnose(cone).warnings)
    dead = generator.normal(size=(500, 100)).astype(np.float32)
    dead[:, 10:35] = 3.0
    assert diagnose(dead).dead_dimensions == 25
    assert any("25 of 100" in line for line in diagnose(dead).warnings)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e4, 1e-20])
def test_a_constant_is_a_collapse(value):
    found = diagnose(np.full((300, 64), value, dtype=np.float32))
    assert (found.effective_rank, found.top_share, found.dead_dimensions) == (0.0, 1.0, 64)
    assert "collapsed" in found.warnings[0]
    json.dumps(found.as_dict(), allow_nan=False)


@pytest.mark.parametrize("rows", [0, 1, 2, 3])
def test_tiny_inputs(rows):
    found = diagnose(np.random.default_rng(0).normal(size=(rows, 64)).astype(np.float32))
    assert found.rows == rows
    assert found.warnings == ()
    json.dumps(found.as_dict(), allow_nan=False)


def test_large_and_tiny_values_stay_finite():
    for scale in (1e18, 1e-30):
        found = diagnose((np.random.default_rng(0).normal(size=(200, 40)) * scale).astype(np.float32))
        assert found.effective_rank == pytest.approx(
            diagnose(np.random.default_rng(0).normal(size=(200, 40)).astype(np.float32)).effective_rank, rel=1e-3
        )
        json.dumps(found.as_dict(), allow_nan=False)
