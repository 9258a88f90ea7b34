"""Every command in README.md and docs/: the views of records run as they stand, all others up to their work.

What their work does is tested beside it; here it is that the commands, options and values in the documents exist and fit together.
"""

import re
import shlex
import shutil
from glob import glob
from importlib import import_module
from pathlib import Path

import pytest

import frozenprobe
from crossbert.cli import main as crossbert_main
from crossbert.settings import PrepareSettings
from frozenprobe.cli.main import main
from tests.reports.runs import glue_run

ROOT = Path(frozenprobe.__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINE = re.compile(r"^ {4}(?:torchrun \S+ \d+ -m )?((?:frozenprobe|crossbert) .*)$", re.MULTILINE)
INLINE = re.compile(r"`((?:frozenprobe|crossbert) [a-z]+ [^`]*)`")
RUNS = [
    f"runs/{name}" for name in ("minilm", "mpnet", "random", "step-1000", "step-2000", "step-3000", "mine", "a", "b")
]
RUNS += ["runs/mine/frozen/step-500", "scores/a/step-1000"]
VIEWS = {"compare", "leaderboard", "report", "plot", "show"}
# Where a command has read all that was typed, and its work begins.
WORK = {
    ("frozenprobe", "glue"): ["frozenprobe.suites.glue.run_glue"],
    ("frozenprobe", "mteb"): ["frozenprobe.suites.mteb.run.run_mteb", "frozenprobe.suites.mteb.run.forecast"],
    ("frozenprobe", "sweep"): ["frozenprobe.suites.sweep.run_sweep"],
    ("frozenprobe", "pool"): ["frozenprobe.contrastive.run.run_pooling"],
    ("frozenprobe", "mine"): ["frozenprobe.contrastive.mining.run_mining"],
    ("crossbert", "prepare"): ["crossbert.prepare.prepare"],
    ("crossbert", "train"): ["crossbert.train.train"],
    ("crossbert", "sweep"): ["crossbert.sweep.plan"],
    ("crossbert", "export"): ["crossbert.export.export"],
}


def commands():
    found = {}
    for page in PAGES:
        text = page.read_text()
        whole = [line for line in INLINE.findall(text) if "--out" in line or line.split()[1] in VIEWS]
        for line in [*LINE.findall(text), *whole]:
            words = shlex.split(line, comments=True)
            if "..." not in words:
                found.setdefault(" ".join(words), pytest.param(words, id=f"{page.name}: {' '.join(words)}"))
    return list(found.values())


COMMANDS = commands()


class BegunError(Exception):
    """A command has come to its work."""


def begin(*_, **__):
    raise BegunError


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("documents")
    for i, name in enumerate(RUNS):
        glue_run(folder / name, 0.2 + 0.1 * i, seed=i)
    settings = PrepareSettings(builtin=150, train_tokenizer=401, validation_share=0.1)
    import_module("crossbert.prepare").prepare(settings, folder / "data" / "builtin")
    for name in ("mine", "dclm"):
        shutil.copytree(folder / "data" / "builtin", folder / "data" / name)
    page = (ROOT / "docs" / "leaderboard.md").read_text()
    (folder / "costs.toml").write_text(re.search(r"# costs.toml\n((?: +\S.*\n)+)", page)[1])
    return folder


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_of_the_documents_stands(words, records, monkeypatch):
    monkeypatch.chdir(records)
    monkeypatch.setenv("FROZENPROBE_CACHE", str(records / "cache"))
    program, command, *_ = words
    run = main if program == "frozenprobe" else crossbert_main
    for name in WORK.get((program, command), ()):
        module, _, function = name.rpartition(".")
        monkeypatch.setattr(import_module(module), function, begin)
    with pytest.raises(BegunError if (program, command) in WORK else SystemExit) as stopped:
        run([path for word in words[1:] for path in (sorted(glob(word)) if "*" in word else ()) or [word]])
    if stopped.type is SystemExit:
        assert stopped.value.code == 0


def test_every_command_is_in_the_documents():
    named = {tuple(parameter.values[0][:2]) for parameter in COMMANDS}
    assert set(WORK) <= named
    assert {("frozenprobe", view) for view in VIEWS} <= named
