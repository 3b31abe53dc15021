"""The bytes of an ITCH stream, compiled: where a message begins, whose it is, and the events of a book as columns.

Bytes are found by unsigned numbers, which need not be compared with 0, so that the compiler makes one load of four.
Writing stands in the loop itself: a function that takes arrays and branches has their references counted by numba.
"""

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
STOCK, BUYS, AMOUNT, ORDER, NEW_ORDER, PRICE, PRINTABLE, TRADES, WIDE, KIND = range(10)
"""Columns of `fields`. WIDE: bytes of the number of shares; KIND: that of the row, 0 of a type without one."""
_DAY = 86_400 * 10**9
_1 = np.uint64(1)
_B, _E, _H, _P, _Q, _S, _T, _Y = (ord(letter) for letter in "BEHPQSTY")


@njit
def walk(
    data: Bytes,  # (n,) whole messages and the beginning of one more
    lengths: Ints,  # (256,) bytes of a message of each type, 0 where there is no such type
    zeros: bool,  # whether the two bytes before each message are 0 instead of its length
    starts: Ints,  # (n // 14 + 1,) out: where the types stand
    codes: Bytes,  # (n // 14 + 1,) out: the types
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
        starts[count], codes[count] = at + 2, data[at + 2]
        count += 1
        at += 2 + length
    return count, at, OK


@njit
def count(
    data: Bytes,  # (n,)
    starts: Ints,  # (m,) where the types stand
    fields: Ints,  # (256, 10) what is known of each type: where its fields stand, or −1, and WIDE and KIND
    letters: NDArray[np.uint64],  # (65536,) the name that each locate code has, its bytes as a number; 0 is none
    events: Ints,  # (65536,) in and out: events of each locate code
    first: int,  # message to begin with
) -> int:
    """The next message that names the stock of a locate code without one, or m; those before it are counted."""
    for i in range(first, len(starts)):
        at = np.uint64(starts[i])
        code, locate = data[at], _two(data, at + _1)
        if fields[code, STOCK] >= 0 and letters[locate] == 0:
            return i
        events[locate] += (fields[code, KIND] > 0) + (fields[code, NEW_ORDER] >= 0)
    return len(starts)


@njit
def decode(
    data: Bytes,  # (n,)
    starts: Ints,  # (m,) where the types stand
    fields: Ints,  # (256, 10) as in `count`
    letters: NDArray[np.uint64],  # (65536,) as in `count`
    stocks: NDArray[np.int32],  # (65536,) number of the stock that each locate code is
    halted: NDArray[np.bool_],  # (stocks,) in and out: whether trading is halted
    places: Ints,  # (stocks,) in and out: where the next event of each stock goes; −1 of those that are not kept
    last: int,  # time of the message before
    seq: int,  # number of the next event
    rows: Ints,  # (5, rows) out, one column an event: time, number, price, size, order number
    marks: NDArray[np.int8],  # (4, rows) out: kind, side, printable (−1 not said), halted
) -> tuple[int, int, int, int]:
    """Returns the message that is wrong with what is wrong, or m and 0, the last time and the next event's number.

    A replacement is two events, a deletion and a new order that does not say its side.
    """
    for i in range(len(starts)):
        at = np.uint64(starts[i])
        code, locate = data[at], _two(data, at + _1)
        time = (_two(data, at + np.uint64(5)) << 32) | _four(data, at + np.uint64(7))
        if time >= _DAY or time < last:
            return i, LATE if time >= _DAY else FALLS, last, seq
        last = time
        if fields[code, STOCK] >= 0 and np.uint64(_eight(data, at + np.uint64(fields[code, STOCK]))) != letters[locate]:
            return i, OTHER_STOCK, last, seq
        if not fields[code, KIND]:
            continue
        stock = stocks[locate]
        if stock < 0:
            return i, NO_STOCK, last, seq
        side, size, number, new, price, printable = 0, 0, 0, 0, MISSING, 1 if code in (_E, _P) else -1
        if fields[code, BUYS] >= 0:
            side = _side(data[at + np.uint64(fields[code, BUYS])])
        if fields[code, AMOUNT] >= 0:
            place = at + np.uint64(fields[code, AMOUNT])
            size = _eight(data, place) if fields[code, WIDE] == 8 else _four(data, place)
        if fields[code, ORDER] >= 0:
            number = _eight(data, at + np.uint64(fields[code, ORDER]))
        if fields[code, NEW_ORDER] >= 0:
            new = _eight(data, at + np.uint64(fields[code, NEW_ORDER]))
        wrong = _wrong(side, size, number, new)
        if wrong:
            return i, wrong, last, seq
        if fields[code, PRICE] >= 0:
            price = _four(data, at + np.uint64(fields[code, PRICE]))
        if fields[code, PRINTABLE] >= 0:
            printable = 1 if data[at + np.uint64(fields[code, PRINTABLE])] == _Y else 0
        if fields[code, TRADES] >= 0:
            letter = data[at + np.uint64(fields[code, TRADES])]
            if letter not in (_H, _P, _Q, _T):
                return i, STATE, last, seq
            halted[stock] = letter != _T
        kind, n = fields[code, KIND], places[stock]
        if n < 0:
            continue
        if fields[code, NEW_ORDER] >= 0:
            rows[0, n], rows[1, n], rows[2, n], rows[3, n], rows[4, n] = time, seq, MISSING, 0, number
            marks[0, n], marks[1, n], marks[2, n], marks[3, n] = DELETE, 0, -1, halted[stock]
            n, seq, number, kind = n + 1, seq + 1, new, NEW
        rows[0, n], rows[1, n], rows[2, n], rows[3, n], rows[4, n] = time, seq, price, size, number
        marks[0, n], marks[1, n], marks[2, n], marks[3, n] = kind, side, printable, halted[stock]
        places[stock], seq = n + 1, seq + 1
    return len(starts), 0, last, seq


@njit
def _side(letter):
    """1 of a buyer, −1 of a seller, 2 of neither."""
    return 1 if letter == _B else -1 if letter == _S else 2


@njit
def _wrong(side, size, number, new):
    """What is wrong with the values of a message, 0 being nothing."""
    if side > 1:
        return SIDE
    return SHARES if size < 0 else NUMBER if number < 0 or new < 0 else 0


@njit
def _two(data, at):
    """A big-endian number of two bytes."""
    return (np.int64(data[at]) << 8) | np.int64(data[at + _1])


@njit
def _four(data, at):
    upper = (np.int64(data[at]) << 24) | (np.int64(data[at + _1]) << 16)
    return upper | (np.int64(data[at + np.uint64(2)]) << 8) | np.int64(data[at + np.uint64(3)])


@njit
def _eight(data, at):
    """From 2^63 on it comes out negative."""
    return (_four(data, at) << 32) | _four(data, at + np.uint64(4))
