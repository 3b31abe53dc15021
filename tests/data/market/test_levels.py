"""Books rebuilt from changes of levels, against two dicts, and what may not be shown of them."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_rebuild import long_stream
from test_rebuild import table as orders_table

from quantattn.data.market import LevelTally, book_flags, rebuild_book, rebuild_levels
from quantattn.data.protocol.perturb import perturb_future
from quantattn.data.schema import CLEAR, EXECUTE, NEW, UPDATE, BookEvents, BookMessages, check, level_columns

pytest.importorskip("numba", reason="numba is not here (pip install 'quantattn[book]')")

LEVELS = 3
NAMES = [name for level in range(1, LEVELS + 1) for name in level_columns(level)]
SCHEMA = {name: column.dtype for name, column in BookMessages.columns().items()}
SCHEMA |= {"complete": pl.Boolean(), "broken": pl.Boolean()}
Change = tuple[int, int, int | None, int, bool, bool]  # kind, side, price, size, complete, broken


def table(changes: list[Change], entity: str = "A") -> pl.DataFrame:
    rows = [(entity, n, n, n, *change[:4], 0, *change[4:]) for n, change in enumerate(changes)]
    return check(pl.DataFrame(rows, SCHEMA, orient="row"), BookMessages)


def books(changes: list[Change], **how: bool) -> list[tuple[int | None, ...]]:
    return rebuild_levels(table(changes), LEVELS, **how).frame.select(NAMES).rows()


@dataclass
class Naive:
    """The definition: a dict a side, sorted anew whenever a message ends."""

    from_empty: bool = False
    forget_at_breaks: bool = True

    def read(self, changes: list[Change]) -> tuple[list[tuple[int | None, ...]], Counter[str]]:
        book: dict[int, dict[int, int]] | None = {1: {}, -1: {}} if self.from_empty else None
        shown: tuple[int | None, ...] = (None, 0) * 2 * LEVELS
        found, tally = [], Counter[str]()
        for kind, side, price, size, complete, broken in changes:
            tally["breaks"] += broken
            if broken and self.forget_at_breaks:
                book = None
            if kind == CLEAR:
                book = {own: {} if side in (0, own) else (book or {1: {}, -1: {}})[own] for own in (1, -1)}
            elif kind == UPDATE and book is None:
                tally["unopened"] += 1
            elif kind == UPDATE and book is not None and price is not None:
                tally["absent"] += size == 0 and price not in book[side]
                book[side] = {at: q for at, q in {**book[side], price: size}.items() if q}
            if complete:
                shown = top(book or {1: {}, -1: {}})
                if shown[1] and shown[3]:
                    tally["crossed"] += shown[2] > shown[0]
                    tally["locked"] += shown[2] == shown[0]
            found.append(shown)
        return found, tally


def top(book: dict[int, dict[int, int]]) -> tuple[int | None, ...]:
    asks, bids = sorted(book[-1].items()), sorted(book[1].items(), reverse=True)
    row: list[int | None] = []
    for level in range(LEVELS):
        for one in (asks, bids):
            row += one[level] if level < len(one) else (None, 0)
    return tuple(row)


PRICES = st.integers(95, 105) | st.sampled_from([1, 10**15])
SET = st.tuples(st.just(UPDATE), st.sampled_from([-1, 1]), PRICES, st.integers(0, 3), st.booleans(), st.just(False))
OTHER = st.tuples(
    st.sampled_from([CLEAR, EXECUTE]), st.sampled_from([-1, 0, 1]), st.none(), st.just(0), st.booleans(), st.booleans()
)
STREAMS = st.lists(st.one_of(SET, SET, SET, SET, SET, OTHER), max_size=40)


@given(first=STREAMS, second=STREAMS, from_empty=st.booleans(), forget=st.booleans())
@settings(max_examples=25, deadline=None)
def test_the_book_is_what_two_dicts_give(
    first: list[Change], second: list[Change], from_empty: bool, forget: bool
) -> None:
    made = rebuild_levels(
        pl.concat([table(first), table(second, "B")]), LEVELS, from_empty=from_empty, forget_at_breaks=forget
    )
    naive = Naive(from_empty, forget)
    (rows, tally), (more, other) = naive.read(first), naive.read(second)
    assert made.frame.select(NAMES).rows() == rows + more
    assert made.tally == LevelTally(**(tally + other))
    check(made.frame, BookEvents)
    assert "broken" not in made.frame.columns


def test_a_deep_book_grows_past_every_first_allocation() -> None:
    """20,000 levels of a side, set far from and near to the touch, then taken away in another order."""
    rng = random.Random(0)
    prices = rng.sample(range(1, 10**6), 20_000)
    changes: list[Change] = [(CLEAR, 0, None, 0, True, False)]
    changes += [(UPDATE, -1, price, price % 7 + 1, True, False) for price in prices]
    rng.shuffle(prices)
    changes += [(UPDATE, -1, price, 0, True, False) for price in prices]
    made = rebuild_levels(table(changes), LEVELS)
    assert made.tally == LevelTally()
    best = made.frame["ask_price_1"].to_list()
    at = min(price for _, _, price, *_ in changes[1:9_001] if price is not None)
    assert best[9_000] == at
    standing = sorted(prices[5_000:])
    row = made.frame.select("ask_price_1", "ask_price_2", "ask_price_3").row(20_000 + 5_000)
    assert row == tuple(standing[:3])
    assert best[-1] is None


def test_a_message_takes_effect_as_a_whole() -> None:
    """The best ask moves up through the bid: between its two rows the book would be crossed, and is not shown."""
    opened: list[Change] = [
        (CLEAR, 0, None, 0, False, False),
        (UPDATE, 1, 100, 5, False, False),
        (UPDATE, -1, 101, 6, True, False),
    ]
    moved: list[Change] = [(UPDATE, 1, 101, 7, False, False), (UPDATE, -1, 101, 0, False, False)]
    moved += [(UPDATE, -1, 102, 8, True, False)]
    made = rebuild_levels(table(opened + moved), 1)
    names = NAMES[:4]
    nothing, before, after = (None, 0, None, 0), (101, 6, 100, 5), (102, 8, 101, 7)
    assert made.frame.select(names).rows() == [nothing, nothing, before, before, before, after]
    assert made.tally == LevelTally()
    alone = [(*change[:4], True, False) for change in opened + moved]
    assert rebuild_levels(table(alone), 1).tally == LevelTally(locked=1)  # the control: row by row it is


def test_there_is_no_book_before_a_snapshot_and_after_a_break() -> None:
    change: Change = (UPDATE, 1, 100, 5, True, False)
    opened: Change = (CLEAR, 0, None, 0, True, False)
    lost: Change = (UPDATE, 1, 101, 5, True, True)
    stream = [change, opened, change, lost, change, opened, change]
    made = rebuild_levels(table(stream), 1)
    assert made.frame["bid_price_1"].to_list() == [None, None, 100, None, None, None, 100]
    assert made.tally == LevelTally(unopened=3, breaks=1)
    kept = rebuild_levels(table(stream), 1, from_empty=True, forget_at_breaks=False)
    assert kept.frame["bid_price_1"].to_list() == [100, None, 100, 101, 101, None, 100]


@given(stream=STREAMS, as_of=st.integers(0, 39))
@settings(max_examples=15, deadline=None)
def test_another_future_leaves_every_earlier_row_its_bits(stream: list[Change], as_of: int) -> None:
    known = table(stream)
    future = perturb_future(known.filter(pl.col("kind") == UPDATE), as_of)
    both = pl.concat([known.filter(pl.col("available_time") <= as_of), future.filter(pl.col("available_time") > as_of)])
    made, other = (rebuild_levels(each, LEVELS).frame for each in (known, both))
    past = pl.col("available_time") <= as_of
    assert made.filter(past).equals(other.filter(past))


@given(stream=STREAMS)
@settings(max_examples=15, deadline=None)
def test_the_sides_are_alike_and_repeating_a_size_changes_nothing(stream: list[Change]) -> None:
    plain = books(stream)
    mirrored = [(k, -side, None if p is None else 200 - p, *rest) for k, side, p, *rest in stream]
    for row, other in zip(plain, books(mirrored), strict=True):
        for level in range(LEVELS):
            ask, ask_size, bid, bid_size = row[4 * level : 4 * level + 4]
            turned = (None if bid is None else 200 - bid, bid_size, None if ask is None else 200 - ask, ask_size)
            assert other[4 * level : 4 * level + 4] == turned
    doubled = [
        each
        for change in stream
        for each in (
            [(*change[:4], False, change[5]), (*change[:4], change[4], False)] if change[0] == UPDATE else [change]
        )
    ]
    assert books(doubled)[-1:] == plain[-1:]


def test_totals_at_each_price_give_the_book_of_the_orders() -> None:
    """What a feed with orders and a feed without them tell of one market is one book."""
    orders = orders_table(long_stream(3_000, 1))
    signed = pl.when(pl.col("kind") == NEW).then("size").otherwise(-pl.col("size"))
    told = orders.with_columns(size=signed.cum_sum().over("side", "price"), kind=pl.lit(UPDATE, pl.UInt8))
    made = rebuild_levels(told, LEVELS, from_empty=True)
    book = rebuild_book(orders, LEVELS)
    assert made.frame.select(NAMES).equals(book.frame.select(NAMES))
    assert made.tally == LevelTally(crossed=book.tally.crossed, locked=book.tally.locked)


def test_a_crossed_book_is_kept_and_counted() -> None:
    stream: list[Change] = [(CLEAR, 0, None, 0, True, False), (UPDATE, 1, 102, 1, True, False)]
    stream += [(UPDATE, -1, 101, 1, True, False), (UPDATE, 1, 102, 0, True, False), (UPDATE, 1, 101, 4, True, False)]
    made = rebuild_levels(table(stream), 1)
    flags = book_flags(made.frame)
    assert (made.tally.crossed, made.tally.locked) == (flags["crossed"].sum(), flags["locked"].sum()) == (1, 1)


def test_settings_and_rows_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="levels must be at least 1, got 0"):
        rebuild_levels(table([]), 0)
    for broken in ((UPDATE, 0, 100, 1, True, False), (UPDATE, 1, None, 1, True, False)):
        with pytest.raises(ValueError, match=r"a level needs a side \(1 or -1\) and a price, but seq 0 of A has side"):
            rebuild_levels(table([broken]))
    assert rebuild_levels(table([]), 2).frame.columns == [*[n for n in SCHEMA if n != "broken"], *NAMES[:8]]
    assert rebuild_levels(table([]).drop("complete", "broken"), 1).tally == LevelTally()
