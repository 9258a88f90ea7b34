"""`compare_runs`: the tests are SciPy's and statsmodels' on the same predictions, and what does not compare is refused."""

import copy
import json

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests

import frozenprobe
from frozenprobe.errors import ComparisonError, RecordError, SettingsError
from tests.reports.runs import PROBES, answers, glue_run, make_run, make_unit


@pytest.fixture
def pair(tmp_path):
    return glue_run(tmp_path / "weak", 0.3, seed=1), glue_run(tmp_path / "strong", 0.6, seed=2)


def by_task(frame, comparison="difference"):
    return frame[frame["comparison"] == comparison].set_index("task")


def test_tests_are_those_of_the_libraries_on_the_stored_predictions(pair):
    frame = by_task(frozenprobe.compare_runs(*pair))
    assert list(frame.index) == ["mnli", "qnli", "qqp", "rte", "sst2", "mrpc", "cola", "stsb", "mean"]
    for task in ("mnli", "rte", "sst2"):
        labels, weak = answers(task, 0.3, seed=1)
        _, strong = answers(task, 0.6, seed=2)
        a, b = weak == labels, strong == labels
        expected = mcnemar([[(a & b).sum(), (a & ~b).sum()], [(~a & b).sum(), (~a & ~b).sum()]], exact=True).pvalue
        assert frame.loc[task, "test"] == "McNemar"
        assert frame.loc[task, "p"] == pytest.approx(expected)
        assert frame.loc[task, "difference"] == pytest.approx(b.mean() - a.mean())
    labels, weak = answers("stsb", 0.3, seed=1)
    _, strong = answers("stsb", 0.6, seed=2)

    def difference(y, a, b):
        return np.corrcoef(y, b)[0, 1] - np.corrcoef(y, a)[0, 1]

    expected = stats.bootstrap(
        (labels, weak, strong), difference, paired=True, vectorized=False, n_resamples=2000, method="percentile", rng=0
    )
    assert frame.loc["stsb", "test"] == "paired bootstrap"
    assert frame.loc["stsb", "difference"] == pytest.approx(difference(labels, weak, strong))
    np.testing.assert_allclose(
        frame.loc["stsb", ["low", "high"]].astype(float),
        expected.confidence_interval,
        atol=0.3 * expected.standard_error,
    )


def test_p_values_are_corrected_for_the_tasks_and_the_mean_is_no_task(pair):
    frame = by_task(frozenprobe.compare_runs(*pair))
    tasks = frame.drop(index="mean")
    np.testing.assert_allclose(tasks["p_corrected"], multipletests(tasks["p"], method="holm")[1])
    assert np.isnan(frame.loc["mean", "p_corrected"])
    for column in ("baseline_value", "candidate_value", "difference"):
        assert frame.loc["mean", column] == pytest.approx(tasks[column].mean())
    assert frame.loc["mean", "high"] - frame.loc["mean", "low"] < (tasks["high"] - tasks["low"]).min()


def test_the_other_way_round_is_the_other_sign(pair):
    there, back = by_task(frozenprobe.compare_runs(*pair)), by_task(frozenprobe.compare_runs(*reversed(pair)))
    np.testing.assert_allclose(there["difference"], -back["difference"])
    np.testing.assert_allclose(there["low"], -back["high"], atol=0.02)
    assert (there["p"] < 0.05).sum() >= 5


def test_probe_and_seed_are_used(tmp_path, pair):
    ridge, knn = (by_task(frozenprobe.compare_runs(*pair, probe=probe)) for probe in ("ridge", "knn"))
    assert ridge.loc["rte", "p"] == knn.loc["rte", "p"]  # these runs answer alike with both
    other = by_task(frozenprobe.compare_runs(*pair, seed=5))
    assert other.loc["cola", "low"] != ridge.loc["cola", "low"]
    assert other.loc["cola", "low"] == pytest.approx(ridge.loc["cola", "low"], abs=0.02)
    few = by_task(frozenprobe.compare_runs(*pair, replicates=99))
    assert few["p"].loc["stsb"] >= 2 / 100
    with pytest.raises(SettingsError, match="probe"):
        frozenprobe.compare_runs(*pair, probe="svm")


def test_many_checkpoints_have_a_trend_in_the_order_of_their_steps(tmp_path):
    folders = [
        glue_run(
            tmp_path / f"at-{step}", skill, ("rte", "cola"), seed=step, name="mine", fingerprint=f"mine step {step}"
        )
        for step, skill in ((1000, 0.8), (200, 0.2), (600, 0.5))
    ]
    frame = frozenprobe.compare_runs(*folders)
    assert frame["candidate"].unique().tolist() == ["mine, step 600", "mine, step 1000"]
    assert set(frame["baseline"]) == {"mine, step 200"}
    trend, last = by_task(frame, "trend"), by_task(frame[frame["candidate"] == "mine, step 1000"])
    scores = [
        np.mean(np.equal(*answers("rte", skill, seed=step))) for step, skill in ((200, 0.2), (600, 0.5), (1000, 0.8))
    ]
    assert trend.loc["rte", "difference"] == pytest.approx(800 * np.polyfit([200, 600, 1000], scores, 1)[0])
    assert last.loc["rte", "difference"] == pytest.approx(scores[2] - scores[0])
    assert (trend["p"] < 0.05).all()
    family = frame[(frame["comparison"] == "difference") & (frame["task"] != "mean")]
    np.testing.assert_allclose(family["p_corrected"], multipletests(family["p"], method="holm")[1])


