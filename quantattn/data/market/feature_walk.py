"""The features of `book_features`, compiled: what `feature_blocks` does column after column, in the nearest caches.

What hangs on all that came before is done event after event, the rest in short loops of which a processor does many
rows at a time.
"""

from __future__ import annotations

import math

import numpy as np

from quantattn.data.kernel import kernel
from quantattn.data.market.arrays import UNKNOWN
from quantattn.data.market.feature_blocks import SQUARE_UNIT, SQUARES_IN_ONE
from quantattn.data.schema import EXECUTE

BLOCK = 2048
"""Rows of a step, at most."""
ROOMS = 6
_TIME, _MID, _FLOW, _TRADE, _SQUARE, _SPREAD = range(ROOMS)


@kernel
def _flows(ask, ask_size, bid, bid_size, out):
    """Order flow of each row but the first; 0 where a size that counts is not known."""
    for j in range(1, len(out)):
        a_0, q_a0, b_0, q_b0 = ask[j - 1], ask_size[j - 1], bid[j - 1], bid_size[j - 1]
        a, q_a, b, q_b = ask[j], ask_size[j], bid[j], bid_size[j]
        comes_b, goes_b, comes_a, goes_a = b >= b_0, b <= b_0, a <= a_0, a >= a_0
        lacking = (comes_b & (q_b == UNKNOWN)) | (goes_b & (q_b0 == UNKNOWN))
        lacking |= (comes_a & (q_a == UNKNOWN)) | (goes_a & (q_a0 == UNKNOWN))
        bought = (q_b if comes_b else 0) - (q_b0 if goes_b else 0)
        sold = (q_a if comes_a else 0) - (q_a0 if goes_a else 0)
        out[j] = 0 if lacking | (a <= b) | (a_0 <= b_0) else bought - sold


@kernel
def _trades(kind, side, size, out):
    """Shares bought less shares sold by aggressors."""
    for j in range(len(out)):
        out[j] = (kind[j] == EXECUTE) * -np.int64(side[j]) * size[j]


@kernel
def _running(values, total):
    """Replace values by their running total, which begins with `total`; returns it."""
    for j in range(len(values)):
        total += values[j]
        values[j] = total
    return total


@kernel
def _mids(ask, bid, mid, spread, mids, spreads):
    """Fill mid and spread of the last usable book of each row, those given as long as there is none; returns them."""
    for j in range(len(mids)):
        usable = ask[j] > bid[j]
        mid, spread = ask[j] + bid[j] if usable else mid, ask[j] - bid[j] if usable else spread
        mids[j], spreads[j] = mid, spread
    return mid, spread


@kernel
def _squares(mids, most, logs, out):
    """Squared log return of each row but the first, which have none where a mid is not above zero.

    Logarithms are taken of all rows: half of a market's events move the mid, which no processor guesses.
    """
    for j in range(len(mids)):
        logs[j] = math.log(mids[j] if mids[j] > 0 else np.int64(1))
    for j in range(1, len(mids)):
        change = logs[j] - logs[j - 1] if (mids[j] > 0) & (mids[j - 1] > 0) else 0.0
        out[j] = np.int64(np.rint(min(change * change * SQUARES_IN_ONE, most)))


@kernel
def _now(book, spread, tick, depth, spread_ticks, imbalance, microprice):
    """Fill what is known of each row's own book."""
    ask, ask_size, bid, bid_size = book
    for j in range(len(depth)):
        q_a, q_b = ask_size[j], bid_size[j]
        both = (0 if q_a == UNKNOWN else q_a) + (0 if q_b == UNKNOWN else q_b)
        usable = (ask[j] > bid[j]) & (q_a != UNKNOWN) & (q_b != UNKNOWN) & (both > 0)
        depth[j], spread_ticks[j] = both, spread[j] / tick
        imbalance[j] = (q_b - q_a) / both if usable else 0.0
        microprice[j] = imbalance[j] * spread_ticks[j]


@kernel
def _since_begin(rooms, at, at_begin, tick, bought, traded, returns, volatility, log_span):
    """Fill the features of a window that begins with the run."""
    time, mid, flow, trade, square = at_begin
    for j in range(len(bought)):
        bought[j], traded[j] = rooms[_FLOW, at + j] - flow, rooms[_TRADE, at + j] - trade
        returns[j] = (rooms[_MID, at + j] - mid) / tick
        volatility[j] = math.sqrt((rooms[_SQUARE, at + j] - square) * SQUARE_UNIT)
        log_span[j] = math.log(1 + rooms[_TIME, at + j] - time)


@kernel
def _less(now, then, out):
    for j in range(len(out)):
        out[j] = now[j] - then[j]


@kernel
def _less_in(now, then, unit, out):
    for j in range(len(out)):
        out[j] = (now[j] - then[j]) / unit


