"""Tokens: exact, past-only, fitted on training rows alone, and equal after a round trip through JSON."""

from __future__ import annotations

import json
from datetime import datetime
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantattn.data.protocol import perturb_future
from quantattn.data.schema import Instrument
from quantattn.data.synthetic import SyntheticMarket
from quantattn.data.tokens import CATEGORIES, FIELDS, FIRST_CODE, MISSING, RAW, NumericField, Tokenizer

MARKET = SyntheticMarket(entities=3, events_per_entity=4_000, levels=2, removals=0.25)
quick = settings(max_examples=50, deadline=None)


@pytest.fixture(scope="module")
def events() -> pl.DataFrame:
    return MARKET.source().frame.collect()


@pytest.fixture(scope="module")
def until(events: pl.DataFrame) -> int:
    return int(np.quantile(events["available_time"].to_numpy(), 0.6))


@pytest.fixture(scope="module")
def tokenizer(events: pl.DataFrame, until: int) -> Tokenizer:
    return Tokenizer.fit(events.lazy(), MARKET.source().instruments, fitted_until=until)


def one_day() -> pl.DataFrame:
    """Four events whose tokens can be worked out by hand; the tick is 100."""
    hour = 3_600 * 10**9
    return pl.DataFrame(
        {
            "entity": ["A", "A", "A", "B"],
            "available_time": [hour, hour, hour + 7, 2 * hour],
            "seq": [0, 1, 2, 0],
            "kind": [1, 4, 9, 1],
            "side": [1, -1, 0, 1],
            "price": [900, 1_100, None, 900],
            "size": [5, 50, 5, 7],
            "ask_price_1": [1_100, 1_200, 1_200, None],
            "ask_size_1": [30, 10, 10, None],
            "bid_price_1": [900, 900, 900, 900],
            "bid_size_1": [10, 10, 20, 7],
        },
        schema_overrides={"kind": pl.UInt8, "side": pl.Int8},
    )


def test_raw_values_worked_out_by_hand() -> None:
    from quantattn.data.tokens import raw_fields

    raw = one_day().select(**raw_fields(pl.lit(100))).to_dict(as_series=False)
    hour = 3_600 * 10**9
    assert raw == {
        "size": [5, 50, 5, 7],
        "price": [None, 2, None, None],  # 1100 is one tick, two half ticks, above the mid 1000 before the event
        "mid_move": [None, 1, 0, None],  # the mid went from 1000 to 1050
        "spread": [2, 3, 3, None],
        "ask_size": [30, 10, 10, None],
        "bid_size": [10, 10, 20, 7],
        "imbalance": [-500, 0, 333, None],
        "gap": [None, 0, 7, None],
        "clock": [hour, hour, hour + 7, 2 * hour],
    }


@pytest.mark.parametrize("bid", [1_300, 1_200], ids=["crossed", "locked"])
def test_a_book_that_is_crossed_or_locked_gives_no_price(bid: int) -> None:
    from quantattn.data.tokens import raw_fields

    day = one_day()[:3].with_columns(bid_price_1=pl.Series([900, bid, 900]), price=pl.Series([900, 1_100, 1_000]))
    raw = day.select(**raw_fields(pl.lit(100))).to_dict(as_series=False)
    assert raw["spread"] == [2, None, 3]
    assert raw["mid_move"] == [None, None, None]
    assert raw["price"] == [None, 2, None]  # the mid before the second event is good, that before the third is not
    assert raw["imbalance"] == [-500, None, 333]
    assert raw["bid_size"] == [10, 10, 20]


def test_unknown_missing_and_extreme_values() -> None:
    day = one_day()
    fitted = Tokenizer.fit(day[:2].lazy(), [Instrument("A", -4, 100)], fitted_until=2**62)
    out = fitted.transform(day.lazy(), [Instrument("B", -4, 100)]).collect()
    assert out["kind_code"].to_list() == [2, 3, MISSING, 2]  # kind 9 was not there in training
    assert out["side_code"].to_list() == [3, 2, MISSING, 3]
    assert out["price_code"].to_list()[::2] == [MISSING, MISSING]
    assert out["price_value"].to_list()[::2] == [0.0, 0.0]
    assert out["ask_size_code"].to_list()[3] == MISSING
    far = day.with_columns(size=pl.Series([-(10**15), 10**15, 5, 7]))
    codes = fitted.transform(far.lazy(), [Instrument("B", -4, 100)]).collect()["size_code"].to_list()
    assert codes[:2] == [FIRST_CODE, fitted.codes["size_code"] - 1]


