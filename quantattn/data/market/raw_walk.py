"""Raw values and tokens of book events, compiled: what `raw_fields` and `NumericField` say, event after event."""

from __future__ import annotations

import math

import numpy as np

from quantattn.data.kernel import kernel
from quantattn.data.market.arrays import UNKNOWN

_DAY = 86_400 * 10**9
_EXACT = 2**52
_FEW = 64
_MISSING, _FIRST_CODE, _CLIP = 0, 2, 8.0


@kernel
def _quotient(x, by):
    """Rounded down; by floats below 2⁵², where a quotient that is no integer cannot round to one, in half the time."""
    if -_EXACT < x < _EXACT and by < _EXACT:
        return np.int64(math.floor(x / by))
    return x // by


@kernel
def _place(edges, x):
    """How many edges are not above x; to compare all takes less than to search, as long as they are few."""
    if len(edges) > _FEW:
        return np.searchsorted(edges, x, side="right")
    place = np.int64(0)
    for e in range(len(edges)):
        place += np.int64(edges[e] <= x)
    return place


@kernel
def raw_values(
    time,  # (n,) this and the next five: columns of `book_arrays`
    price,
    ask,
    ask_size,
    bid,
    bid_size,
    first,  # rows first … last − 1 are looked at
    last,
    run_first,  # (R,) of every entity: first row and tick
    run_tick,
    out,  # (6, last − first or more) out: price, mid_move, spread, imbalance, gap and clock, UNKNOWN for null
):
    """Fill the raw values of rows that are no columns themselves."""
    run = np.searchsorted(run_first, first, side="left") - 1
    mid_0 = UNKNOWN
    if run >= 0 and ask[first - 1] > bid[first - 1]:
        mid_0 = ask[first - 1] + bid[first - 1]
    for row in range(first, last):
        at = row - first
        begins = run + 1 < len(run_first) and run_first[run + 1] == row
        if begins:
            run, mid_0 = run + 1, UNKNOWN
        tick, a, b, q_a, q_b = run_tick[run], ask[row], bid[row], ask_size[row], bid_size[row]
        mid = a + b if a > b else UNKNOWN
        known = mid_0 != UNKNOWN and price[row] != UNKNOWN
        out[0, at] = _quotient(2 * price[row] - mid_0, tick) if known else UNKNOWN
        known = mid_0 != UNKNOWN and mid != UNKNOWN
        out[1, at] = (_quotient(mid - mid_0, tick) if mid != mid_0 else 0) if known else UNKNOWN
        out[2, at] = _quotient(a - b, tick) if a > b else UNKNOWN
        known = a > b and q_a != UNKNOWN and q_b != UNKNOWN and q_a + q_b > 0
        out[3, at] = _quotient((q_b - q_a) * 1000, q_a + q_b) if known else UNKNOWN
        out[4, at] = UNKNOWN if begins else time[row] - time[row - 1]
        out[5, at] = time[row] % _DAY
        mid_0 = mid


@kernel
def tokens(
    raw,  # (n,) of one field, UNKNOWN for null
    low,  # the value that the tables begin with
    codes,  # (V,) code and scaled value of low, low + 1, …
    values,
    edges,  # (E,) rising
    center,
    inverse,  # of the scale
    linear,  # whether values are scaled as they are
    out_codes,  # (n,) out
    out_values,  # (n,) out
):
    """Fill code and scaled value of every raw value: looked up, or worked out where the tables do not reach."""
    for i in range(len(raw)):
        x = raw[i]
        at = np.uint64(x - low)
        if at < np.uint64(len(codes)):
            out_codes[i], out_values[i] = codes[at], values[at]
        elif x == UNKNOWN:
            out_codes[i], out_values[i] = _MISSING, 0.0
        else:
            out_codes[i] = _FIRST_CODE + _place(edges, x)
            bent = float(x) if linear else math.copysign(math.log1p(abs(float(x))), x)
            out_values[i] = min(max((bent - center) * inverse, -_CLIP), _CLIP)
