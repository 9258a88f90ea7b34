import pytest

from frozenprobe.errors import SettingsError
from frozenprobe.settings import GlueSettings, parse


def settings(**values):
    return parse(GlueSettings, {"encoder": {"ckpt": "x"}, **values})


def test_text_is_read_like_python_values():
    typed = settings(tasks="cola, rte", features={"layers": "-1,0,-2"}, probes={"regimes": "10,1", "max_train": "100"})
    assert typed.tasks == ("cola", "rte")
    assert typed.features.layers == ("last", 0, -2)
    assert typed.probes.regimes == (1, 10)
    assert typed.probes.max_train == 100


def test_the_papers_sweep_is_the_default():
    ridge = settings().probes.ridge
    assert (ridge.lambda_min, ridge.lambda_max, ridge.lambdas) == (1.0, 1e4, 13)
    assert settings().probes.knn.ks == (1, 3, 10, 30)
    assert settings().probes.max_train == 10_000


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"bogus": 1}, "unknown setting bogus; allowed are encoder, features"),
        ({"probes": {"ridge": {"lamda": 1}}}, "unknown setting probes.ridge.lamda; allowed are lambda_min"),
        ({"features": {"layers": "x"}}, "features.layers: 'x' is no layer; allowed are all, last and numbers"),
        ({"probes": {"max_train": 0}}, "probes.max_train: should be greater than or equal to 1 or should be 'all'"),
        ({"probes": {"ridge": {"lambda_min": 10, "lambda_max": 1}}}, "lambda_max 1 is below lambda_min 10"),
        ({"probes": {"ridge": {"intercept": False}}}, "eq. 3 as printed"),
        ({"features": {"poolings": ""}}, "features.poolings: "),
        ({"encoder": {}}, "encoder.ckpt is required"),
        ({"encoder": {"ckpt": ""}}, "encoder.ckpt: "),
        ({"probes": 3}, "probes: "),
    ],
)
def test_a_wrong_value_is_one_line_that_says_what_is_allowed(values, message):
    with pytest.raises(SettingsError) as error:
        settings(**values)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_settings_do_not_change():
    with pytest.raises(ValueError, match="frozen"):
        settings().tasks = ("cola",)
