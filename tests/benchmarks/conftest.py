"""What the tests of pre-training have prepared serves here too."""

from tests.crossbert.conftest import tiny_data

__all__ = ["tiny_data"]
