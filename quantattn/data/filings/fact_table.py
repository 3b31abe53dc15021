"""Facts of XBRL as events: one row a fact, known when its filing was public."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import astuple

import dataframely as dy
import polars as pl

from quantattn.data.filings.parsed import FACTS_ALONE, OK
from quantattn.data.filings.reading import Reading
from quantattn.data.schema import CANONICAL_ORDER, Events, check

_COLUMNS: dict[str, pl.DataType | type[pl.DataType]] = {
    **{"entity": pl.String, "event_time": pl.Int64, "available_time": pl.Int64},
    **{"accession": pl.String, "form": pl.String, "concept": pl.String, "identifier": pl.String, "start": pl.String},
    **{"end": pl.String, "unit": pl.String, "value": pl.Int64, "exponent": pl.Int32, "decimals": pl.Int32},
    **{"text": pl.String, "dimensions": pl.List(pl.String), "hidden": pl.Boolean},
}


class FilingFacts(Events):
    """Facts of filings; `event_time` is when the filing was accepted, `available_time` when the public could read it.

    A number is value · 10^exponent units, exact, right to 10^−decimals (null: exact, or not said); value is null for a
    text, and for a fact that says that it has none. `start` is null for an instant. The period is what the fact is
    about, and never a time at which it was known.
    """

    accession = dy.String(nullable=False, min_length=1)
    form = dy.String(nullable=False, min_length=1)
    concept = dy.String(nullable=False, min_length=1)
    identifier = dy.String(nullable=False)
    start = dy.Date(nullable=True)
    end = dy.Date(nullable=True)
    unit = dy.String(nullable=False)
    value = dy.Int64(nullable=True)
    exponent = dy.Int32(nullable=True)
    decimals = dy.Int32(nullable=True)
    text = dy.String(nullable=False)
    dimensions = dy.List(dy.String(), nullable=False)
    hidden = dy.Bool(nullable=False)


def fact_table(reads: Iterable[Reading]) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """The facts of filings that have a time, in canonical order, and sentences about those that are not in the table.

    An XBRL instance in a file of its own counts as its filing, with the same accession number and time. A fact that a
    filing states several times (in a table and in the text) stands once, where it is stated first.
    """
    counts: Counter[str] = Counter()
    table = pl.DataFrame(list(_rows(reads, counts)), schema=_COLUMNS, orient="row")
    dates = (pl.col("start", "end").str.to_date("%Y-%m-%d", strict=False),)
    table = table.with_columns(dates).with_row_index("seq").with_columns(pl.col("seq").cast(pl.Int64))
    once = table.unique([name for name in _COLUMNS if name != "hidden"], keep="first", maintain_order=True)
    if once.height < table.height:
        counts["stated before"] = table.height - once.height
    notes = tuple(f"{number:,} facts are left out: {reason}" for reason, number in sorted(counts.items()))
    columns = ("entity", "event_time", "available_time", "seq", *list(_COLUMNS)[3:])
    return check(once.select(columns).sort(CANONICAL_ORDER, maintain_order=True), FilingFacts), notes


def _rows(reads: Iterable[Reading], counts: Counter[str]) -> Iterator[tuple[object, ...]]:
    for read in reads:
        if read.status not in (OK, FACTS_ALONE) or read.available_time is None:
            continue
        counts.update(read.parsed.facts_left_out)
        place = (read.entity, read.event_time, read.available_time, read.accession or read.file, read.parsed.form)
        for fact in read.parsed.facts:
            yield (*place, *astuple(fact))
