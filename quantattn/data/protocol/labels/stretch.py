"""One entity's events within one session, and what lies in the horizon of each: no label leaves either."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from quantattn.data.market.sessions import SECOND, Sessions
from quantattn.data.protocol.labels.prices import Prices
from quantattn.data.protocol.labels.reasons import LABEL_REASON, REASONS, Int8Array
from quantattn.data.threads import LEAST_ROWS, each

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Unit = Literal["events", "seconds"]
Measured = tuple[Mapping[str, npt.NDArray[np.generic]], Int64Array, Int8Array]
"""Columns, ends of intervals, and numbers of reasons (−1: there is a label), each (R,)."""
_BLOCK = 2**15  # rows of a part, at least, whose arrays stay in the caches


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
    reach: int | None = None,
) -> pl.DataFrame:
    """Add `columns` and `label_start`, `label_end`, `label_reason`, measured stretch by stretch, on many threads.

    Args:
        frame: events in canonical order.
        sessions: no stretch leaves a session; events outside every session are given "session end". None: an entity's
            whole table is one session.
        columns: name → type of what `measure` returns; null where there is no label.
        measure: called with every stretch, or with a part of a long one.
        reach: how many rows before and after an event `measure` looks at most, so that it may be given a part and as
            many rows around it; None: it must see a stretch whole.

    Raises:
        ValueError: events out of order.
    """
    size, time = frame.height, frame["available_time"].to_numpy()
    lengths = frame["entity"].rle().struct.field("len").to_numpy()
    edges = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    backwards = np.setdiff1d(np.flatnonzero(time[1:] < time[:-1]) + 1, edges)
    if backwards.size:
        raise ValueError(f"labels need events in order of time, but available_time falls at row {backwards[0]}")
    session = None if sessions is None else sessions.locate(time)
    if session is not None:
        edges = np.union1d(edges, np.flatnonzero(session[1:] != session[:-1]) + 1)
    made = {name: np.zeros(size, dtype) for name, dtype in columns.items()}
    end, reason = np.zeros(size, np.int64), np.full(size, -1, np.int8)

    def put(parts: Sequence[_Part]) -> None:
        first = parts[0].seen[0]
        prices = Prices.of(frame[first : parts[-1].seen[1]])
        for part in parts:
            seen, kept = slice(*part.seen), slice(*part.rows)
            close = None
            if sessions is not None and session is not None:
                if session[part.rows[0]] < 0:
                    reason[kept] = REASONS.index("session end")
                    continue
                close = int(sessions.close[session[part.rows[0]]])
            found = measure(
                Stretch(part.seen[0], time[seen], close, prices.part(seen.start - first, seen.stop - first))
            )
            own = slice(part.rows[0] - part.seen[0], part.rows[1] - part.seen[0])
            end[kept], reason[kept] = found[1][own], found[2][own]
            for name, column in made.items():
                column[kept] = found[0][name][own]

    each(put, _together(_parts(edges, reach)))
    has = pl.Series("has", reason < 0)
    found = {**made, "label_start": time, "label_end": end}
    return frame.with_columns(
        *(pl.when(has).then(pl.Series(name, values)).alias(name) for name, values in found.items()),
        pl.when(~has).then(pl.Series("label_reason", reason.view(np.uint8) % len(REASONS)).cat.to(LABEL_REASON)),
    )


@dataclass(frozen=True)
class _Part:
    """Rows of one stretch that are measured at a time, and those that are looked at for it; half-open."""

    rows: tuple[int, int]
    seen: tuple[int, int]


def _parts(edges: Int64Array, reach: int | None) -> Iterator[_Part]:
    for first, last in pairwise(edges.tolist()):
        if reach is None:
            yield _Part((first, last), (first, last))
            continue
        size = max(_BLOCK, 4 * reach)
        for start in range(first, last, size):
            stop = min(start + size, last)
            yield _Part((start, stop), (max(start - reach, first), min(stop + reach, last)))


def _together(parts: Iterable[_Part]) -> list[list[_Part]]:
    """Consecutive parts, as many together as a thread of their own pays for."""
    groups: list[list[_Part]] = []
    room = 0
    for part in parts:
        if room <= 0:
            groups.append([])
            room = LEAST_ROWS
        groups[-1].append(part)
        room -= part.rows[1] - part.rows[0]
    return groups
