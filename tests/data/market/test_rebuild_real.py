"""The books that LOBSTER ships against their own messages: which rows follow, and why the others cannot."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from quantattn.data.market import compare_book, rebuild_book
from quantattn.data.schema import level_columns
from quantattn.data.sources import scan_lobster

pytest.importorskip("numba", reason="numba is not here (pip install 'quantattn[book]')")

AMAZON = "AMZN_2012-06-21_34200000_57600000_message_1.csv.gz"
APPLE = "AAPL_2012-06-21_34200000_57600000_message_10.csv"
FIGURES = {AMAZON: (57_515, 43_561, 13_954, 7_467), APPLE: (999, 680, 319, 9)}
"""Rows, rows rebuilt whole, rows with a level that the messages cannot tell, messages of orders from before."""


def real(realdata: Path, name: str) -> pl.DataFrame:
    return scan_lobster(realdata / "lob" / "lobster" / name).frame.collect()


def emptied(events: pl.DataFrame, levels: int) -> pl.Series:
    """Whether a message took the last share of a level that the row before shows, on a side that it shows full."""
    removal = pl.col("kind").is_in([2, 3, 4])
    found = []
    for side, at in ((-1, 0), (1, 2)):
        names = [level_columns(level)[at : at + 2] for level in range(1, levels + 1)]
        full = pl.col(names[-1][1]).shift(1) > 0
        found += [
            removal
            & full
            & (pl.col("side") == side)
            & (pl.col(price).shift(1) == pl.col("price"))
            & (pl.col(size).shift(1) == pl.col("size"))
            for price, size in names
        ]
    return events.select(pl.any_horizontal(found).fill_null(False))[:, 0]


@pytest.mark.parametrize(("name", "levels"), [(AMAZON, 1), (APPLE, 10)])
def test_every_row_that_can_be_rebuilt_is_the_shipped_one(realdata: Path, name: str, levels: int) -> None:
    events = real(realdata, name)
    found = compare_book(events)
    filled = found.rows["filled"] > 0
    assert (events.height, found.rebuilt, filled.sum(), found.tally.unknown_ids) == FIGURES[name]
    assert found.differing == 0
    assert found.tally.unplaced == found.tally.reused_ids == found.tally.overdrawn == 0
    # The rows that cannot: the first, and those whose message emptied a level, so that a deeper one came into view.
    reasons = emptied(events, levels)
    reasons[0] = True
    assert (filled & ~reasons).sum() == 0
    assert found.rows["filled"][1:].max() == 1


def test_at_ten_levels_the_best_one_never_needs_the_shipped_book(realdata: Path) -> None:
    """Filled levels enter at the tenth; what the best level says after that is the sum of the messages."""
    events = real(realdata, APPLE)
    assert compare_book(events).rows["filled"][1:].max() == 1
    alone = rebuild_book(events, 1).frame
    equal = {side: int(events[f"{side}_price_1"].eq_missing(alone[f"{side}_price_1"]).sum()) for side in ("ask", "bid")}
    # From an empty book: what stood before the file is lacking, and no message can say so.
    assert equal == {"ask": 996, "bid": 955}


@pytest.mark.parametrize("name", [AMAZON, APPLE])
def test_one_wrong_share_or_message_is_noticed(realdata: Path, name: str) -> None:
    events = real(realdata, name).head(900)
    filled = compare_book(events).rows["filled"] > 0
    whole = [row for row in range(1, 900) if not filled[row] and events["kind"][row] in (1, 2, 3, 4)][:40]
    for row in whole:
        here = pl.int_range(pl.len()) == row
        size = events.with_columns(pl.when(here).then(pl.col("size") + 1).otherwise("size").alias("size"))
        book = events.with_columns(pl.col("bid_size_1") + here.cast(pl.Int64))
        lacking = events.with_columns(pl.when(here).then(pl.lit(5, pl.UInt8)).otherwise("kind").alias("kind"))
        assert compare_book(book).differing
        assert compare_book(lacking).differing
        if events["kind"][row] == 1:
            assert compare_book(size).differing
