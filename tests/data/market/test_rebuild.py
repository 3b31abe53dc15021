"""Rebuilt books against a dict of orders, against themselves, and against the books that LOBSTER ships."""

from __future__ import annotations

import random
import sys
from collections import Counter
from itertools import pairwise

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantattn.data.market import OrderBooks, Tally, book_flags, compare_book, rebuild_book
from quantattn.data.schema import BookEvents, BookMessages, check, level_columns

pytest.importorskip("numba", reason="numba is not here (pip install 'quantattn[book]')")

Message = tuple[int, int, int | None, int, int]  # kind, side, price, size, order id
LEVELS = 3
NAMES = [name for level in range(1, LEVELS + 1) for name in level_columns(level)]
SCHEMA = {name: column.dtype for name, column in BookMessages.columns().items()}
DAY = 86_400 * 10**9


def table(messages: list[Message], entity: str = "A", first: int = 0) -> pl.DataFrame:
    rows = [(entity, first + n, first + n, n, *message) for n, message in enumerate(messages)]
    return check(pl.DataFrame(rows, SCHEMA, orient="row"), BookMessages)


def books(messages: pl.DataFrame) -> list[tuple[int | None, ...]]:
    return rebuild_book(messages, LEVELS).frame.select(NAMES).rows()


def naive(messages: list[Message]) -> tuple[list[tuple[int | None, ...]], Counter[str]]:
    """The definition: orders by number, and every level summed anew after every message."""
    orders: dict[int, tuple[int, int, int]] = {}
    found: list[tuple[int | None, ...]] = []
    tally: Counter[str] = Counter()
    for kind, side, price, size, number in messages:
        if kind == 10:
            orders.clear()
        elif kind == 1:
            assert price is not None
            tally["reused_ids"] += number in orders
            orders.pop(number, None)
            if size:
                orders[number] = (side, price, size)
        elif kind in (2, 3, 4):
            if number not in orders:
                tally["unknown_ids"] += 1
                tally["unplaced"] += 1
            else:
                own, at, left = orders.pop(number)
                wrong = (kind == 3 and size not in (0, left)) or side == -own
                tally["contradicting"] += wrong
                tally["overdrawn"] += not wrong and size > left
                rest = 0 if kind == 3 else max(left - size, 0)
                if rest:
                    orders[number] = (own, at, rest)
        row = top(orders)
        found.append(row)
        if row[1] and row[3]:
            tally["crossed"] += row[2] > row[0]
            tally["locked"] += row[2] == row[0]
    return found, tally


def top(orders: dict[int, tuple[int, int, int]]) -> tuple[int | None, ...]:
    depth: dict[int, Counter[int]] = {1: Counter(), -1: Counter()}
    for own, at, left in orders.values():
        depth[own][at] += left
    asks, bids = sorted(depth[-1].items()), sorted(depth[1].items(), reverse=True)
    row: list[int | None] = []
    for level in range(LEVELS):
        for one in (asks, bids):
            row += one[level] if level < len(one) else (None, 0)
    return tuple(row)


SIDES = st.sampled_from([-1, 1])
PRICES = st.sampled_from([98, 99, 100, 101, 102, 10**9])
NAMED = dict(zip([0, 1, 2, 3, -1, 2**32, 2**63 - 1, -(2**63), 5 * 2**40], range(10, 90, 9), strict=False))
NUMBERS = st.sampled_from([*NAMED])
NEW = st.tuples(st.just(1), SIDES, PRICES, st.integers(0, 5), NUMBERS)
TAKEN = st.tuples(
    st.integers(2, 4), st.sampled_from([-1, 0, 1]), st.none() | PRICES, st.sampled_from([0, 1, 2, 9]), NUMBERS
)
OTHER = st.tuples(st.integers(5, 10), st.just(0), st.none() | PRICES, st.integers(0, 5), NUMBERS)
STREAMS = st.lists(st.one_of(NEW, NEW, TAKEN, TAKEN, OTHER), max_size=40)


@given(first=STREAMS, second=STREAMS)
@settings(max_examples=60, deadline=None)
def test_the_book_is_what_a_dict_of_orders_gives(first: list[Message], second: list[Message]) -> None:
    both = pl.concat([table(first), table(second, "A", DAY), table(first, "B")])
    made = rebuild_book(both, LEVELS)
    expected, counted = [], Counter[str]()
    for part in (first, second, first):  # a book begins anew with every day and every entity
        rows, tally = naive(part)
        expected += rows
        counted += tally
    assert made.frame.select(NAMES).rows() == expected
    assert made.tally == Tally(**counted)
    check(made.frame, BookEvents)
    flags = book_flags(made.frame)
    assert (made.tally.crossed, made.tally.locked) == (flags["crossed"].sum(), flags["locked"].sum())
    joined = rebuild_book(
        pl.concat(
            [
                table(first),
                table(second)
                .with_columns(pl.col("seq") + 100)
                .with_columns((pl.col(name) + DAY) for name in ("event_time", "available_time")),
            ]
        ),
        LEVELS,
        zone=None,
    )
    assert joined.frame.select(NAMES).rows() == naive(first + second)[0]


REPLACED = st.tuples(TAKEN, PRICES, NUMBERS).map(lambda r: [(3, *r[0][1:]), (1, 0, r[1], 2, r[2])])
WITH_REPLACEMENTS = st.lists(st.one_of(NEW.map(lambda row: [row]), TAKEN.map(lambda row: [row]), REPLACED), max_size=30)


