"""The features of `book_features`, compiled: event after event what `feature_blocks` does column after column."""

from __future__ import annotations

import math

import numpy as np

from quantattn.data.kernel import kernel
from quantattn.data.market.arrays import UNKNOWN
from quantattn.data.market.feature_blocks import SQUARE_UNIT, SQUARES_IN_ONE
from quantattn.data.schema import EXECUTE


@kernel
def _order_flow(a_0, q_a0, b_0, q_b0, a, q_a, b, q_b):
    """Prices and sizes of ask and bid, before and now; 0 where a size that counts is not known."""
    comes_b, goes_b, comes_a, goes_a = b >= b_0, b <= b_0, a <= a_0, a >= a_0
    if (comes_b and q_b == UNKNOWN) or (goes_b and q_b0 == UNKNOWN):
        return np.int64(0)
    if (comes_a and q_a == UNKNOWN) or (goes_a and q_a0 == UNKNOWN):
        return np.int64(0)
    bought = (q_b if comes_b else 0) - (q_b0 if goes_b else 0)
    return bought - (q_a if comes_a else 0) + (q_a0 if goes_a else 0)


@kernel
def walk(
    columns,  # (n,) each, of `book_arrays`: time, kind, side, size, then price and size of ask and bid
    before,  # row to begin with, a window before `first` or 0
    first,
    last,  # rows first … last − 1 are filled
    mid,  # of the last usable book before `before`, and its spread; anything where a run begins there
    spread,
    runs,  # (R,) each: first row, tick and first mid of every run
    windows,  # (K,) events
    rings,  # (5, a power of two above the longest window) room
    whole,  # (1 + 2K, n) out: depth, order flow of each window, trade flow of each
    parts,  # (3 + 3K, n) out: spread, imbalance, micro-price, then of each window return, volatility, log span
):
    """Fill rows of the features; sums and prices of the last rows stand in the rings, row r at r & mask."""
    times, kinds, sides, sizes, asks, ask_sizes, bids, bid_sizes = columns
    run_first, run_tick, run_mid = runs
    n_windows, mask, most = len(windows), np.int64(rings.shape[1] - 1), 2.0**62 / windows.max()
    time = flow = trade = square = begin = np.int64(0)
    a = b = q_a = q_b = time_k = mid_k = flow_k = trade_k = square_k = np.int64(0)
    at_begin = (time, mid, flow, trade, square)
    was_usable, run = False, np.searchsorted(run_first, before) - 1
    for row in range(before, last):
        a_0, q_a0, b_0, q_b0, mid_0 = a, q_a, b, q_b, mid
        time, a, q_a, b, q_b = times[row], asks[row], ask_sizes[row], bids[row], bid_sizes[row]
        usable = a > b
        begins = run + 1 < len(run_first) and run_first[run + 1] == row
        if begins:
            run += 1
            begin, was_usable, mid, spread = np.int64(row), False, run_mid[run], np.int64(0)
        if usable:
            mid, spread = a + b, a - b
        if begins:
            at_begin = (time, mid, flow, trade, square)
        elif mid != mid_0 and mid > 0 and mid_0 > 0:
            change = math.log(mid) - math.log(mid_0)
            square += np.int64(np.rint(min(change * change * SQUARES_IN_ONE, most)))
        if usable and was_usable:
            flow += _order_flow(a_0, q_a0, b_0, q_b0, a, q_a, b, q_b)
        was_usable = usable
        if kinds[row] == EXECUTE:
            trade -= np.int64(sides[row]) * sizes[row]
        at = row & mask
        rings[0, at], rings[1, at], rings[2, at], rings[3, at], rings[4, at] = time, mid, flow, trade, square
        if row < first:
            continue
        tick, known = np.float64(run_tick[run]), q_a != UNKNOWN and q_b != UNKNOWN
        depth = (0 if q_a == UNKNOWN else q_a) + (0 if q_b == UNKNOWN else q_b)
        imbalance = (q_b - q_a) / depth if usable and known and depth > 0 else 0.0
        whole[0, row] = depth
        parts[0, row], parts[1, row], parts[2, row] = spread / tick, imbalance, imbalance * (spread / tick)
        for w in range(n_windows):
            time_k, mid_k, flow_k, trade_k, square_k = at_begin
            if row - begin >= windows[w]:
                at = (row - windows[w]) & mask
                time_k, mid_k = rings[0, at], rings[1, at]
                flow_k, trade_k, square_k = rings[2, at], rings[3, at], rings[4, at]
            whole[1 + w, row], whole[1 + n_windows + w, row] = flow - flow_k, trade - trade_k
            parts[3 + w, row] = (mid - mid_k) / tick
            parts[3 + n_windows + w, row] = math.sqrt((square - square_k) * SQUARE_UNIT)
            parts[3 + 2 * n_windows + w, row] = math.log(1 + time - time_k)
