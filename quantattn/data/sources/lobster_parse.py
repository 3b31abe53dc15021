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
    decimals: NDArray[np.int8],  # (room,) out: digits after the point of a time
) -> int:
    """Returns the number of lines, or −1 when one of them is no row of plain digits in the right number of columns.

    A line ends with a character that is no digit, so that no number looks for the end of the data. In one function,
    which numba makes twice as fast as one a field.
    """
    at, row, columns = 0, 0, out.shape[0]
    while at < len(data):
        for column in range(columns):
            in_time = timed and column == 0
            negative = not in_time and data[at] == _MINUS
            if negative:
                at += 1
            first, value = at, np.int64(0)
            digit = np.int64(data[at]) - 48
            while 0 <= digit <= 9:
                value = value * 10 + digit
                at += 1
                digit = np.int64(data[at]) - 48
            if at == first or at > first + (5 if in_time else _LONGEST):
                return -1
            if in_time:
                after = 0
                if data[at] == _POINT:
                    at += 1
                    first = at
                    digit = np.int64(data[at]) - 48
                    while 0 <= digit <= 9:
                        value = value * 10 + digit
                        at += 1
                        digit = np.int64(data[at]) - 48
                    after = at - first
                    if after == 0 or after > 9:
                        return -1
                for _ in range(after, 9):
                    value *= 10
                decimals[row] = after
            out[column, row] = -value if negative else value
            if column < columns - 1:
                if data[at] != _COMMA:
                    return -1
                at += 1
        at += data[at] == _CR
        if data[at] != _LF:
            return -1
        at += 1
        row += 1
    return row
