"""Keeps mteb and what it uses from talking over the run's own progress."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Generator
from contextlib import contextmanager

import datasets
from transformers.utils import logging as transformers_logging

_LOGGERS = ("mteb", "datasets", "sentence_transformers", "huggingface_hub", "httpx")


@contextmanager
def quiet() -> Generator[None]:
    """Silences their bars, logs and warnings for the block; errors still come through."""
    levels = {name: logging.getLogger(name).level for name in _LOGGERS}
    no_bars = datasets.are_progress_bars_disabled()
    model_bars = transformers_logging.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    transformers_logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"(mteb|sklearn|datasets|scipy)(\.|$)")
        for name in _LOGGERS:
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)
            if not no_bars:
                datasets.enable_progress_bars()
            if model_bars:
                transformers_logging.enable_progress_bar()
