"""Plain lines of LOBSTER's files as integers, compiled: the common case of `lobster_rows`, which judges all others."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quantattn.data.kernel import kernel

_LONGEST = 18  # digits that always fit into 64 bits
_ONE = np.uint64(1)
_DAY = 86_400 * 10**9
_EMPTY_LEVEL = 9_999_999_999
_NEW, _HIDDEN, _HALT = 1, 5, 7
_COMMA, _POINT, _MINUS, _CR, _LF = (ord(letter) for letter in ",.-\r\n")


@kernel
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


@kernel
def lines(data: NDArray[np.uint8]) -> int:
    """How many lines end in these bytes."""
    count = 0
    for at in range(len(data)):
        count += int(data[at] == _LF)
    return count


@kernel
def judge(
    message: NDArray[np.int64],  # (6, n) ns, kind, order_id, size, price, side
    decimals: NDArray[np.int8],  # (n,)
    book: NDArray[np.int64],  # (4L, n)
    found: NDArray[np.int64],  # (5,) out: most and fewest decimals, new orders, strangers, line of the first of them
) -> bool:
    """Whether no row breaks a rule of `lobster_rows`; and the facts of `lobster_notes`, which are sums otherwise."""
    found[0], found[1], found[2], found[3], found[4] = 0, 9, 0, 0, -1
    before = np.int64(0)
    for row in range(message.shape[1]):
        ns, kind, size, price, side = (
            message[0, row],
            message[1, row],
            message[3, row],
            message[4, row],
            message[5, row],
        )
        good = before <= ns < _DAY and _NEW <= kind <= _HALT and size >= 0
        good = good and (side == 1 or side == -1 or (side == 0 and kind >= _HIDDEN))
        if not (good and (-1 <= price <= 1 if kind == _HALT else price > 0)):
            return False
        before = ns
        shown = False
        for place in range(0, book.shape[0], 4):
            ask, bid = book[place, row], book[place + 2, row]
            if (ask <= 0 and ask != -_EMPTY_LEVEL) or (bid <= 0 and bid != -_EMPTY_LEVEL):
                return False
            if book[place + 1, row] < 0 or book[place + 3, row] < 0:
                return False
            shown = shown or price == (bid if side == 1 else ask)
        found[0], found[1] = max(found[0], decimals[row]), min(found[1], decimals[row])
        if kind == _NEW:
            found[2] += 1
            if not shown:
                found[3] += 1
                found[4] = row if found[4] < 0 else found[4]
    return True
