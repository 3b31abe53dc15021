"""What quotes become: events by the side that changed, worked out by hand and against a literal reader."""

from __future__ import annotations

import random

import polars as pl
import pytest

from quantattn.data.schema import BookEvents, check
from quantattn.data.sources.quotes import national_best, quote_events

SCHEMA = {"entity": pl.String, "event_time": pl.Int64, "available_time": pl.Int64, "seq": pl.Int64}
SCHEMA |= {"bid": pl.Int64, "ask": pl.Int64, "bid_size": pl.Int64, "ask_size": pl.Int64}
Quote = tuple[int | None, int | None, int | None, int | None]


def table(quotes: list[Quote], entity: str = "A") -> pl.DataFrame:
    return pl.DataFrame([(entity, n, n, n, *quote) for n, quote in enumerate(quotes)], SCHEMA, orient="row")


def events(quotes: list[Quote]) -> list[tuple[object, ...]]:
    frame = check(quote_events(table(quotes).lazy()).collect(), BookEvents)
    shown = ("side", "price", "size", "ask_price_1", "ask_size_1", "bid_price_1", "bid_size_1", "complete")
    return frame.select(*shown).rows()


def test_a_quote_says_what_it_changed() -> None:
    quotes: list[Quote] = [(99, 101, 5, 6), (99, 101, 5, 6), (98, 101, 5, 6), (98, 100, 7, 1), (None, 100, 0, 1)]
    assert events(quotes) == [
        (1, 99, 5, None, 0, None, 0, False),
        (-1, 101, 6, 101, 6, 99, 5, True),
        (1, 99, 5, 101, 6, 99, 5, True),  # the same again
        (1, 98, 5, 101, 6, 98, 5, True),
        (1, 98, 7, 101, 6, 98, 5, False),
        (-1, 100, 1, 100, 1, 98, 7, True),
        (1, 98, 0, 100, 1, None, 0, True),  # the bid is gone
    ]


def test_a_size_that_is_not_told_is_null_beside_its_price() -> None:
    assert events([(99, 101, None, None), (99, 102, None, None)]) == [
        (1, 99, 0, None, 0, None, 0, False),
        (-1, 101, 0, 101, None, 99, None, True),
        (-1, 102, 0, 102, None, 99, None, True),
    ]


def test_an_instrument_does_not_see_the_one_before_it() -> None:
    one, two = [(99, 101, 5, 6), (99, 102, 5, 6)], [(99, 102, 5, 6)]
    both = quote_events(pl.concat([table(one), table(two, "B")]).lazy()).collect()
    for name, quotes in (("A", one), ("B", two)):
        alone = quote_events(table(quotes, name).lazy()).collect()
        assert both.filter(pl.col("entity") == name).equals(alone)


@pytest.mark.parametrize("seed", range(3))
def test_the_national_best_is_what_a_dict_of_exchanges_gives(seed: int) -> None:
    draw = random.Random(seed)
    rows, expected = [], []
    standing: dict[str, Quote] = {}
    for n in range(200):
        day = n // 50
        if n % 50 == 0:
            standing = {}
        exchange = draw.choice("NPQ")
        bid, ask = draw.choice([None, 98, 99, 100]), draw.choice([None, 101, 102, 103])
        quote = (bid, ask, draw.randint(1, 9) if bid else 0, draw.randint(1, 9) if ask else 0)
        standing[exchange] = quote
        rows.append(("A", n, n, n, *quote, exchange, day))
        best: list[int | None] = []
        for side, pick in ((0, max), (1, min)):
            prices = [each[side] for each in standing.values() if each[side] is not None]
            top = pick(prices) if prices else None  # type: ignore[type-var]
            best += [top, sum(each[side + 2] or 0 for each in standing.values() if each[side] == top) if top else None]
        expected.append((best[0], best[2], best[1], best[3]))
    frame = pl.DataFrame(rows, {**SCHEMA, "exchange": pl.String, "day": pl.Int64}, orient="row")
    made = national_best(frame.lazy(), ["N", "P", "Q"], pl.col("day")).collect()
    assert made.select("bid", "ask", "bid_size", "ask_size").rows() == expected
    check(quote_events(made.lazy()).collect(), BookEvents)


def test_nothing_later_changes_an_earlier_event() -> None:
    draw = random.Random(1)
    one = [(draw.randint(90, 99), draw.randint(100, 110), 1, 1) for _ in range(60)]
    other = [*one[:30], *((7, 8, 9, 10) for _ in range(30))]
    made = [quote_events(table(quotes).lazy()).collect().filter(pl.col("seq") < 60) for quotes in (one, other)]
    assert made[0].equals(made[1])
