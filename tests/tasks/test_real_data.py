"""The staged copy of real GLUE: whole tasks are recognised as whole, subsets as subsets, surrogates are refused."""

import os
from pathlib import Path

import numpy as np
import pytest

from frozenprobe.errors import DataError
from frozenprobe.tasks import GLUE, load_task

ROOT = os.environ.get("FROZENPROBE_TEST_DATA")
pytestmark = pytest.mark.skipif(not ROOT, reason="FROZENPROBE_TEST_DATA is not set: no real GLUE data")


@pytest.mark.parametrize(
    ("name", "train", "validation"),
    [
        ("cola", [2528, 6023], [322, 721]),
        ("sst2", [29780, 37569], [428, 444]),
        ("mrpc", [1194, 2474], [129, 279]),
        ("rte", [1249, 1241], [146, 131]),
        ("wnli", [323, 312], [40, 31]),
    ],
)
def test_whole_tasks_have_the_published_label_counts(name, train, validation):
    data = load_task(GLUE[name], data_dir=Path(ROOT))
    assert data.subset is None
    assert np.bincount(data.train.labels).tolist() == train
    assert np.bincount(data.evaluations[0].labels).tolist() == validation


def test_stsb_is_whole_and_keeps_its_values():
    data = load_task(GLUE["stsb"], data_dir=Path(ROOT))
    assert data.subset is None
    assert [len(data.train), len(data.evaluations[0])] == [5749, 1500]
    assert data.train.labels.mean() == pytest.approx(2.701, abs=5e-4)
    assert data.evaluations[0].labels.mean() == pytest.approx(2.364, abs=5e-4)


def test_subsets_are_recognised():
    qnli = load_task(GLUE["qnli"], data_dir=Path(ROOT))
    assert qnli.subset == "train 10,293 of 104,743 rows"
    assert np.bincount(qnli.evaluations[0].labels).tolist() == [2702, 2761]
    mnli = load_task(GLUE["mnli"], data_dir=Path(ROOT))
    assert mnli.subset == "train 23,103 of 392,702 rows, validation_mismatched 1,000 of 9,832 rows"
    assert np.bincount(mnli.evaluations[0].labels).tolist() == [3479, 3123, 3213]
    assert mnli.evaluations[0].name == "validation_matched"


def test_rows_held_out_from_train_do_not_pass_for_qqps_validation():
    with pytest.raises(
        DataError, match=r"^qqp: no split validation .*splits found: heldout_from_train, train"
    ) as caught:
        load_task(GLUE["qqp"], data_dir=Path(ROOT))
    assert "\n" not in str(caught.value)
