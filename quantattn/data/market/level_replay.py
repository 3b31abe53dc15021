"""Changes of price levels applied to a book one after another, compiled by numba.

A side is an array of levels, worst first, in the order of `quantattn.data.market.sides`: keys are prices of bids and
negated prices of asks, so that on both sides the best level is the greatest key and stands last.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from quantattn.data.market.sides import ASK, BID, write_top
from quantattn.data.schema import CLEAR, UPDATE

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

OPEN, CHANGED = 2, 3
"""Places in the state after the numbers of levels: whether there is a book; whether it moved since it was shown."""
ABSENT, UNOPENED, BREAKS, CROSSED, LOCKED = range(5)
"""Places in the tallies, explained at `quantattn.data.market.levels.LevelTally`."""
_NEAR = 4  # levels from the touch that are looked at one by one; the others are found by halving


@njit
def replay_levels(
    kind: NDArray[np.uint8],  # (n,)
    side: NDArray[np.int8],  # (n,)
    price: Ints,  # (n,)
    size: Ints,  # (n,)
    complete: Flags,  # (n,) whether the message ends with this row
    broken: Flags,  # (n,) whether messages are lacking before this row
    forgets: bool,  # whether there is no book from a break on, until one is shipped
    keys: Ints,  # (2, room) levels, room for one more a row
    sizes: Ints,  # (2, room)
    state: Ints,  # (4,) levels of asks and of bids, OPEN, CHANGED
    tallies: Ints,  # (5,)
    shown: Ints,  # (4L, 1) the book after the last message that ended
    out: Ints,  # (4L, n) the same after every row
    start: int,  # rows start … end − 1 are applied
    end: int,
) -> None:
    """Apply rows and write the top of the book as it stood when a message last ended; the state lives on."""
    rows = out.shape[0]
    for i in range(start, end):
        if broken[i]:
            tallies[BREAKS] += 1
            if forgets:
                state[:OPEN] = 0
                state[OPEN], state[CHANGED] = 0, 1
        if kind[i] == CLEAR:
            if side[i] <= 0:
                state[ASK] = 0
            if side[i] >= 0:
                state[BID] = 0
            state[OPEN], state[CHANGED] = 1, 1
        elif kind[i] == UPDATE:
            if not state[OPEN]:
                tallies[UNOPENED] += 1
            else:
                s = BID if side[i] > 0 else ASK
                _set_level(keys, sizes, state, tallies, s, price[i] if s == BID else -price[i], size[i])
                state[CHANGED] = 1
        if complete[i] and state[CHANGED]:
            write_top(keys, sizes, state, shown, 0)
            state[CHANGED] = 0
        if complete[i] and shown[1, 0] and shown[3, 0]:
            tallies[CROSSED] += shown[2, 0] > shown[0, 0]
            tallies[LOCKED] += shown[2, 0] == shown[0, 0]
        for row in range(rows):
            out[row, i] = shown[row, 0]


@njit
def _set_level(keys, sizes, state, tallies, s, key, size):
    place = _place(keys, state[s], s, key)
    stands = place < state[s] and keys[s, place] == key
    if size and stands:
        sizes[s, place] = size
    elif size:
        for j in range(state[s], place, -1):
            keys[s, j], sizes[s, j] = keys[s, j - 1], sizes[s, j - 1]
        keys[s, place], sizes[s, place] = key, size
        state[s] += 1
    elif stands:
        state[s] -= 1
        for j in range(place, state[s]):
            keys[s, j], sizes[s, j] = keys[s, j + 1], sizes[s, j + 1]
    else:
        tallies[ABSENT] += 1


@njit(inline="always")
def _place(keys, count, s, key):
    """Where a key stands or would stand: near the touch step by step, farther off by halving."""
    high = count
    for _ in range(_NEAR):
        if high == 0 or keys[s, high - 1] < key:
            return high
        high -= 1
    low = 0
    while low < high:
        middle = (low + high) // 2
        if keys[s, middle] < key:
            low = middle + 1
        else:
            high = middle
    return low