def test_the_trend_of_two_is_their_difference_and_is_not_shown_twice(pair):
    assert set(frozenprobe.compare_runs(*pair)["comparison"]) == {"difference"}


def refusal(*folders, **settings):
    with pytest.raises(ComparisonError) as error:
        frozenprobe.compare_runs(*folders, **settings)
    assert "\n" not in str(error.value)
    return str(error.value)


def two_units(tmp_path, first, second):
    return make_run(tmp_path / "a", [first]), make_run(tmp_path / "b", [second])


def test_another_pair_form_is_refused(tmp_path):
    message = refusal(*two_units(tmp_path, make_unit("mrpc", 0.5), make_unit("mrpc", 0.5, form="siamese")))
    assert message.startswith("MRPC: no pair form in common (a: joint; b: siamese)")


def test_several_pair_forms_must_be_chosen_from(tmp_path):
    folders = [
        make_run(tmp_path / name, [make_unit("mrpc", 0.5, form=form, seed=seed) for form in ("joint", "siamese")])
        for seed, name in enumerate("ab")
    ]
    assert "choose one with --pair-form" in refusal(*folders)
    assert frozenprobe.compare_runs(*folders, pair_form="siamese")["pair_form"].iloc[0] == "siamese"


@pytest.mark.parametrize(
    ("change", "probe", "named"),
    [
        ({"max_train": 10_000}, "ridge", "max_train 100 and 10000"),
        ({"ridge": {**PROBES["ridge"], "standardisation": "none"}}, "ridge", "standardisation centre and none"),
        ({"knn": {**PROBES["knn"], "ks": [1]}}, "knn", "ks [1, 3] and [1]"),
    ],
)
def test_another_protocol_is_refused(tmp_path, change, probe, named):
    a = glue_run(tmp_path / "a", 0.5, ["rte"])
    b = glue_run(tmp_path / "b", 0.5, ["rte"], probes={**copy.deepcopy(PROBES), **change})
    message = refusal(a, b, probe=probe)
    assert message == f"a and b were probed under different protocols: {named}"


def test_what_does_not_change_the_answers_is_no_other_protocol(tmp_path):
    a = glue_run(tmp_path / "a", 0.5, ["rte"])
    b = glue_run(
        tmp_path / "b",
        0.5,
        ["rte"],
        probes={**PROBES, "bootstrap": 9, "draws": 9, "ridge": {**PROBES["ridge"], "solver": "eigh"}},
    )
    assert frozenprobe.compare_runs(a, b).loc[0, "difference"] == 0


def test_another_split_is_refused(tmp_path):
    message = refusal(*two_units(tmp_path, make_unit("rte", 0.5), make_unit("rte", 0.5, split="dev")))
    assert message == "RTE: a was scored on the split validation, b on dev"


def test_a_subset_against_the_whole_is_refused(tmp_path):
    message = refusal(
        *two_units(tmp_path, make_unit("rte", 0.5), make_unit("rte", 0.5, subset="train 9 of 2,490 rows"))
    )
    assert message == "RTE: b was scored on a subset (train 9 of 2,490 rows), a on the whole data"


def test_two_equal_subsets_compare_under_their_own_name(tmp_path):
    folders = two_units(tmp_path, *(make_unit("rte", 0.5, subset="train 9 rows", seed=seed) for seed in range(2)))
    assert frozenprobe.compare_runs(*folders)["title"].iloc[0] == "RTE (subset)"


@pytest.mark.parametrize(
    ("digests", "split"),
    [
        ({"validation": "other", "train": "train rows"}, "validation"),
        ({"validation": "rows", "train": "other"}, "train"),
    ],
)
def test_other_rows_under_the_same_name_are_refused(tmp_path, digests, split):
    message = refusal(*two_units(tmp_path, make_unit("rte", 0.5), make_unit("rte", 0.5, digests=digests)))
    assert message == f"RTE: a and b saw different rows of the split {split}"


def test_another_suite_is_refused(tmp_path):
    message = refusal(*two_units(tmp_path, make_unit("rte", 0.5), make_unit("rte", 0.5, suite="built-in")))
    assert message == "the runs have no task of one suite in common (a: RTE of GLUE; b: RTE of built-in)"


def test_runs_without_stored_predictions_are_refused(tmp_path):
    bare = make_unit("rte", 0.5)
    bare.rows = [row for row in bare.rows if row["kind"] != "prediction"]
    message = refusal(*two_units(tmp_path, make_unit("rte", 0.5), bare))
    assert message == "RTE: b holds no predictions of ridge, honest; a paired test needs them"


def test_runs_of_mteb_are_refused_by_that_name(pair):
    path = pair[1] / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "suite": "mteb"}))
    with pytest.raises(ComparisonError, match="strong is a run of MTEB, which keeps no answers"):
        frozenprobe.compare_runs(*pair)


def test_one_run_or_the_same_twice_is_refused(pair):
    assert "two runs or more" in refusal(pair[0])
    assert "is named twice" in refusal(pair[0], pair[0])
    with pytest.raises(RecordError, match="not a run"):
        frozenprobe.compare_runs(pair[0], pair[0].parent)
