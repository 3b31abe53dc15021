"""What a LOBSTER day lets one doubt: how fine its clock is, and whether its two files belong together."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import polars as pl

from quantattn.data.schema import NEW
from quantattn.data.sources.lobster_files import Pair, Unusable

_FEW_ROWS = 20
_STEP = ("1 s", "100 ms", "10 ms", "1 ms", "100 µs", "10 µs", "1 µs")


@cache
def facts(levels: int) -> list[pl.Expr]:
    """What the notes are made of, over messages beside books.

    The last time, the number of rows, the most and the fewest decimals of a time, and how many new orders there are,
    how many different numbers they have, and how many of them the book right after does not show on their side.
    """
    sides = {
        side: pl.any_horizontal(pl.col("price") == pl.col(f"{name}_price_{i}") for i in range(1, levels + 1))
        for side, name in ((1, "bid"), (-1, "ask"))
    }
    new = pl.col("kind") == NEW
    stranger = new & ~pl.when(pl.col("side") == 1).then(sides[1]).otherwise(sides[-1])
    return [
        pl.col("ns").drop_nulls().last().alias("last"),
        pl.col("ns").count().alias("rows"),
        pl.col("decimals").max().alias("finest"),
        pl.col("decimals").min().alias("coarsest"),
        new.sum().alias("new"),
        pl.col("order_id").filter(new).n_unique().alias("new_numbers"),
        stranger.sum().alias("strangers"),
        pl.col("line").filter(stranger).first().alias("first_stranger"),
    ]


def notes_on(pair: Pair, header: int, found: Mapping[str, int], rounded_times: bool) -> tuple[str, ...]:
    """Sentences for the report, from the values of `facts`; `header` is the number of lines before the first message.

    Raises:
        Unusable: there is no row, or the times were rounded and `rounded_times` does not accept that.
    """
    if not found["rows"]:
        sentence = f"{pair.message.name} holds a header and no row; expected one row a message"
        raise Unusable("empty file", sentence, pair.message, pair.book)
    notes = _clock(pair.message, found["rows"], found["finest"], found["coarsest"], rounded_times)
    if found["strangers"] * 100 > found["new"]:
        notes += (
            f"{found['strangers']} of {found['new']} new orders are not in the book after them, the first in line "
            f"{found['first_stranger'] + 1 + header}: {pair.message.name} and {pair.book.name} may not belong together",
        )
    repeated = found["new"] - found["new_numbers"]
    if repeated:
        notes += (
            f"{repeated} of {found['new']} new orders have the number of an earlier one: "
            f"rows may stand in {pair.message.name} twice",
        )
    return notes


def _clock(path: Path, rows: int, finest: int, coarsest: int, rounded_times: bool) -> tuple[str, ...]:
    """Decide how fine the times are: nanoseconds as a rule, micro- and milliseconds are noted, rounding is refused."""
    if finest >= 7:
        return ()
    found = f"the finest of {rows} times in {path.name} has {finest} decimals ({_STEP[finest]})"
    if finest == 6 or finest == coarsest == 3:
        return (f"{found}; taken for the resolution of the file",)
    if rounded_times:
        return (f"{found}; accepted as rounded because rounded_times was set, the order of rows breaks ties",)
    if rows < _FEW_ROWS and finest <= 3:
        return (f"{found}; too few rows to tell whether they were rounded",)
    raise Unusable(
        "rounded times",
        f"{found}, as a spreadsheet leaves them; expected nanoseconds (9 decimals, of which trailing zeros may be "
        f"missing): use the original file, or accept the loss with rounded_times=True",
        path,
    )
