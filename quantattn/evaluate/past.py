"""Baselines for a table of scores that comes without training rows: forecasts from its own earlier outcomes.

At every row only outcomes that were known by its time are used, so a baseline is as honest in time as the score it
stands beside, and needs nothing but the rows themselves.

Dimensions: Q rows, T times, E entities, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from quantattn.evaluate.baselines import HISTORY, MAJORITY, PERSISTENCE
from quantattn.evaluate.panel import Floats, Ints, Panel

REVERSAL, ZERO = "reversal", "zero"


def _last_known(data: Panel) -> tuple[Ints, Ints, Ints]:
    """Rows whose outcome becomes known in the table, by (entity, known, time); and where in it a row (Q,) may look.

    Row q may use entries start[q] … stop[q] − 1: those of its entity that were known by its time.
    """
    n = data.times.size + 1
    rows = np.flatnonzero(np.isfinite(data.outcome) & (data.known < data.times.size))
    rows = rows[np.lexsort((data.at[rows], data.known[rows], data.entity[rows]))]
    key = data.entity[rows] * n + data.known[rows]
    start = np.searchsorted(key, data.entity * n, side="left")
    stop = np.searchsorted(key, data.entity * n + data.at, side="right")
    return rows, start, stop


def _stretches(entity: Ints) -> Iterator[tuple[int, int]]:
    """First row and the one after the last of each run of equal entities."""
    edges = np.flatnonzero(np.diff(entity)) + 1
    if entity.size:
        yield from pairwise([0, *edges.tolist(), entity.size])


def past_values(data: Panel) -> dict[str, Floats]:
    """Name → (Q,) forecasts of a value.

    - "history": the mean of the entity's outcomes that were known; of all entities' where it has none; 0 at first.
    - "persistence": its last outcome that was known; "history" where it has none.
    - "zero".
    """
    rows, start, stop = _last_known(data)
    y = data.outcome[rows]
    total = np.zeros(rows.size + 1)
    for first, last in _stretches(data.entity[rows]):
        total[first + 1 : last + 1] = np.cumsum(y[first:last])  # each entity by itself, so no other reaches its bits
    count = stop - start
    own = total[stop] / np.maximum(count, 1)
    order = np.lexsort((data.entity[rows], data.at[rows], data.known[rows]))
    seen = np.searchsorted(data.known[rows][order], data.at, side="right")
    everybody = np.r_[0.0, np.cumsum(y[order])][seen] / np.maximum(seen, 1)
    history = np.where(count > 0, own, everybody)
    last_value = np.r_[y, 0.0][np.maximum(stop - 1, 0)]
    return {
        HISTORY: history,
        PERSISTENCE: np.where(count > 0, last_value, history),
        ZERO: np.zeros(data.at.size),
    }


def past_scores(data: Panel) -> dict[str, Floats]:
    """Name → (Q,) scores that order entities: "history" and "persistence" of `past_values`, and "reversal".

    "reversal" is minus "persistence": who did worst is bought.
    """
    values = past_values(data)
    return {
        HISTORY: values[HISTORY],
        PERSISTENCE: values[PERSISTENCE],
        REVERSAL: -values[PERSISTENCE],
    }


def past_probabilities(data: Panel, n_classes: int) -> dict[str, Floats]:
    """Name → (Q, C) probabilities; outcomes are classes 0 … C − 1.

    - "majority class": frequencies (n_c + 1)/(n + C) of all outcomes that were known.
    - "persistence": how often each class followed the entity's last known class, among all entities' outcomes that
      were known, shrunk towards the majority by one pseudo-decision.
    - "history": frequencies of the entity's own known outcomes, shrunk likewise.
    """
    rows, start, stop = _last_known(data)
    y = data.outcome[rows].astype(np.int64)
    n, c = data.times.size, n_classes
    overall = np.zeros((n, c))
    np.add.at(overall, (data.known[rows], y), 1)
    overall = np.cumsum(overall, axis=0)[data.at]
    majority = (overall + 1) / (overall.sum(axis=1, keepdims=True) + c)
    own = np.concatenate([np.zeros((1, c)), np.cumsum(np.eye(c)[y], axis=0)])
    mine = own[stop] - own[start]
    state = np.where(stop > start, np.r_[y, 0][np.maximum(stop - 1, 0)], c)  # c stands for "not known"
    moves = np.zeros((n, c + 1, c))
    np.add.at(moves, (data.known[rows], state[rows], y), 1)
    followed = np.cumsum(moves, axis=0)[data.at, state]

    def shrunk(counts: Floats) -> Floats:
        prob: Floats = (counts + majority) / (counts.sum(axis=1, keepdims=True) + 1)
        return prob

    return {MAJORITY: majority, PERSISTENCE: shrunk(followed), HISTORY: shrunk(mine)}


def past_volatility(data: Panel) -> Floats:
    """(Q,) standard deviation of the entity's outcomes that were known; NaN before there are two."""
    rows, start, stop = _last_known(data)
    found = np.full(data.at.size, np.nan)
    sums = np.zeros((rows.size + 1, 2))
    for first, last in _stretches(data.entity[rows]):
        y = data.outcome[rows[first:last]]
        shifted = y - y[0]  # by a known value, so that squares do not cancel
        sums[first + 1 : last + 1] = np.cumsum(np.column_stack([shifted, shifted**2]), axis=0)
    count = stop - start
    enough = count > 1
    mean, square = (sums[stop[enough], k] / count[enough] for k in (0, 1))
    found[enough] = np.sqrt(np.maximum(square - mean**2, 0) * count[enough] / (count[enough] - 1))
    return found
