"""Raw values and tokens of long tables of book events, by compiled loops: the bits of `Tokenizer.transform`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from quantattn.data.market.arrays import UNKNOWN, book_arrays
from quantattn.data.merges import FIRST_CODE, MISSING
from quantattn.data.numeric_field import NumericField, is_linear
from quantattn.data.raw_fields import raw_fields, wall_clock
from quantattn.data.schema import level_columns
from quantattn.data.threads import LEAST_ROWS, each, spans

Ints = npt.NDArray[np.int64]
Columns = dict[str, npt.NDArray[Any]]

_COLUMNS = {"size": "size", "ask_size": "ask_size_1", "bid_size": "bid_size_1"}
"""Fields that are columns of the table."""
_MADE = ("price", "mid_move", "spread", "imbalance", "gap", "clock")
"""The other fields, in the order of `raw_walk.raw_values`."""
FIELDS: tuple[str, ...] = tuple(raw_fields(pl.lit(1)))
_BLOCK = 2**15  # rows whose raw values stay in the caches
_AROUND = 2**10  # values below the first edge and above the last that have an entry in a table
_LONGEST = 2**16  # entries of a table


@dataclass(frozen=True)
class WalkedBook:
    """Book events as arrays, with first row and tick of every entity, and whose clock."""

    events: pl.DataFrame
    arrays: Mapping[str, npt.NDArray[Any]]
    first: Ints
    tick: Ints
    zone: str

    @staticmethod
    def of(events: pl.DataFrame, ticks: Mapping[str, int], zone: str) -> WalkedBook | None:
        """None of a table that `book_arrays` does not take, or that ships features of its own.

        Raises:
            polars.exceptions.InvalidOperationError: an entity has no tick.
        """
        arrays = None if "feature_1" in events.columns else book_arrays(events)
        if arrays is None:
            return None
        runs = events["entity"].rle().struct.unnest()
        tick = runs["value"].replace_strict(list(ticks), list(ticks.values()), return_dtype=pl.Int64).to_numpy()
        lengths = runs["len"].to_numpy().astype(np.int64)
        return WalkedBook(events, arrays, np.cumsum(lengths) - lengths, tick, zone)

    def values(self, every: int) -> Columns:
        """What is not null of every field in every `every`-th row."""
        size = self.events.height
        raw = np.empty((len(_MADE), size if every == 1 else min(_BLOCK, size)), np.int64)
        kept = raw if every == 1 else np.empty((len(_MADE), -(-size // every)), np.int64)
        for begin in range(0, size, raw.shape[1]):
            end = min(begin + raw.shape[1], size)
            self._make(begin, end, raw)
            if every > 1:
                kept[:, -(-begin // every) : -(-end // every)] = raw[:, -begin % every : end - begin : every]
        found = {name: self.arrays[column][::every] for name, column in _COLUMNS.items()}
        found |= dict(zip(_MADE, kept, strict=True))
        return {name: own[own != UNKNOWN] if (own := found[name]).min() == UNKNOWN else own for name in FIELDS}

    def _make(self, first: int, last: int, out: Ints) -> None:
        """Fill the first columns of `out`, (6, last − first or more)."""
        walk = import_module("quantattn.data.market.raw_walk").raw_values
        names = ("available_time", "price", *level_columns(1))
        walk(*(self.arrays[name] for name in names), first, last, self.first, self.tick, out)
        if self.zone != "UTC":
            clock = wall_clock(pl.col("available_time"), self.zone)
            out[_MADE.index("clock"), : last - first] = self.events[first:last].select(clock).to_series().to_numpy()

    def tokens(
        self, categories: Mapping[str, Sequence[int]], numeric: Mapping[str, NumericField], first: int
    ) -> Columns:
        """Codes and values of the events from row `first` on, by the names of their columns."""
        walk = import_module("quantattn.data.market.raw_walk").tokens
        size, fields = self.events.height - first, (*categories, *numeric)
        # In one piece memory comes in large pages, which are cleared before they are had.
        codes = dict(zip(fields, np.empty((len(fields), size), np.uint16), strict=True))
        values = dict(zip(numeric, np.empty((len(numeric), size), np.float32), strict=True))

        def fill(rows: tuple[int, int]) -> None:
            raw = np.empty((len(_MADE), min(_BLOCK, rows[1] - rows[0])), np.int64)
            made = {name: raw[row] for row, name in enumerate(_MADE)}
            for begin in range(*rows, _BLOCK):
                end = min(begin + _BLOCK, rows[1])
                here = slice(first + begin, first + end)
                for name, known in categories.items():
                    table, byte = _codes(self.arrays[name].dtype, tuple(known)), self.arrays[name][here].view(np.uint8)
                    np.take(table, byte, out=codes[name][begin:end], mode="clip")
                if not made.keys().isdisjoint(numeric):
                    self._make(here.start, here.stop, raw)
                for name, field in numeric.items():
                    own = made[name][: end - begin] if name in made else self.arrays[_COLUMNS[name]][here]
                    own.flags.writeable = False  # one type of array, so that the loop is compiled once
                    walk(own, *_table(name, field), codes[name][begin:end], values[name][begin:end])

        each(fill, spans(size, LEAST_ROWS))
        return {f"{n}_code": column for n, column in codes.items()} | {f"{n}_value": c for n, c in values.items()}


@lru_cache(maxsize=64)
def _codes(kind: np.dtype[Any], known: Sequence[int]) -> npt.NDArray[np.uint16]:
    """Code of a category by its byte."""
    found = np.full(256, MISSING, np.uint16)
    limits = np.iinfo(kind)
    for place, value in enumerate(known):
        if limits.min <= value <= limits.max:
            found[value % 256] = FIRST_CODE + place
    return found


@lru_cache(maxsize=256)
def _table(name: str, field: NumericField) -> tuple[Any, ...]:
    """The arguments of the compiled loop: tables of the values around the edges where those lie close, and the rest."""
    edges = np.asarray(field.edges, np.int64)
    around = np.zeros(0, np.int64)
    if len(edges) and edges[-1] - edges[0] <= _LONGEST - 2 * _AROUND:
        around = np.arange(edges[0] - _AROUND, edges[-1] + _AROUND + 1)
    raw = pl.col("raw")
    made = pl.DataFrame({"raw": around}).select(code=field.code(raw), value=field.value(name, raw))
    tables = (made["code"].to_numpy(), made["value"].to_numpy(), edges)
    for table in tables:
        table.flags.writeable = False  # one type of array, so that the loop is compiled once
    return (int(around[0]) if len(around) else 0, *tables, field.center, 1 / field.scale, is_linear(name))
