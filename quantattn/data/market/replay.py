"""Messages applied to a book one after another, compiled: the only file that imports numba.

A side is an array of price levels, worst first, so that what happens at the touch moves few numbers. Keys are prices
of bids and negated prices of asks: on both sides the best level is the greatest key and stands last. Orders stand in
an open-addressed table with one row (id, key, size, side) each; a row of size 0 is free.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from quantattn.data.market.rebuild import MISSING
from quantattn.data.schema import CLEAR, DELETE, EXECUTE, NEW

Ints = NDArray[np.int64]
Bytes = NDArray[np.int8]

ASK, BID = 0, 1
ORDERS = 2
"""Place of the number of orders among the counts, after those of levels."""

REUSED, UNKNOWN, UNPLACED, OVERDRAWN, CONTRADICTING = range(5)
"""Places in the tallies, explained at `quantattn.data.market.rebuild.Tally`."""

_inlined = njit(inline="always")  # measured: 15 % of the whole, and less to compile

_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio: consecutive numbers land far apart


@njit
def replay(
    kind: NDArray[np.uint8],  # (n,)
    side: Bytes,  # (n,) in and out: a 0 becomes the side of the order, where it is known
    price: Ints,  # (n,) in and out: MISSING becomes the price of the order, where it is known
    size: Ints,  # (n,) in and out: 0 in a deletion becomes what was left of the order
    order_id: Ints,  # (n,)
    table: Ints,  # (2^k, 4) orders; at least twice as many rows as orders will stand at once
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
    opens: bool,  # whether row `start` begins a book, which `shown` opens
) -> None:
    """Apply messages and write the top of the book after each; every other argument stays as it is between calls."""
    for i in range(start, end):
        full_asks, full_bids = counts[ASK] == window, counts[BID] == window
        if kind[i] == NEW:
            if side[i] == 0 and i > (start if opens else 0) and kind[i - 1] == DELETE:
                side[i] = side[i - 1]  # a replacement that does not say its side again
            if side[i] == 0:
                tallies[UNPLACED] += 1
            else:
                _add(table, keys, totals, nameless, counts, tallies, side[i], price[i], size[i], order_id[i])
        elif NEW < kind[i] <= EXECUTE:
            _take(table, keys, totals, nameless, counts, tallies, kind, side, price, size, order_id, i, window)
        elif kind[i] == CLEAR:
            _clear(table, counts)
        if window:
            for s in (ASK, BID):
                while counts[s] > window:
                    _remove_level(keys, totals, nameless, counts, s, 0)
        if len(shown):
            if opens and i == start:
                filled[i] = _open(keys, totals, nameless, counts, shown, i)
            else:
                filled[i] = _fill(keys, totals, nameless, counts, shown, i, full_asks, full_bids)
                differs[i] = _differs(keys, totals, counts, shown, i)
                if differs[i]:
                    _open(keys, totals, nameless, counts, shown, i)
        write_top(keys, totals, counts, out, i)


@_inlined
def write_top(keys, totals, counts, out, i):
    """Write the best levels of both sides into column i of `out` (4L, n); an empty level is 0, 0."""
    for s in (ASK, BID):
        for level in range(out.shape[0] // 4):
            place = counts[s] - 1 - level
            row = 4 * level + 2 * s
            if place >= 0:
                out[row, i] = keys[s, place] if s == BID else -keys[s, place]
                out[row + 1, i] = totals[s, place]
            else:
                out[row, i] = 0
                out[row + 1, i] = 0


@njit
def grow(table: Ints, larger: Ints) -> None:
    """Move every order into a larger table whose rows are all free."""
    for row in range(len(table)):
        if table[row, 2]:
            larger[_find(larger, table[row, 0])] = table[row]


@njit
def _clear(table, counts):
    """Leave no order and no level."""
    if counts[ORDERS]:
        table[:, 2] = 0
    counts[:] = 0


@njit
def _add(table, keys, totals, nameless, counts, tallies, side, price, size, order_id):
    row = _find(table, order_id)
    if table[row, 2]:  # the same message twice, as a rule: what stood under the number goes
        tallies[REUSED] += 1
        _shrink(keys, totals, nameless, counts, table[row, 3], table[row, 1], table[row, 2], True)
        _forget(table, row)
        counts[ORDERS] -= 1
        row = _find(table, order_id)
    if size == 0:
        return
    s = BID if side > 0 else ASK
    key = price if s == BID else -price
    table[row, 0], table[row, 1], table[row, 2], table[row, 3] = order_id, key, size, s
    counts[ORDERS] += 1
    place = _place(keys, counts, s, key)
    if place == counts[s] or keys[s, place] != key:
        _insert_level(keys, totals, nameless, counts, s, place, key)
    totals[s, place] += size


@njit
def _take(table, keys, totals, nameless, counts, tallies, kind, side, price, size, order_id, i, window):
    row = _find(table, order_id[i])
    left = table[row, 2]
    if not left:
        tallies[UNKNOWN] += 1
        s = BID if side[i] > 0 else ASK
        key = price[i] if s == BID else -price[i]
        known = side[i] != 0 and price[i] != MISSING
        taken = _shrink(keys, totals, nameless, counts, s, key, size[i], False) if known else 0
        tallies[UNPLACED] += taken < size[i] or size[i] == 0
        return
    s, key = table[row, 3], table[row, 1]
    own_side = 1 if s == BID else -1
    own_price = key if s == BID else -key
    amount = size[i] if size[i] or kind[i] != DELETE else left
    if (kind[i] == DELETE and amount != left) or (side[i] != 0 and side[i] != own_side):
        tallies[CONTRADICTING] += 1
    elif amount > left:
        tallies[OVERDRAWN] += 1
    # Beyond a window messages went unseen, and the newest one is right; otherwise the book is.
    if not window and (amount > left or kind[i] == DELETE):
        amount = left
    if side[i] == 0:
        side[i] = own_side
    if price[i] == MISSING:
        price[i] = own_price
    if size[i] == 0:
        size[i] = amount if kind[i] == DELETE else 0
    _shrink(keys, totals, nameless, counts, s, key, amount, True)
    if amount >= left or kind[i] == DELETE:
        _forget(table, row)
        counts[ORDERS] -= 1
    else:
        table[row, 2] = left - amount


@_inlined
def _shrink(keys, totals, nameless, counts, s, key, amount, named):
    """Take shares from a level, those of no name last if `named` and alone if not; returns how many were there."""
    place = _place(keys, counts, s, key)
    if place == counts[s] or keys[s, place] != key:
        return 0
    amount = min(amount, totals[s, place] if named else nameless[s, place])
    totals[s, place] -= amount
    if named:
        nameless[s, place] = min(nameless[s, place], totals[s, place])
    else:
        nameless[s, place] -= amount
    if totals[s, place] == 0:
        _remove_level(keys, totals, nameless, counts, s, place)
    return amount


@_inlined
def _place(keys, counts, s, key):
    """Where a key stands or would stand. Most are near the touch, so the search begins there."""
    place = counts[s]
    while place and keys[s, place - 1] >= key:
        place -= 1
    return place


@_inlined
def _insert_level(keys, totals, nameless, counts, s, place, key):
    for j in range(counts[s], place, -1):
        keys[s, j], totals[s, j], nameless[s, j] = keys[s, j - 1], totals[s, j - 1], nameless[s, j - 1]
    keys[s, place], totals[s, place], nameless[s, place] = key, 0, 0
    counts[s] += 1


@_inlined
def _remove_level(keys, totals, nameless, counts, s, place):
    counts[s] -= 1
    for j in range(place, counts[s]):
        keys[s, j], totals[s, j], nameless[s, j] = keys[s, j + 1], totals[s, j + 1], nameless[s, j + 1]


@_inlined
def _slot(table, order_id):
    mixed = np.uint64(order_id) * np.uint64(_GOLDEN)
    return np.int64((mixed >> np.uint64(32)) & np.uint64(len(table) - 1))


@_inlined
def _find(table, order_id):
    """The row of an order, or the free row where it would go."""
    row = _slot(table, order_id)
    while table[row, 2] and table[row, 0] != order_id:
        row = (row + 1) & (len(table) - 1)
    return row


@_inlined
def _forget(table, row):
    """Free a row and move those after it that would no longer be found (Knuth, volume 3, 6.4, algorithm R)."""
    mask = len(table) - 1
    table[row, 2] = 0
    here = row
    while True:
        here = (here + 1) & mask
        if not table[here, 2]:
            return
        home = _slot(table, table[here, 0])
        if ((here - home) & mask) >= ((here - row) & mask):
            for j in range(4):
                table[row, j] = table[here, j]
            table[here, 2] = 0
            row = here


@njit
def _shown(shown, s, level, i):
    row = 4 * level + 2 * s
    return (shown[row, i] if s == BID else -shown[row, i]), shown[row + 1, i]


@njit
def _open(keys, totals, nameless, counts, shown, i):
    """Let the book be the shipped one; returns the number of levels that were not there or not as large."""
    taken = 0
    for s in (ASK, BID):
        n = 0
        for level in range(len(shown) // 4):
            n += _shown(shown, s, level, i)[1] > 0
        for level in range(n):
            key, size = _shown(shown, s, level, i)
            place = _place(keys, counts, s, key)
            had = totals[s, place] if place < counts[s] and keys[s, place] == key else 0
            taken += had != size
        for level in range(n):
            keys[s, n - 1 - level], totals[s, n - 1 - level] = _shown(shown, s, level, i)
            nameless[s, n - 1 - level] = totals[s, n - 1 - level]
        counts[s] = n
    return taken


@njit
def _fill(keys, totals, nameless, counts, shown, i, full_asks, full_bids):
    """Where a message emptied a level of a full window, take the one that came into view; returns how many came."""
    taken = 0
    for s in (ASK, BID):
        if not (full_bids if s == BID else full_asks):
            continue
        for level in range(len(shown) // 4):
            key, size = _shown(shown, s, level, i)
            if counts[s] < len(shown) // 4 and size > 0 and (counts[s] == 0 or key < keys[s, 0]):
                _insert_level(keys, totals, nameless, counts, s, 0, key)
                totals[s, 0] = nameless[s, 0] = size
                taken += 1
    return taken


@njit
def _differs(keys, totals, counts, shown, i):
    for s in (ASK, BID):
        for level in range(len(shown) // 4):
            key, size = _shown(shown, s, level, i)
            place = counts[s] - 1 - level
            if place < 0:
                if size > 0:
                    return True
            elif keys[s, place] != key or totals[s, place] != size:
                return True
    return False
