"""Every command of docs/leaderboard.md runs as it stands there."""

import re
import shlex
from pathlib import Path

import pytest

import frozenprobe
from frozenprobe.cli.main import main
from tests.reports.runs import glue_run

PAGE = Path(frozenprobe.__file__).parent.parent / "docs" / "leaderboard.md"
COMMANDS = re.findall(r"^    frozenprobe (.*)$", PAGE.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs")
    for i, name in enumerate(("minilm", "mpnet", "random", "step-1000", "step-2000", "step-3000")):
        glue_run(folder / "runs" / name, 0.2 + 0.1 * i, seed=i)
    costs = re.search(r"# costs.toml\n((?: +\S.*\n)+)", PAGE.read_text())[1]
    (folder / "costs.toml").write_text(costs)
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_runs(command, folder, monkeypatch):
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as exit_:
        main(shlex.split(command))
    assert exit_.value.code == 0


def test_the_page_names_every_command():
    assert {command.split()[0] for command in COMMANDS} == {"compare", "leaderboard", "report", "plot"}
