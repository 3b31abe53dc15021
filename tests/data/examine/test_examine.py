"""What is counted of a table, on tables small enough to count by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from quantattn.data.examine import Examination, cut_curve, examine
from quantattn.data.schema import EXECUTE, HALT, NEW, UPDATE, Instrument
from quantattn.data.sources.source import Source, SourceReport

SECOND = 10**9
NOON = 1_600_000_000 * SECOND  # 2020-09-13 12:26:40 UTC


def book(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """Rows of `BookEvents`; what is not given is a new order of one share at 100 in a book of 99 to 101."""
    usual = {
        **{"entity": "A", "kind": NEW, "side": 1, "price": 100, "size": 1, "order_id": 0},
        **{"ask_price_1": 101, "ask_size_1": 1, "bid_price_1": 99, "bid_size_1": 1, "halted": False},
    }
    made = [{**usual, "seq": n, "event_time": row["available_time"], **row} for n, row in enumerate(rows)]
    types = {"kind": pl.UInt8, "side": pl.Int8, "price": pl.Int64, "bid_price_1": pl.Int64, "ask_price_1": pl.Int64}
    return pl.DataFrame(made, infer_schema_length=None).with_columns(
        pl.col(name).cast(kind) for name, kind in types.items()
    )


def look(frame: pl.DataFrame, tick: int = 1, **given: Any) -> Examination:
    names = tuple(Instrument(name, -2, tick) for name in sorted(frame["entity"].unique()))
    return examine(Source(frame.lazy(), names, SourceReport(frame.height)), **given)[0]


def at(*seconds: float) -> list[dict[str, Any]]:
    return [{"available_time": NOON + int(each * SECOND)} for each in seconds]


def test_clocks_and_gaps_are_counted_as_by_hand() -> None:
    rows = at(0, 1, 1, 8, 10)
    rows[3]["event_time"] = rows[0]["available_time"]  # known 8 s late, and before the row before it by 1 s
    times = look(book(rows)).times
    assert times is not None
    assert (times.falls, times.largest_fall, times.ties) == (1, SECOND, 1)
    assert (times.delay_median, times.delay_max, times.early) == (0, 8 * SECOND, 0)
    assert times.step_median == 3 * SECOND // 2  # of 1, 0, 7 and 2 seconds
    found = look(book(rows)).gaps
    assert [(gap.start - NOON, gap.end - NOON) for gap in found] == [
        (SECOND, 8 * SECOND),
        (8 * SECOND, 10 * SECOND),
        (0, SECOND),
    ]


def test_a_gap_over_midnight_is_one_of_the_zone() -> None:
    rows = at(0, 12 * 3600)  # 12:26 to 00:26 UTC; 08:26 to 20:26 in New York, one day
    over, within = look(book(rows)), look(book(rows), zone="America/New_York")
    assert (len(over.gaps), len(over.nights)) == (0, 1)
    assert (len(within.gaps), len(within.nights)) == (1, 0)


def test_no_gap_reaches_from_one_entity_to_the_next() -> None:
    rows = [*at(0, 1), *({**row, "entity": "B"} for row in at(100, 101))]
    found = look(book(rows))
    assert {gap.end - gap.start for gap in found.gaps} == {SECOND}
    assert (found.entities, dict(found.largest), found.histories) == (2, {"B": 2, "A": 2}, (2, 2, 2))


def test_states_of_the_book_are_disjoint() -> None:
    rows = at(*range(6))
    rows[1] |= {"bid_price_1": 102}  # crossed
    rows[2] |= {"bid_price_1": 101}  # locked
    rows[3] |= {"bid_price_1": None}  # one-sided
    rows[4] |= {"bid_price_1": None, "ask_price_1": None}  # empty
    assert look(book(rows)).books == {"crossed": 1, "locked": 1, "one_sided": 1, "empty": 1}


def test_repeated_rows_are_equal_in_everything_but_their_number() -> None:
    rows = at(0, 0, 0)
    rows[2]["size"] = 2
    assert look(book(rows)).repeated == 1


def test_the_tick_is_held_against_every_price() -> None:
    rows = at(0, 1, 2, 3)
    for row, price in zip(rows, (100, 150, 225, None), strict=True):
        row |= {"price": price, "ask_price_1": 300, "bid_price_1": 200}
    (found,) = look(book(rows), tick=50).prices
    assert (found.tick, found.step, found.neighbours) == ("0.5", "0.25", "0.25")
    assert (found.off_tick, found.undefined) == (1, 1)
    assert (found.least, found.greatest, found.spread) == ("1", "3", (2.0, 2.0))


def test_a_halt_has_no_price_and_is_no_undefined_one() -> None:
    rows = at(0, 1, 2, 3)
    rows[1] |= {"kind": HALT, "price": None, "halted": True}
    rows[2] |= {"halted": True}
    rows[3] |= {"kind": HALT, "price": None}
    found = look(book(rows))
    assert found.prices[0].undefined == 0
    assert (found.halts_count, found.halts) == (1, [("A", NOON + SECOND, NOON + 3 * SECOND)])
    assert found.kinds == {"new": 2, "halt": 2}


def test_the_balance_is_that_of_the_last_mid_of_the_horizon() -> None:
    rows = at(*range(15))
    for n, row in enumerate(rows):
        row |= {"bid_price_1": 99 + (n >= 12), "ask_price_1": 101 + (n >= 12)}
    found = {each.horizon: each for each in look(book(rows)).balance}
    # Rows 0 and 1 look at rows 10 and 11, before the rise; rows 2 to 4 at those after it; the others have no ten rows.
    assert (found[10].down, found[10].flat, found[10].up, dict(found[10].unlabelled)) == (0, 2, 3, {"session end": 10})
    assert (found[100].up, dict(found[100].unlabelled)) == (0, {"session end": 15})


def test_rows_outside_the_sessions_are_counted() -> None:
    monday = 1_599_999_000 * SECOND + 86_400 * SECOND - 6_900 * SECOND  # 2020-09-14 10:14:30 UTC, 06:14 in New York
    frame = book([{"available_time": monday}, {"available_time": monday + 4 * 3600 * SECOND}])
    assert look(frame, calendar="XNYS").outside == 1
    assert look(frame).outside == 0


def test_what_does_not_depend_on_order_is_of_all_rows_and_the_rest_of_the_first() -> None:
    rows = [*at(*range(8)), *({**row, "entity": "B", "kind": EXECUTE} for row in at(0, 1))]
    whole, part = look(book(rows)), look(book(rows), most_rows=4)
    for name in ("rows", "entities", "largest", "histories", "kinds"):
        assert getattr(whole, name) == getattr(part, name)
    assert (whole.looked_at, part.looked_at) == (10, 4)
    assert part.times == look(book(rows[:4])).times


def test_a_price_below_zero_gives_no_balance_and_says_so() -> None:
    rows = at(0, 1)
    for row in rows:
        row |= {"bid_price_1": -5, "ask_price_1": -3, "kind": UPDATE}
    found = look(book(rows))
    assert found.balance == []
    assert "mids above zero" in found.no_balance


def test_a_curve_holds_every_row_and_the_last_mid_of_each_stretch() -> None:
    rows = at(*range(1000))
    for n, row in enumerate(rows):
        row |= {"bid_price_1": 1000 + n, "ask_price_1": 1004 + n}
    curve = cut_curve(book(rows), "A", price_exponent=-2, tick=2)
    assert curve.price is not None
    assert curve.spread is not None
    assert (curve.rate * curve.width / (60 * SECOND)).sum() == pytest.approx(1000)
    assert (curve.price[-1], set(curve.spread)) == (20.01, {2.0})
    assert (np.diff(curve.time) % curve.width == 0).all()
    assert len(curve.time) <= 401


def test_a_table_without_prices_tells_the_labels_that_it_ships() -> None:
    labels = pl.Series("label_10", [1, 2, 2, 3, 2, 1], pl.Int8)
    frame = book(at(*range(6))).select("entity", "event_time", "available_time", "seq").with_columns(labels)
    found = look(frame)
    assert (found.prices, found.balance, found.books) == ([], [], {})
    (told,) = found.columns
    assert (told.name, told.distinct, told.common[0]) == ("label_10", 3, ("2", 3))


def test_an_empty_table_is_no_error() -> None:
    found = look(book(at(0)).clear())
    assert (found.rows, found.times, found.prices) == (0, None, [])
