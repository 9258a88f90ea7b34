import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.metrics import matthews_corrcoef

from frozenprobe.errors import ProbeError
from frozenprobe.probes.base import Labelled
from frozenprobe.probes.sweep import run_probes
from frozenprobe.settings import ProbeSettings

QUICK = ProbeSettings(regimes=(1, 10), draws=3, bootstrap=100)


def data(target="classification", n=120, m=80, d=12, seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(n + m, d)).astype(np.float32)
    signal = x[:, 0] + random.normal(size=n + m)
    y = (signal > 0).astype(np.int64) if target == "classification" else signal
    return Labelled("train", x[:n], y[:n]), Labelled("validation", x[n:], y[n:])


def probe(target="classification", settings=QUICK, splits=None, metrics=None):
    train, validation = splits or data(target)
    return run_probes(
        train,
        [validation],
        target=target,
        n_classes=2 if target == "classification" else 0,
        metrics=metrics or (("matthews", "accuracy") if target == "classification" else ("pearson", "spearman")),
        settings=settings,
        device="cpu",
        seed=5,
    )


def headline(result, kind, protocol):
    (score,) = [s for s in result.scores if s.is_headline and (s.probe, s.protocol) == (kind, protocol)]
    return score


@pytest.mark.parametrize("target", ["classification", "regression"])
def test_both_protocols_equal_an_explicit_search(target):
    train, validation = data(target)
    result = probe(target)
    targets = np.eye(2)[train.labels] if target == "classification" else train.labels[:, None]

    def score(labels, outputs):
        if target == "classification":
            return matthews_corrcoef(labels, outputs.argmax(1))
        return np.corrcoef(labels, outputs[:, 0])[0, 1]

    def predict(rows, strength, new):
        peer = Ridge(alpha=strength, solver="svd").fit(train.features[rows].astype(float), targets[rows])
        return peer.predict(new.astype(float)).reshape(len(new), -1)

    everything = np.arange(len(targets))
    on_validation, inside = [], []
    for strength in np.geomspace(1, 1e4, 13):
        on_validation.append(score(validation.labels, predict(everything, strength, validation.features)))
        left_out = [predict(everything != i, strength, train.features[i : i + 1])[0] for i in everything]
        inside.append(score(train.labels, np.array(left_out)))
    assert headline(result, "ridge", "paper").value == pytest.approx(max(on_validation))
    best = max(i for i, value in enumerate(inside) if value >= max(inside) - 1e-12)
    assert headline(result, "ridge", "honest").value == pytest.approx(on_validation[best])
    assert headline(result, "ridge", "honest").lambda_ == pytest.approx(np.geomspace(1, 1e4, 13)[best])


@pytest.mark.parametrize("target", ["classification", "regression"])
def test_every_selected_score_has_an_interval_around_it(target):
    for score in probe(target).scores:
        if score.protocol == "grid":
            assert np.isnan(score.low)
        else:
            assert score.low <= score.value + 0.05
            assert score.high >= score.value - 0.05
            assert score.n_evaluated == 80


def test_the_paper_interval_selects_again_in_every_replicate():
    result = probe()
    grid = [s for s in result.scores if s.protocol == "grid" and s.probe == "ridge" and s.n == 120]
    paper = headline(result, "ridge", "paper")
    assert paper.value == max(score.value for score in grid)
    assert paper.replicates.mean() > headline(result, "ridge", "honest").replicates.mean()


def test_subsets_are_nested_draws_and_honest_is_absent_at_one_row():
    scores = probe().scores
    assert {(s.n, s.draw) for s in scores if s.probe == "ridge"} == {
        (n, draw) for n in (1, 10) for draw in range(3)
    } | {(120, 0)}
    assert {s.protocol for s in scores if s.n == 1} == {"paper", "grid"}
    assert {s.protocol for s in scores if s.n == 10} == {"honest", "paper", "grid"}


def test_the_constant_answer_and_the_control_stand_beside():
    result = probe(settings=QUICK.model_copy(update={"control": True}))
    assert headline(result, "majority", "baseline").value == 0
    assert abs(headline(result, "ridge", "control").value) < 0.3 < headline(result, "ridge", "honest").value
    assert not [s for s in probe().scores if s.protocol == "control"]


def test_predictions_of_the_selected_probes_give_their_scores():
    result = probe()
    labels = data()[1].labels
    for predicted in result.predictions:
        value = matthews_corrcoef(labels, predicted.values)
        assert headline(result, predicted.probe, predicted.protocol).value == pytest.approx(value)
    assert len(result.predictions) == 5


def test_the_same_seed_gives_the_same_everything():
    first, second = probe(), probe()
    assert [(s.value, s.low, s.high, s.lambda_, s.k, s.distance) for s in first.scores if s.protocol != "grid"] == [
        (s.value, s.low, s.high, s.lambda_, s.k, s.distance) for s in second.scores if s.protocol != "grid"
    ]


def test_no_replicates_no_interval():
    result = probe(settings=QUICK.model_copy(update={"bootstrap": 0}))
    assert all(np.isnan(score.low) for score in result.scores)
    assert headline(result, "ridge", "honest").replicates is None


def test_k_is_capped_with_a_warning():
    train, validation = data(n=12)
    result = probe(splits=(train, validation), settings=ProbeSettings(regimes=(5,), draws=1, bootstrap=0))
    assert max(score.k for score in result.scores if score.k) == 12
    assert result.warnings == ["kNN: k is capped at the 12 train rows"]


@pytest.mark.parametrize("split", [0, 1])
def test_a_feature_that_is_not_finite_is_named(split):
    splits = data()
    splits[split].features[3, 1] = np.nan
    with pytest.raises(ProbeError, match=f"split {splits[split].name}, row 3: a feature is not finite"):
        probe(splits=splits)


def test_one_class_is_refused():
    train, validation = data()
    with pytest.raises(ProbeError, match="nothing to learn"):
        probe(splits=(Labelled("train", train.features, np.ones_like(train.labels)), validation))
