"""Mid-move labels against the definition written out with fractions, and what they may never look across."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantattn.data.market.sessions import SECOND, Sessions
from quantattn.data.protocol import MidMove, Threshold, mid_moves, perturb_future
from quantattn.data.protocol.labels.threshold import exact_sum

SESSIONS = Sessions("test", np.array([0, 30]) * SECOND, np.array([20, 60]) * SECOND)
TIMES = [s * SECOND + n for s in (0, 1, 2, 3, 5, 8, 13, 20, 25, 30, 31, 33, 40, 59) for n in (0, 0, 1)]


@st.composite
def event_tables(draw: st.DrawFn) -> pl.DataFrame:
    rows: list[dict[str, object]] = []
    for entity in ("A", "B")[: draw(st.integers(1, 2))]:
        times = sorted(draw(st.lists(st.sampled_from(TIMES), min_size=1, max_size=14)))
        for seq, time in enumerate(times):
            bid = draw(st.one_of(st.integers(100, 103), st.none() if draw(st.integers(0, 9)) == 0 else st.just(101)))
            ask = draw(st.integers(103, 106))
            halted = draw(st.integers(0, 19)) == 0
            rows.append(
                {"entity": entity, "available_time": time, "seq": seq, "halted": halted, "ask": ask, "bid": bid}
            )
    table = pl.DataFrame(rows, schema_overrides={"ask": pl.Int64, "bid": pl.Int64})
    return table.rename({"ask": "ask_price_1", "bid": "bid_price_1"})


def literal(table: pl.DataFrame, move: MidMove, sessions: Sessions | None) -> list[tuple[object, ...]]:
    """The definition, row by row, with fractions: (l, start, end, reason)."""
    rows = list(table.with_row_index("row").iter_rows(named=True))
    found: list[tuple[object, ...]] = []
    for here in rows:
        session = 0 if sessions is None else int(sessions.locate(np.array([here["available_time"]]))[0])
        if session < 0:
            found.append((None, None, None, "session end"))
            continue
        mates = [
            row
            for row in rows
            if row["entity"] == here["entity"]
            and (sessions is None or int(sessions.locate(np.array([row["available_time"]]))[0]) == session)
        ]
        now, span = here["available_time"], move.horizon * SECOND
        later = [row for row in mates if row["row"] > here["row"]]
        before = [row for row in mates if row["row"] <= here["row"]]
        if move.unit == "events":
            ends = len(later) < move.horizon
            later, past = later[: move.horizon], before[-move.horizon :]
            end = later[-1]["available_time"] if later else None
            unknown, short = False, len(past) < move.horizon
        else:
            end = now + span
            ends = end > (mates[-1]["available_time"] if sessions is None else sessions.close[session])
            later = [row for row in later if row["available_time"] <= end]
            past = [row for row in before if row["available_time"] > now - span]
            unknown, short = end > mates[-1]["available_time"], now - span < mates[0]["available_time"]
        seen = [here, *later, *(past if move.method == 2 else [])]
        missing = any(row["bid_price_1"] is None for row in seen)
        crossed = any(row["bid_price_1"] is not None and row["bid_price_1"] >= row["ask_price_1"] for row in seen)
        reason = (
            "session end"
            if ends
            else "halt"
            if any(row["halted"] for row in seen)
            else "crossed book"
            if crossed
            else "no data"
            if missing or unknown or (move.method == 2 and short)
            else None
        )
        if reason is not None:
            found.append((None, None, None, reason))
            continue

        def mean(of: list[dict[str, int]]) -> Fraction:
            return Fraction(sum(row["bid_price_1"] + row["ask_price_1"] for row in of), 2 * len(of))

        after = mean([later[-1]] if move.method == 0 and later else later or [here])
        base = mean(past if move.method == 2 else [here])
        found.append(((after - base) / base, now, end, None))
    return found


@given(
    table=event_tables(),
    horizon=st.integers(1, 5),
    unit=st.sampled_from(["events", "seconds"]),
    method=st.sampled_from([0, 1, 2]),
    with_sessions=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_moves_are_the_definition(
    table: pl.DataFrame, horizon: int, unit: str, method: int, with_sessions: bool
) -> None:
    move, sessions = MidMove(horizon, unit, method), SESSIONS if with_sessions else None  # type: ignore[arg-type]
    moves = mid_moves(table, move, sessions)
    assert moves.select(table.columns).equals(table)
    columns = moves.select("move_num", "move_den", "label_start", "label_end", "label_reason").rows()
    found = [(None if den is None else Fraction(num, den), *rest) for num, den, *rest in columns]
    assert found == literal(table, move, sessions)


def book(mids: list[int], **columns: list[object]) -> pl.DataFrame:
    """One event a second with bid + ask as given and a spread of two units."""
    half = pl.Series(mids) // 2
    return pl.DataFrame(
        {
            "entity": "A",
            "available_time": np.arange(len(mids)) * SECOND,
            "ask_price_1": half + 1,
            "bid_price_1": pl.Series(mids) - half - 1,
            **columns,
        }
    )


def test_a_worked_example_of_each_method() -> None:
    mids = [200, 200, 204, 208, 206]
    table = book(mids)
    for method, expected in (
        (0, Fraction(208 - 200, 200)),
        (1, (Fraction(204 + 208, 2) - 200) / 200),
        (2, (Fraction(204 + 208, 2) - Fraction(200 + 200, 2)) / Fraction(200 + 200, 2)),
    ):
        row = mid_moves(table, MidMove(2, method=method)).row(1, named=True)  # type: ignore[arg-type]
        assert Fraction(row["move_num"], row["move_den"]) == expected
        assert (row["label_start"], row["label_end"]) == (1 * SECOND, 3 * SECOND)


def test_up_is_the_class_of_prices_that_rose() -> None:
    moves = mid_moves(book([200, 202, 204, 206, 204, 202, 200, 200, 200]), MidMove(1))
    labels = Threshold.fixed(0).classify(moves)["label"].to_list()
    assert labels == [2, 2, 2, 0, 0, 0, 1, 1, None]


@given(table=event_tables(), horizon=st.integers(1, 4), method=st.sampled_from([0, 1, 2]))
@settings(max_examples=40, deadline=None)
def test_a_market_in_the_mirror_has_mirrored_labels(table: pl.DataFrame, horizon: int, method: int) -> None:
    table = table.with_columns(pl.col("bid_price_1").fill_null(101))
    move = MidMove(horizon, method=method)  # type: ignore[arg-type]
    # A price p stands at 1000 − p in the mirror: relative moves change their size there, and all change their sign.
    mirrored = table.with_columns(ask_price_1=1000 - pl.col("bid_price_1"), bid_price_1=1000 - pl.col("ask_price_1"))
    here, there = (Threshold.fixed(0).classify(mid_moves(t, move, SESSIONS))["label"] for t in (table, mirrored))
    assert (2 - there).equals(here)


def test_no_label_crosses_the_end_of_a_session() -> None:
    table = book([200 + 2 * i for i in range(61)])
    for move in (MidMove(4), MidMove(4, "seconds"), MidMove(4, "seconds", 0)):
        moves = mid_moves(table, move, SESSIONS)
        ends = {reason: group["available_time"].to_list() for (reason,), group in moves.group_by("label_reason")}
        last_hours = [s * SECOND for s in (*range(17, 30), *range(57, 61))]
        assert sorted(ends["session end"]) == last_hours
        kept = moves.filter(pl.col("label_reason").is_null())
        assert (SESSIONS.locate(kept["label_start"].to_numpy()) == SESSIONS.locate(kept["label_end"].to_numpy())).all()


def test_no_label_crosses_a_halt_even_one_without_end() -> None:
    table = book([200] * 10, halted=[False] * 5 + [True] * 5)
    assert mid_moves(table, MidMove(2))["label_reason"].to_list() == [None] * 3 + ["halt"] * 5 + ["session end"] * 2
    table = book([200] * 10, halted=[i == 5 for i in range(10)])
    reasons = mid_moves(table, MidMove(2, "seconds"))["label_reason"].to_list()
    assert reasons == [None] * 3 + ["halt"] * 3 + [None] * 2 + ["session end"] * 2


def test_locked_and_crossed_books_give_no_price() -> None:
    for bid in (101, 105):  # the ask is 101
        table = book([200] * 8).with_columns(bid_price_1=pl.Series([99] * 4 + [bid] + [99] * 3))
        reasons = mid_moves(table, MidMove(2))["label_reason"].to_list()
        assert reasons == [None] * 2 + ["crossed book"] * 3 + [None] + ["session end"] * 2


def test_events_of_another_entity_are_never_looked_at() -> None:
    one = book([200, 202, 204, 206])
    other = book([900, 100, 900, 100]).with_columns(entity=pl.lit("B"))
    both = mid_moves(pl.concat([one, other]), MidMove(2))
    assert both.filter(pl.col("entity") == "A").equals(mid_moves(one, MidMove(2)))


def test_a_label_depends_on_its_interval_alone() -> None:
    random = np.random.default_rng(0)
    table = book((200 + 2 * random.integers(-3, 4, 60).cumsum().clip(-40, 40)).tolist()).with_columns(
        seq=pl.int_range(60), event_time=pl.col("available_time")
    )
    moves = mid_moves(table, MidMove(5))
    for cut in (20, 37):
        again = mid_moves(perturb_future(table, cut * SECOND, seed=cut), MidMove(5))
        inside = moves["label_end"] <= cut * SECOND
        assert again.filter(again["label_end"] <= cut * SECOND).equals(moves.filter(inside))
        assert not again["move_num"].head(40).equals(moves["move_num"].head(40))  # the future does change others


def test_unsorted_events_are_refused() -> None:
    with pytest.raises(ValueError, match="available_time falls at row 1"):
        mid_moves(book([200, 202, 204]).reverse(), MidMove(1))


@given(
    moves=st.lists(st.tuples(st.integers(-50, 50), st.integers(1, 7)), min_size=1, max_size=40),
    theta=st.one_of(st.fractions(0, 20, max_denominator=9), st.floats(0, 20, allow_nan=False)),
)
@settings(max_examples=60, deadline=None)
def test_classes_are_decided_exactly(moves: list[tuple[int, int]], theta: Fraction | float) -> None:
    table = pl.DataFrame(
        {"move_num": [n for n, _ in moves], "move_den": [d for _, d in moves], "label_start": 0, "label_end": 1}
    ).with_columns(label_reason=pl.lit(None, mid_moves(book([200]), MidMove(1))["label_reason"].dtype))
    bound = Fraction(theta)
    expected = [2 if Fraction(n, d) > bound else 0 if Fraction(n, d) < -bound else 1 for n, d in moves]
    three = Threshold.fixed(theta).classify(table)
    assert three["label"].to_list() == expected
    two = Threshold.fixed(theta).classify(table, classes=2)
    assert two["label"].to_list() == [{0: 0, 1: None, 2: 1}[label] for label in expected]
    assert two["label_reason"].to_list() == ["no move" if label == 1 else None for label in expected]
    assert two["label_end"].is_null().to_list() == [label == 1 for label in expected]


def test_a_tie_with_the_threshold_is_no_move_where_floats_would_say_otherwise() -> None:
    num, den, theta = 3, 10**16 + 1, Fraction(3, 10**16 + 1)
    assert num / den == float(theta)
    table = mid_moves(book([200, 200]), MidMove(1)).head(1).with_columns(move_num=num, move_den=den)
    assert Threshold(theta).classify(table)["label"].to_list() == [1]
    assert Threshold(theta - Fraction(1, 10**40)).classify(table)["label"].to_list() == [2]


@given(st.lists(st.floats(-(2.0**60), 2.0**60)), st.integers(1, 3_000))
@settings(max_examples=100, deadline=None)
def test_a_sum_is_rounded_once(values: list[float], times: int) -> None:
    """Small values beside large ones of either sign, more than are summed at once, subnormal ones too."""
    repeated = np.tile(np.asarray(values, np.float64), times)
    assert exact_sum(repeated) == math.fsum(repeated.tolist())


def test_thresholds_are_fitted_on_the_given_rows_alone() -> None:
    random = np.random.default_rng(1)
    moves = mid_moves(book((2000 + 2 * random.integers(-9, 10, 200)).tolist()), MidMove(3))
    train = np.arange(100)
    sizes = [abs(Fraction(n, d)) for n, d in moves.select("move_num", "move_den").head(100).rows()]
    for rule in ("mean", "quantile", "spread"):
        fitted = Threshold.fit(moves, train, rule)  # type: ignore[arg-type]
        assert fitted.fitted_rows == 100
        assert fitted.fitted_until == 102 * SECOND + 1  # row 99 looks at 100, 101, 102
        elsewhere = moves.with_columns(
            pl.when(pl.int_range(200) < 100).then("move_num").otherwise(10**6).alias("move_num")
        )
        assert Threshold.fit(elsewhere, train, rule) == fitted  # type: ignore[arg-type]
        assert Threshold.from_json(fitted.to_json()) == fitted
        assert Threshold.fit(moves, train[::-1], rule) == fitted  # type: ignore[arg-type]
    assert Threshold.fit(moves, train, "mean").theta == pytest.approx(sum(sizes) / 200, rel=1e-12)
    third = Threshold.fit(moves, train, "quantile").theta
    assert sum(size <= third for size in sizes) >= 100 / 3 > sum(size < third for size in sizes)
    assert Threshold.fit(moves, train, "quantile", 0).theta == min(sizes)
    assert Threshold.fit(moves, train, "quantile", 1).theta == max(sizes)
    assert Threshold.fit(moves, train, "spread").theta == pytest.approx(4 / 2000, rel=0.02)
    assert Threshold.fixed("2e-5").theta == Fraction(1, 50_000)


def test_settings_that_make_no_sense() -> None:
    moves = mid_moves(book([200, 202]), MidMove(1))
    for wrong in (
        lambda: MidMove(0),
        lambda: MidMove(1, "days"),  # type: ignore[arg-type]
        lambda: MidMove(1, method=3),  # type: ignore[arg-type]
        lambda: Threshold.fixed(-1),
        lambda: Threshold.fit(moves, np.array([1])),
        lambda: Threshold.fit(moves, np.array([0]), "median"),  # type: ignore[arg-type]
        lambda: Threshold.fit(moves, np.array([0]), "quantile", 1.5),
        lambda: Threshold.fixed(0).classify(moves, classes=4),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError, match=r"must|none of"):
            wrong()
    with pytest.raises(ValueError, match=r"1 events before and 3 after with a mid of .* leave int64"):
        mid_moves(book([2**59, 2**61] * 5), MidMove(3, method=1))
    with pytest.raises(ValueError, match="row 2 has bid -1, ask 1"):
        mid_moves(book([200, 202, 0]), MidMove(1))
    assert MidMove(10, "seconds", 2).name == "mid move 2 over 10 seconds"
