"""The arithmetic of `book_features`, a block of rows at a time, so that what is made on the way stays in the caches.

A column of its own for each of some hundred steps takes longer to write to fresh memory than to work out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from quantattn.data.compiled import pays
from quantattn.data.market.arrays import book_arrays
from quantattn.data.market.book import usable_book
from quantattn.data.market.sessions import Sessions
from quantattn.data.schema import EXECUTE, level_columns
from quantattn.data.threads import LEAST_ROWS, each, spans

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[Any]
Past = slice | Ints

SQUARE_UNIT = 1e-18
"""Squared log returns are rounded to whole multiples of this before they are summed."""
SQUARES_IN_ONE = 1 / SQUARE_UNIT
"""To multiply by: a column divided by a number has other last bits in polars 2.1 when it has few rows a thread, and a
product has the same ones in every table."""
_BLOCK = 2**15  # rows; a hundred arrays of eight bytes each come and go within the second cache


def at_level(name: str, level: int) -> str:
    """Name of a column of a level of the book."""
    return name if level == 1 else f"{name}_level_{level}"


def feature_columns(
    frame: pl.DataFrame,
    ticks: Mapping[str, int],
    sessions: Sessions | None,
    windows: Sequence[int],
    levels: int,
    *,
    threads: bool = False,
) -> dict[str, pl.Series]:
    """The features that `book_features` adds, in any order; on many threads if asked, see `quantattn.data.threads`.

    Of long tables with one level they are made by compiled code, bit for bit the same.
    """
    usable = frame.select(usable_book()).to_series().to_numpy()
    runs = _Runs.of(frame, usable, ticks, sessions)
    parts = spans(frame.height, LEAST_ROWS) if threads else [(0, frame.height)]
    arrays = book_arrays(frame) if levels == 1 and pays(frame.height) else None
    made: dict[str, Numbers] = {}
    if arrays is None:
        each(lambda rows: _Work(frame, usable, runs, tuple(windows), levels, made).rows(*rows), parts)
    else:
        made = _walked(arrays, usable, runs, windows, parts)
    return {name: pl.Series(name, column) for name, column in made.items()}


def _walked(
    arrays: Mapping[str, Numbers],
    usable: Bools,
    runs: _Runs,
    windows: Sequence[int],
    parts: Sequence[tuple[int, int]],
) -> dict[str, Numbers]:
    loops = import_module("quantattn.data.market.feature_walk")
    size, ask, bid = len(usable), arrays["ask_price_1"], arrays["bid_price_1"]
    columns = tuple(arrays[name] for name in ("available_time", "kind", "side", "size", *level_columns(1)))
    whole = ["depth", *(f"{name}_{k}" for name in ("ofi", "trade_flow") for k in windows)]
    fractions = ["spread_ticks", "imbalance", "microprice"]
    fractions += [f"{name}_{k}" for name in ("return", "volatility", "log_span") for k in windows]
    out = np.empty((len(whole), size), np.int64), np.empty((len(fractions), size))

    def fill(rows: tuple[int, int]) -> None:
        before = max(rows[0] - max(windows), 0)
        known = last_usable(usable, before)
        mid, spread = (int(ask[known] + bid[known]), int(ask[known] - bid[known])) if known >= 0 else (0, 0)
        if (run := runs.at(before)) >= 0 and known < runs.first[run]:
            mid, spread = int(runs.mid[run]), 0
        rooms = np.empty((loops.ROOMS, max(windows) + loops.BLOCK), np.int64)
        asked = (before, *rows, mid, spread, (runs.first, runs.tick, runs.mid), np.asarray(windows, np.int64), rooms)
        loops.walk(columns, *asked, *out)

    each(fill, parts)
    return dict(zip((*whole, *fractions), (*out[0], *out[1]), strict=True))


def last_usable(usable: Bools, row: int) -> int:
    """The last row before this one whose book is usable, −1 for none."""
    for last in range(row, 0, -_BLOCK):
        first = max(last - _BLOCK, 0)
        there = np.flatnonzero(usable[first:last])
        if len(there):
            return first + int(there[-1])
    return -1


@dataclass(frozen=True)
class _Runs:
    """An entity's sessions, one after the other: (R,) first row, tick, and the first mid that there is, 0 for none."""

    first: Ints
    tick: Ints
    mid: Ints

    @staticmethod
    def of(frame: pl.DataFrame, usable: Bools, ticks: Mapping[str, int], sessions: Sessions | None) -> _Runs:
        time, size = frame["available_time"].to_numpy(), frame.height
        of_entity = frame["entity"].rle().struct.unnest()
        lengths = of_entity["len"].to_numpy().astype(np.int64)
        changes = np.zeros(size + 1, np.bool_)
        changes[np.cumsum(lengths) - lengths] = True
        if sessions is not None and size:
            session = np.searchsorted(sessions.open, time, side="right")
            changes[1:size] |= session[1:] != session[:-1]
        first = np.flatnonzero(changes[:size])
        tick = of_entity["value"].replace_strict(list(ticks), list(ticks.values()), return_dtype=pl.Int64).to_numpy()
        entity = np.searchsorted(np.cumsum(lengths), first, side="right")
        known = first.copy()
        for run in np.flatnonzero(~usable[first]):
            known[run] += np.argmax(usable[first[run] : first[run + 1] if run + 1 < len(first) else size])
        prices = frame.select("ask_price_1", "bid_price_1")[known]
        mid = np.where(usable[known], (prices["ask_price_1"] + prices["bid_price_1"]).fill_null(0).to_numpy(), 0)
        return _Runs(first, tick[entity], mid)

    def at(self, row: int) -> int:
        """The run that the row before this one is in, −1 for none."""
        return int(np.searchsorted(self.first, row)) - 1

    def within(self, first: int, last: int) -> tuple[Ints, Ints, Ints]:
        """Of each row of first … last − 1: the first row of its run, the tick, and the run's first mid."""
        from_run, to_run = np.searchsorted(self.first, [first, max(last - 1, first)], side="right")
        here = slice(max(from_run - 1, 0), to_run)
        rows = np.diff(np.append(np.maximum(self.first[here], first), last))
        begin, tick, mid = (np.repeat(each[here], rows) for each in (self.first, self.tick, self.mid))
        return begin, tick, mid