@given(
    st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=80),
    st.lists(st.integers(-(2**50), 2**50), min_size=1, max_size=20),
    st.integers(2, 12),
)
@quick
def test_a_bin_is_the_number_of_edges_not_above(seen: list[int], asked: list[int], n_bins: int) -> None:
    field = NumericField.fit("size", np.asarray(seen, np.int64), n_bins)
    assert list(field.edges) == sorted(set(field.edges))
    assert len(field.edges) < n_bins
    codes = pl.DataFrame({"x": asked}, schema={"x": pl.Int64}).select(code=field.code(pl.col("x")))["code"].to_list()
    assert codes == [FIRST_CODE + sum(edge <= x for edge in field.edges) for x in asked]


def test_bins_hold_equal_shares_and_values_are_scaled(events: pl.DataFrame, tokenizer: Tokenizer, until: int) -> None:
    train = tokenizer.transform(events.lazy()).filter(pl.col("available_time") < until).collect()
    for name in ("gap", "clock"):  # the others have many equal values
        share = train[f"{name}_code"].value_counts(normalize=True).filter(pl.col(f"{name}_code") != MISSING)
        assert share.height == 32
        assert share["proportion"].max() < 1.01 / 32
    for name in RAW:
        value = train[f"{name}_value"].to_numpy().astype(np.float64)
        if name not in ("gap", "price", "mid_move"):  # those have missing first rows or clipped tails
            assert abs(value.mean()) < 0.02
            assert abs(value.std() - 1) < 0.05


def test_codes_and_types_are_as_announced(events: pl.DataFrame, tokenizer: Tokenizer) -> None:
    out = tokenizer.transform(events.lazy()).collect()
    assert out.columns == [*events.columns, *(c for n in FIELDS for c in _columns_of(n))]
    for name, count in tokenizer.codes.items():
        assert out[name].dtype == pl.UInt16
        assert out[name].max() < count
    for name in tokenizer.values:
        assert out[name].dtype == pl.Float32
        assert out[name].is_finite().all()
        assert out[name].abs().max() <= 8


def _columns_of(name: str) -> tuple[str, ...]:
    return (f"{name}_code",) if name in CATEGORIES else (f"{name}_code", f"{name}_value")


def test_json_gives_back_an_equal_tokenizer(events: pl.DataFrame, tokenizer: Tokenizer) -> None:
    again = Tokenizer.from_json(tokenizer.to_json())
    assert again == tokenizer
    assert again.to_json() == tokenizer.to_json()
    assert again.transform(events.lazy()).collect().equals(tokenizer.transform(events.lazy()).collect())
    other = json.loads(tokenizer.to_json()) | {"format": 99}
    with pytest.raises(ValueError, match="format 99"):
        Tokenizer.from_json(json.dumps(other))


def test_what_comes_after_training_changes_nothing(events: pl.DataFrame, tokenizer: Tokenizer, until: int) -> None:
    later = perturb_future(events, until - 1)
    assert not later.equals(events)
    again = Tokenizer.fit(later.lazy(), MARKET.source().instruments, fitted_until=until)
    assert again == tokenizer
    assert tokenizer.fitted_last < until
    assert tokenizer.fitted_rows == int((events["available_time"] < until).sum())
    # The control: what comes before does change it.
    early = events.with_columns(
        size=pl.when(pl.col("available_time") < until).then(3 * pl.col("size")).otherwise("size")
    )
    assert Tokenizer.fit(early.lazy(), MARKET.source().instruments, fitted_until=until) != tokenizer


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_tokens_keep_their_bits_whatever_happens_later(
    events: pl.DataFrame, tokenizer: Tokenizer, share: float
) -> None:
    as_of = int(np.quantile(events["available_time"].to_numpy(), share))
    past = pl.col("available_time") <= as_of
    names = ["entity", "seq", *tokenizer.codes, *tokenizer.values]
    truth = tokenizer.transform(events.lazy()).filter(past).select(names).collect()
    perturbed = perturb_future(events, as_of, seed=int(share * 10))
    assert tokenizer.transform(perturbed.lazy()).filter(past).select(names).collect().equals(truth)
    cut = events.filter(past)
    assert tokenizer.transform(cut.lazy()).select(names).collect().equals(truth)


