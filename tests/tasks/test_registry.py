import pytest

from frozenprobe.errors import DataError
from frozenprobe.tasks import load, resolve


def test_defaults_and_order():
    assert [spec.name for spec in resolve(None)] == ["mnli", "qnli", "qqp", "rte", "sst2", "mrpc", "cola", "stsb"]
    assert [spec.name for spec in resolve(["STS-B", "wnli", "CoLA", "cola"])] == ["cola", "stsb", "wnli"]
    assert {spec.suite for spec in resolve(None, "builtin")} == {"built-in"}


@pytest.mark.parametrize(
    ("names", "suite", "message"),
    [
        (["cola", "mrcp"], "glue", "unknown task 'mrcp'; allowed are mnli, .* did you mean mrpc"),
        (["xyzzy"], "glue", r"unknown task 'xyzzy'; allowed are .*wnli$"),
        (["builtin-sentiment"], "glue", "task of the suite builtin"),
        (["cola"], "builtin", "task of the suite glue"),
        ([], "glue", "no task is named"),
        (None, "mteb", "unknown suite"),
    ],
)
def test_unknown_names_say_what_is_allowed(names, suite, message):
    with pytest.raises(DataError, match=message):
        resolve(names, suite)


def test_load_dispatches_on_the_suite(tmp_path):
    (spec,) = resolve(["builtin-similarity"], "builtin")
    assert load(spec, seed=3).revision.endswith("seed 3")
    (cola,) = resolve(["cola"])
    with pytest.raises(DataError, match="no folder"):
        load(cola, data_dir=tmp_path)
