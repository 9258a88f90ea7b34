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
    "settings",
    "ranks",
    "metrics",
    "statistics",
    "encoders",
    "features",
    "probes",
    "tasks",
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
    "records": {"encoders", "features", "tasks"},
    "reports": {"encoders", "features", "tasks", "engine"},
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


def test_tables_are_read_without_torch():
    code = "import sys, frozenprobe.reports.console, frozenprobe.reports.csv, frozenprobe.reports.mteb, frozenprobe.tasks.registry\n"
    code += "assert not {'torch', 'transformers', 'datasets', 'mteb'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_file_is_two_rooms():
    long = {str(file): lines for file in ROOT.rglob("*.py") if (lines := len(file.read_text().splitlines())) > 420}
    assert not long
