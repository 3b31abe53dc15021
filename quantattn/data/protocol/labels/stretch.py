"""One entity's events within one session, and what lies in the horizon of each: no label leaves either."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from quantattn.data.market.sessions import SECOND, Sessions
from quantattn.data.protocol.labels.prices import Prices
from quantattn.data.protocol.labels.reasons import LABEL_REASON, REASONS, Int8Array

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Unit = Literal["events", "seconds"]
Measured = tuple[Mapping[str, npt.NDArray[np.generic]], Int64Array, Int8Array]
"""Columns, ends of intervals, and numbers of reasons (−1: there is a label), each (R,)."""


@dataclass(frozen=True)
class Stretch:
    """R events of one entity in one session, in order of time.

    Attributes:
        first: number of its first row in the table.
        time: (R,) available_time, ns UTC.
        close: end of the session; None where the table's end is taken for it.
        prices: (R,) each.
    """

    first: int
    time: Int64Array
    close: int | None
    prices: Prices

    def __len__(self) -> int:
        return len(self.time)

    @property
    def row(self) -> Int64Array:
        """0 … R − 1."""
        return np.arange(len(self.time), dtype=np.int64)


@dataclass(frozen=True)
class Ahead:
    """The horizon of every event: rows (row, last] and the time until `end`.

    Attributes:
        last: (R,) the last row in it, the row itself when it holds none.
        end: (R,) ns UTC.
        ended: (R,) the session ends before the horizon does.
        foreseen: (R,) the same, where the calendar tells it at the decision already.
        unknown: (R,) the table ends before the horizon does.
    """

    last: Int64Array
    end: Int64Array
    ended: BoolArray
    foreseen: BoolArray
    unknown: BoolArray


def require_horizon(horizon: int, unit: str) -> None:
    """Refuse a horizon below 1 and a unit that is neither "events" nor "seconds"."""
    if isinstance(horizon, bool) or not isinstance(horizon, int | np.integer) or horizon < 1:
        raise ValueError(f"horizon must be a whole number of {unit}, at least 1, got {horizon!r}")
    if unit not in ("events", "seconds"):
        raise ValueError(f"unit must be 'events' or 'seconds', got {unit!r}")


def look_ahead(stretch: Stretch, horizon: int, unit: Unit) -> Ahead:
    """The next `horizon` events, or the events of the next `horizon` seconds."""
    size, time, row = len(stretch), stretch.time, stretch.row
    nowhere = np.zeros(size, np.bool_)
    if unit == "events":
        last = row + horizon
        ended, last = last >= size, np.minimum(last, size - 1)
        return Ahead(last, time[last], ended, nowhere, nowhere)
    end = time + horizon * SECOND
    last = np.maximum(np.searchsorted(time, end, side="right") - 1, row)
    ended = end > (time[-1] if stretch.close is None else stretch.close)
    return Ahead(last, end, ended, nowhere if stretch.close is None else ended, end > time[-1])


def look_back(stretch: Stretch, horizon: int, unit: Unit) -> tuple[Int64Array, BoolArray]:
    """Rows (past, row] are the last `horizon` events or seconds; and where the stretch is too short for that."""
    if unit == "events":
        past = stretch.row - horizon
        return np.maximum(past, -1), past < -1
    since = stretch.time - horizon * SECOND
    past = np.searchsorted(stretch.time, since, side="right") - 1
    return past, since < stretch.time[0]


def over_sessions(
    frame: pl.DataFrame,
    sessions: Sessions | None,
    columns: Mapping[str, type[np.generic]],
    measure: Callable[[Stretch], Measured],
) -> pl.DataFrame:
    """Add `columns` and `label_start`, `label_end`, `label_reason`, measured one stretch after the other.

    Args:
        frame: events in canonical order.
        sessions: no stretch leaves a session; events outside every session are given "session end". None: an entity's
            whole table is one session.
        columns: name → type of what `measure` returns; null where there is no label.
        measure: called with every stretch.

    Raises:
        ValueError: events out of order.
    """
    size, time = frame.height, frame["available_time"].to_numpy()
    entity = frame["entity"].rle_id().to_numpy()
    backwards = np.flatnonzero((np.diff(time) < 0) & (entity[1:] == entity[:-1]))
    if backwards.size:
        raise ValueError(f"labels need events in order of time, but available_time falls at row {backwards[0] + 1}")
    made = {name: np.zeros(size, dtype) for name, dtype in columns.items()}
    end, reason = np.zeros(size, np.int64), np.full(size, -1, np.int8)
    prices = Prices.of(frame)
    session = np.zeros(size, np.int64) if sessions is None else sessions.locate(time)
    for first, last in _runs(entity, session):
        here = slice(first, last)
        if session[first] < 0:
            reason[here] = REASONS.index("session end")
            continue
        close = None if sessions is None else int(sessions.close[session[first]])
        values, end[here], reason[here] = measure(Stretch(first, time[here], close, prices.part(first, last)))
        for name, column in made.items():
            column[here] = values[name]
    has = pl.Series("has", reason < 0)
    found = {**made, "label_start": time, "label_end": end}
    return frame.with_columns(
        *(pl.when(has).then(pl.Series(name, values)).alias(name) for name, values in found.items()),
        pl.Series(REASONS, dtype=LABEL_REASON).gather(pl.Series(reason).replace(-1, None)).alias("label_reason"),
    )


def _runs(*keys: Int64Array) -> list[tuple[int, int]]:
    """Half-open ranges of rows over which every key is constant."""
    size = len(keys[0])
    change = np.zeros(max(size - 1, 0), np.bool_)
    for key in keys:
        change |= key[1:] != key[:-1]
    edges = [0, *(np.flatnonzero(change) + 1).tolist(), size]
    return [(first, last) for first, last in pairwise(edges) if last > first]
