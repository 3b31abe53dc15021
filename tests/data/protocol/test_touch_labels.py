"""Triple barrier and spread crossing against the definition written out with fractions, row by row."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from label_tables import SESSIONS, fault, first_of, horizon_of, session_of, stretch, tables

from quantattn.data.market.sessions import SECOND, Sessions
from quantattn.data.protocol import SpreadCrossing, TripleBarrier, perturb_future
from quantattn.data.protocol.labels.barrier import past_squares
from quantattn.data.protocol.labels.touch import first_reaching

Answer = tuple[int | None, int | None, str | None]


def raw(row: dict[str, Any], name: str = "close") -> int:
    """A price in half units whatever it is worth: the mid, the trade, or one of a bar's; 0 for none."""
    if "ask_price_1" in row:
        return 0 if row["bid_price_1"] is None else row["bid_price_1"] + row["ask_price_1"]
    return 2 * (row.get("price", row.get(name)) or 0)


def search(
    mates: list[dict[str, Any]], place: int, label: Any, sessions: Sessions | None, side: Any, past: list[Any]
) -> Answer:
    """Walk the horizon event by event: (side, end, reason)."""
    ranged = isinstance(label, TripleBarrier)
    later, end, ended, foreseen, unknown = horizon_of(mates, place, label.horizon, label.unit, sessions)
    reasons = [*(fault(row, ranged) for row in [*past, mates[place]]), "session end" if foreseen else None]
    found = 0
    for row in later:
        reasons.append(fault(row, ranged))
        found = side(row)
        if found or reasons[-1]:
            end, ended, unknown = row["available_time"], False, False
            break
    reason = first_of([*reasons, "session end" if ended else None, "no data" if unknown else None])
    return (None, None, reason) if reason else (found, end, None)


def literal_barrier(table: pl.DataFrame, row: int, label: TripleBarrier, sessions: Sessions | None) -> Answer:
    mates, place = stretch(table, row, sessions)
    if session_of(mates[place]["available_time"], sessions) < 0:
        return None, None, "session end"
    needed = label.window + label.step - 1
    past = mates[max(place - needed, 0) : place]
    prices = [raw(each) for each in [*past, mates[place]]]
    moves = [] if place < needed else [b - a for a, b in zip(prices, prices[label.step :], strict=False)]
    squares, now = sum(move * move for move in moves), prices[-1]

    def beyond(distance: int, multiple: float | str | None) -> bool:
        far = multiple is not None and distance >= 0
        return far and Fraction(distance) ** 2 * label.window >= Fraction(str(multiple)) ** 2 * squares

    def side(other: dict[str, Any]) -> int:
        up, down = beyond(raw(other, "high") - now, label.profit), beyond(now - raw(other, "low"), label.stop)
        return -1 if down else int(up)

    side_, end, reason = search(mates, place, label, sessions, side, past)
    reason = first_of([reason, "no data" if place < needed else None, "no move" if squares == 0 else None])
    return (None, None, reason) if reason else (side_, end, None)


def literal_crossing(table: pl.DataFrame, row: int, label: SpreadCrossing, sessions: Sessions | None) -> Answer:
    mates, place = stretch(table, row, sessions)
    here = mates[place]
    if session_of(here["available_time"], sessions) < 0:
        return None, None, "session end"
    bid, ask = here["bid_price_1"] or 0, here["ask_price_1"]

    def side(other: dict[str, Any]) -> int:
        low, high = other["bid_price_1"] or 0, other["ask_price_1"]
        mid = Fraction(low + high, 2) if low else 0
        rising, falling = (low, high) if label.price == "quote" else (mid, mid)
        return -1 if falling < bid else int(rising > ask)

    return search(mates, place, label, sessions, side, [])


def answers(measured: pl.DataFrame, name: str) -> list[Answer]:
    assert (measured["label_start"].is_null() | (measured["label_start"] == measured["available_time"])).all()
    return measured.select(name, "label_end", "label_reason").rows()


@given(
    data=st.data(),
    of=st.sampled_from(["book", "trades", "bars"]),
    horizon=st.integers(1, 6),
    unit=st.sampled_from(["events", "seconds"]),
    multiples=st.sampled_from([(1, 1), (0.5, "3/2"), (None, 1), (2, None)]),
    window=st.integers(1, 3),
    step=st.integers(1, 2),
    with_sessions=st.booleans(),
)
@settings(max_examples=70, deadline=None)
def test_barriers_are_the_definition(
    data: st.DataObject, of: str, horizon: int, unit: Any, multiples: Any, window: int, step: int, with_sessions: bool
) -> None:
    table, sessions = data.draw(tables(of)), SESSIONS if with_sessions else None
    label = TripleBarrier(horizon, unit, *multiples, window=window, step=step)
    measured = label.measure(table, sessions)
    assert measured.select(table.columns).equals(table)
    expected = [literal_barrier(table, row, label, sessions) for row in range(table.height)]
    assert answers(measured, "barrier") == expected


