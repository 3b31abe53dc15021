"""Features against a loop that does what the definition says, and against a future that was changed."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import quantattn.data.market.feature_blocks as feature_blocks
from quantattn.data.market import (
    FEATURES,
    Sessions,
    book_features,
    book_flags,
    count_flags,
    exchange_sessions,
    feature_names,
    halt_intervals,
    persistence,
)
from quantattn.data.protocol import MidMove, Threshold, mid_moves, perturb_future
from quantattn.data.schema import BookEvents, Instrument, check
from quantattn.data.sources import scan_lobster

INSTRUMENTS = (Instrument("A", -4, 100), Instrument("B", -4, 50))
SESSIONS = Sessions("test", np.array([0, 50]), np.array([40, 100]))
WINDOWS = (1, 3)
SCHEMA = {name: column.dtype for name, column in BookEvents.columns().items()}


@st.composite
def books(draw: st.DrawFn) -> pl.DataFrame:
    rows: list[dict[str, Any]] = []
    price = st.sampled_from([100, 150, 200, 250])
    for entity in ("A", "B")[: draw(st.integers(1, 2))]:
        times = sorted(draw(st.lists(st.integers(0, 100), min_size=1, max_size=12)))
        for seq, time in enumerate(times):
            bid = draw(st.one_of(price, price, st.none()))
            rows.append(
                {
                    "entity": entity,
                    "event_time": time,
                    "available_time": time,
                    "seq": seq,
                    "kind": draw(st.integers(1, 5)),
                    "side": draw(st.sampled_from([-1, 0, 1])),
                    "price": 100,
                    "size": draw(st.integers(1, 9)),
                    "order_id": seq,
                    "ask_price_1": draw(price) + 100,
                    "ask_size_1": draw(st.integers(0, 9)),
                    "bid_price_1": bid,
                    "bid_size_1": 0 if bid is None else draw(st.integers(0, 9)),
                    "ask_price_2": draw(st.sampled_from([400, 450, None])),
                    "ask_size_2": draw(st.sampled_from([3, 7, None])),
                    "bid_price_2": draw(st.sampled_from([50, 60, 70])),
                    "bid_size_2": draw(st.integers(0, 9)),
                }
            )
    types = {
        "kind": pl.UInt8,
        "side": pl.Int8,
        "bid_price_1": pl.Int64,
        "ask_price_2": pl.Int64,
        "ask_size_2": pl.Int64,
    }
    return check(pl.DataFrame(rows, schema_overrides=types), BookEvents)


def usable(row: dict[str, Any]) -> bool:
    return row["bid_price_1"] is not None and row["bid_price_1"] < row["ask_price_1"]


def order_flow(before: dict[str, Any], here: dict[str, Any], level: int = 1) -> int:
    """Cont, Kukanov, Stoikov (2014), eq. 4, with the prices and sizes of one level."""
    names = [f"{side}_{what}_{level}" for side in ("bid", "ask") for what in ("price", "size")]
    (b0, qb0, a0, qa0), (b1, qb1, a1, qa1) = ([row[name] for name in names] for row in (before, here))
    if not usable(before) or not usable(here) or None in (b0, a0, b1, a1):
        return 0
    terms = [(b1 >= b0, qb1, 1), (b1 <= b0, qb0, -1), (a1 <= a0, qa1, -1), (a1 >= a0, qa0, 1)]
    used = [(size, sign) for holds, size, sign in terms if holds]
    return 0 if any(size is None for size, _ in used) else sum(sign * size for size, sign in used)


def imbalance(row: dict[str, Any], level: int) -> float:
    bid, ask = row[f"bid_size_{level}"], row[f"ask_size_{level}"]
    known = usable(row) and bid is not None and ask is not None and bid + ask > 0
    return (bid - ask) / (bid + ask) if known else 0.0


def literal(table: pl.DataFrame, sessions: Sessions | None) -> list[dict[str, Any]]:
    """Every feature of every row from the rows of its session up to itself."""
    rows, found = table.rows(named=True), []
    tick = {instrument.entity: instrument.tick for instrument in INSTRUMENTS}

    def session(row: dict[str, Any]) -> int:
        return 0 if sessions is None else int((sessions.open <= row["available_time"]).sum())

    for i, here in enumerate(rows):
        past = [r for r in rows[: i + 1] if r["entity"] == here["entity"] and session(r) == session(here)]
        mids = [r["bid_price_1"] + r["ask_price_1"] if usable(r) else None for r in past]
        filled: list[int | None] = []
        for mid in mids:
            filled.append(mid if mid is not None else filled[-1] if filled else None)
        spreads = [r["ask_price_1"] - r["bid_price_1"] for r in past if usable(r)]
        flows, deeper = ([0] + [order_flow(a, b, level) for a, b in pairwise(past)] for level in (1, 2))
        pairs = [(a, b) if a is not None and b is not None else (1, 1) for a, b in pairwise(filled)]
        squares = [0] + [round(math.log(b / a) ** 2 * 1e18) for a, b in pairs]
        trades = [-r["side"] * r["size"] if r["kind"] == 4 else 0 for r in past]
        out: dict[str, Any] = {
            "mid2": mids[-1],
            "spread_ticks": spreads[-1] / tick[here["entity"]] if spreads else 0.0,
            "imbalance": imbalance(here, 1),
            "imbalance_level_2": imbalance(here, 2),
            "depth": here["bid_size_1"] + here["ask_size_1"],
            "depth_level_2": here["bid_size_2"] + (here["ask_size_2"] or 0),
        }
        out["microprice"] = out["imbalance"] * out["spread_ticks"]
        for k in WINDOWS:
            start = filled[-1 - k] if len(past) > k else None
            start = start if start is not None else next((m for m in filled if m is not None), None)
            since = past[-1 - k]["available_time"] if len(past) > k else past[0]["available_time"]
            out[f"ofi_{k}"] = sum(flows[-k:])
            out[f"ofi_{k}_level_2"] = sum(deeper[-k:])
            out[f"volatility_{k}"] = math.sqrt(min(sum(squares[-k:]), 2**63) * 1e-18)
            out[f"trade_flow_{k}"] = sum(trades[-k:])
            out[f"return_{k}"] = (
                0.0 if filled[-1] is None or start is None else (filled[-1] - start) / tick[here["entity"]]
            )
            out[f"log_span_{k}"] = math.log(1 + here["available_time"] - since)
        found.append(out)
    return found


@given(table=books(), with_sessions=st.booleans())
@settings(max_examples=60, deadline=None)
def test_features_are_what_the_definition_says(table: pl.DataFrame, with_sessions: bool) -> None:
    sessions = SESSIONS if with_sessions else None
    made = book_features(table.lazy(), INSTRUMENTS, sessions=sessions, windows=WINDOWS, levels=2).collect()
    assert made.select(table.columns).equals(table)
    names = feature_names(WINDOWS, 2)
    assert {*made.columns} == {*table.columns, "mid2", *names}
    assert made.select(pl.col(names).cast(pl.Float64).is_finite().fill_null(False).all()).row(0) == (True,) * len(names)
    for row, expected in zip(made.rows(named=True), literal(table, sessions), strict=True):
        for name, value in expected.items():
            # The rounding of log(m) − log(m') is that of the logarithms, 10⁻¹⁵, and not of their difference.
            close = 1e-12 if name.startswith("volatility") else 1e-15
            assert row[name] == (pytest.approx(value, rel=close) if isinstance(value, float) else value), name


@given(table=books(), cut=st.integers(0, 100), seed=st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_no_feature_depends_on_the_future(table: pl.DataFrame, cut: int, seed: int) -> None:
    other = perturb_future(table, cut, seed)
    past = pl.col("available_time") <= cut
    here, there = (
        book_features(t.lazy(), INSTRUMENTS, sessions=SESSIONS, windows=WINDOWS, levels=2).filter(past).collect()
        for t in (table, other)
    )
    assert here.equals(there)


def test_sizes_that_are_not_known_leave_no_null() -> None:
    types = {"kind": pl.UInt8, "side": pl.Int8}
    row = {"entity": "A", "kind": 1, "side": 1, "price": 100, "size": 1, "order_id": 1, "ask_price_1": 300}
    rows = [{**row, "event_time": n, "available_time": n, "seq": n, "bid_price_1": 100} for n in range(4)]
    table = pl.DataFrame(rows, schema_overrides=types).with_columns(
        ask_size_1=pl.Series([5, None, 5, 9]), bid_size_1=pl.Series([5, 5, None, 5])
    )
    found = book_features(table.lazy(), [Instrument("A")]).select(FEATURES).collect()
    assert found.null_count().sum_horizontal().item() == 0
    assert found["ofi_1"].to_list() == [0, 0, 0, 0]
    assert found["imbalance"].to_list() == [0.0, 0.0, 0.0, -4 / 14]


def test_the_names_are_those_of_the_columns() -> None:
    assert feature_names() == FEATURES
    assert set(FEATURES) <= set(book_features(pl.LazyFrame(schema=SCHEMA), INSTRUMENTS).collect_schema())
    with pytest.raises(ValueError, match="levels count from the best"):
        book_features(pl.LazyFrame(schema=SCHEMA), INSTRUMENTS, levels=0)
    with pytest.raises(ValueError, match="windows count events"):
        book_features(pl.LazyFrame(schema=SCHEMA), INSTRUMENTS, windows=(0,))


def book_of(rows: list[tuple[int, int, int, int]]) -> pl.LazyFrame:
    """Ask, its size, bid, its size; one event a second."""
    names = ("ask_price_1", "ask_size_1", "bid_price_1", "bid_size_1")
    table = pl.DataFrame(rows, schema=dict.fromkeys(names, pl.Int64), orient="row")
    time = pl.int_range(pl.len()) * 10**9
    return (
        table.with_columns(
            entity=pl.lit("A"),
            event_time=time,
            available_time=time,
            seq=pl.int_range(pl.len()),
            side=pl.lit(1, pl.Int8),
        )
        .with_columns(kind=pl.lit(1, pl.UInt8), price=pl.lit(100), size=pl.lit(1), order_id=pl.lit(1))
        .lazy()
    )


def test_a_worked_example_of_each_feature_of_the_book() -> None:
    # A tick is 100. The bid grows by 2; the ask of 5 is lifted to the next tick, where 4 stand.
    made = book_features(book_of([(10100, 5, 10000, 3), (10100, 5, 10000, 5), (10200, 4, 10000, 5)]), INSTRUMENTS)
    found = made.collect()
    assert found["ofi_1"].to_list() == [0, 2, 5]
    assert found["ofi_10"].to_list() == [0, 2, 7]
    assert found["imbalance"].to_list() == [-2 / 8, 0.0, 1 / 9]
    assert found["depth"].to_list() == [8, 10, 9]
    # The weighted mid of the last book is (5 · 10200 + 4 · 10000) / 9 = 10111.1…, the mid 10100, half a tick 50.
    assert found["microprice"][2] * 50 == pytest.approx((5 * 10200 + 4 * 10000) / 9 - 10100, rel=1e-12)
    assert found["return_10"].to_list() == [0, 0, 1]
    assert found["volatility_10"].to_list() == pytest.approx([0, 0, math.log(20200 / 20100)], rel=1e-12)


def test_windows_of_absurd_moves_stay_finite() -> None:
    prices = [(10**9, 1), (10**4, 1), (10**9, 1), (3, 1)] * 3
    made = book_features(book_of([(ask, 1, bid, 1) for ask, bid in prices]), INSTRUMENTS, windows=(1, 3)).collect()
    volatility = made["volatility_3"].to_list()
    assert all(0 <= value < 3.04 for value in volatility)
    assert max(volatility) > 1


def test_an_entity_without_a_tick_is_refused() -> None:
    table = pl.DataFrame({name: [1] for name in SCHEMA} | {"entity": ["C"]}, schema=SCHEMA)
    with pytest.raises(pl.exceptions.PolarsError, match="incomplete mapping"):
        book_features(table.lazy(), INSTRUMENTS).collect()


def literal_persistence(table: pl.DataFrame) -> list[int | None]:
    rows, found = list(table.with_row_index("row").iter_rows(named=True)), []
    for here in rows:
        over = [
            (row["label_end"], row["row"], row["label"])
            for row in rows
            if row["entity"] == here["entity"]
            and row["label"] is not None
            and row["label_end"] < here["available_time"]
        ]
        found.append(max(over)[2] if over else None)
    return found


@given(table=books(), horizon=st.integers(1, 4), unit=st.sampled_from(["events", "seconds"]))
@settings(max_examples=40, deadline=None)
def test_persistence_is_the_last_label_that_was_over(table: pl.DataFrame, horizon: int, unit: str) -> None:
    move = MidMove(horizon, unit)  # type: ignore[arg-type]
    seconds = 10**9 if unit == "seconds" else 1
    table = table.with_columns(pl.col("available_time", "event_time") * seconds // 4)
    labelled = Threshold.fixed(0).classify(mid_moves(table, move))
    assert persistence(labelled).to_list() == literal_persistence(labelled)


def test_persistence_does_not_use_the_instant_itself() -> None:
    table = pl.DataFrame(
        {"entity": "A", "available_time": [1, 2, 2, 3], "label_end": [2, 2, 3, None], "label": [0, 2, 1, None]}
    )
    assert persistence(table).to_list() == [None, None, None, 2]
    with pytest.raises(ValueError, match="in order of time"):
        persistence(table.reverse())
    assert persistence(table.clear()).to_list() == []


def test_flags_and_halts_are_found_and_counted() -> None:
    table = pl.DataFrame(
        {
            "entity": ["A"] * 7 + ["B"] * 2,
            "available_time": [1, 2, 3, 4, 5, 6, 9, 1, 2],
            "kind": pl.Series([1, 7, 3, 7, 1, 7, 1, 1, 1], dtype=pl.UInt8),
            "ask_price_1": [5, 5, 5, None, 5, 5, 5, 5, 5],
            "bid_price_1": [4, 5, 6, 4, 4, 4, 4, 4, 4],
            "halted": [False, True, True, False, False, True, False, False, False],
        }
    )
    flagged = book_flags(table)
    assert flagged["crossed"].arg_true().to_list() == [2]
    assert flagged["locked"].arg_true().to_list() == [1]
    assert flagged["one_sided"].arg_true().to_list() == [3]
    assert count_flags(table.lazy()) == {"crossed": 1, "locked": 1, "one_sided": 1, "halted": 3}
    # The second halt has no resume: an order, the next day's first, is what follows it.
    assert halt_intervals(table).rows() == [("A", 2, 4), ("A", 6, None)]
    assert halt_intervals(table.head(6)).rows() == [("A", 2, 4), ("A", 6, None)]


def amazon(realdata: Path) -> pl.LazyFrame:
    return scan_lobster(realdata / "lob/lobster/AMZN_2012-06-21_34200000_57600000_message_1.csv.gz").frame


def test_aggressors_move_the_price_their_way(realdata: Path) -> None:
    table = book_features(amazon(realdata), (Instrument("AMZN"),)).collect()
    assert table.select(pl.corr("trade_flow_100", "return_100")).item() > 0.3
    assert table.select(pl.corr("ofi_100", "return_100")).item() > 0.3
    ahead = pl.col("mid2").shift(-10) - pl.col("mid2")
    assert table.select(pl.corr("imbalance", ahead)).item() > 0.05  # a heavier bid is followed by a rise


def test_features_and_labels_of_a_real_morning_ignore_its_afternoon(realdata: Path) -> None:
    table = amazon(realdata).collect()
    cut = int(table["available_time"][30_000])
    other = perturb_future(table, cut)
    sessions = exchange_sessions("XNAS", cut, cut)
    past = pl.col("available_time") <= cut
    known = pl.col("label_end") <= cut
    here, there = (
        mid_moves(book_features(t.lazy(), (Instrument("AMZN"),), sessions=sessions).collect(), MidMove(100), sessions)
        for t in (table, other)
    )
    assert here.filter(past).select(FEATURES).equals(there.filter(past).select(FEATURES))
    assert here.filter(known).equals(there.filter(known))
    assert here.filter(past & ~known)["move_num"].to_list() != there.filter(past & ~known)["move_num"].to_list()


@pytest.mark.parametrize("mid", range(300, 450, 10))
def test_a_feature_has_the_same_bits_however_many_rows_follow(mid: int) -> None:
    """Polars divides a column by a number in another way where there are a few rows a thread."""
    table = book_of([(each + 50, 5, each - 50, 5) for each in (200, mid) * 20]).collect()
    long, short = (book_features(t.lazy(), INSTRUMENTS, windows=(1, 2, 3)).collect() for t in (table, table[:4]))
    assert short.equals(long[:4])


@given(table=books(), block=st.integers(1, 9), windows=st.sampled_from([(1,), (1, 3), (4, 2), (1, 2, 30)]))
@settings(max_examples=60, deadline=None)
def test_blocks_leave_no_seam(table: pl.DataFrame, block: int, windows: tuple[int, ...]) -> None:
    """However many rows are worked out at a time, and however far windows look back beyond them: the same bits."""
    asked: dict[str, Any] = {"sessions": SESSIONS, "windows": windows, "levels": 2}
    whole = book_features(table.lazy(), INSTRUMENTS, **asked).collect()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feature_blocks, "_BLOCK", block)
        assert book_features(table.lazy(), INSTRUMENTS, **asked).collect().equals(whole)