@kernel
def _root_of_less(now, then, out):
    for j in range(len(out)):
        out[j] = math.sqrt((now[j] - then[j]) * SQUARE_UNIT)


@kernel
def _log_of_less(now, then, out):
    for j in range(len(out)):
        out[j] = math.log(1 + now[j] - then[j])


@kernel
def _since(rooms, at, k, tick, bought, traded, returns, volatility, log_span):
    """Fill the features of a window of k events from the rooms at its end, `at`, and before it."""
    now, then = slice(at, at + len(bought)), slice(at - k, at - k + len(bought))
    _less(rooms[_FLOW, now], rooms[_FLOW, then], bought)
    _less(rooms[_TRADE, now], rooms[_TRADE, then], traded)
    _less_in(rooms[_MID, now], rooms[_MID, then], tick, returns)
    _root_of_less(rooms[_SQUARE, now], rooms[_SQUARE, then], volatility)
    _log_of_less(rooms[_TIME, now], rooms[_TIME, then], log_span)


@kernel
def _fill(rooms, at, first, last, begin, at_begin, tick, windows, whole, parts):
    """Fill the features of rows first … last − 1, which stand in the rooms from `at` on."""
    n_windows = len(windows)
    for w in range(n_windows):
        # Rows before `full` have fewer events before them in their run.
        full = min(max(begin + windows[w], first), last)
        few, rest = slice(first, full), slice(full, last)
        if first < full:
            _since_begin(
                rooms,
                at,
                at_begin,
                tick,
                whole[1 + w, few],
                whole[1 + n_windows + w, few],
                parts[3 + w, few],
                parts[3 + n_windows + w, few],
                parts[3 + 2 * n_windows + w, few],
            )
        _since(
            rooms,
            at + full - first,
            windows[w],
            tick,
            whole[1 + w, rest],
            whole[1 + n_windows + w, rest],
            parts[3 + w, rest],
            parts[3 + n_windows + w, rest],
            parts[3 + 2 * n_windows + w, rest],
        )


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
    rooms,  # (ROOMS, the longest window + BLOCK) room
    whole,  # (1 + 2K, n) out: depth, order flow of each window, trade flow of each
    parts,  # (3 + 3K, n) out: spread, imbalance, micro-price, then of each window return, volatility, log span
):
    """Fill rows of the features; what stands before a step in the rooms are the rows before it."""
    time, kind, side, size, ask, ask_size, bid, bid_size = columns
    run_first, run_tick, run_mid = runs
    reach = rooms.shape[1] - BLOCK
    flow = trade = square = begin = np.int64(0)
    logs = np.empty(BLOCK + 1)
    at_begin = (flow, flow, flow, flow, flow)
    run, start = np.searchsorted(run_first, before) - 1, before
    while start < last:
        begins = run + 1 < len(run_first) and run_first[run + 1] == start
        if begins:
            run += 1
            begin, mid, spread = np.int64(start), run_mid[run], np.int64(0)
            at_begin = (time[start], mid, flow, trade, square)
        stop = min(start + BLOCK, last, run_first[run + 1] if run + 1 < len(run_first) else last)
        here, room, tick = slice(start, stop), slice(reach, reach + stop - start), np.float64(run_tick[run])
        # The first row's flow is that from the row before, the last of the step before.
        joined = np.int64(not begins and start > before)
        seen, flows = slice(start - joined, stop), rooms[_FLOW, reach - joined : reach + stop - start]
        rooms[_FLOW, reach] = 0
        _flows(ask[seen], ask_size[seen], bid[seen], bid_size[seen], flows)
        flow = _running(rooms[_FLOW, room], flow)
        _trades(kind[here], side[here], size[here], rooms[_TRADE, room])
        trade = _running(rooms[_TRADE, room], trade)
        rooms[_MID, reach - 1] = mid
        mid, spread = _mids(ask[here], bid[here], mid, spread, rooms[_MID, room], rooms[_SPREAD, room])
        since = slice(reach - 1, reach + stop - start)
        _squares(rooms[_MID, since], 2.0**62 / reach, logs, rooms[_SQUARE, since])
        square = _running(rooms[_SQUARE, room], square)
        rooms[_TIME, room] = time[here]
        if stop > first:
            low = max(start, first)
            out, at = slice(low, stop), reach + low - start
            spread_now = rooms[_SPREAD, at : at + stop - low]
            book = (ask[out], ask_size[out], bid[out], bid_size[out])
            _now(book, spread_now, tick, whole[0, out], parts[0, out], parts[1, out], parts[2, out])
            _fill(rooms, at, low, stop, begin, at_begin, tick, windows, whole, parts)
        for name in range(ROOMS):
            for j in range(reach):
                rooms[name, j] = rooms[name, j + stop - start]
        start = stop
