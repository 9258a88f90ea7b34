"""Keeps mteb and what it uses from talking over the run's own progress."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Generator
from contextlib import contextmanager

import datasets

_LOGGERS = ("mteb", "datasets", "sentence_transformers", "huggingface_hub", "httpx")


@contextmanager
def quiet() -> Generator[None]:
    """Silences their bars, logs and warnings for the block; errors still come through."""
    levels = {name: logging.getLogger(name).level for name in _LOGGERS}
    bars = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"(mteb|sklearn|datasets|scipy)(\.|$)")
        for name in _LOGGERS:
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)
            if not bars:
                datasets.enable_progress_bars()
