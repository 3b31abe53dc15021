"""Plain lines of LOBSTER's files as integers, compiled: the common case of `lobster_rows`, which judges all others."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

_LONGEST = 18  # digits that always fit into 64 bits
_ONE = np.uint64(1)
_COMMA, _POINT, _MINUS, _CR, _LF = (ord(letter) for letter in ",.-\r\n")


@njit(nogil=True)
def parse(
    data: NDArray[np.uint8],  # (n,) lines without their header, of which the last has its end
    timed: bool,  # whether the first field is seconds after midnight in decimals
    first_row: int,  # where in `out` the lines go
    out: NDArray[np.int64],  # (columns, lines) out: integers; of a time its ns
    decimals: NDArray[np.int8],  # (lines,) out: digits after the point of a time
) -> int:
    """Returns the number of lines, or −1 when one of them is no row of plain digits in the right number of columns.

    A line ends with a character that is no digit, so that no number looks for the end of the data. In one function,
    which numba makes twice as fast as one a field, and with places in `data` that are unsigned and so need not be
    compared with 0 (41 ns a row of both files instead of 69).
    """
    at, row, columns = np.uint64(0), first_row, out.shape[0]
    while at < np.uint64(len(data)):
        for column in range(columns):
            in_time = timed and column == 0
            negative = not in_time and data[at] == _MINUS
            if negative:
                at += _ONE
            first, value = at, np.int64(0)
            digit = np.int64(data[at]) - 48
            while 0 <= digit <= 9:
                value = value * 10 + digit
                at += _ONE
                digit = np.int64(data[at]) - 48
            if at == first or at - first > np.uint64(5 if in_time else _LONGEST):
                return -1
            if in_time:
                after = np.int64(0)
                if data[at] == _POINT:
                    at += _ONE
                    first = at
                    digit = np.int64(data[at]) - 48
                    while 0 <= digit <= 9:
                        value = value * 10 + digit
                        at += _ONE
                        digit = np.int64(data[at]) - 48
                    after = np.int64(at - first)
                    if after == 0 or after > 9:
                        return -1
                for _ in range(after, 9):
                    value *= 10
                decimals[row] = after
            out[column, row] = -value if negative else value
            if column < columns - 1:
                if data[at] != _COMMA:
                    return -1
                at += _ONE
        at += np.uint64(data[at] == _CR)
        if data[at] != _LF:
            return -1
        at += _ONE
        row += 1
    return row - first_row