@given(
    table=tables("book"),
    horizon=st.integers(1, 6),
    unit=st.sampled_from(["events", "seconds"]),
    price=st.sampled_from(["mid", "quote"]),
    with_sessions=st.booleans(),
)
@settings(max_examples=50, deadline=None)
def test_crossings_are_the_definition(
    table: pl.DataFrame, horizon: int, unit: Any, price: Any, with_sessions: bool
) -> None:
    sessions = SESSIONS if with_sessions else None
    label = SpreadCrossing(horizon, unit, price)
    expected = [literal_crossing(table, row, label, sessions) for row in range(table.height)]
    assert answers(label.measure(table, sessions), "crossing") == expected


@given(
    values=st.lists(st.integers(-5, 5), min_size=1, max_size=60), seed=st.integers(0, 99), longest=st.integers(0, 60)
)
@settings(max_examples=60, deadline=None)
def test_the_first_to_reach_a_bound_is_found(values: list[int], seed: int, longest: int) -> None:
    random, size = np.random.default_rng(seed), len(values)
    last = np.minimum(np.arange(size) + random.integers(0, longest + 1, size), size - 1)
    bound = random.integers(-6, 7, size)
    found = first_reaching(np.array(values), last, bound).tolist()
    rows = ([j for j in range(i + 1, last[i] + 1) if values[j] >= bound[i]] for i in range(size))
    assert found == [hits[0] if hits else size for hits in rows]


def bars(closes: list[int], highs: list[int] | None = None, lows: list[int] | None = None) -> pl.DataFrame:
    """One bar a second."""
    columns = {"close": closes, "high": highs or closes, "low": lows or closes}
    return pl.DataFrame({"entity": "A", "available_time": np.arange(len(closes)) * SECOND, **columns})


def test_a_worked_example_of_the_barriers() -> None:
    # Moves 3, −4 → σ² = (9 + 16)/2 = 12.5, σ = 3.54; at 1.5 σ = 5.30 the price of 99 stops at 93.7 and earns at 104.3.
    label = TripleBarrier(3, profit=1.5, stop=1.5, window=2, step=1)
    for following, side, end in (
        ([104, 105, 90], 1, 4),  # 104 is short of it, 105 is not
        ([104, 94, 93], -1, 5),
        ([104, 94, 104], 0, 5),
    ):
        row = label.measure(bars([100, 103, 99, *following])).row(2, named=True)
        assert (row["barrier"], row["label_end"]) == (side, end * SECOND)
    finished, fitted = label.finish(label.measure(bars([100, 103, 99, 104, 105, 90]))[2:3], np.zeros(0, np.int64))
    assert finished["label"].to_list() == [2]
    assert label.class_names[2] == "profit"
    assert fitted.fitted_rows == 0


def test_a_barrier_that_is_met_exactly_is_touched() -> None:
    label = TripleBarrier(1, window=1, step=1)  # σ is the size of the last move
    assert label.measure(bars([100, 107, 114]))["barrier"].to_list() == [None, 1, None]
    assert label.measure(bars([100, 107, 113]))["barrier"].to_list() == [None, 0, None]
    assert label.measure(bars([100, 107, 100]))["barrier"].to_list() == [None, -1, None]


def test_both_inside_one_bar_are_the_stop() -> None:
    table = bars([100, 102, 102], highs=[100, 102, 110], lows=[100, 102, 90])
    label = TripleBarrier(1, window=1, step=1)
    assert label.measure(table)["barrier"][1] == -1
    assert TripleBarrier(1, stop=None, window=1, step=1).measure(table)["barrier"][1] == 1
    assert label.measure(table.drop("high", "low"))["barrier"][1] == 0  # closes alone meet neither


def test_sigma_is_of_the_past_alone_and_there_must_be_some() -> None:
    label = TripleBarrier(1, window=2, step=1)
    reasons = label.measure(bars([100, 100, 100, 101, 102, 103]))["label_reason"].to_list()
    assert reasons == ["no data", "no data", "no move", None, None, "session end"]
    wild = label.measure(bars([100, 101, 102, 900, 1, 900]))
    calm = label.measure(bars([100, 101, 102, 104, 104, 104]))
    assert wild["barrier"][2] == calm["barrier"][2] == 1


