"""The packages import only downwards, and the light ones stay light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import frozenprobe

ROOT = Path(frozenprobe.__file__).parent
# From the ground up. A package may import those before it, and itself.
LAYERS = [
    "errors",
    "files",
    "settings",
    "ranks",
    "metrics",
    "statistics",
    "encoders",
    "features",
    "probes",
    "tasks",
    "contrastive",
    "records",
    "engine",
    "reports",
    "suites",
    "callbacks",
    "cli",
]
# Siblings that must not know each other although one stands above the other.
FORBIDDEN = {
    "features": {"metrics", "statistics"},
    "probes": {"encoders", "features"},
    "tasks": {"encoders", "features", "probes"},
    "records": {"encoders", "features", "tasks", "contrastive"},
    "reports": {"encoders", "features", "tasks", "contrastive", "engine"},
}


def imports_of(file):
    for node in ast.walk(ast.parse(file.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            yield name.split(".")


@pytest.mark.parametrize("package", LAYERS)
def test_a_package_imports_only_from_those_below_it(package):
    files = (ROOT / package).rglob("*.py") if (ROOT / package).is_dir() else [ROOT / f"{package}.py"]
    allowed = set(LAYERS[: LAYERS.index(package) + 1]) - FORBIDDEN.get(package, set())
    for file in files:
        for name in imports_of(file):
            assert name[0] != "crossbert", f"{file} imports crossbert"
            if name[0] == "frozenprobe" and len(name) > 1:
                assert name[1] in allowed, f"{file} imports {'.'.join(name)}"


def test_the_source_that_exported_checkpoints_carry_needs_only_torch_and_transformers():
    names = {name[0] for name in imports_of(ROOT.with_name("crossbert") / "modeling_crossbert.py")}
    assert names == {"torch", "transformers"}


def test_tables_are_read_without_torch():
    modules = [f"frozenprobe.reports.{file.stem}" for file in (ROOT / "reports").glob("[a-z]*.py")]
    code = f"import sys, {', '.join(modules)}, frozenprobe.tasks.registry\n"
    code += "assert not {'torch', 'transformers', 'datasets', 'mteb'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_file_is_two_rooms():
    files = [*ROOT.rglob("*.py"), *ROOT.with_name("crossbert").rglob("*.py")]
    long = {str(file): lines for file in files if (lines := len(file.read_text().splitlines())) > 420}
    assert not long


def test_contrastive_knows_neither_mteb_nor_glue():
    for file in (ROOT / "contrastive").rglob("*.py"):
        for name in imports_of(file):
            assert name[0] != "mteb", f"{file} imports mteb"
            assert name[:3] not in (["frozenprobe", "tasks", "glue"], ["frozenprobe", "tasks", "registry"]), file
