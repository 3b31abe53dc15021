"""The bytes of an ITCH stream, compiled: where a message begins, whose it is, and the events of a book as columns."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from quantattn.data.market.rebuild import MISSING
from quantattn.data.schema import DELETE, NEW

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

OK, WRONG_TYPE, WRONG_LENGTH = 0, 1, 2
LATE, FALLS, OTHER_STOCK, NO_STOCK, SIDE, SHARES, NUMBER, STATE = range(1, 9)
"""What is wrong with a message that `decode` stops at, 0 being nothing."""
STOCK, BUYS, AMOUNT, ORDER, NEW_ORDER, PRICE, PRINTABLE, TRADES = range(8)
"""Fields that `decode` knows, columns of its `fields`."""
_DAY = 86_400 * 10**9
_B, _E, _H, _P, _Q, _S, _T, _Y = (ord(letter) for letter in "BEHPQSTY")
_inlined = njit(inline="always")


@njit
def walk(
    data: Bytes,  # (n,) whole messages and the beginning of one more
    lengths: Ints,  # (256,) bytes of a message of each type, 0 where there is no such type
    zeros: bool,  # whether the two bytes before each message are 0 instead of its length
    starts: Ints,  # (n // 14 + 1,) out: where the types stand
) -> tuple[int, int, int]:
    """Returns the number of whole messages, where the next one's length stands, and what is wrong with it."""
    count, at = 0, 0
    while at + 3 <= len(data):
        given = np.int64(data[at]) * 256 + np.int64(data[at + 1])
        length = lengths[data[at + 2]]
        if length == 0:
            return count, at, WRONG_TYPE
        if given != (0 if zeros else length):
            return count, at, WRONG_LENGTH
        if at + 2 + length > len(data):
            break
        starts[count] = at + 2
        count += 1
        at += 2 + length
    return count, at, OK


@njit
def unnamed(
    data: Bytes,  # (n,)
    starts: Ints,  # (m,) where the types stand
    fields: Ints,  # (256, 8) where each field stands in a message of each type; −1 where it has none
    letters: NDArray[np.uint64],  # (65536,) the name that each locate code has, its bytes as a number; 0 is none
    first: int,  # message to begin with
) -> int:
    """The next message that names the stock of a locate code without one, or m."""
    for i in range(first, len(starts)):
        at = starts[i]
        place = fields[data[at], STOCK]
        if place >= 0 and letters[_number(data, at + 1, 2)] == 0:
            return i
    return len(starts)


@njit
def decode(
    data: Bytes,  # (n,)
    starts: Ints,  # (m,) where the types stand
    fields: Ints,  # (256, 8) as in `unnamed`
    wide: Bytes,  # (256,) bytes of the number of shares
    kinds: Bytes,  # (256,) kind of a type's row, 0 where it is no event of a book
    letters: NDArray[np.uint64],  # (65536,) as in `unnamed`
    stocks: NDArray[np.int32],  # (65536,) number of the stock that each locate code is
    halted: NDArray[np.bool_],  # (stocks,) in and out: whether trading is halted
    last: int,  # time of the message before
    times: Ints,  # (m,) out: ns since midnight of every message
    rows: Ints,  # (5, 2m) out, one column an event: stock, time, price, size, order number
    marks: NDArray[np.int8],  # (4, 2m) out: kind, side, printable (−1 not said), halted
) -> tuple[int, int, int]:
    """Returns the number of events, and the message that is wrong with what is wrong, or m and 0.

    A replacement is two events, a deletion and a new order that does not say its side.
    """
    n = 0
    for i in range(len(starts)):
        at = starts[i]
        code = data[at]
        locate = _number(data, at + 1, 2)
        time = _number(data, at + 5, 6)
        times[i] = time
        if time >= _DAY or time < last:
            return n, i, LATE if time >= _DAY else FALLS
        last = time
        if fields[code, STOCK] >= 0 and _unsigned(data, at + fields[code, STOCK]) != letters[locate]:
            return n, i, OTHER_STOCK
        if not kinds[code]:
            continue
        stock = stocks[locate]
        if stock < 0:
            return n, i, NO_STOCK
        side = _side(data, at, fields[code, BUYS])
        size = _field(data, at, fields[code, AMOUNT], wide[code], 0)
        number = _field(data, at, fields[code, ORDER], 8, 0)
        price = _field(data, at, fields[code, PRICE], 4, MISSING)
        if side > 1:
            return n, i, SIDE
        if size < 0:
            return n, i, SHARES
        if number < 0:
            return n, i, NUMBER
        printable = 1 if code in (_E, _P) else -1
        if fields[code, PRINTABLE] >= 0:
            printable = 1 if data[at + fields[code, PRINTABLE]] == _Y else 0
        if fields[code, TRADES] >= 0:
            if not _is_state(data[at + fields[code, TRADES]]):
                return n, i, STATE
            halted[stock] = data[at + fields[code, TRADES]] != _T
        if fields[code, NEW_ORDER] >= 0:
            _put(rows, marks, n, stock, time, MISSING, 0, number, DELETE, 0, -1, halted[stock])
            n += 1
            number = _number(data, at + fields[code, NEW_ORDER], 8)
            if number < 0:
                return n, i, NUMBER
            _put(rows, marks, n, stock, time, price, size, number, NEW, 0, -1, halted[stock])
        else:
            _put(rows, marks, n, stock, time, price, size, number, kinds[code], side, printable, halted[stock])
        n += 1
    return n, len(starts), 0


@_inlined
def _number(data, at, size):
    """Big-endian; a number of 8 bytes from 2^63 on comes out negative."""
    made = np.int64(0)
    for j in range(size):
        made = (made << 8) | np.int64(data[at + j])
    return made


@_inlined
def _field(data, at, place, size, absent):
    return _number(data, at + place, size) if place >= 0 else absent


@_inlined
def _side(data, at, place):
    """1 of a buyer, −1 of a seller, 0 where the message has none, 2 where it is neither."""
    if place < 0:
        return 0
    letter = data[at + place]
    return 1 if letter == _B else -1 if letter == _S else 2


@_inlined
def _is_state(letter):
    return letter in (_H, _P, _Q, _T)


@_inlined
def _unsigned(data, at):
    made = np.uint64(0)
    for j in range(8):
        made = (made << np.uint64(8)) | np.uint64(data[at + j])
    return made


@_inlined
def _put(rows, marks, n, stock, time, price, size, number, kind, side, printable, halted):
    rows[0, n], rows[1, n], rows[2, n], rows[3, n], rows[4, n] = stock, time, price, size, number
    marks[0, n], marks[1, n], marks[2, n], marks[3, n] = kind, side, printable, halted
