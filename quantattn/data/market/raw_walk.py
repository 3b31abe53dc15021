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
_STEP = 1024  # rows whose numbers stay in the nearest cache
_ROOT_HALF, _LOG_2 = 0x3FE6A09E667F3BCD, math.log(2.0)


@kernel
def _quotient(x, by):
    """Rounded down; by floats below 2⁵², where a quotient that is no integer cannot round to one, in half the time."""
    if -_EXACT < x < _EXACT and by < _EXACT:
        return np.int64(math.floor(x / by))
    return x // by


@kernel
def _quotients(known, x, by, out):
    """Fill x / by rounded down, UNKNOWN where it is not known, of a step."""
    beyond = False
    for j in range(len(out)):
        beyond |= known[j] & ((x[j] >= _EXACT) | (x[j] <= -_EXACT) | (by[j] >= _EXACT))
        out[j] = np.int64(np.floor(x[j] / by[j])) if known[j] else UNKNOWN
    if beyond:
        for j in range(len(out)):
            out[j] = _quotient(x[j], by[j]) if known[j] else UNKNOWN


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
    known, x, by = np.empty(_STEP, np.bool_), np.empty(_STEP, np.int64), np.empty(_STEP, np.int64)
    mids = np.empty(_STEP + 1, np.int64)  # after the row before the step, then after each of its rows
    run, start = np.searchsorted(run_first, first, side="left") - 1, first
    midnight = np.int64(0)
    while start < last:
        begins = run + 1 < len(run_first) and run_first[run + 1] == start
        run += begins
        stop = min(start + _STEP, last, run_first[run + 1] if run + 1 < len(run_first) else last)
        size, at = stop - start, start - first
        a, b, q_a, q_b = ask[start:stop], bid[start:stop], ask_size[start:stop], bid_size[start:stop]
        usable = not begins and ask[start - 1] > bid[start - 1]
        mids[0] = ask[start - 1] + bid[start - 1] if usable else UNKNOWN
        for j in range(size):
            mids[1 + j] = a[j] + b[j] if a[j] > b[j] else UNKNOWN
        by[:size] = run_tick[run]
        for j in range(size):
            known[j] = (mids[j] != UNKNOWN) & (price[start + j] != UNKNOWN)
            x[j] = 2 * price[start + j] - mids[j]
        _quotients(known[:size], x[:size], by[:size], out[0, at : at + size])
        for j in range(size):
            known[j] = (mids[j] != UNKNOWN) & (mids[j + 1] != UNKNOWN)
            x[j] = mids[j + 1] - mids[j]
        _quotients(known[:size], x[:size], by[:size], out[1, at : at + size])
        for j in range(size):
            known[j], x[j] = a[j] > b[j], a[j] - b[j]
        _quotients(known[:size], x[:size], by[:size], out[2, at : at + size])
        for j in range(size):
            known[j] &= (q_a[j] != UNKNOWN) & (q_b[j] != UNKNOWN) & (q_a[j] + q_b[j] > 0)
            x[j], by[j] = (q_b[j] - q_a[j]) * 1000, q_a[j] + q_b[j]
        _quotients(known[:size], x[:size], by[:size], out[3, at : at + size])
        out[4, at] = UNKNOWN if begins else time[start] - time[start - 1]
        for j in range(1, size):
            out[4, at + j] = time[start + j] - time[start + j - 1]
        for j in range(size):
            clock = time[start + j] - midnight
            if clock < 0 or clock >= _DAY:
                clock = time[start + j] % _DAY
                midnight = time[start + j] - clock
            out[5, at + j] = clock
        start = stop


@kernel
def _places(edges, x, out):
    """Fill the code of the bin of each x; to compare all edges takes less than to search, as long as they are few."""
    if len(edges) > _FEW:
        for j in range(len(x)):
            out[j] = _FIRST_CODE + np.searchsorted(edges, x[j], side="right")
        return
    place = np.zeros(len(x), np.int64)
    for edge in edges:
        for j in range(len(x)):
            place[j] += np.int64(edge <= x[j])
    for j in range(len(x)):
        out[j] = _FIRST_CODE + place[j]


@kernel
def _scaled(bent, center, inverse):
    return min(max((bent - center) * inverse, -_CLIP), _CLIP)


@kernel
def _logs(x, center, inverse, out):
    """Fill the scaled sign(x) · log(1 + |x|), as the C library has it.

    A logarithm that may be wrong by 10⁻¹², in a third of the time, does wherever it cannot be rounded to another
    float32; else the library is asked.
    """
    size, wrong = len(x), 1e-11 * inverse + 1e-14
    whole, parts = np.empty(size), np.empty(size)
    for j in range(size):
        whole[j] = 1.0 + abs(float(x[j]))
    bits, left = whole.view(np.int64), parts.view(np.int64)
    for j in range(size):
        power = (bits[j] - _ROOT_HALF) >> 52
        left[j] = bits[j] - (power << 52)  # between the roots of 1/2 and 2
        whole[j] = float(power)
    for j in range(size):
        s = (parts[j] - 1.0) / (parts[j] + 1.0)
        z = s * s
        tail = 1 / 11 + z * (1 / 13 + z * (1 / 15 + z * (1 / 17 + z * (1 / 19))))
        tail = 1.0 + z * (1 / 3 + z * (1 / 5 + z * (1 / 7 + z * (1 / 9 + z * tail))))
        bent = whole[j] * _LOG_2 + 2.0 * s * tail
        parts[j] = -bent if x[j] < 0 else bent
    for j in range(size):
        value = (parts[j] - center) * inverse
        low, high = min(max(value - wrong, -_CLIP), _CLIP), min(max(value + wrong, -_CLIP), _CLIP)
        out[j] = np.float32(high)
        if np.float32(low) != np.float32(high):
            out[j] = _scaled(math.copysign(math.log1p(abs(float(x[j]))), x[j]), center, inverse)


@kernel
def _worked_out(x, edges, center, inverse, linear, codes, values):
    _places(edges, x, codes)
    if linear:
        for j in range(len(x)):
            values[j] = _scaled(float(x[j]), center, inverse)
    else:
        _logs(x, center, inverse, values)
    for j in range(len(x)):
        if x[j] == UNKNOWN:
            codes[j], values[j] = _MISSING, 0.0


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
    if not len(codes):
        for start in range(0, len(raw), _STEP):
            here = slice(start, min(start + _STEP, len(raw)))
            _worked_out(raw[here], edges, center, inverse, linear, out_codes[here], out_values[here])
        return
    beyond = np.int64(0)
    for i in range(len(raw)):
        at = np.uint64(raw[i] - low)
        beyond += at >= np.uint64(len(codes))
        at = min(at, np.uint64(len(codes) - 1))
        out_codes[i], out_values[i] = codes[at], values[at]
    if beyond:
        rows, x = np.empty(beyond, np.int64), np.empty(beyond, np.int64)
        made_codes, made_values = np.empty(beyond, out_codes.dtype), np.empty(beyond, out_values.dtype)
        n = 0
        for i in range(len(raw)):
            if np.uint64(raw[i] - low) >= np.uint64(len(codes)):
                rows[n], x[n] = i, raw[i]
                n += 1
        _worked_out(x, edges, center, inverse, linear, made_codes, made_values)
        for n in range(beyond):
            out_codes[rows[n]], out_values[rows[n]] = made_codes[n], made_values[n]
