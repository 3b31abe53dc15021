"""Scores of many entities at many times, with what came after: the arrays that ranking and portfolio figures share.

Dimensions: Q rows, T times, E entities. A row is one entity at one time; rows are ordered by (time, entity).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quantattn.evaluate.significance import Blocks, choose_blocks

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Panel:
    """Rows ordered by (time, entity), each pair at most once.

    Attributes:
        times: (T,) int64 ns UTC, ascending.
        names: E entities, ascending.
        at: (Q,) which time a row belongs to.
        entity: (Q,) which entity.
        outcome: (Q,) what came after, over (time, end]; NaN where there is none.
        known: (Q,) the first time, as a position in `times` (T for none of them), at which the outcome was known.
        horizon: the most steps from one time to the next that an outcome spans, at least 1.
    """

    times: Ints
    names: tuple[str, ...]
    at: Ints
    entity: Ints
    outcome: Floats
    known: Ints
    horizon: int

    def take(self, rows: ArrayLike) -> Panel:
        """The same panel with some of its rows (a mask or ascending row numbers); times and names stay numbered."""
        kept = np.asarray(rows)
        return replace(
            self, at=self.at[kept], entity=self.entity[kept], outcome=self.outcome[kept], known=self.known[kept]
        )

    def blocks(self, at: Ints) -> Blocks:
        """Blocks of time for figures at some of the times (n,): days, or three horizons where outcomes overlap."""
        times = self.times[at]
        if self.horizon == 1:
            return choose_blocks(times)
        spanned = int(np.ptp(at)) + 1
        return choose_blocks(times, kind="time", stretches=max(2, min(40, spanned // (3 * self.horizon))))


def as_panel(
    time: ArrayLike, entity: ArrayLike, outcome: ArrayLike, *, horizon: int = 1, end: ArrayLike | None = None
) -> tuple[Panel, Ints]:
    """Order rows by (time, entity).

    Args:
        time: (Q,) int64 ns UTC.
        entity: (Q,) names or numbers.
        outcome: (Q,) finite, NaN where there is none.
        horizon: steps from one time of the table to a later one that every outcome spans; not used with `end`.
        end: (Q,) int64 ns UTC when each outcome is known, after its time.

    Returns:
        The panel, and (Q,) the rows of the input in the panel's order.

    Raises:
        ValueError: lengths that differ, no rows, an infinite outcome, an entity twice at one time, a horizon below 1,
            or an outcome that ends no later than its time.
    """
    t, y, who = np.asarray(time, np.int64), np.asarray(outcome, np.float64), np.asarray(entity)
    if t.ndim != 1 or t.size == 0 or not t.shape == y.shape == who.shape:
        raise ValueError(f"time, entity and outcome must be (Q,), Q > 0, got {t.shape}, {who.shape} and {y.shape}")
    if (bad := np.flatnonzero(np.isinf(y))).size:
        raise ValueError(f"outcome[{bad[0]}] is {y[bad[0]]}, expected finite values or NaN for none")
    if horizon < 1:
        raise ValueError(f"horizon must be 1 step or more, got {horizon}")
    names, number = np.unique(who, return_inverse=True)
    times, at = np.unique(t, return_inverse=True)
    order = np.lexsort((number, at))
    at, number, y = at[order].astype(np.int64), number[order].astype(np.int64), y[order]
    if (twice := np.flatnonzero((at[1:] == at[:-1]) & (number[1:] == number[:-1]))).size:
        row = twice[0]
        raise ValueError(f"entity {names[number[row]]} stands twice at time {times[at[row]]}, expected once")
    known = at + horizon
    if end is not None:
        ends = np.asarray(end, np.int64)[order]
        if (early := np.flatnonzero(ends <= times[at])).size:
            row = early[0]
            raise ValueError(
                f"the outcome of entity {names[number[row]]} at {times[at[row]]} ends at {ends[row]}, expected later"
            )
        known = np.searchsorted(times, ends, side="left")
        horizon = int((known - at).max())
    known = np.minimum(known, times.size).astype(np.int64)
    return Panel(times, tuple(str(name) for name in names), at, number, y, known, horizon), order.astype(np.int64)


def ranks_within(group: Ints, values: Floats) -> Floats:
    """(Q,) rank of each value in its group, from 1, the average rank where values tie."""
    order = np.argsort(values)
    key = group.astype(np.uint16) if group.max(initial=0) < 1 << 16 else group  # 16 bits are sorted by radix
    order = order[np.argsort(key[order], kind="stable")]
    g, v = group[order], values[order]
    if not g.size:
        return np.empty(0)
    opens = np.r_[True, g[1:] != g[:-1]]
    first = np.flatnonzero(opens)[np.cumsum(opens) - 1]  # of the group
    run = np.r_[True, opens[1:] | (v[1:] != v[:-1])]
    starts = np.flatnonzero(run)
    ends = np.r_[starts[1:], g.size]
    middle = ((starts + ends - 1) / 2)[np.cumsum(run) - 1]
    ranks = np.empty(g.size)
    ranks[order] = middle - first + 1
    return ranks


def correlation_within(group: Ints, n_groups: int, x: Floats, y: Floats) -> Floats:
    """(n_groups,) Pearson correlation of x and y in each group; NaN where fewer than two rows or one is constant."""
    count = np.bincount(group, minlength=n_groups).astype(np.float64)
    a, b = (centred_within(group, count, values) for values in (x, y))
    aa, bb, ab = (np.bincount(group, p, minlength=n_groups) for p in (a * a, b * b, a * b))
    varies = (aa > 0) & (bb > 0) & (count > 1)
    found: Floats = np.divide(ab, np.sqrt(aa * bb), out=np.full(n_groups, np.nan), where=varies)
    return np.clip(found, -1, 1)


def centred_within(group: Ints, count: Floats, values: Floats) -> Floats:
    """(Q,) values less their group's mean; exactly zero where all values of a group are equal."""
    n = count.size
    low, high = np.full(n, np.inf), np.full(n, -np.inf)
    np.minimum.at(low, group, values)
    np.maximum.at(high, group, values)
    mean = np.bincount(group, values, minlength=n) / np.maximum(count, 1)
    mean = np.where(low == high, low, mean)
    return np.where((low == high)[group], 0.0, values - mean[group])
