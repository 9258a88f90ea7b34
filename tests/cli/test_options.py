import subprocess
import sys

import pytest

from frozenprobe.cli.main import main


def run(capsys, *argv):
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    return exit_.value.code, capsys.readouterr()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--out", "r"], "frozenprobe: --ckpt is required\n"),
        (["--ckpt", "x"], "frozenprobe: --out DIR is required"),
        (["--ckpt", "x", "--out", "r", "--layers", "-1,x"], "frozenprobe: --layers: 'x' is no layer"),
        (["--ckpt", "x", "--out", "r", "--ridge-lambdas", "0"], "frozenprobe: --ridge-lambdas: should be greater"),
        (["--ckpt", "x", "--out", "r", "--dtype", "fp8"], "frozenprobe: --dtype: should be 'fp32', 'bf16' or 'fp16'"),
        (["--ckpt", "x", "--dry-run", "--unfrozen"], "frozenprobe: --dry-run estimates forward passes"),
        (["--ckpt", "x", "--out", "r", "--finetune-epochs", "0"], "frozenprobe: --finetune-epochs: should be greater"),
        (["--ckpt", "x", "--out", "r", "--finetune-seeds", "0,0"], "frozenprobe: --finetune-seeds: every seed stands"),
        (["--ckpt", "x", "--out", "r", "--config", "missing.toml"], "frozenprobe: --config missing.toml: "),
    ],
)
def test_wrong_options_are_one_line_and_exit_2(capsys, argv, message):
    code, output = run(capsys, "glue", *argv)
    assert code == 2
    assert output.err.startswith(message)
    assert output.err.count("\n") == 1


def test_an_unknown_key_in_a_config_file_says_what_is_allowed(capsys, tmp_path):
    config = tmp_path / "run.toml"
    config.write_text('[encoder]\nckpt = "x"\n[probes]\nlambda = 3\n')
    code, output = run(capsys, "glue", "--out", "r", "--config", str(config))
    assert code == 2
    assert "unknown setting probes.lambda; allowed are regimes, draws, max_train" in output.err


def test_the_group_settings_is_no_section_of_a_config_file(capsys, tmp_path):
    config = tmp_path / "run.toml"
    config.write_text('[settings]\nsuite = "builtin"\n[encoder]\nckpt = "x"\n')
    code, output = run(capsys, "glue", "--out", "r", "--config", str(config))
    assert code == 2
    assert "what --help lists under settings stands at the top of the file, in no section" in output.err


def test_help_lists_every_setting_with_its_default(capsys):
    code, output = run(capsys, "glue", "--help")
    assert code == 0
    for word in ("--ridge-lambda-min", "(default 1.0)", "--knn-backend {torch,faiss}", "--max-train", "--no-cache"):
        assert word in output.out


def test_help_and_bare_command_import_nothing_heavy():
    code = "import sys; from frozenprobe.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    code += "assert not {'torch', 'transformers', 'pandas', 'pydantic', 'mteb'} & set(sys.modules), 'heavy import'"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
