"""When loops that numba compiles pay: it is an extra, and loading it takes as long as numpy needs for many rows."""

from __future__ import annotations

import importlib.util

FROM_ROWS = 2**23
"""Rows that features, moves or tokens were asked for in one process, from which on what is compiled is loaded: that
takes half a second, as long as two million events take without it, and seven where it is compiled for the first
time."""
_asked = 0


def pays(rows: int) -> bool:
    """Whether to work on these rows with compiled loops; what this process asked for before counts too.

    Both ways give the same bits, so that nothing but the time hangs on it.
    """
    global _asked
    _asked += rows
    return _asked >= FROM_ROWS and importlib.util.find_spec("numba") is not None