@given(first=WITH_REPLACEMENTS, second=WITH_REPLACEMENTS, cuts=st.lists(st.integers(0, 180), max_size=6))
@settings(max_examples=60, deadline=None)
def test_messages_in_pieces_give_the_books_of_the_whole(
    first: list[list[Message]], second: list[list[Message]], cuts: list[int]
) -> None:
    one, two = (sum(rows, list[Message]()) for rows in (first, second))
    both = pl.concat([table(one), table(two, "A", DAY), table(one, "B")])
    whole, books = rebuild_book(both, LEVELS), OrderBooks(LEVELS)
    edges = sorted({0, *(min(cut, both.height) for cut in cuts), both.height})
    made = [books.after(both[a:b]) for a, b in pairwise(edges)] or [books.after(both)]
    assert pl.concat(made).equals(whole.frame)
    assert books.tally == whole.tally


def long_stream(n: int, seed: int = 0) -> list[Message]:
    rng, standing, found, number = random.Random(seed), dict[int, tuple[int, int, int]](), list[Message](), 0
    while len(found) < n:
        if rng.random() < 0.5 or not standing:
            number += 1
            side = rng.choice([-1, 1])
            standing[number] = (side, 1000 - side * rng.randrange(1, 40) + len(found) // 500, rng.randrange(1, 10))
            found.append((1, *standing[number], number))
        else:
            own = rng.choice([*standing]) if rng.random() < 0.1 else next(iter(standing))
            side, price, left = standing.pop(own)
            part = rng.randrange(1, left + 1)
            if part < left:
                standing[own] = (side, price, left - part)
            found.append((rng.choice([2, 4]) if part < left else 3, side, price, part, own))
    return found


def test_a_long_stream_grows_past_every_first_allocation() -> None:
    stream = [(1, 1, 10 + i, 1, -i - 1) for i in range(9_000)] + long_stream(9_000)
    made = rebuild_book(table(stream), LEVELS)
    orders: dict[int, tuple[int, int, int]] = {}
    for n, (kind, side, price, size, number) in enumerate(stream):
        if kind == 10:
            orders.clear()
        elif kind == 1:
            assert price is not None
            orders[number] = (side, price, size)
        else:
            own, at, left = orders.pop(number)
            if left > size:
                orders[number] = (own, at, left - size)
        if n % 500 == 499:
            assert made.frame.select(NAMES).row(n) == top(orders)
    assert made.tally == Tally(crossed=made.tally.crossed, locked=made.tally.locked)


@given(stream=STREAMS, pair=NEW, where=st.integers(0, 40), gap=st.integers(0, 40))
@settings(max_examples=60, deadline=None)
def test_an_order_that_came_and_went_leaves_nothing_behind(
    stream: list[Message], pair: Message, where: int, gap: int
) -> None:
    where, gap = min(where, len(stream)), min(where + gap, len(stream))
    number = 77
    added = [*stream[:where], (*pair[:4], number), *stream[where:gap], (3, 0, None, 0, number), *stream[gap:]]
    plain, other = books(table(stream)), books(table(added))
    assert other[:where] == plain[:where]
    assert other[gap + 2 :] == plain[gap:]


@given(stream=STREAMS)
@settings(max_examples=60, deadline=None)
def test_numbers_are_names_and_the_sides_are_alike(stream: list[Message]) -> None:
    renamed = [(*message[:4], NAMED[message[4]]) for message in stream]
    assert books(table(renamed)) == books(table(stream))
    mirrored = [(k, -side, None if p is None else 200 - p, size, number) for k, side, p, size, number in stream]
    for row, other in zip(books(table(stream)), books(table(mirrored)), strict=True):
        for level in range(LEVELS):
            ask, ask_size, bid, bid_size = row[4 * level : 4 * level + 4]
            turned = (None if bid is None else 200 - bid, bid_size, None if ask is None else 200 - ask, ask_size)
            assert other[4 * level : 4 * level + 4] == turned


def test_what_a_message_leaves_out_is_that_of_its_order() -> None:
    stream: list[Message] = [(1, -1, 105, 9, 4), (2, 0, None, 2, 4), (4, 0, 104, 3, 4), (3, 0, None, 0, 4)]
    made = rebuild_book(table(stream), 1).frame
    assert made.select("side", "price", "size").rows() == [(-1, 105, 9), (-1, 105, 2), (-1, 104, 3), (-1, 105, 4)]
    assert made["ask_size_1"].to_list() == [9, 7, 4, 0]
    assert made["ask_price_1"].to_list() == [105, 105, 105, None]


def test_a_replacement_is_a_deletion_and_a_new_order() -> None:
    stream: list[Message] = [(1, 1, 100, 5, 1), (3, 1, 100, 5, 1), (1, 1, 101, 7, 2)]
    assert [row[2:4] for row in books(table(stream))] == [(100, 5), (None, 0), (101, 7)]


def test_settings_and_messages_that_make_no_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="levels must be at least 1, got 0"):
        rebuild_book(table([]), 0)
    for broken in ((1, 0, 100, 1, 7), (1, 1, None, 1, 7)):
        with pytest.raises(ValueError, match=r"a new order needs a side .* order 7 of A \(seq 0\)"):
            rebuild_book(table([broken]))
    with pytest.raises(ValueError, match="no columns of a book"):
        compare_book(table([]))
    with pytest.raises(ValueError, match="is out of order"):
        rebuild_book(table([(1, 1, 100, 1, 7)] * 2).reverse())
    assert rebuild_book(table([]), 2).frame.columns == [*SCHEMA, *NAMES[:8]]
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "quantattn.data.market.replay")
    with pytest.raises(RuntimeError, match=r"rebuilt by numba, which is not here: pip install 'quantattn\[book\]'"):
        rebuild_book(table([(1, 1, 100, 1, 7)]))
