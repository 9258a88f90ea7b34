import subprocess
import sys

from frozenprobe.tasks import DEFAULT_TASKS, GLUE


def test_headline_metrics_and_splits_are_the_papers():
    headline = {name: (spec.metrics[0], spec.evaluation_splits[0]) for name, spec in GLUE.items()}
    assert headline == {
        "mnli": ("accuracy", "validation_matched"),
        "qnli": ("accuracy", "validation"),
        "qqp": ("accuracy", "validation"),
        "rte": ("accuracy", "validation"),
        "sst2": ("accuracy", "validation"),
        "mrpc": ("accuracy", "validation"),
        "cola": ("matthews", "validation"),
        "stsb": ("pearson", "validation"),
        "wnli": ("accuracy", "validation"),
    }
    assert {name: spec.metrics[1:] for name, spec in GLUE.items() if len(spec.metrics) > 1} == {
        "qqp": ("f1",),
        "mrpc": ("f1",),
        "cola": ("accuracy",),
        "stsb": ("spearman",),
    }
    assert GLUE["mnli"].evaluation_splits == ("validation_matched", "validation_mismatched")


def test_default_is_the_eight_tasks_in_the_papers_column_order():
    titles = [GLUE[name].title for name in DEFAULT_TASKS]
    assert titles == ["MNLI", "QNLI", "QQP", "RTE", "SST-2", "MRPC", "CoLA", "STS-B"]


def test_every_scored_split_has_a_published_size():
    assert all(set(spec.published_rows) == {"train", *spec.evaluation_splits} for spec in GLUE.values())


def test_positive_class_of_f1_is_id_one():
    assert GLUE["mrpc"].classes[1] == "equivalent"
    assert GLUE["qqp"].classes[1] == "duplicate"


def test_tasks_import_neither_torch_nor_datasets():
    script = (
        "import sys, frozenprobe.tasks; print([m for m in ('torch', 'datasets', 'transformers') if m in sys.modules])"
    )
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert finished.stdout.strip() == "[]"
