"""The terminal: one line for wrong input, what was asked for otherwise."""

import json
import subprocess
import sys

import pytest

from crossbert.checkpoint import checkpoints
from crossbert.cli import COMMANDS, main
from crossbert.recipes import read_recipe
from crossbert.scaling import NAMED
from frozenprobe.errors import SettingsError


def code_of(*argv):
    with pytest.raises(SystemExit) as exit_:
        main([str(word) for word in argv])
    return exit_.value.code


def test_prepare_then_train_from_the_terminal(tiny_config, tmp_path, capsys):
    data = tmp_path / "data"
    options = ("--builtin", 100, "--train-tokenizer", 400, "--validation-share", 0.1)
    assert code_of("prepare", *options, "--out", data, "--quiet") == 0
    printed = capsys.readouterr()
    manifest = json.loads((data / "manifest.json").read_text())
    assert f"train: {manifest['documents']['train']} documents, {manifest['tokens']['train']:,} tokens" in printed.out
    assert "characters a token" in printed.out
    assert printed.err == ""
    changes = ("--set", f"data.folder={data}", "data.batch=4", "--set", "steps=6")
    assert code_of("train", "--config", tiny_config, *changes, "--out", tmp_path / "run") == 0
    printed = capsys.readouterr()
    assert printed.out.strip().endswith("step-6")
    assert "step 6/6" in printed.err
    assert [path.name for path in checkpoints(tmp_path / "run")] == ["step-6"]
    settings = json.loads((tmp_path / "run" / "run.json").read_text())["settings"]
    assert (settings["data"]["folder"], settings["data"]["batch"], settings["steps"]) == (str(data), 4, 6)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["prepare", "--out", "x"], "exactly one of text, hub and builtin"),
        (["prepare", "--text", "absent.txt", "--out", "x"], "absent.txt: no such file or folder"),
        (["prepare", "--builtin", "0", "--out", "x"], "--builtin: "),
        (
            ["train", "--config", "absent.toml"],
            "absent.toml: there is no such file; recipes are nano, pico, small, smoke",
        ),
        (["train", "--config", "smoke", "--set", "data.folder=absent"], "absent is not prepared data"),
        (["train", "--config", "smoke", "--set", "model.name=huge"], "there is no configuration 'huge'"),
        (
            ["train", "--config", "smoke", "--set", "model.name=[1]"],
            "model.name: the name of a configuration (got [1])",
        ),
        (["train", "--config", "smoke", "--set", "model.name=[1]", "model.objective=bert"], "model.name: "),
        (["train", "--config", "smoke", "--set", "data.folder=2024"], "data.folder: "),
        (["train", "--config", "smoke", "--set", "data.folder=2024-01-01"], "data.folder: "),
        (["train", "--config", "smoke", "--set", "data.folder=true"], "data.folder: "),
        (["sweep", "--config", "smoke", "--set", "data.folder=2024", "--dry-run"], "data.folder: "),
        (["sweep", "--set", "config=1,2", "--dry-run"], "config: a file or a name (got 1)"),
        (["configs", "nope"], "there is no configuration 'nope'"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(argv, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert code_of(*argv) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert list(tmp_path.iterdir()) == []


def test_every_command_explains_itself(capsys):
    for command in COMMANDS:
        assert code_of(command, "--help") == 0
        assert "usage: crossbert" in capsys.readouterr().out


def test_help_needs_no_torch():
    code = "import sys, crossbert.cli\ntry: crossbert.cli.main(['--help'])\nexcept SystemExit: pass\n"
    code += "assert not {'torch', 'transformers', 'datasets'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_a_folder_hides_no_recipe(tiny_data, tmp_path, monkeypatch):
    changes = [f"data.folder={tiny_data}"]
    expected = read_recipe("smoke", changes)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smoke").mkdir()
    assert read_recipe("smoke", changes) == expected
    (tmp_path / "mine").mkdir()
    with pytest.raises(SettingsError, match=r"^--config mine: .*Is a directory"):
        read_recipe("mine", changes)


@pytest.mark.parametrize("recipe", ["smoke", "pico", "nano", "small", *NAMED])
def test_every_recipe_is_valid(recipe, tiny_data):
    settings = read_recipe(recipe, [f"data.folder={tiny_data}"])
    assert settings.model.vocabulary == 401
    assert settings.optimiser.warmup_steps < settings.steps


def test_the_papers_runs_see_its_number_of_positions(tiny_data):
    for name, objective in (("crossbert-279m", "crossbert"), ("bert-239m", "bert"), ("electra-258m", "electra")):
        settings = read_recipe(name, [f"data.folder={tiny_data}"])
        views = 2 if objective == "crossbert" else 1
        assert settings.data.batch * settings.model.sequence_length * views == 393_216
        assert settings.steps == 130_000
        assert settings.optimiser.learning_rate == 6e-4
        assert settings.model.objective == objective
    assert read_recipe("crossbert-62m", [f"data.folder={tiny_data}"]).data.batch == 440


def test_a_named_configuration_is_the_base_that_fields_change(tiny_config):
    name = next(iter(NAMED))
    settings = read_recipe(tiny_config, [f"model.name={name}", "model.width=64"])
    assert settings.model.width == 64
    assert settings.model.objective == NAMED[name].model.objective