def test_engines_and_pieces_agree(events: pl.DataFrame, tokenizer: Tokenizer) -> None:
    whole = tokenizer.transform(events.lazy()).collect(engine="in-memory")
    assert tokenizer.transform(events.lazy()).collect(engine="streaming").equals(whole)
    names = events["entity"].unique(maintain_order=True)
    pieces = [tokenizer.transform(events.filter(entity=name).lazy()).collect() for name in names]
    assert pl.concat(pieces).equals(whole)


def test_the_session_clock_follows_daylight_saving() -> None:
    """Half past nine in New York is one clock reading in winter and in summer, and another in UTC."""
    opens = [datetime(2024, month, 5, 9, 30, tzinfo=ZoneInfo("America/New_York")) for month in (2, 7)]
    days = one_day()[:2].with_columns(available_time=pl.Series([int(at.timestamp()) * 10**9 for at in opens]))
    instruments = [Instrument("A", -4, 100)]
    for zone, hours in (("America/New_York", [9.5, 9.5]), ("UTC", [14.5, 13.5])):
        fitted = Tokenizer.fit(days.lazy(), instruments, fitted_until=2**62, zone=zone)
        assert fitted.zone == Tokenizer.from_json(fitted.to_json()).zone == zone
        clock = fitted.transform(days.lazy()).collect()["clock_value"].to_numpy() * fitted.numeric["clock"].scale
        assert (clock + fitted.numeric["clock"].center) / 3.6e12 == pytest.approx(hours)
    with pytest.raises(ValueError, match="no time zone 'America/Gotham'"):
        Tokenizer.fit(days.lazy(), instruments, fitted_until=2**62, zone="America/Gotham")


def test_some_fields_only(events: pl.DataFrame, until: int, tokenizer: Tokenizer) -> None:
    some = Tokenizer.fit(events.lazy(), MARKET.source().instruments, fitted_until=until, fields=["price", "side"])
    assert set(some.codes) == {"side_code", "price_code"}
    assert some.values == ("price_value",)
    assert some.numeric["price"] == tokenizer.numeric["price"]
    for fields in (["colour"], [], ["size", "size"]):
        with pytest.raises(ValueError, match="fields must be some of"):
            Tokenizer.fit(events.lazy(), MARKET.source().instruments, fitted_until=until, fields=fields)


def test_bins_from_every_kth_row_are_close(events: pl.DataFrame, until: int, tokenizer: Tokenizer) -> None:
    few = Tokenizer.fit(events.lazy(), MARKET.source().instruments, fitted_until=until, max_rows=2_000)
    assert few.categories == tokenizer.categories  # those come from all rows
    assert few.fitted_rows == tokenizer.fitted_rows
    assert abs(few.numeric["gap"].center - tokenizer.numeric["gap"].center) < 0.1


def test_nothing_to_fit_on_is_refused(events: pl.DataFrame) -> None:
    with pytest.raises(ValueError, match="nothing to fit on"):
        Tokenizer.fit(events.lazy(), MARKET.source().instruments, fitted_until=0)


def test_an_entity_without_a_tick_is_refused(events: pl.DataFrame, until: int) -> None:
    two = MARKET.source().instruments[:2]
    with pytest.raises(pl.exceptions.InvalidOperationError, match="incomplete mapping"):
        Tokenizer.fit(events.lazy(), two, fitted_until=until)
