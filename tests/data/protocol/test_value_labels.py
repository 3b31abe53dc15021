"""TLOB's move, realised volatility and the next event, against their definitions; tables without a book."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from label_tables import SESSIONS, fault, first_of, horizon_of, price_of, session_of, stretch, tables

from quantattn.data.market.sessions import SECOND, Sessions
from quantattn.data.protocol import (
    MidLabel,
    MidMove,
    NextEventLabel,
    RealisedVolatility,
    SpreadCrossing,
    TripleBarrier,
    mid_moves,
    perturb_future,
)
from quantattn.data.protocol.labels import Label

LABELS: tuple[Label, ...] = (
    MidLabel(5),
    MidLabel(5, method="tlob", smoothing=2),
    TripleBarrier(5, window=3, step=1),
    SpreadCrossing(5),
    NextEventLabel(kinds=(1, 4)),
    NextEventLabel("time", kinds=(1, 2)),
    RealisedVolatility(5, log=False),
)


def of_closes(closes: list[int], **columns: Any) -> pl.DataFrame:
    """One bar a second."""
    return pl.DataFrame({"entity": "A", "available_time": np.arange(len(closes)) * SECOND, "close": closes, **columns})


def literal_tlob(table: pl.DataFrame, row: int, move: MidMove, sessions: Sessions | None) -> tuple[Any, ...]:
    mates, place = stretch(table, row, sessions)
    if session_of(mates[place]["available_time"], sessions) < 0:
        return None, None, "session end"
    k = move.smoothing or 0
    later, end, ended, _, _ = horizon_of(mates, place, move.horizon, "events", sessions)
    past = mates[max(place - k, 0) : place + 1]
    reasons = [*(fault(each) for each in [*past, *later]), "session end" if ended else None]
    reason = first_of([*reasons, "no data" if place < k else None])
    if reason:
        return None, None, reason
    after, before = (Fraction(sum(price_of(each) or 0 for each in of), k + 1) for of in (later[-k - 1 :], past))
    return (after - before) / before, end, None


@given(
    data=st.data(),
    of=st.sampled_from(["book", "trades", "bars"]),
    horizon=st.integers(1, 5),
    with_sessions=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_tlob_is_its_definition(data: st.DataObject, of: str, horizon: int, with_sessions: bool) -> None:
    table, sessions = data.draw(tables(of)), SESSIONS if with_sessions else None
    move = MidMove(horizon, method="tlob", smoothing=data.draw(st.integers(0, horizon - 1)))
    found = mid_moves(table, move, sessions).select("move_num", "move_den", "label_end", "label_reason").rows()
    given_ = [(None if den is None else Fraction(num, den), *rest) for num, den, *rest in found]
    assert given_ == [literal_tlob(table, row, move, sessions) for row in range(table.height)]


@given(table=tables("book"), horizon=st.integers(1, 5), with_sessions=st.booleans())
@settings(max_examples=30, deadline=None)
def test_tlob_lies_between_the_other_methods(table: pl.DataFrame, horizon: int, with_sessions: bool) -> None:
    sessions = SESSIONS if with_sessions else None
    for smoothing, method in ((0, 0), (horizon - 1, 2)):
        moves = [
            mid_moves(table, move, sessions).select("move_num", "move_den", "label_end", "label_reason").rows()
            for move in (MidMove(horizon, method="tlob", smoothing=smoothing), MidMove(horizon, method=method))  # type: ignore[arg-type]
        ]
        one, other = ([(d and Fraction(n, d), *rest) for n, d, *rest in each] for each in moves)
        assert one == other


def test_a_worked_example_of_tlob() -> None:
    row = mid_moves(of_closes([10, 14, 15, 17, 19]), MidMove(3, method="tlob", smoothing=1)).row(1, named=True)
    # The means of 17, 19 and of 10, 14 are 18 and 12: a move of a half.
    assert Fraction(row["move_num"], row["move_den"]) == Fraction(1, 2)
    assert row["label_end"] == 4 * SECOND


def literal_volatility(table: pl.DataFrame, row: int, label: RealisedVolatility, sessions: Any) -> tuple[Any, ...]:
    mates, place = stretch(table, row, sessions)
    time = mates[place]["available_time"]
    if session_of(time, sessions) < 0:
        return None, None, None, "session end"
    later, end, ended, _, unknown = horizon_of(mates, place, label.horizon, label.unit, sessions)
    if label.unit == "events":
        first, short = max(place - label.horizon, 0), place < label.horizon
    else:
        since = time - label.horizon * SECOND
        inside = [i for i in range(place + 1) if mates[i]["available_time"] > since]
        first, short = max(inside[0] - 1, 0), since < mates[0]["available_time"] or inside[0] == 0
    past = mates[first : place + 1]

    def variance(of: list[dict[str, Any]]) -> int:
        prices = [price_of(each) for each in of]
        pairs = [(a, b) for a, b in pairwise(prices) if a and b]
        return sum(round(math.log(b / a) ** 2 * 1e18) for a, b in pairs)

    after, before = variance([mates[place], *later]), variance(past)
    reasons = [*(fault(each) for each in [*past, *later]), "session end" if ended else None]
    still = "no move" if label.log and (after == 0 or before == 0) else None
    reason = first_of([*reasons, "no data" if short or unknown else None, still])
    return (None, None, None, reason) if reason else (after, before, end, None)


@given(
    data=st.data(),
    of=st.sampled_from(["book", "trades", "bars"]),
    horizon=st.integers(1, 5),
    unit=st.sampled_from(["events", "seconds"]),
    log=st.booleans(),
    with_sessions=st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_volatility_is_its_definition(
    data: st.DataObject, of: str, horizon: int, unit: Any, log: bool, with_sessions: bool
) -> None:
    table, sessions = data.draw(tables(of)), SESSIONS if with_sessions else None
    label = RealisedVolatility(horizon, unit, log)
    found = label.measure(table, sessions).select("variance", "past_variance", "label_end", "label_reason").rows()
    for row, (after, before, *rest) in enumerate(found):
        *expected, end, reason = literal_volatility(table, row, label, sessions)
        assert rest == [end, reason]
        # Logarithms of two prices lose digits that the logarithm of their ratio keeps.
        assert [after, before] == (expected if reason else [pytest.approx(each, rel=1e-9) for each in expected])


def test_a_worked_example_of_volatility() -> None:
    label = RealisedVolatility(2)
    measured = label.measure(of_closes([100, 110, 121, 121, 110]))
    finished, _ = label.finish(measured.filter(pl.col("label_reason").is_null()), np.zeros(0, np.int64))
    # From 121: no move, then −log 1.1; before: twice log 1.1.
    assert finished["label"].to_list() == [pytest.approx(math.log(math.log(1.1)), rel=1e-9)]
    assert finished["history"].to_list() == [pytest.approx(math.log(math.sqrt(2) * math.log(1.1)), rel=1e-9)]
    assert measured["label_reason"].to_list() == ["no data", "no data", None, "session end", "session end"]
    assert label.class_names == ()


def test_a_price_that_leaps_is_no_return() -> None:
    measured = RealisedVolatility(1, log=False).measure(of_closes([100, 101, 10_000, 101, 102, 103]))
    assert measured["label_reason"].to_list() == [*["no data"] * 4, None, "session end"]
    many = RealisedVolatility(20, log=False).measure(of_closes([1, 15] * 30))  # 20 squares of log 15 leave int64
    assert set(many["label_reason"].to_list()) == {"no data", "session end"}


def without_some_books(table: pl.DataFrame) -> pl.DataFrame:
    """The book is unknown in the rows of one kind, and has no ask in those of another."""
    kind = pl.col("kind")
    return table.with_columns(
        bid_price_1=pl.when(kind != 7).then("bid_price_1"),
        ask_price_1=pl.when(~kind.is_in([2, 7])).then("ask_price_1"),
    )


def literal_next(table: pl.DataFrame, row: int, label: NextEventLabel, sessions: Any) -> tuple[Any, ...]:
    mates, place = stretch(table, row, sessions)
    if session_of(mates[place]["available_time"], sessions) < 0:
        return None, None, None, "session end"

    def kind(each: dict[str, Any]) -> int | None:
        if each["kind"] not in label.kinds or (label.sides and each["side"] == 0):
            return None
        code = list(label.kinds).index(each["kind"])
        return 2 * code + (each["side"] < 0) if label.sides else code

    later = [each for each in mates[place + 1 :] if kind(each) is not None]
    past = [each for each in mates[: place + 1] if kind(each) is not None]
    until = mates[place : mates.index(later[0]) + 1] if later else mates[place:]
    reasons = ["halt" if each["halted"] else None for each in until]
    timed = "no data" if label.target == "time" and len(past) < 2 else None
    here = mates[place]
    unknown = "no data" if here.get("ask_price_1", 0) is None and here["bid_price_1"] is None else None
    reason = first_of([*reasons, timed, unknown, None if later else "session end"])
    if reason:
        return None, None, None, reason
    end = later[0]["available_time"]
    return kind(later[0]), end - mates[place]["available_time"], end, None


@given(
    table=tables("trades") | tables("book").map(without_some_books),
    target=st.sampled_from(["kind", "time"]),
    kinds=st.sampled_from([(1, 4), (4, 2, 7), (7, 1)]),
    sides=st.booleans(),
    with_sessions=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_the_next_event_is_its_definition(
    table: pl.DataFrame, target: Any, kinds: tuple[int, ...], sides: bool, with_sessions: bool
) -> None:
    sessions = SESSIONS if with_sessions else None
    label = NextEventLabel(target, kinds, sides)
    found = label.measure(table, sessions).select("next_type", "wait", "label_end", "label_reason").rows()
    assert found == [literal_next(table, row, label, sessions) for row in range(table.height)]


def test_a_worked_example_of_the_next_event() -> None:
    table = of_closes([1] * 6, kind=[1, 4, 2, 4, 1, 4], side=[1, -1, 1, 1, -1, 0])
    assert NextEventLabel(kinds=(1, 4)).measure(table)["next_type"].to_list() == [1, 1, 1, 0, 1, None]
    label = NextEventLabel(kinds=(1, 4), sides=True)
    assert label.class_names == ("new bid", "new ask", "execute bid", "execute ask")
    assert label.measure(table)["next_type"].to_list() == [3, 2, 2, 1, None, None]
    timed = NextEventLabel("time", kinds=(4,))
    measured = timed.measure(table)
    assert measured["wait"].to_list() == [None, None, None, 2 * SECOND, 1 * SECOND, None]
    assert measured["past_wait"].to_list()[3:5] == [2 * SECOND, 2 * SECOND]
    finished, _ = timed.finish(measured[3:5], np.zeros(0, np.int64))
    assert finished["label"].to_list() == pytest.approx([math.log(2e9 + 1), math.log(1e9 + 1)], rel=1e-12)
    with pytest.raises(ValueError, match="needs column 'kind'"):
        timed.measure(table.drop("kind"))


def test_what_a_snapshot_lists_next_is_no_event_of_the_market() -> None:
    """Three orders of a snapshot, the last of which completes the book; a one-sided book is a book."""
    book = {"bid_price_1": [None, None, 5, 5, 5, 5], "ask_price_1": [None, None, 7, 7, None, 7]}
    table = of_closes([1] * 6, kind=[1, 1, 1, 2, 4, 1], side=[1, -1, 1, 1, -1, 1]).drop("close")
    table = table.with_columns(**{name: pl.Series(name, prices, pl.Int64) for name, prices in book.items()})
    measured = NextEventLabel(kinds=(1, 2, 4)).measure(table)
    assert measured["label_reason"].to_list() == ["no data", "no data", None, None, None, "session end"]
    assert measured["next_type"].to_list() == [None, None, 1, 2, 0, None]


def test_bars_and_trades_are_labelled_by_their_price() -> None:
    random = np.random.default_rng(3)
    price = (1000 + random.integers(-3, 4, 60).cumsum()).tolist()
    book = of_closes(price).with_columns(ask_price_1=pl.col("close"), bid_price_1=pl.col("close"))
    # A book whose mid is the price: one unit below and one above.
    book = book.with_columns(ask_price_1=pl.col("close") + 1, bid_price_1=pl.col("close") - 1).drop("close")
    bars = of_closes(price)
    trades = bars.rename({"close": "price"})
    for label in (MidLabel(4), MidLabel(4, method="tlob", smoothing=1), TripleBarrier(4, window=3, step=1)):
        made = [
            label.measure(table).drop("close", "price", "ask_price_1", "bid_price_1", strict=False)
            for table in (book, bars, trades)
        ]
        assert made[0].equals(made[1])
        assert made[1].equals(made[2])
    with pytest.raises(ValueError, match="labels need ask_price_1 and bid_price_1, close, or price"):
        MidLabel().measure(bars.drop("close"))
    with pytest.raises(ValueError, match="row 1 has close -5"):
        RealisedVolatility(1).measure(of_closes([3, -5]))


def book_of(size: int) -> pl.DataFrame:
    random = np.random.default_rng(size)
    mid = 2000 + random.integers(-2, 3, size).cumsum()
    kind = random.choice([1, 2, 4], size).astype(np.uint8)
    return of_closes(mid.tolist(), kind=kind, side=random.choice([-1, 1], size).astype(np.int8)).select(
        "entity",
        "available_time",
        "kind",
        "side",
        seq=pl.int_range(size),
        ask_price_1=pl.col("close") + 1,
        bid_price_1=pl.col("close") - 1,
    )


@pytest.mark.parametrize("label", LABELS, ids=lambda label: label.name)
def test_every_label_keeps_what_a_label_promises(label: Label) -> None:
    table = book_of(90)
    sessions = Sessions("test", np.array([10, 50]) * SECOND, np.array([40, 80]) * SECOND)
    measured = label.measure(table, sessions)
    assert measured.select(table.columns).equals(table)
    has = measured["label_reason"].is_null()
    assert has.sum() > 20
    for name in ("label_start", "label_end"):
        assert (measured[name].is_null() == ~has).all()
    able = measured.filter(has)
    assert (able["label_start"] == able["available_time"]).all()
    assert (able["label_end"] >= able["label_start"]).all()
    began, ended = (sessions.locate(able[name].to_numpy()) for name in ("label_start", "label_end"))
    assert (began >= 0).all()
    assert (began == ended).all()
    others = 0
    for cut in (30, 61, 70):
        again = label.measure(perturb_future(table, cut * SECOND, seed=cut), sessions)
        known = able.filter(pl.col("label_end") <= cut * SECOND)
        assert again.filter(pl.col("label_end") <= cut * SECOND).equals(known)
        others += not again.head(cut + 1).equals(measured.head(cut + 1))
    assert others
    finished, fitted = label.finish(able, np.arange(10))
    assert finished.height == able.height
    if label.class_names:
        codes = finished["label"].drop_nulls()
        assert codes.min() >= 0
        assert codes.max() < len(label.class_names)
    else:
        assert finished.select(pl.col("label", "history").is_finite().all()).row(0) == (True, True)
    elsewhere = able.with_columns(pl.int_range(able.height).alias("other"))
    assert label.finish(elsewhere.head(10), np.arange(10))[1] == fitted


def test_settings_that_make_no_sense() -> None:
    for wrong in (
        lambda: MidMove(5, method="tlob"),
        lambda: MidMove(5, method="tlob", smoothing=5),
        lambda: MidMove(5, "seconds", "tlob", 2),
        lambda: MidMove(5, smoothing=2),
        lambda: RealisedVolatility(0),
        lambda: NextEventLabel("side"),  # type: ignore[arg-type]
        lambda: NextEventLabel(kinds=()),
        lambda: NextEventLabel(kinds=(1, 1)),
        lambda: NextEventLabel(kinds=(1, 99)),
        lambda: NextEventLabel(kinds=(4,)),
    ):
        with pytest.raises(ValueError, match="must"):
            wrong()
