"""`crossbert configs` and `crossbert flops`."""

import argparse
import tomllib

import pytest

from crossbert.commands import configs, flops
from crossbert.config import ModelConfig
from crossbert.scaling import NAMED
from frozenprobe.errors import SettingsError
from frozenprobe.settings import parse


def run(module, *words):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    module.add_arguments(parser)
    module.run(parser.parse_args(list(words)))


@pytest.mark.parametrize("columns", [50, 80, None])
def test_configs_lists_every_run_with_what_is_printed_and_what_is_counted(capsys, monkeypatch, columns):
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", str(columns))
    run(configs)
    out = capsys.readouterr().out
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= (columns or 180)
    assert out.count("│ bert-77m ") == {50: 7, 80: 3, None: 1}[columns]
    for name in NAMED:
        assert name in out
    for text in (
        "1176.29 (1176.29 effective)",
        "5411.7 (5411.76 untied)",
        "1.92e+18 (1.92e+18)",
        "176,106",
        "9.00e-04",
    ):
        assert text in out


@pytest.mark.parametrize("name", ["bert-77m", "crossbert-5412m", "electra-258m"])
def test_a_configuration_is_printed_as_toml_that_reads_back(capsys, name):
    run(configs, name)
    written = tomllib.loads(capsys.readouterr().out)
    assert parse(ModelConfig, written["model"]) == NAMED[name].model


def test_flops_of_a_named_model_and_of_one_described_by_options(capsys, tmp_path):
    run(flops, "crossbert-62m")
    out = capsys.readouterr().out
    for text in ("effective 61.80", "1024 positions for 512 tokens", "4.48e-03", "12,868 steps"):
        assert text in out
    run(flops, "--objective", "bert", "--width", "576", "--layers", "12", "--heads", "9")
    out = capsys.readouterr().out
    assert "total 76.73" in out
    assert "flat BERT" not in out
    file = tmp_path / "model.toml"
    file.write_text("layers = 14\n")
    run(flops, "bert-77m", "--config", str(file), "--width", "640", "--heads", "10")
    assert "total 103.28" in capsys.readouterr().out


SIZE_77M = ["--width", "576", "--layers", "12", "--heads", "9"]


def test_flops_takes_what_train_takes(capsys, tmp_path):
    described = [
        "--width",
        "128",
        "--layers",
        "8",
        "--heads",
        "4",
        "--predictor-layers",
        "2",
        "--sequence-length",
        "256",
    ]
    file = tmp_path / "mine.toml"
    file.write_text('steps = 3\nmodel = "bert-77m"\n')
    plain = tmp_path / "plain.toml"
    plain.write_text("steps = 3\n[optimiser]\nwarmup_steps = 1\n")
    flat = ["--objective", "bert", "--width", "640", "--layers", "15", "--heads", "10"]
    for same in (
        (["--config", "nano"], described),
        (["--config", str(file)], ["bert-77m"]),
        (["--config", str(plain)], []),
        (["crossbert-62m", "--objective", "bert"], flat),
        (["--config", "nano", "--objective", "bert"], ["--objective", "bert", *described[:6], *described[8:]]),
        (["bert-77m", "--objective", "crossbert", "--predictor-layers", "2"], ["--predictor-layers", "2", *SIZE_77M]),
        (["crossbert-62m", "--config", str(file)], ["bert-77m"]),
    ):
        out = []
        for words in same:
            run(flops, *words)
            out.append(capsys.readouterr().out)
        assert out[0] == out[1]
    plain.write_text("steps = 3\nwidth = 64\n")
    with pytest.raises(SettingsError, match=r"unknown setting width; a model's stand under \[model\]"):
        run(flops, "--config", str(plain))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bert-1m"], "known are"),
        (["--config", "nope"], "--config nope: there is no such file; recipes are nano, pico, small, smoke"),
        (["bert-77m", "--heads", "7"], "width 576 over heads 7"),
        (["--mask-ratio", "2"], "--mask-ratio"),
    ],
)
def test_wrong_input_is_one_line(words, message):
    with pytest.raises(SettingsError, match=message):
        run(flops, *words)


def test_options_without_a_fixed_default_promise_none(capsys):
    parser = argparse.ArgumentParser()
    flops.add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    assert "PydanticUndefined" not in capsys.readouterr().out
