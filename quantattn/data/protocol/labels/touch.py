"""Which of two prices is reached first within a horizon."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quantattn.data.protocol.labels.reasons import Int8Array, any_within, first_reason
from quantattn.data.protocol.labels.stretch import Ahead, Stretch

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_PIECE = 1 << 18
"""Rows searched at a time, which bounds the memory of the tables of maxima."""


@dataclass(frozen=True)
class Touch:
    """What came first; all (R,).

    Attributes:
        side: 1 the upper price, −1 the lower, 0 neither.
        end: ns UTC: the moment of the touch, or the end of the horizon.
        reason: why there is no answer, by number in `REASONS`; −1 where there is one.
    """

    side: Int8Array
    end: Int64Array
    reason: Int8Array


def first_touch(
    stretch: Stretch,
    ahead: Ahead,
    past: Int64Array,
    up: tuple[Int64Array, Int64Array | None],
    down: tuple[Int64Array, Int64Array | None],
    unusable: BoolArray,
    other: dict[str, BoolArray],
) -> Touch:
    """Search (row, ahead.last] of every event for the first price at or beyond a bound of its own.

    What ends the search, a touch or the horizon, is the end of the interval; nothing later has a say. So a row that
    touches has its answer even where the session, or a halt, cuts its horizon short afterwards: unless the calendar
    tells at the decision that it will, when the row is left out whatever happens. A row that cannot be used ends the
    search too, with its reason and without an answer.

    Args:
        stretch: events.
        ahead: their horizons.
        past: rows (past, row] were looked at as well, and must be usable.
        up: (R,) prices that may rise, and the bounds at or above which they touch; None for no bound.
        down: the same for falls: at or below. Both within one row: down.
        unusable: (R,) rows without a price.
        other: further reasons that the past gives.
    """
    size, prices = len(stretch), stretch.prices
    rise = _first(up[0], up[1], ahead.last, 1)
    fall = _first(down[0], down[1], ahead.last, -1)
    touched = np.minimum(rise, fall)
    stop = _next(prices.halted | prices.crossed | unusable)
    blocked = stop <= np.minimum(touched, ahead.last)
    none = (touched == size) & ~blocked
    side = np.where(none, 0, np.where(fall <= rise, -1, 1)).astype(np.int8)
    to = np.where(blocked, stop, np.minimum(touched, ahead.last))
    no_data = other.get("no data", np.zeros(size, np.bool_))
    hits = {
        "session end": ahead.foreseen | (none & ahead.ended),
        "halt": any_within(prices.halted, past, to),
        "crossed book": any_within(prices.crossed, past, to),
        "no data": any_within(unusable, past, to) | (none & ahead.unknown) | no_data,
    }
    return Touch(side, np.where(none, ahead.end, stretch.time[to]), first_reason(size, {**other, **hits}))


def _next(flag: BoolArray) -> Int64Array:
    """(R,) the first row after each one on which the flag is set, R where there is none."""
    size = len(flag)
    at = np.where(flag, np.arange(size, dtype=np.int64), size)
    following = np.minimum.accumulate(at[::-1])[::-1]
    return np.append(following[1:], size)


def _first(values: Int64Array, bound: Int64Array | None, last: Int64Array, way: int) -> Int64Array:
    if bound is None:
        return np.full(len(values), len(values), np.int64)
    return first_reaching(way * values, last, way * bound)


def first_reaching(values: Int64Array, last: Int64Array, bound: Int64Array) -> Int64Array:
    """(R,) the first row j of (row, last] with values[j] ≥ bound[row], R where there is none.

    Maxima of 1, 2, 4 … values let a row step over whole blocks that stay below its bound: O(R log max(last − row)).
    """
    size = len(values)
    found = np.full(size, size, np.int64)
    for first in range(0, size, _PIECE):
        rows = np.arange(first, min(first + _PIECE, size))
        to = last[rows]
        window = values[first : int(to.max()) + 1]
        at = _walk(window, rows - first, to - first, bound[rows]) + first
        found[rows] = np.where(at <= to, at, size)
    return found


def _walk(values: Int64Array, row: Int64Array, to: Int64Array, bound: Int64Array) -> Int64Array:
    """The first place after `row` that reaches the bound, or a place beyond `to`."""
    maxima = [values]
    for level in range(1, int((to - row).max()).bit_length()):
        half, below = 1 << (level - 1), maxima[-1]
        merged = below.copy()
        np.maximum(below[:-half], below[half:], out=merged[:-half])
        maxima.append(merged)
    at, end = row + 1, len(values) - 1
    for level in reversed(range(len(maxima))):
        step = 1 << level
        clear = (at + step - 1 <= to) & (maxima[level][np.minimum(at, end)] < bound)
        at = np.where(clear, at + step, at)
    return at
