"""Plain lines of LOBSTER's files as integers, compiled: the common case of `lobster_rows`, which judges all others."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

_LONGEST = 18  # digits that always fit into 64 bits
_COMMA, _POINT, _MINUS, _CR, _LF = (ord(letter) for letter in ",.-\r\n")


@njit
def parse(
    data: NDArray[np.uint8],  # (n,) lines without their header, of which the last has its end
    timed: bool,  # whether the first field is seconds after midnight in decimals
    out: NDArray[np.int64],  # (columns, room) out: integers; of a time its ns. n // (2 · columns) lines have room
    decimals: NDArray[np.int64],  # (room,) out: digits after the point of a time
) -> int:
    """Returns the number of lines, or −1 when one of them is no row of plain digits in the right number of columns."""
    at, row = 0, 0
    while at < len(data):
        for column in range(out.shape[0]):
            if timed and column == 0:
                out[0, row], decimals[row], at = _time(data, at)
            else:
                out[column, row], at = _integer(data, at)
            if at < 0:
                return -1
            if column < out.shape[0] - 1:
                if data[at] != _COMMA:
                    return -1
                at += 1
        if data[at] == _CR:
            at += 1
        if data[at] != _LF:
            return -1
        at += 1
        row += 1
    return row


# A line ends with a character that is no digit, so that no number needs to look for the end of the data.


@njit
def _time(data, at):
    """Nanoseconds, digits after the point, and where the time ends; −1 where it is no plain one."""
    first, value, digits = at, np.int64(0), 0
    digit = np.int64(data[at]) - 48
    while 0 <= digit <= 9:
        value = value * 10 + digit
        at += 1
        digit = np.int64(data[at]) - 48
    if at == first or at > first + 5:
        return value, digits, -1
    if data[at] == _POINT:
        at += 1
        first = at
        digit = np.int64(data[at]) - 48
        while 0 <= digit <= 9:
            value = value * 10 + digit
            at += 1
            digit = np.int64(data[at]) - 48
        digits = at - first
        if digits == 0 or digits > 9:
            return value, digits, -1
    for _ in range(digits, 9):
        value *= 10
    return value, digits, at


@njit
def _integer(data, at):
    """An integer, and where it ends; −1 where it is no plain one."""
    negative = data[at] == _MINUS
    if negative:
        at += 1
    first, value = at, np.int64(0)
    digit = np.int64(data[at]) - 48
    while 0 <= digit <= 9:
        value = value * 10 + digit
        at += 1
        digit = np.int64(data[at]) - 48
    if at == first or at > first + _LONGEST:
        return value, -1
    return -value if negative else value, at