@given(scale=st.integers(1, 10**14), seed=st.integers(0, 50))
@settings(max_examples=30, deadline=None)
def test_the_unit_of_prices_does_not_matter(scale: int, seed: int) -> None:
    prices = 1000 + np.random.default_rng(seed).integers(-3, 4, 40).cumsum()
    label = TripleBarrier(6, profit="7/5", stop=0.9, window=5, step=2)
    one, other = (label.measure(bars((prices * k).tolist())) for k in (1, scale))
    assert one["barrier"].equals(other["barrier"])
    assert one["label_end"].equals(other["label_end"])


def test_squares_that_do_not_fit_int64_are_exact_all_the_same() -> None:
    far = [0, 2**40 + 1, 3, 2**41]
    moves = [b - a for a, b in pairwise(far)]
    assert past_squares(np.array(far), 2, 1).tolist() == [0, 0, *(a * a + b * b for a, b in pairwise(moves))]
    assert past_squares(np.array([0, 1, 3, 2]), 2, 1).tolist() == [0, 0, 5, 5]


def test_a_touch_before_the_close_counts_and_a_close_that_is_foreseen_does_not() -> None:
    sessions = Sessions("test", np.array([0]), np.array([6]) * SECOND)
    table = bars([100, 101, 102, 103, 104, 105, 106])
    events = TripleBarrier(3, window=1, step=1).measure(table, sessions)
    assert events["barrier"].to_list() == [None, 1, 1, 1, 1, 1, None]
    seconds = TripleBarrier(3, "seconds", window=1, step=1).measure(table, sessions)
    assert seconds["barrier"].to_list() == [None, 1, 1, 1, None, None, None]
    assert seconds["label_reason"].to_list()[4:] == ["session end"] * 3


def test_a_halt_after_the_touch_is_none_of_the_labels_business() -> None:
    table = bars([100, 101, 102, 102, 102]).with_columns(halted=pl.Series([False, False, False, True, False]))
    found = TripleBarrier(3, window=1, step=1).measure(table)
    assert found["barrier"].to_list()[1] == 1
    assert found["label_reason"].to_list()[2:] == ["halt", "halt", "session end"]


def test_a_worked_example_of_crossing() -> None:
    quotes = [(99, 101), (100, 102), (101, 103), (102, 104), (101, 103)]
    table = pl.DataFrame(quotes, schema=["bid_price_1", "ask_price_1"], orient="row").with_columns(
        entity=pl.lit("A"), available_time=pl.int_range(pl.len()) * SECOND
    )
    # The mid of 102 is beyond the first ask of 101 two events later; the bid of 102 three events later.
    mid, quote = (SpreadCrossing(3, price=price).measure(table) for price in ("mid", "quote"))
    assert (mid["crossing"][0], mid["label_end"][0]) == (1, 2 * SECOND)
    assert (quote["crossing"][0], quote["label_end"][0]) == (1, 3 * SECOND)
    assert SpreadCrossing(1).measure(table)["crossing"].to_list() == [0, 0, 0, 0, None]
    with pytest.raises(ValueError, match="spread crossing needs a book"):
        SpreadCrossing().measure(bars([1, 2]))


@pytest.mark.parametrize("label", [TripleBarrier(6, window=4, step=1), SpreadCrossing(6), SpreadCrossing(5, "seconds")])
def test_a_label_depends_on_its_interval_alone(label: Any) -> None:
    mid = 2000 + np.random.default_rng(0).integers(-2, 3, 80).cumsum()
    table = bars(mid.tolist()).with_columns(
        ask_price_1=pl.col("close") + 1, bid_price_1=pl.col("close") - 1, seq=pl.int_range(80)
    )
    measured, others = label.measure(table), 0
    for cut in (20, 41, 60):
        again = label.measure(perturb_future(table, cut * SECOND, seed=cut))
        known = measured.filter(pl.col("label_end") <= cut * SECOND)
        assert known.height > 10
        assert again.filter(pl.col("label_end") <= cut * SECOND).equals(known)
        others += not again.head(cut + 1).equals(measured.head(cut + 1))
    assert others  # a label that looks beyond the cut does change


def test_settings_that_make_no_sense() -> None:
    for wrong in (
        lambda: TripleBarrier(0),
        lambda: TripleBarrier(1, "days"),  # type: ignore[arg-type]
        lambda: TripleBarrier(1.5),  # type: ignore[arg-type]
        lambda: TripleBarrier(profit="1/0"),
        lambda: TripleBarrier(profit="much"),
        lambda: TripleBarrier(profit=0),
        lambda: TripleBarrier(stop="-1"),
        lambda: TripleBarrier(profit=None, stop=None),
        lambda: TripleBarrier(window=0),
        lambda: SpreadCrossing(0),
        lambda: SpreadCrossing(price="ask"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError, match="must"):
            wrong()