@dataclass
class _Work:
    """A table, and what one block leaves for the next.

    A name's values in a block are preceded by its last `reach` values before it, so that value j of a block stands at
    reach + j. Before the table they are 0, which is what no sum has begun with.
    """

    frame: pl.DataFrame
    usable: Bools
    runs: _Runs
    windows: tuple[int, ...]
    levels: int
    made: dict[str, Numbers]
    ends: dict[str, Numbers] = field(default_factory=dict)
    known: tuple[int, int, int] = (-1, 0, 0)
    """The last row with a usable book, its mid and its spread."""
    kept: bool = True
    """Whether blocks go into `made`, which those do not that only give what the next one needs."""

    @property
    def reach(self) -> int:
        return max(self.windows)

    def rows(self, first: int, last: int) -> None:
        """Fill rows first … last − 1 of `made`, whatever was done before."""
        if first:
            before = max(first - self.reach, 0)
            if (place := last_usable(self.usable, before)) >= 0:
                ask, bid = (int(self.frame[name][place]) for name in ("ask_price_1", "bid_price_1"))
                self.known = (place, ask + bid, ask - bid)
            self.kept = False
            # Sums of this block lack what came before; it drops out of their differences.
            self.block(before, first)
            self.kept = True
        for start in range(first, max(last, first + 1), _BLOCK):
            self.block(start, min(start + _BLOCK, last))

    def block(self, first: int, last: int) -> None:
        """Fill rows first … last − 1 of `made`."""
        reach, size = self.reach, last - first
        rows = slice(first, last)
        begin, tick, first_mid = self.runs.within(first, last)
        place = np.arange(first, last) - begin
        mid, spread = self._last_known(rows, begin, first_mid)
        time = self._after("time", self.frame["available_time"][rows].to_numpy())
        mids = self._after("mid", mid)
        # The row that many events ago; where the run has fewer, its first, and for sums the one before it.
        least = int(place.min()) if size else 0
        back: dict[int, Past] = {k: slice(reach - k, reach - k + size) for k in self.windows}
        before = dict(back)
        for k in self.windows:
            if least < k:
                rank, start = np.arange(reach - k, reach - k + size), begin - (first - reach)
                back[k], before[k] = np.maximum(rank, start), np.maximum(rank, start - 1)
        spans = {k: 1 + time[reach:] - time[back[k]] for k in self.windows}
        now, earlier = mids[reach:], mids[reach - 1 : -1]
        moved = np.flatnonzero((now != earlier) & (place > 0) & (now > 0) & (earlier > 0))
        *log_spans, log_now, log_earlier = _logs([*spans.values(), now[moved], earlier[moved]])
        squares = np.zeros(size, np.int64)
        squares[moved] = self._squares(log_now - log_earlier)
        sums = {"trade_flow": self._trades(rows), "volatility": squares}
        sums |= {at_level("ofi", m): self._order_flow(rows, m, place) for m in range(1, self.levels + 1)}
        totals = {name: self._total(name, each) for name, each in sums.items()}
        ticks = tick.astype(np.float64)
        spread_ticks = self._put("spread_ticks", rows, spread / ticks)
        imbalance, *_ = [
            self._put(at_level("imbalance", m), rows, self._imbalance(rows, m)) for m in range(1, self.levels + 1)
        ]
        self._put("microprice", rows, imbalance * spread_ticks)
        for k, log_span in zip(self.windows, log_spans, strict=True):
            for name, total in totals.items():
                summed = total[reach:] - total[before[k]]
                if name == "volatility":
                    self._put(f"volatility_{k}", rows, np.sqrt(summed * SQUARE_UNIT))
                else:
                    flow, _, level = name.partition("_level_")
                    self._put(at_level(f"{flow}_{k}", int(level or 1)), rows, summed)
            self._put(f"return_{k}", rows, (mid - mids[back[k]]) / ticks)
            self._put(f"log_span_{k}", rows, log_span)

    def _put(self, name: str, rows: slice, values: Numbers) -> Numbers:
        if self.kept:
            if name not in self.made:  # the first of the threads that come here makes the column
                self.made.setdefault(name, np.empty(self.frame.height, values.dtype))
            self.made[name][rows] = values
        return values

    def _after(self, name: str, values: Numbers) -> Numbers:
        """The values, after the last ones of the same name."""
        before = self.ends.get(name)
        both = np.concatenate([np.zeros(self.reach, values.dtype) if before is None else before, values])
        self.ends[name] = both[-self.reach :].copy()
        return both

    def _total(self, name: str, values: Ints) -> Numbers:
        # The running total may go round int64; the difference of two of its values is right all the same.
        total = np.cumsum(values)
        if name in self.ends:
            total += self.ends[name][-1]
        return self._after(name, total)

    def _last_known(self, rows: slice, begin: Ints, first_mid: Ints) -> tuple[Ints, Ints]:
        """Mid and spread of each row's last usable book in its run; where there is none yet, the first mid to come,
        from which nothing has moved, and 0."""
        ask, _ = _filled(self.frame["ask_price_1"][rows])
        bid, _ = _filled(self.frame["bid_price_1"][rows])
        mid, spread, usable = ask + bid, ask - bid, self.usable[rows]
        if not usable.all():
            place = np.maximum.accumulate(np.where(usable, np.arange(1, len(mid) + 1), 0))
            row = np.append(self.known[0], np.arange(rows.start, rows.stop))[place]
            mid, spread = np.append(self.known[1], mid)[place], np.append(self.known[2], spread)[place]
            there = row >= begin
            last = (int(row[-1]), int(mid[-1]), int(spread[-1]))
            mid, spread = np.where(there, mid, first_mid), np.where(there, spread, 0)
        elif len(mid):
            last = (rows.stop - 1, int(mid[-1]), int(spread[-1]))
        else:
            last = self.known
        self.known = last
        return mid, spread

    def _trades(self, rows: slice) -> Ints:
        kind, side, size = (self.frame[name][rows].to_numpy() for name in ("kind", "side", "size"))
        trades = np.flatnonzero(kind == EXECUTE)
        signed = np.zeros(len(kind), np.int64)
        signed[trades] = -side[trades].astype(np.int64) * size[trades]
        return signed

    def _squares(self, change: Floats) -> Ints:
        most = 2.0**62 / self.reach
        return np.rint(np.minimum(change * change * SQUARES_IN_ONE, most)).astype(np.int64)

    def _imbalance(self, rows: slice, level: int) -> Floats:
        _, ask_size, _, bid_size = level_columns(level)
        (ask, no_ask), (bid, no_bid) = _filled(self.frame[ask_size][rows]), _filled(self.frame[bid_size][rows])
        depth = ask + bid
        self._put(at_level("depth", level), rows, depth)
        there = self.usable[rows] & (depth > 0)
        if no_ask is not None or no_bid is not None:
            there &= ~(_or_none(no_ask, len(ask)) | _or_none(no_bid, len(bid)))
        return np.where(there, (bid - ask) / np.maximum(depth, 1), 0.0)

    def _order_flow(self, rows: slice, level: int, place: Ints) -> Ints:
        """Equation 4 of Cont, Kukanov, Stoikov; 0 where a price, or a size that it takes, is not known."""
        now, before = slice(self.reach, None), slice(self.reach - 1, -1)
        there, size = self.usable[rows], len(place)
        columns: dict[str, Numbers] = {}
        lacking: dict[str, Numbers] = {}
        for name in level_columns(level):
            values, missing = _filled(self.frame[name][rows])
            columns[name] = self._after(name, values)
            if "price" in name:
                there = there if missing is None else there & ~missing
            else:
                lacking[name] = self._after(f"no {name}", _or_none(missing, size))
        known = self._after(at_level("there", level), there)
        valid = known[now] & known[before] & (place > 0)
        ask, ask_size, bid, bid_size = level_columns(level)
        flow = np.zeros(size, np.int64)
        for price, amount, sign, rises in ((bid, bid_size, 1, True), (ask, ask_size, -1, False)):
            value, sizes, none = columns[price], columns[amount], lacking[amount]
            higher, lower = value[now] >= value[before], value[now] <= value[before]
            comes, goes = (higher, lower) if rises else (lower, higher)
            flow += sign * (np.where(comes, sizes[now], 0) - np.where(goes, sizes[before], 0))
            if none.any():
                valid &= ~((comes & none[now]) | (goes & none[before]))
        return np.where(valid, flow, 0)


def _logs(values: Sequence[Ints]) -> list[Floats]:
    """Logarithms as polars, and so the C library, has them, whose last bits are not numpy's; in one call."""
    logs: Floats = pl.Series(np.concatenate(values)).log().to_numpy()
    return np.split(logs, np.cumsum([len(each) for each in values])[:-1])


def _filled(column: pl.Series) -> tuple[Ints, Bools | None]:
    """The values with 0 for null, and where they are null; None where none is."""
    if not column.null_count():
        return column.to_numpy(), None
    return column.fill_null(0).to_numpy(), column.is_null().to_numpy()


def _or_none(missing: Bools | None, size: int) -> Bools:
    return np.zeros(size, np.bool_) if missing is None else missing
