import argparse

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from crossbert.commands import fit as command
from crossbert.fit import fit_power_law, keep_best, read_sweep
from crossbert.scaling import LAWS
from frozenprobe.errors import DataError, SettingsError

LAW = LAWS["crossbert"]


def sweep(seed=0):
    """Runs around the paper's own laws: the loss is the distance from the best learning rate and batch size."""
    generator = np.random.default_rng(seed)
    rows = []
    for compute in (1e17, 1e18, 1e19):
        for _ in range(40):
            rate, batch = 10 ** generator.uniform(-4, -1.5), 10 ** generator.uniform(4, 6.7)
            off = np.log(rate / LAW.learning_rate(compute)) ** 2 + np.log(batch / LAW.batch(compute)) ** 2
            rows.append({"model": f"m{compute:.0e}", "compute": compute, "learning_rate": rate})
            rows[-1] |= {"batch_tokens": batch, "loss": 3 + off}
        for rate in (0.8, 1.0, 1.25):  # what a finer grid would hold
            best = {"learning_rate": rate * LAW.learning_rate(compute), "batch_tokens": LAW.batch(compute)}
            rows.append({"model": f"m{compute:.0e}", "compute": compute, "loss": 3.01, **best})
    return pd.DataFrame(rows).sample(frac=1, random_state=seed)


def run(*words):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    command.run(parser.parse_args([str(word) for word in words]))


def test_a_fit_is_the_regression_of_logarithms():
    generator = np.random.default_rng(0)
    x = 10 ** generator.uniform(17, 21, 12)
    y = 300 * x**-0.25 * np.exp(generator.normal(0, 0.2, 12))
    expected = stats.linregress(np.log(x), np.log(y))
    fit = fit_power_law(x, y)
    assert np.isclose(fit.law.exponent, expected.slope)
    assert np.isclose(fit.law.coefficient, np.exp(expected.intercept))
    assert np.isclose(fit.standard_error, expected.stderr)
    assert np.isclose(fit.r2, expected.rvalue**2)
    assert fit.runs == 12


def test_two_points_are_a_line_without_an_error():
    fit = fit_power_law(np.array([1e18, 1e20]), np.array([1e-3, 1e-4]))
    assert np.isclose(fit.law.exponent, -0.5)
    assert fit.standard_error is None
    assert fit_power_law(np.array([1e18, 1e19, 1e20]), np.ones(3)).r2 is None
    with pytest.raises(DataError, match="two different amounts"):
        fit_power_law(np.array([1e18, 1e18]), np.array([1e-3, 1e-4]))


def test_the_best_of_each_model_are_kept_and_diverged_runs_never():
    frame = pd.DataFrame(
        {"model": list("aaaabb"), "loss": [3.0, np.nan, 1.0, 2.0, np.inf, 5.0], "compute": 1.0, "learning_rate": 1.0}
    )
    assert keep_best(frame, 2).index.tolist() == [2, 3, 5]
    assert keep_best(frame, 9).index.tolist() == [0, 2, 3, 5]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_the_command_finds_the_laws_of_a_sweep(tmp_path, capsys, suffix):
    file = tmp_path / f"sweep.{suffix}"
    frame = sweep()
    if suffix == "csv":
        frame.to_csv(file, index=False)
    elif suffix == "jsonl":
        frame.to_json(file, orient="records", lines=True)
    else:
        frame.to_parquet(file)
    best = keep_best(read_sweep(file), 3)
    assert len(best) == 9
    assert abs(fit_power_law(best["compute"], best["learning_rate"]).law.exponent + 0.279) < 0.05
    assert abs(fit_power_law(best["compute"], best["batch_tokens"]).law.exponent - 0.092) < 0.05
    run(file)
    out = capsys.readouterr().out
    assert "9 of 129 runs kept: the best 3 of each of 3 models" in out
    assert "learning_rate = " in out
    run(file, "--top", 1)
    assert "3 of 129 runs kept" in capsys.readouterr().out


def test_without_a_column_model_runs_are_grouped_by_compute(tmp_path):
    file = tmp_path / "sweep.csv"
    sweep().drop(columns="model").to_csv(file, index=False)
    assert len(keep_best(read_sweep(file), 3)) == 9


def test_runs_without_a_name_are_grouped_by_compute(tmp_path):
    file = tmp_path / "sweep.jsonl"
    for empty in ("", None):
        frame = sweep()
        frame["model"] = frame["model"].where(frame["compute"] > 1e18, empty)
        frame.to_json(file, orient="records", lines=True)
        best = keep_best(read_sweep(file), 3)
        assert sorted(best["model"].unique()) == ["1.00e+17", "1.00e+18", "m1e+19"]
        assert len(best) == 9
    file.write_text('{"compute": 1, "learning_rate": 1, "batch_tokens": 1, "loss": 1, "model": ["a"]}\n')
    with pytest.raises(DataError, match=r"model of row 1 is \['a'\], not a name"):
        run(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("compute,learning_rate,loss\n1,1,1\n", "lacks the column batch_tokens"),
        ("compute,learning_rate,batch_tokens,loss\n1e18,nan,1e5,3\n", "learning_rate of row 1"),
        ("compute,learning_rate,batch_tokens,loss\n1e18,1e-3,1e5,3\n-1,1e-3,1e5,3\n", "compute of row 2"),
        ("compute,learning_rate,batch_tokens,loss\n1e18,high,1e5,3\n", "'high'"),
        ("compute,learning_rate,batch_tokens,loss\n1e18,1e-3,1e5,nan\n", "no run with a finite loss"),
        ("compute,learning_rate,batch_tokens,loss\n1e18,1e-3,1e5,3\n", "two different amounts"),
        ("", "cannot be read"),
    ],
)
def test_a_sweep_that_cannot_be_fitted_is_one_line(tmp_path, content, message):
    file = tmp_path / "sweep.csv"
    file.write_text(content)
    with pytest.raises(DataError, match=message):
        run(file)


def test_impossible_options(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        run(tmp_path / "absent.csv")
    with pytest.raises(DataError, match="is read from"):
        run(tmp_path / "sweep.xlsx")
    with pytest.raises(SettingsError, match="--top"):
        run(tmp_path / "absent.csv", "--top", 0)


def test_figure_7_is_drawn_or_the_extra_is_named(tmp_path):
    file = tmp_path / "sweep.csv"
    sweep().to_csv(file, index=False)
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        with pytest.raises(SettingsError, match=r"frozenprobe\[plots\]"):
            run(file, "--plot", tmp_path / "figure.png")
        return
    run(file, "--plot", tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    with pytest.raises(SettingsError, match="cannot be written"):
        run(file, "--plot", tmp_path / "no/figure.png")
