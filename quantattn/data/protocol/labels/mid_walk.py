"""Moves of the mid over a number of events, compiled: what `mid` says, row after row."""

from __future__ import annotations

import numpy as np

from quantattn.data.kernel import kernel


@kernel
def moves(
    time,  # (R,) this and the next four: those of a stretch
    mid,
    halted,
    crossed,
    missing,
    horizon,  # events
    to_mean,  # whether the move is to the mean of the horizon (method 1), or to its end (method 0)
    num,  # (R,) out: as `mid_moves` has them; anything in num, den and end where there is no label
    den,
    end,
    reason,
):
    """Fill the moves of every row; −1 is the reason of a row with a label, else a number in `REASONS`."""
    size = len(time)
    halt = cross = lack = np.int64(-1)  # the last row up to the horizon's end at which there is one
    following = np.int64(0)
    for row in range(min(horizon, size)):
        following += mid[row]
        halt = np.int64(row) if halted[row] else halt
        cross = np.int64(row) if crossed[row] else cross
        lack = np.int64(row) if missing[row] else lack
    whole = max(size - horizon, 0)
    for row in range(whole):
        last = row + horizon
        following += mid[last] - mid[row]
        halt = last if halted[last] else halt
        cross = last if crossed[last] else cross
        lack = last if missing[last] else lack
        num[row] = following - horizon * mid[row] if to_mean else mid[last] - mid[row]
        den[row] = horizon * mid[row] if to_mean else mid[row]
        end[row] = time[last]
        why = 3 if lack >= row else -1
        why = 2 if cross >= row else why
        reason[row] = 1 if halt >= row else why
    for row in range(whole, size):
        num[row], den[row], end[row], reason[row] = 0, 1, time[row], 0
