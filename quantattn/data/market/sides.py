"""The two sides of a book as arrays of price levels, and a shipped book held against them; compiled by numba.

A side stands worst level first, so that what happens at the touch moves few numbers. Keys are prices of bids and
negated prices of asks: on both sides the best level is the greatest key and stands last.
"""

from __future__ import annotations

from numba import njit

ASK, BID = 0, 1


@njit
def place_of(keys, count, s, key):
    """Where a key stands or would stand. Most are near the touch, so the search begins there."""
    place = count
    while place and keys[s, place - 1] >= key:
        place -= 1
    return place


@njit
def insert_level(keys, totals, nameless, counts, s, place, key):
    """Make room for a level without shares before the one at `place`."""
    for j in range(counts[s], place, -1):
        keys[s, j], totals[s, j], nameless[s, j] = keys[s, j - 1], totals[s, j - 1], nameless[s, j - 1]
    keys[s, place], totals[s, place], nameless[s, place] = key, 0, 0
    counts[s] += 1


@njit
def remove_level(keys, totals, nameless, counts, s, place):
    """Close the gap that a level leaves."""
    counts[s] -= 1
    for j in range(place, counts[s]):
        keys[s, j], totals[s, j], nameless[s, j] = keys[s, j + 1], totals[s, j + 1], nameless[s, j + 1]


@njit
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
def compare(keys, totals, nameless, counts, window, shown, filled, differs, i, opens, full_asks, full_bids):
    """Forget levels out of view, fill from the shipped book, and hold the book against it."""
    for s in (ASK, BID):
        while counts[s] > window:
            remove_level(keys, totals, nameless, counts, s, 0)
    if opens:
        filled[i] = _open(keys, totals, nameless, counts, shown, i)
    else:
        filled[i] = _fill(keys, totals, nameless, counts, shown, i, full_asks, full_bids)
        differs[i] = _differs(keys, totals, counts, shown, i)
        if differs[i]:
            _open(keys, totals, nameless, counts, shown, i)


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
            place = place_of(keys, counts[s], s, key)
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
                insert_level(keys, totals, nameless, counts, s, 0, key)
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


@njit
def _shown(shown, s, level, i):
    row = 4 * level + 2 * s
    return (shown[row, i] if s == BID else -shown[row, i]), shown[row + 1, i]
