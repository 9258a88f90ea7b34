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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[probes]\nlambda = 3\n", "unknown setting probes.lambda; allowed are regimes, draws, max_train"),
        (
            '[settings]\nsuite = "builtin"\n',
            "what --help lists under settings stands at the top of the file, in no section",
        ),
    ],
)
def test_what_a_config_file_may_not_hold_says_what_is_allowed(content, message, capsys, tmp_path):
    config = tmp_path / "run.toml"
    config.write_text(f'{content}[encoder]\nckpt = "x"\n')
    code, output = run(capsys, "glue", "--out", "r", "--config", str(config))
    assert code == 2
    assert message in output.err


def test_help_lists_every_setting_with_its_default(capsys):
    code, output = run(capsys, "glue", "--help")
    assert code == 0
    for word in ("--ridge-lambda-min", "(default 1.0)", "--knn-backend {torch,faiss}", "--max-train", "--no-cache"):
        assert word in output.out


def test_help_and_bare_command_import_nothing_heavy():
    code = "import sys; from frozenprobe.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    code += "assert not {'torch', 'transformers', 'pandas', 'pydantic', 'mteb'} & set(sys.modules), 'heavy import'"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
