"""Features and tokens by compiled loops have the bits of those that are made a column at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from quantattn.data import compiled
from quantattn.data.market import encode, feature_blocks, walked_tokens
from quantattn.data.market.arrays import book_arrays
from quantattn.data.market.encode import token_table
from quantattn.data.market.features import FEATURES, book_features, feature_table
from quantattn.data.market.sessions import Sessions
from quantattn.data.numeric_field import NumericField
from quantattn.data.protocol import perturb_future
from quantattn.data.schema import Instrument
from quantattn.data.sources import scan_lobster
from quantattn.data.tokens import RAW, Tokenizer

pytest.importorskip("numba", reason="numba is not here (pip install 'quantattn[book]')")

INSTRUMENTS = (Instrument("A", -4, 100), Instrument("B", -4, 7), Instrument("C", -4, 1))
LATE = 2**62


@pytest.fixture(autouse=True)
def walked(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(compiled, "FROM_ROWS", 0)
    return monkeypatch


def column_by_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "FROM_ROWS", LATE)


def drawn(seed: int, rows: int = 900) -> pl.DataFrame:
    """Three entities with every kind of gap: nulls alone and in stretches, crossed and empty books, equal times."""
    random = np.random.default_rng(seed)
    entity = np.sort(random.choice(["A", "B", "C"], rows))
    mid = 10_000 + 50 * np.cumsum(random.integers(-1, 2, rows))
    columns = {
        "price": mid + random.integers(-300, 300, rows),
        "ask_price_1": mid + random.integers(-20, 90, rows),
        "ask_size_1": random.integers(0, 4, rows) * random.integers(1, 10 ** random.integers(1, 9), rows),
        "bid_price_1": mid - random.integers(-20, 90, rows),
        "bid_size_1": random.integers(0, 4, rows) * 100,
    }
    frame = pl.DataFrame({"entity": entity, **columns})
    stretch = random.random(rows // 30 + 1)[np.arange(rows) // 30] < 0.15
    holes = {name: pl.Series(stretch | (random.random(rows) < 0.05)) for name in columns}
    time = np.concatenate(
        [np.sort(random.integers(-(10**4), 10**9, n) ** random.integers(1, 3)) for n in frame["entity"].rle().struct[0]]
    )
    return frame.with_columns(
        *(pl.when(~hole).then(pl.col(name)).alias(name) for name, hole in holes.items()),
        event_time=time,
        available_time=time,
        seq=pl.int_range(pl.len()),
        kind=pl.Series(random.integers(1, 8, rows), dtype=pl.UInt8),
        side=pl.Series(random.integers(-1, 2, rows), dtype=pl.Int8),
        size=random.integers(1, 5_000, rows),
        order_id=pl.int_range(pl.len()),
    )


def same(one: pl.DataFrame, other: pl.DataFrame) -> None:
    """Equal to the last bit: −0.0 is not 0.0."""
    assert one.schema == other.schema
    for name in one.columns:
        assert one[name].null_count() == other[name].null_count()
        assert one[name].fill_null(0).to_numpy().tobytes() == other[name].fill_null(0).to_numpy().tobytes(), name


@pytest.mark.parametrize("windows", [(1, 10, 100), (4,), (7, 64, 2)])
@pytest.mark.parametrize("within", [False, True])
def test_features_are_those_of_columns(windows: tuple[int, ...], within: bool, walked: pytest.MonkeyPatch) -> None:
    for seed in range(4):
        events = drawn(seed)
        edges = np.quantile(events["available_time"].to_numpy(), [0.1, 0.3, 0.5, 0.501, 0.9, 0.99]).astype(np.int64)
        sessions = Sessions("MADE", edges[::2], edges[1::2]) if within else None
        walked.setattr(compiled, "FROM_ROWS", 0)
        made = book_features(events.lazy(), INSTRUMENTS, sessions=sessions, windows=windows).collect()
        column_by_column(walked)
        same(made, book_features(events.lazy(), INSTRUMENTS, sessions=sessions, windows=windows).collect())


@pytest.mark.parametrize("number", [1, 3, 16])
def test_threads_begin_where_others_end(number: int, walked: pytest.MonkeyPatch) -> None:
    events = drawn(5)
    tokenizer = Tokenizer.fit(events.lazy(), INSTRUMENTS, fitted_until=LATE)
    column_by_column(walked)
    features, tokens = feature_table(events, INSTRUMENTS), token_table(events, tokenizer).fields
    walked.setattr(compiled, "FROM_ROWS", 0)
    walked.setattr(pl, "thread_pool_size", lambda: number)
    for module in (encode, feature_blocks, walked_tokens):
        walked.setattr(module, "LEAST_ROWS", 1)
    walked.setattr(walked_tokens, "_BLOCK", 50)
    same(feature_table(events, INSTRUMENTS), features)
    same(pl.DataFrame(dict(token_table(events, tokenizer).fields)), pl.DataFrame(dict(tokens)))


@pytest.mark.parametrize("settings", [{}, {"n_bins": 400}, {"zone": "America/New_York", "fields": ["clock", "side"]}])
@pytest.mark.parametrize("max_rows", [10**6, 100])
def test_tokens_are_those_of_columns(settings: dict[str, object], max_rows: int, walked: pytest.MonkeyPatch) -> None:
    walked.setattr(walked_tokens, "_BLOCK", 64)
    for seed in range(3):
        events = drawn(seed)
        until = int(np.quantile(events["available_time"].to_numpy(), 0.7))
        fitted, made = [], []
        for rows in (0, LATE):
            walked.setattr(compiled, "FROM_ROWS", rows)
            fitted.append(
                Tokenizer.fit(events.lazy(), INSTRUMENTS, fitted_until=until, max_rows=max_rows, **settings)  # type: ignore[arg-type]
            )
            for first in (0, 1):
                made.append(pl.DataFrame(dict(token_table(events, fitted[0], first=first).fields)))
        assert fitted[0] == fitted[1]
        same(made[0], made[2])
        same(made[1], made[3])
        same(made[0][1:], made[1])


def test_types_of_events_are_those_of_columns(walked: pytest.MonkeyPatch) -> None:
    events = drawn(1)
    tokenizer = Tokenizer.fit(events.lazy(), INSTRUMENTS, fitted_until=LATE, n_bins=4)
    stop = np.arange(events.height) % 40 == 0
    tokenizer = tokenizer.joined(events, ["kind", "side", "spread"], 3, np.ones(events.height, np.bool_), stop)
    made = token_table(events, tokenizer).fields
    column_by_column(walked)
    same(pl.DataFrame(dict(made)), pl.DataFrame(dict(token_table(events, tokenizer).fields)))


def test_values_beyond_every_table_are_worked_out(walked: pytest.MonkeyPatch) -> None:
    """Fitted on a few values near 0 or far apart, and asked for numbers of every size, with no edge and with one."""
    events = drawn(2).with_columns(size=pl.Series(np.r_[0, 1, 2**62, 2 ** np.arange(62), np.arange(835)]))
    for edges in ((), (5,), (0, 2**61), tuple(range(3, 40, 2))):
        field = NumericField(edges, 1.5, 0.75)
        tokenizer = Tokenizer({}, {"size": field}, {"A": 1, "B": 1, "C": 1}, 0, 0, 1)
        walked.setattr(compiled, "FROM_ROWS", 0)
        made = token_table(events, tokenizer).fields
        truth = np.searchsorted(np.asarray(edges, np.int64), events["size"].to_numpy(), side="right") + 2
        np.testing.assert_array_equal(made["size_code"], truth)
        column_by_column(walked)
        same(pl.DataFrame(dict(made)), pl.DataFrame(dict(token_table(events, tokenizer).fields)))


def test_the_future_changes_no_bit() -> None:
    events = drawn(3)
    cut = int(np.quantile(events["available_time"].to_numpy(), 0.5))
    other = perturb_future(events, cut, 0)
    tokenizer = Tokenizer.fit(events.lazy(), INSTRUMENTS, fitted_until=cut)
    assert Tokenizer.fit(other.lazy(), INSTRUMENTS, fitted_until=cut) == tokenizer
    past, later = ((table["available_time"].to_numpy() <= cut) for table in (events, other))
    seen = [
        feature_table(table, INSTRUMENTS).filter(pl.Series(rows)) for table, rows in ((events, past), (other, later))
    ]
    same(*seen)
    seen = [
        pl.DataFrame(dict(token_table(table, tokenizer).fields)).filter(pl.Series(rows))
        for table, rows in ((events, past), (other, later))
    ]
    same(*seen)
    assert not feature_table(other, INSTRUMENTS).equals(feature_table(events, INSTRUMENTS))


def test_a_table_of_another_kind_is_left_to_columns() -> None:
    events = drawn(4)
    assert book_arrays(events) is not None
    for other in (
        events.drop("bid_size_1"),
        events.with_columns(pl.col("price").cast(pl.Int32)),
        events.with_columns(kind=pl.when(pl.col("seq") > 5).then("kind")),
    ):
        assert book_arrays(other) is None
    features = pl.DataFrame({"entity": ["A"], "available_time": [0], "feature_1": [0.5]})
    tokenizer = Tokenizer.fit(features.lazy(), [Instrument("A")], fitted_until=LATE)
    assert tokenizer.columns(features) is None
    assert token_table(features, tokenizer).fields["feature_1_code"].tolist() == [3]
    book = Tokenizer.fit(events.lazy(), INSTRUMENTS, fitted_until=LATE)
    assert book.columns(events) is not None
    with pytest.raises(ValueError, match="the tokens have"):
        token_table(events.drop("ask_price_1", "bid_price_1"), book)
    with pytest.raises(pl.exceptions.PolarsError, match="incomplete mapping"):
        Tokenizer.fit(events.lazy(), INSTRUMENTS[:1], fitted_until=LATE)


def test_rows_of_a_process_are_counted_until_compiling_pays(walked: pytest.MonkeyPatch) -> None:
    walked.setattr(compiled, "_asked", 0)
    walked.setattr(compiled, "FROM_ROWS", 10)
    assert [compiled.pays(4) for _ in range(4)] == [False, False, True, True]


def test_a_real_day_has_the_same_bits(realdata: Path, walked: pytest.MonkeyPatch) -> None:
    source = scan_lobster(realdata / "lob" / "lobster" / "AMZN_2012-06-21_34200000_57600000_message_1.csv.gz")
    events, made = source.frame.collect(), []
    until = int(events["available_time"][events.height // 2])
    for rows in (0, LATE):
        walked.setattr(compiled, "FROM_ROWS", rows)
        tokenizer = Tokenizer.fit(events.lazy(), source.instruments, fitted_until=until)
        fields = pl.DataFrame(dict(token_table(events, tokenizer).fields))
        made.append((tokenizer, feature_table(events, source.instruments).hstack(fields)))
    assert made[0][0] == made[1][0]
    same(made[0][1], made[1][1])
    assert {*FEATURES, *(f"{name}_value" for name in RAW)} <= {*made[0][1].columns}
