"""Messages applied to a book one after another, compiled by numba.

Levels stand as `quantattn.data.market.sides` has them, orders in an open-addressed table with one row (id, key, size,
side) each, of which one of size 0 is free. A block of messages goes over the orders first, which tells the moves of
levels, and then over the levels. Functions that take arrays are short, leave at one place and are not inlined by numba:
then the compiler sees that references to arrays need no counting, which took more than half of the time (58 ns a
message where one loop of inlined functions took 135).
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from quantattn.data.market.rebuild import MISSING
from quantattn.data.market.sides import ASK, BID, compare, insert_level, place_of, remove_level, write_top
from quantattn.data.schema import CLEAR, DELETE, EXECUTE, NEW

Ints = NDArray[np.int64]
Bytes = NDArray[np.int8]

ORDERS = 2
"""Place of the number of orders among the counts, after those of levels."""

REUSED, UNKNOWN, UNPLACED, OVERDRAWN, CONTRADICTING = range(5)
"""Places in the tallies, explained at `quantattn.data.market.rebuild.Tally`."""

BLOCK = 256
"""Messages whose moves are kept at once, and are still in the nearest cache when levels move."""
ADD, TAKE, TAKE_NAMELESS, EMPTY = range(4)
"""What a move does to a level; EMPTY is for all of them."""

_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio: consecutive numbers land far apart


@njit
def replay(
    kind: NDArray[np.uint8],  # (n,)
    side: Bytes,  # (n,) in and out: a 0 becomes the side of the order, where it is known
    price: Ints,  # (n,) in and out: MISSING becomes the price of the order, where it is known
    size: Ints,  # (n,) in and out: 0 in a deletion becomes what was left of the order
    order_id: Ints,  # (n,)
    table: Ints,  # (2^k, 4) orders
    keys: Ints,  # (2, room) levels
    totals: Ints,  # (2, room) shares at each level
    nameless: Ints,  # (2, room) of these, shares of orders whose arrival was not seen
    counts: Ints,  # (3,) levels of asks and of bids, orders
    tallies: Ints,  # (5,)
    window: int,  # levels a side that the feed tells of; 0 is all
    shown: Ints,  # (4 · window, n) the shipped book to fill from and compare with, or (0, 0)
    out: Ints,  # (4L, n) price and size of ask and bid, level by level; an empty level is 0, 0
    filled: NDArray[np.uint8],  # (n,) levels taken from `shown`
    differs: NDArray[np.bool_],  # (n,) whether the levels that were not taken from `shown` differ from it
    start: int,  # rows start … end − 1 are applied
    end: int,
    first: int,  # the row that begins the book, which `shown` opens, or −1
) -> int:
    """Apply messages and write the top of the book after each; every other argument stays as it is between calls.

    Returns the row that was reached: `end`, or one before which `table` or the levels lack room for more.
    """
    moves, upto = np.empty((2 * BLOCK, 4), np.int64), np.empty(BLOCK, np.int64)
    while start < end:
        stop = min(start + BLOCK, end)
        if lacks_room(keys, counts, window):
            return start
        reached: int = _orders(
            *(kind, side, price, size, order_id, table, counts, tallies, window),
            *(start, stop, first, moves, upto),
        )
        _levels(
            *(keys, totals, nameless, counts, tallies, window, shown, out, filled, differs),
            *(start, reached, first, moves, upto),
        )
        start = reached
        if reached < stop:
            return reached
    return end


@njit
def lacks_room(keys, counts, window):
    """Whether a block may bring more levels than there are places."""
    return max(counts[ASK], counts[BID]) + BLOCK + window + 1 > keys.shape[1]


@njit
def _orders(kind, side, price, size, order_id, table, counts, tallies, window, start, stop, first, moves, upto):
    """Apply messages to the orders that stand; returns the row that was reached.

    `moves` (2 · BLOCK, 4) gets what, side, key and shares of each change of a level, and `upto` (BLOCK,) how many
    there are up to a message and with it.
    """
    mask, standing, n = len(table) - 1, counts[ORDERS], 0
    for i in range(start, stop):
        if 2 * (standing + 1) > len(table):
            counts[ORDERS] = standing
            return i
        if NEW <= kind[i] <= EXECUTE:
            row = _slot(order_id[i], mask)
            while table[row, 2] and table[row, 0] != order_id[i]:
                row = (row + 1) & mask
            had = left = table[row, 2]
            if kind[i] == NEW:
                if side[i] == 0 and i > 0 and i != first and kind[i - 1] == DELETE:
                    side[i] = side[i - 1]  # a replacement that does not say its side again
                if side[i] == 0:
                    tallies[UNPLACED] += 1
                else:
                    if had:  # the same message twice, as a rule: what stood under the number goes
                        tallies[REUSED] += 1
                        n = _note(moves, n, TAKE, table[row, 3], table[row, 1], had)
                    s, left = _side(side[i]), size[i]
                    key = _key(s, price[i])
                    if left:
                        table[row, 0], table[row, 1], table[row, 3] = order_id[i], key, s
                        n = _note(moves, n, ADD, s, key, left)
            elif not had:
                tallies[UNKNOWN] += 1
                if side[i] == 0 or price[i] == MISSING:
                    tallies[UNPLACED] += 1
                else:
                    s = _side(side[i])
                    n = _note(moves, n, TAKE_NAMELESS, s, _key(s, price[i]), size[i])
            else:
                key, s = table[row, 1], table[row, 3]
                own = 1 if s == BID else -1
                taken, fault = _taken(kind[i], size[i], side[i] == -own, had, window)
                if fault >= 0:
                    tallies[fault] += 1
                side[i] = own if side[i] == 0 else side[i]
                price[i] = _key(s, key) if price[i] == MISSING else price[i]
                size[i] = taken if size[i] == 0 and kind[i] == DELETE else size[i]
                left = 0 if kind[i] == DELETE else max(had - taken, 0)
                n = _note(moves, n, TAKE, s, key, taken)
            table[row, 2] = left
            standing += (left > 0) - (had > 0)
            if had and not left:
                _close(table, row)
        elif kind[i] == CLEAR:
            for row in range(len(table) if standing else 0):  # one by one, which compiles faster than a slice
                table[row, 2] = 0
            standing = 0
            n = _note(moves, n, EMPTY, 0, 0, 0)
        upto[i - start] = n
    counts[ORDERS] = standing
    return stop


@njit
def _taken(kind, size, contradicts, had, window):
    """Shares that a message takes from an order of `had`, and the tally that it belongs to, or −1."""
    amount = size if size or kind != DELETE else had
    fault = OVERDRAWN if amount > had else -1
    if contradicts or (kind == DELETE and amount != had):
        fault = CONTRADICTING
    # Beyond a window messages went unseen, and the newest one is right; otherwise the book is.
    if not window and (amount > had or kind == DELETE):
        amount = had
    return amount, fault


@njit
def _levels(
    keys, totals, nameless, counts, tallies, window, shown, out, filled, differs, start, end, first, moves, upto
):
    """Apply moves of levels, message by message, and write the top of the book after each."""
    n = 0
    for i in range(start, end):
        full_asks, full_bids = counts[ASK] == window, counts[BID] == window
        while n < upto[i - start]:
            what, s, key, amount = moves[n, 0], moves[n, 1], moves[n, 2], moves[n, 3]
            n += 1
            if what == EMPTY:
                counts[ASK] = counts[BID] = 0
                continue
            place = place_of(keys, counts[s], s, key)
            stands = place < counts[s] and keys[s, place] == key
            if what == ADD:
                if not stands:
                    insert_level(keys, totals, nameless, counts, s, place, key)
                totals[s, place] += amount
                continue
            taken = 0
            if stands:
                taken = min(amount, totals[s, place] if what == TAKE else nameless[s, place])
                totals[s, place] -= taken
                if what == TAKE:
                    nameless[s, place] = min(nameless[s, place], totals[s, place])
                else:
                    nameless[s, place] -= taken
                if totals[s, place] == 0:
                    remove_level(keys, totals, nameless, counts, s, place)
            if what == TAKE_NAMELESS:
                tallies[UNPLACED] += taken < amount or amount == 0
        if window:
            compare(
                *(keys, totals, nameless, counts, window, shown, filled, differs, i, i == first, full_asks, full_bids)
            )
        write_top(keys, totals, counts, out, i)


@njit
def grow(table: Ints, larger: Ints) -> None:
    """Move every order into a larger table whose rows are all free."""
    mask = len(larger) - 1
    for row in range(len(table)):
        if table[row, 2]:
            free = _slot(table[row, 0], mask)
            while larger[free, 2]:
                free = (free + 1) & mask
            for j in range(4):  # one by one, which compiles faster than a row
                larger[free, j] = table[row, j]


@njit
def _side(sign):
    return BID if sign > 0 else ASK


@njit
def _key(s, price):
    """Of a price, and the price of a key."""
    return price if s == BID else -price


@njit
def _slot(order_id, mask):
    mixed = np.uint64(order_id) * np.uint64(_GOLDEN)
    return np.int64((mixed >> np.uint64(32)) & np.uint64(mask))


@njit
def _note(moves, n, what, s, key, amount):
    moves[n, 0], moves[n, 1], moves[n, 2], moves[n, 3] = what, s, key, amount
    return n + 1


@njit
def _close(table, row):
    """Move the orders after a freed row that would no longer be found (Knuth, volume 3, 6.4, algorithm R)."""
    mask = len(table) - 1
    here = (row + 1) & mask
    while table[here, 2]:
        home = _slot(table[here, 0], mask)
        if ((here - home) & mask) >= ((here - row) & mask):
            for j in range(4):
                table[row, j] = table[here, j]
            table[here, 2] = 0
            row = here
        here = (here + 1) & mask
