"""Silence for the training libraries: their logs and progress bars could hold decoded text."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import datasets
import transformers

_NOISY_LOGGERS = ("transformers", "trl", "peft", "accelerate", "datasets", "torch")


@contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings, logs and progress bars: they can hold decoded text."""
    loggers = [logging.getLogger(name) for name in _NOISY_LOGGERS]
    levels = [logger.level for logger in loggers]
    bars = (
        transformers.utils.logging.is_progress_bar_enabled(),
        datasets.utils.logging.is_progress_bar_enabled(),
    )
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        transformers.utils.logging.disable_progress_bar()
        datasets.utils.logging.disable_progress_bar()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if bars[0]:
            transformers.utils.logging.enable_progress_bar()
        if bars[1]:
            datasets.utils.logging.enable_progress_bar()
