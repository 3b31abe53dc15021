"""One token an event: events of a market → integer codes to embed and scaled values, fitted on training rows only.

Every numeric field starts as an exact integer (`raw_fields`), so a bin is found by comparing integers; floats appear
only in the scaled values. Everything is past-only: a row's tokens are a function of that row and of the row before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import polars as pl

from quantattn.data.compiled import pays
from quantattn.data.lookup import once_a_run, once_a_value
from quantattn.data.market.walked_tokens import WalkedBook
from quantattn.data.merges import EVENT, Bools, Codes, Merges
from quantattn.data.merges import FIRST_CODE as FIRST_CODE
from quantattn.data.merges import MASKED as MASKED
from quantattn.data.merges import MISSING as MISSING
from quantattn.data.numeric_field import CLIP as CLIP
from quantattn.data.numeric_field import LINEAR as LINEAR
from quantattn.data.numeric_field import NumericField as NumericField
from quantattn.data.raw_fields import FEATURE, raw_fields
from quantattn.data.raw_fields import wall_clock as wall_clock
from quantattn.data.schema import Instrument
from quantattn.data.stored import categories_of, count_of, numeric_of, of_stored
from quantattn.data.threads import each

MOST_BINS = 2**16 - 1 - FIRST_CODE
"""Bins whose codes fit UInt16."""

CATEGORIES: tuple[str, ...] = ("kind", "side")
FORMAT = 2
FORMAT_WITH_MERGES = 3
_TICK = "_tick"

RAW: tuple[str, ...] = tuple(raw_fields(pl.lit(1)))
FIELDS: tuple[str, ...] = (*CATEGORIES, *RAW)
"""Everything that the token of an event with a book can have."""
OTHER_FIELDS: tuple[str, ...] = tuple(
    dict.fromkeys(
        name for table in (("close",), ("price",)) for name in raw_fields(pl.lit(1), columns=table) if name not in RAW
    )
)
"""What tokens of bars and of trades have beside these."""


@dataclass(frozen=True)
class Tokenizer:
    """How events become tokens; made by `fit`, stored as JSON.

    Attributes:
        categories: field → the values seen in training, sorted; value i has code i + 2.
        numeric: field → its bins and scale.
        ticks: entity → smallest price step.
        fitted_until: no row at or after this time was looked at (ns UTC, compared with `available_time`).
        fitted_last: the latest `available_time` that was looked at.
        fitted_rows: how many rows were looked at.
        zone: time zone of the clock; under daylight saving a clock in UTC would move the session by an hour.
        merges: the joint vocabulary in which the codes of some fields are one, and what is joined; None for none.
    """

    categories: Mapping[str, tuple[int, ...]]
    numeric: Mapping[str, NumericField]
    ticks: Mapping[str, int]
    fitted_until: int
    fitted_last: int
    fitted_rows: int
    zone: str = "UTC"
    merges: Merges | None = None

    @staticmethod
    def fit(
        frame: pl.LazyFrame,
        instruments: Iterable[Instrument],
        *,
        fitted_until: int,
        fields: Sequence[str] | None = None,
        n_bins: int = 32,
        max_rows: int = 2_000_000,
        zone: str = "UTC",
    ) -> Tokenizer:
        """Learn categories, bins and scales from the rows with available_time < fitted_until.

        Args:
            frame: book events, trades or bars in canonical order.
            instruments: one for each entity.
            fitted_until: ns UTC, exclusive.
            fields: which tokens to make, names among `FIELDS` and `OTHER_FIELDS`; None is all those of the table of
                which a training row has a value.
            n_bins: the most bins a numeric field may get.
            max_rows: with more training rows than this, bins and scales come from every k-th of them.
            zone: time zone of the clock, such as "America/New_York".

        Raises:
            ValueError: no training row, a field that is not known or that the table cannot have, a zone that is not
                known, or n_bins outside 2 … `MOST_BINS`.
        """
        known_fields(fields, n_bins)
        require_zone(zone)
        columns = frame.collect_schema().names()
        names = _fields_of(columns) if fields is None else tuple(fields)
        if lacking := [name for name in names if name not in _fields_of(columns)]:
            raise ValueError(f"the table has no {lacking[0]}; its token fields are {', '.join(_fields_of(columns))}")
        ticks = {instrument.entity: instrument.tick for instrument in instruments}
        made = raw_fields(pl.col(_TICK), zone, columns)
        used = {"entity", "available_time", *CATEGORIES}.union(*(own.meta.root_names() for own in made.values()))
        past = frame.filter(pl.col("available_time") < fitted_until)
        events = past.select(name for name in columns if name in used).collect()
        if not events.height:
            raise ValueError(f"no event is available before fitted_until = {fitted_until}: nothing to fit on")
        # Raw values look at the row before, which is past too; so they are made before further rows are left out.
        every = -(-events.height // max_rows)
        walked = WalkedBook.of(events, ticks, zone) if pays(events.height) else None
        if walked is None:
            raw = {name: own for name, own in made.items() if name in names}
            seen = events.lazy().with_columns(_tick(ticks)).select(**raw).gather_every(every).collect()
            values = {name: seen[name].drop_nulls().to_numpy() for name in raw}
        else:
            values = {name: own for name, own in walked.values(every).items() if name in names}
        if fields is None:
            values = {name: own for name, own in values.items() if len(own)}
        numbers = each(lambda name: NumericField.fit(name, values[name], n_bins), tuple(values))
        return Tokenizer(
            categories={name: tuple(sorted(events[name].unique())) for name in CATEGORIES if name in names},
            numeric=dict(zip(values, numbers, strict=True)),
            ticks=ticks,
            fitted_until=fitted_until,
            fitted_last=int(events["available_time"].to_numpy().max()),
            fitted_rows=events.height,
            zone=zone,
        )

    @property
    def codes(self) -> dict[str, int]:
        """Token column → number of codes, `MISSING` and `MASKED` included."""
        counts = {f"{name}_code": FIRST_CODE + len(values) for name, values in self.categories.items()}
        counts |= {f"{name}_code": FIRST_CODE + len(field.edges) + 1 for name, field in self.numeric.items()}
        if self.merges is None:
            return counts
        joint = {f"{name}_code" for name in self.merges.fields}
        return {EVENT: self.merges.n_codes} | {name: count for name, count in counts.items() if name not in joint}

    @property
    def values(self) -> tuple[str, ...]:
        """Names of the scaled float32 columns."""
        return tuple(f"{name}_value" for name in self.numeric)

    def transform(self, frame: pl.LazyFrame, instruments: Iterable[Instrument] | None = None) -> pl.LazyFrame:
        """Add the columns of `codes` (UInt16) and of `values` (Float32) to events in canonical order, one row an event.

        `instruments` gives the ticks of entities that were not there when the tokenizer was fitted. An entity without a
        tick makes the computation fail.

        Raises:
            ValueError: the tokenizer was fitted on another kind of table.
        """
        ticks = self.ticks_with(instruments)
        made = raw_fields(pl.col(_TICK), self.zone, frame.collect_schema().names())
        if lacking := [name for name in self.numeric if name not in made]:
            raise ValueError(f"the tokens have {lacking[0]}, which a table with {', '.join(made)} cannot have")
        raw = {name: own for name, own in made.items() if name in self.numeric}
        frame = frame.with_columns(_tick(ticks))
        frame = frame.with_columns(expression.alias(f"{name}_raw") for name, expression in raw.items())
        tokens = [self._category(name).alias(f"{name}_token") for name in self.categories]
        tokens += [
            field.tokens(name, pl.col(f"{name}_raw")).alias(f"{name}_token") for name, field in self.numeric.items()
        ]
        frame = frame.with_columns(tokens).drop(_TICK, *(f"{name}_raw" for name in raw))
        frame = frame.unnest([f"{name}_token" for name in (*self.categories, *self.numeric)])
        if self.merges is None:
            return frame
        joint = [f"{name}_code" for name in self.merges.fields]
        event = pl.struct(joint).map_batches(partial(_types, merges=self.merges), return_dtype=pl.UInt16)
        return frame.with_columns(event.alias(EVENT)).drop(joint)

    def ticks_with(self, instruments: Iterable[Instrument] | None) -> dict[str, int]:
        """Entity → smallest price step, of these instruments too."""
        return {**self.ticks, **{instrument.entity: instrument.tick for instrument in instruments or ()}}

    def columns(
        self, events: pl.DataFrame, instruments: Iterable[Instrument] | None = None, first: int = 0
    ) -> dict[str, npt.NDArray[Any]] | None:
        """What `transform` adds, from row `first` on, by compiled loops; None of a table that they are not made for."""
        if not (set(self.numeric) <= set(RAW) and all(type(e) is int for f in self.numeric.values() for e in f.edges)):
            return None
        walked = WalkedBook.of(events, self.ticks_with(instruments), self.zone)
        if walked is None:
            return None
        made = walked.tokens(self.categories, self.numeric, first)
        if self.merges is not None:
            made[EVENT] = self.merges.of_rows({name: made.pop(f"{name}_code") for name in self.merges.fields})
            made[EVENT] = made[EVENT].astype(np.uint16)
        return made

    def joined(self, events: pl.DataFrame, joint: Sequence[str], n_pairs: int, seen: Bools, stop: Bools) -> Tokenizer:
        """With one code for the fields `joint` together, fitted on the rows that may be seen; see `Merges.fit`.

        Raises:
            ValueError: a field that the tokens do not have, or what `Merges.fit` refuses.
        """
        if lacking := [name for name in joint if f"{name}_code" not in self.codes]:
            raise ValueError(
                f"joint has {lacking[0]}, but the tokens have {', '.join((*self.categories, *self.numeric))}"
            )
        codes = self.transform(events.lazy()).select(f"{name}_code" for name in joint).collect()
        columns = {name: codes[f"{name}_code"].to_numpy() for name in joint}
        return replace(self, merges=Merges.fit(columns, seen, stop, n_pairs))

    def to_json(self) -> str:
        """The tokenizer as JSON; `from_json` gives back an equal one (floats are written in full)."""
        fields = {
            name: {"edges": list(field.edges), "center": field.center, "scale": field.scale}
            for name, field in self.numeric.items()
        }
        plain = {
            "format": FORMAT if self.merges is None else FORMAT_WITH_MERGES,
            "fitted_until": self.fitted_until,
            "fitted_last": self.fitted_last,
            "fitted_rows": self.fitted_rows,
            "zone": self.zone,
            "ticks": dict(self.ticks),
            "categories": {name: list(values) for name, values in self.categories.items()},
            "numeric": fields,
        }
        if self.merges is not None:
            plain["merges"] = self.merges.plain()
        return json.dumps(plain, indent=1, sort_keys=False, allow_nan=False)

    @staticmethod
    def from_json(text: str) -> Tokenizer:
        """The tokenizer that `to_json` wrote; raises ValueError for anything else."""
        return of_stored(text, _of_plain)

    def _category(self, name: str) -> pl.Expr:
        known = self.categories[name]
        codes = [FIRST_CODE + i for i in range(len(known))]

        def code(column: pl.Expr) -> tuple[pl.Expr]:
            found = column.replace_strict(list(known), codes, default=MISSING)
            return (found.fill_null(MISSING).cast(pl.UInt16).alias(f"{name}_code"),)

        return once_a_value(pl.col(name).cast(pl.Int64), code, {f"{name}_code": pl.UInt16})


def _of_plain(plain: Mapping[str, Any]) -> Tokenizer:
    if plain.get("format") != (FORMAT_WITH_MERGES if "merges" in plain else FORMAT):
        raise ValueError(
            f"this tokenizer has format {plain.get('format')!r:.40}; this version reads format {FORMAT}, and "
            f"{FORMAT_WITH_MERGES} with merges"
        )
    return Tokenizer(
        categories=categories_of(plain, int),
        numeric=numeric_of(plain, NumericField),
        ticks={name: count_of(plain["ticks"], name) for name in plain["ticks"]},
        **{name: count_of(plain, name) for name in ("fitted_until", "fitted_last", "fitted_rows")},
        zone=require_zone(plain["zone"]),
        merges=Merges.of_plain(plain["merges"]) if "merges" in plain else None,
    )


def _types(codes: pl.Series, merges: Merges) -> pl.Series:
    columns: dict[str, Codes] = {name: codes.struct.field(f"{name}_code").to_numpy() for name in merges.fields}
    return pl.Series(merges.of_rows(columns).astype(np.uint16))


def _tick(ticks: Mapping[str, int]) -> pl.Expr:
    # As a column it is made once; within three expressions it would be made three times.
    return once_a_run(pl.col("entity"), ticks).alias(_TICK)


def _fields_of(columns: Sequence[str]) -> tuple[str, ...]:
    """The token fields that a table with these columns can have."""
    return (*(name for name in CATEGORIES if name in columns), *raw_fields(pl.lit(1), columns=columns))


def known_fields(fields: Sequence[str] | None, n_bins: int) -> tuple[str, ...]:
    """The token fields that are asked for, all when None.

    Raises:
        ValueError: a field that is not known or stands twice, or n_bins outside 2 … `MOST_BINS`.
    """
    every = (*FIELDS, *OTHER_FIELDS)
    names = every if fields is None else tuple(fields)
    unknown = [name for name in names if name not in every and not name.startswith(FEATURE)]
    if unknown or not names or len(set(names)) != len(names):
        raise ValueError(f"fields must be some of {', '.join(every)}, each once, got {', '.join(names) or 'none'}")
    if not 2 <= n_bins <= MOST_BINS:
        raise ValueError(f"n_bins must lie in 2 … {MOST_BINS}, got {n_bins}")
    return names


def require_zone(zone: str) -> str:
    """The time zone itself; one that is not known is refused."""
    try:
        return ZoneInfo(zone).key
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(f"no time zone {zone!r}; expected a name such as 'America/New_York'") from error
