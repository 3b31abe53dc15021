"""Trades and bars, which show no book: their tokens, their features, and the whole way to a prepared data set."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl
import pytest

from quantattn.data.market.encode import encode_market
from quantattn.data.market.prepare import prepare_market
from quantattn.data.market.price_features import price_feature_names, price_features
from quantattn.data.market.sessions import Sessions
from quantattn.data.protocol import perturb_future
from quantattn.data.protocol.labels import MidLabel
from quantattn.data.raw_fields import raw_fields
from quantattn.data.schema import Bars, Events, Instrument, Trades, check
from quantattn.data.sources.source import Source, SourceReport
from quantattn.data.tokens import Tokenizer

HOUR = 3_600 * 10**9
INSTRUMENTS = (Instrument("A", -2, 5), Instrument("B", -2, 5))


def typed(rows: dict[str, list[Any]], schema: type[Events]) -> pl.DataFrame:
    own = {name: column.dtype for name, column in schema.columns().items()}
    n = len(rows["entity"])
    table = {**rows, "seq": list(range(n)), "event_time": rows["available_time"]}
    return check(pl.DataFrame({name: table[name] for name in own}, own), schema)


def trades() -> pl.DataFrame:
    """Worked out by hand; the tick is 5."""
    return typed(
        {
            "entity": ["A", "A", "A", "B"],
            "available_time": [HOUR, HOUR + 7, HOUR + 7, 2 * HOUR],
            "kind": [4, 4, 6, 4],
            "side": [1, -1, 0, 0],
            "price": [1000, 1010, 1003, 50],
            "size": [5, 50, 5, 7],
        },
        Trades,
    )


def bars() -> pl.DataFrame:
    """Worked out by hand."""
    return typed(
        {
            "entity": ["A", "A", "A", "B"],
            "available_time": [HOUR, 2 * HOUR, 26 * HOUR, HOUR],
            "open": [999, 1010, None, 7],
            "high": [1001, 1010, None, 8],
            "low": [990, 1000, None, 7],
            "close": [1000, 1005, 1004, 8],
            "volume": [10, 0, None, 3],
        },
        Bars,
    )


def market(n: int, schema: type[Events], seed: int = 0) -> pl.DataFrame:
    """Two entities whose price is a walk of steps that repeat themselves."""
    draw = np.random.default_rng(seed)
    parts = []
    for name in ("A", "B"):
        step = np.repeat(draw.choice([-5, 5], n // 4 + 1), 4)[:n]
        price = 10_000 + np.cumsum(step)
        time = HOUR + np.cumsum(draw.integers(1, 10**9, n))
        own = {
            "entity": [name] * n,
            "available_time": time,
            "event_time": time,
            "seq": np.arange(n),
            "kind": np.full(n, 4),
            "side": draw.choice([-1, 0, 1], n),
            "price": price,
            "size": draw.integers(1, 100, n),
            "open": price - step,
            "high": price + 5,
            "low": price - 5,
            "close": price,
            "volume": draw.integers(0, 100, n),
        }
        dtypes = {column: each.dtype for column, each in schema.columns().items()}
        parts.append(pl.DataFrame({column: own[column] for column in dtypes}, dtypes, strict=False))
    return check(pl.concat(parts), schema)


def source(frame: pl.DataFrame) -> Source:
    return Source(frame.lazy(), INSTRUMENTS, SourceReport(frame.height))


def test_raw_values_of_trades() -> None:
    raw = trades().select(**raw_fields(pl.lit(5), columns=Trades.columns())).to_dict(as_series=False)
    assert raw == {
        "size": [5, 50, 5, 7],
        "move": [None, 2, -2, None],  # −7 is −1.4 ticks, rounded down
        "gap": [None, 7, 0, None],
        "clock": [HOUR, HOUR + 7, HOUR + 7, 2 * HOUR],
    }


def test_raw_values_of_bars() -> None:
    raw = bars().select(**raw_fields(pl.lit(5), columns=Bars.columns())).to_dict(as_series=False)
    assert raw == {
        "return": [None, 5_000, math.floor(-1e6 / 1005), None],
        "open_gap": [None, 10_000, None, None],
        "above": [1_000, math.floor(5e6 / 1005), None, 0],
        "below": [10_000, math.floor(5e6 / 1005), None, 125_000],
        "volume": [10, 0, None, 3],
        "gap": [None, HOUR, 24 * HOUR, None],
        "clock": [HOUR, 2 * HOUR, 2 * HOUR, HOUR],
    }


def test_a_return_of_large_prices_is_exact() -> None:
    close = [6 * 10**17, 6 * 10**17 + 6 * 10**11, 10**18]
    frame = pl.DataFrame({"entity": ["A"] * 3, "available_time": [1, 2, 3], "close": close})
    empty = [pl.lit(None, pl.Int64).alias(name) for name in ("open", "high", "low", "volume")]
    raw = frame.with_columns(empty).select(**raw_fields(pl.lit(1), columns=("close",)))
    assert raw["return"].to_list() == [None, 1, (close[2] - close[1]) * 10**6 // close[1]]


@pytest.mark.parametrize("schema", [Trades, Bars])
def test_tokens_are_those_that_the_table_has(schema: type[Events]) -> None:
    frame = market(400, schema)
    until = int(frame["available_time"].quantile(0.6) or 0)
    tokenizer = Tokenizer.fit(frame.lazy(), INSTRUMENTS, fitted_until=until)
    names = [*tokenizer.categories, *tokenizer.numeric]
    if schema is Trades:
        assert names == ["kind", "side", "size", "move", "gap", "clock"]
    else:
        assert names == ["return", "open_gap", "above", "below", "volume", "gap", "clock"]
    assert Tokenizer.from_json(tokenizer.to_json()) == tokenizer
    made = tokenizer.transform(frame.lazy()).collect()
    assert made.columns == [*frame.columns, *(c for n in names for c in (f"{n}_code", f"{n}_value") if c in made)]
    changed = perturb_future(frame, until)
    past = frame["available_time"] <= until
    again = tokenizer.transform(changed.lazy()).collect()
    assert again.filter(changed["available_time"] <= until).equals(made.filter(past))
    assert Tokenizer.fit(changed.lazy(), INSTRUMENTS, fitted_until=until) == tokenizer


def test_a_field_without_values_is_absent_and_not_zero() -> None:
    frame = market(200, Bars).with_columns(pl.lit(None, pl.Int64).alias(n) for n in ("open", "high", "low", "volume"))
    tokenizer = Tokenizer.fit(frame.lazy(), INSTRUMENTS, fitted_until=2**62)
    assert [*tokenizer.numeric] == ["return", "gap", "clock"]
    # Asked for by name, it is there and says that it is missing.
    named = Tokenizer.fit(frame.lazy(), INSTRUMENTS, fitted_until=2**62, fields=["return", "volume"])
    assert named.transform(frame.lazy()).collect()["volume_code"].unique().to_list() == [0]


def test_tables_of_another_kind_are_refused() -> None:
    one, other = market(100, Trades), market(100, Bars)
    with pytest.raises(ValueError, match="the table has no spread; its token fields are kind, side, size, move, gap"):
        Tokenizer.fit(one.lazy(), INSTRUMENTS, fitted_until=2**62, fields=["spread"])
    tokenizer = Tokenizer.fit(one.lazy(), INSTRUMENTS, fitted_until=2**62)
    with pytest.raises(ValueError, match="the tokens have size, which a table with return"):
        tokenizer.transform(other.lazy())
    with pytest.raises(ValueError, match="these events have no kinds"):
        prepare_market(source(other), decision_kinds=[4])


@pytest.mark.parametrize("schema", [Trades, Bars])
def test_features_are_what_a_loop_finds(schema: type[Events]) -> None:
    frame = market(60, schema, seed=3)
    times = frame["available_time"].to_numpy()
    opens = np.array([0, int(np.median(times))])
    sessions = Sessions("X", opens, np.array([opens[1], 2**62]))
    made = price_features(frame.lazy(), sessions=sessions, windows=(1, 5)).collect()
    assert tuple(made.columns) == price_feature_names((1, 5))
    price, traded = (frame[n].to_list() for n in (("price", "size") if schema is Trades else ("close", "volume")))
    session = np.searchsorted(opens, times, side="right")
    entity = frame["entity"].to_list()
    for n in range(frame.height):
        start = min(m for m in range(n + 1) if entity[m] == entity[n] and session[m] == session[n])
        for k in (1, 5):
            first = max(n - k, start)
            rows = range(max(n - k + 1, start), n + 1)
            squares = [math.log(price[m] / price[m - 1]) ** 2 for m in rows if m > start]
            expected = (
                math.log(price[n] / price[first]),
                math.sqrt(sum(squares)),
                math.log(1 + sum(traded[m] for m in rows)),
                math.log(1 + times[n] - times[first]),
            )
            found = [made[f"{name}_{k}"][n] for name in ("log_return", "volatility", "volume_sum", "log_span")]
            assert found == pytest.approx(expected, abs=1e-8)


def test_no_feature_is_null_or_endless() -> None:
    frame = bars().with_columns(pl.Series("close", [0, 1005, -4, 8]))
    made = price_features(frame.lazy()).collect()
    assert made.select(pl.all().is_finite().all()).row(0) == (True,) * made.width
    with pytest.raises(ValueError, match="windows count events"):
        price_features(frame.lazy(), windows=(0,))


@pytest.mark.parametrize("schema", [Trades, Bars])
def test_they_are_prepared_audited_and_scored(schema: type[Events]) -> None:
    frame = market(600, schema)
    given = {"max_seq_len": 32, "min_context": 8}
    label = MidLabel(horizon=2, method=0, classes=2, rule="fixed")
    made = prepare_market(source(frame), label=label, **given)
    assert all(check.verdict != "failed" for check in made.audit.checks)
    assert "input depends on the future" in {check.name for check in made.audit.checks}
    assert set(made.baselines["train"]) == {"features", "persistence"}
    assert made.baselines["train"]["features"].shape[1] == len(price_feature_names())
    scored = encode_market(source(frame), made.vocabulary_json, **given)
    assert len(scored.as_of) == frame.height
    wanted = {f"{n}_value" for n in (("move", "size") if schema is Trades else ("return", "volume"))}
    assert wanted <= set(made.values)
