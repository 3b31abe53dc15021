"""What Lightning says of itself."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def lightning_quiet() -> Iterator[None]:
    """Leave out what Lightning says about workers, tips and its own defaults; its other warnings stand."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*does not have many workers.*")
        # Lightning 2.6.6 asks a question that torch 2.13 wants put differently.
        warnings.filterwarnings("ignore", message=".*treespec, LeafSpec.*")
        # Figures are the same on all ranks before they are logged.
        warnings.filterwarnings("ignore", message=".*when logging on epoch level in distributed setting.*")
        # The new name is not known to all versions of torch that are supported.
        warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
