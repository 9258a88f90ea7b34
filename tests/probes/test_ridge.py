import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge, RidgeClassifier

from frozenprobe.probes import ridge as module
from frozenprobe.probes.ridge import fit_ridge
from frozenprobe.settings import RidgeSettings

WIDE, TALL = (12, 40), (60, 20)
FORMS = [("centre", True), ("standard", True), ("none", True), ("none", False)]


def example(shape, seed=0, targets=1):
    random = np.random.default_rng(seed)
    return random.normal(size=shape) + 3, random.normal(size=(shape[0], targets))


def scaled(features, standardisation):
    return (features - features.mean(0)) / features.std(0) if standardisation == "standard" else features


@pytest.mark.parametrize("shape", [WIDE, TALL])
@pytest.mark.parametrize("solver", ["eigh", "solve"])
@pytest.mark.parametrize(("standardisation", "intercept"), FORMS)
def test_predictions_equal_scikit_learn_for_every_lambda(shape, solver, standardisation, intercept):
    x, y = example(shape, targets=3)
    settings = RidgeSettings(standardisation=standardisation, intercept=intercept, solver=solver)
    answers = fit_ridge(x, y, settings).predict(x)
    for strength, answer in zip(np.geomspace(1, 1e4, 13), answers, strict=True):
        peer = Ridge(alpha=strength, fit_intercept=intercept, solver="svd").fit(scaled(x, standardisation), y)
        np.testing.assert_allclose(answer, peer.predict(scaled(x, standardisation)), atol=1e-9)


@pytest.mark.parametrize("shape", [WIDE, TALL])
@pytest.mark.parametrize("solver", ["eigh", "solve"])
@pytest.mark.parametrize(("standardisation", "intercept"), FORMS)
def test_leave_one_out_equals_a_refit_without_each_row(shape, solver, standardisation, intercept):
    """C03: n=12, p=40, mean 3, lambda .7; the scaling is fitted once on all fitting rows."""
    x, y = example(shape)
    settings = RidgeSettings(
        lambda_min=0.7, lambda_max=7, lambdas=2, standardisation=standardisation, intercept=intercept, solver=solver
    )
    path = fit_ridge(x, y, settings)
    rows = scaled(x, standardisation)
    for strength, left_out in zip(path.lambdas, path.left_out, strict=True):
        for i in range(len(x)):
            others = np.arange(len(x)) != i
            peer = Ridge(alpha=strength, fit_intercept=intercept, solver="svd").fit(rows[others], y[others].ravel())
            assert left_out[i, 0] == pytest.approx(peer.predict(rows[i : i + 1])[0], abs=1e-8)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("shape", [(80, 200), (400, 30)])
def test_classes_equal_ridge_classifier_for_every_lambda(classes, shape):
    random = np.random.default_rng(classes)
    x = random.normal(size=shape).astype(np.float32)
    y = np.digitize(x[:, 0] + random.normal(size=len(x)), np.linspace(-0.5, 0.5, classes - 1))
    new = random.normal(size=(300, shape[1])).astype(np.float32)
    path = fit_ridge(x, np.eye(classes)[y], RidgeSettings())
    for strength, outputs in zip(path.lambdas, path.predict(new), strict=True):
        peer = RidgeClassifier(alpha=strength, solver="svd").fit(x.astype(float), y)
        np.testing.assert_array_equal(outputs.argmax(1), peer.predict(new.astype(float)))


def test_memory_maps_and_small_chunks_change_nothing(tmp_path, monkeypatch):
    x, y = example(TALL)
    whole = fit_ridge(x.astype(np.float32), y, RidgeSettings())
    np.save(tmp_path / "x.npy", x.astype(np.float32))
    monkeypatch.setattr(module, "CHUNK_BYTES", 8 * 20 * 7)
    mapped = fit_ridge(np.load(tmp_path / "x.npy", mmap_mode="r"), y, RidgeSettings())
    np.testing.assert_allclose(mapped.left_out, whole.left_out, atol=1e-12)
    np.testing.assert_allclose(mapped.predict(x), whole.predict(x), atol=1e-12)


def test_lambda_scales_with_the_fitting_rows_on_request():
    x, y = example(TALL)
    scaled_path = fit_ridge(x, y, RidgeSettings(scale_with_n=True))
    np.testing.assert_allclose(scaled_path.lambdas, 60 * np.geomspace(1, 1e4, 13))
    peer = Ridge(alpha=60.0).fit(x, y.ravel())
    np.testing.assert_allclose(scaled_path.predict(x)[0].ravel(), peer.predict(x), atol=1e-9)


def test_one_row_has_no_leave_one_out_and_a_constant_column_does_no_harm():
    x, y = example((1, 5))
    path = fit_ridge(x, y, RidgeSettings(standardisation="standard"))
    assert path.left_out is None
    np.testing.assert_allclose(path.predict(x)[:, 0, 0], y[0, 0])
    x, y = example(TALL)
    x[:, 3] = 0.1
    assert np.isfinite(fit_ridge(x, y, RidgeSettings(standardisation="standard")).predict(x)).all()


def test_a_large_offset_costs_no_accuracy():
    x, y = example(TALL)
    near = fit_ridge(x, y, RidgeSettings()).left_out
    np.testing.assert_allclose(fit_ridge(x + 1e4, y, RidgeSettings()).left_out, near, atol=1e-8)


def test_tf32_is_put_back():
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        fit_ridge(*example(TALL), RidgeSettings())
        assert torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [WIDE, TALL])
def test_the_gpu_gives_the_same(shape):
    x, y = example(shape)
    here = fit_ridge(x, y, RidgeSettings())
    there = fit_ridge(x, y, RidgeSettings(), device="cuda")
    np.testing.assert_allclose(there.left_out, here.left_out, atol=1e-9)
    np.testing.assert_allclose(there.predict(x), here.predict(x), atol=1e-9)
