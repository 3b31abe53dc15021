"""Features and tokens by compiled loops have the bits of those that are made a column at a time."""

from __future__ import annotations

from importlib import import_module
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
from quantattn.data.market.walked_tokens import WalkedBook
from quantattn.data.numeric_field import NumericField
from quantattn.data.protocol import perturb_future
from quantattn.data.protocol.labels.mid import Method, MidMove, mid_moves
from quantattn.data.raw_fields import raw_fields
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


@pytest.mark.parametrize("method", [0, 1])
@pytest.mark.parametrize("within", [False, True])
def test_moves_are_those_of_columns(method: Method, within: bool, walked: pytest.MonkeyPatch) -> None:
    for seed in range(3):
        events = drawn(seed).with_columns(halted=pl.Series(np.random.default_rng(seed).random(900) < 0.01))
        if seed == 2:
            events = events.drop_nulls().drop("halted")
        edges = np.quantile(events["available_time"].to_numpy(), [0.1, 0.3, 0.5, 0.501, 0.9, 0.99]).astype(np.int64)
        sessions = Sessions("MADE", edges[::2], edges[1::2]) if within else None
        for horizon in (1, 7, 400):
            made = []
            for rows in (0, LATE):
                walked.setattr(compiled, "FROM_ROWS", rows)
                made.append(mid_moves(events, MidMove(horizon, method=method), sessions))
            assert made[0].equals(made[1])
            assert made[0].schema == made[1].schema
            if horizon < 400:
                assert 0 < made[0]["label_reason"].null_count() < events.height


def test_moves_that_leave_64_bits_are_refused_by_both(walked: pytest.MonkeyPatch) -> None:
    events = drawn(0).with_columns(pl.col("ask_price_1", "bid_price_1") * 10**13)
    said = []
    for rows in (0, LATE):
        walked.setattr(compiled, "FROM_ROWS", rows)
        with pytest.raises(ValueError, match="leave int64") as error:
            mid_moves(events, MidMove(100))
        said.append(str(error.value))
    assert said[0] == said[1]


def test_logarithms_are_the_librarys_to_the_last_bit() -> None:
    """Of numbers of every size, and of those whose value lies next to the clip, to 0 and to where floats part."""
    random = np.random.default_rng(0)
    x = np.r_[0, 2 ** np.arange(63), -(2 ** np.arange(63)), 2**63 - 1, random.integers(-(2**62), 2**62, 20_000)]
    x = np.r_[x, x >> random.integers(0, 62, len(x)), np.exp(random.normal(7, 1e-6, 20_000) * 3).astype(np.int64)]
    for center, scale in ((0.0, 1.0), (17.25, 2.5), (21.0, 1e-7), (3.0, 1e9)):
        field = NumericField((0, 2**40), center, scale)
        made = [np.empty(len(x), np.uint16), np.empty(len(x), np.float32)]
        import_module("quantattn.data.market.raw_walk").tokens(x, *walked_tokens._table("gap", field), *made)
        truth = pl.DataFrame({"x": x}).select(field.code(pl.col("x")), value=field.value("gap", pl.col("x")))
        np.testing.assert_array_equal(made[0], truth.to_series(0).to_numpy())
        assert made[1].tobytes() == truth["value"].to_numpy().tobytes()


def test_steps_begin_where_others_end(walked: pytest.MonkeyPatch) -> None:
    """More rows than a step of the loops has, and a window longer than one."""
    events = drawn(6, 9_000)
    tokenizer = Tokenizer.fit(events.lazy(), INSTRUMENTS, fitted_until=LATE)
    made = []
    for rows in (0, LATE):
        walked.setattr(compiled, "FROM_ROWS", rows)
        features = book_features(events.lazy(), INSTRUMENTS, windows=(1, 10, 2_500)).collect()
        made.append(features.hstack(pl.DataFrame(dict(token_table(events, tokenizer).fields))))
    same(made[0], made[1])


def test_quotients_of_numbers_that_no_float_holds() -> None:
    events = drawn(7).with_columns(pl.col("price", "ask_price_1", "bid_price_1") * 5 * 10**13 + pl.col("seq") % 7)
    ticks = {each.entity: each.tick for each in INSTRUMENTS}
    raw = WalkedBook.of(events, ticks, "UTC")
    assert raw is not None
    tick = pl.col("entity").replace_strict(ticks, return_dtype=pl.Int64)
    truth = events.with_columns(tick=tick).select(**raw_fields(pl.col("tick")))
    assert (truth["price"].drop_nulls().abs() > 2**53).any()
    for name, values in raw.values(1).items():
        np.testing.assert_array_equal(values, truth[name].drop_nulls().to_numpy())
