"""How loops are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def kernel(function: Callable[..., Any]) -> Any:
    """The function compiled by numba, once for all processes: kept beside the module or in the user's cache.

    Only for one that calls no function of another file, since numba looks for changes in its own alone. Numbers go
    round and are divided as numpy does it. Where neither folder can be written, every process compiles anew.
    """
    made = njit(nogil=True, error_model="numpy")(function)
    try:
        made.enable_caching()
    except RuntimeError:
        return made
    return made
