"""Work on several threads at once: as many as polars has, whose number the variable POLARS_MAX_THREADS sets.

Only work that gives the same bits alone and beside other work comes here, so that their number decides nothing but the
time. What is worth it is compiled and lets go of the interpreter: polars, large arrays of numpy, hashes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TypeVar

import polars as pl

Given = TypeVar("Given")
Made = TypeVar("Made")

LEAST_ROWS = 2**16
"""Rows of a table of events for which a thread of its own pays."""


def each(work: Callable[[Given], Made], given: Sequence[Given]) -> list[Made]:
    """What `work` makes of each, in the order of `given`; with one thread, one after the other.

    Must not be called by what polars runs: its threads would be waited for by one of them.

    Raises:
        Exception: the one that the first of `given` to fail raises.
    """
    threads = min(pl.thread_pool_size(), len(given))
    if threads < 2:
        return [work(one) for one in given]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, given))


def spans(rows: int, least: int) -> list[tuple[int, int]]:
    """Half-open ranges that part 0 … rows − 1: as many as there are threads, of at least `least` rows each."""
    parts = max(1, min(pl.thread_pool_size(), rows // least))
    edges = [rows * part // parts for part in range(parts + 1)]
    return list(pairwise(edges))
