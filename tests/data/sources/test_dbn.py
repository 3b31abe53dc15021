"""DBN files against a literal reader, in every dress and version, and the real ones."""

from __future__ import annotations

import gzip
from pathlib import Path

import polars as pl
import pytest

pytest.importorskip("databento_dbn", reason="databento-dbn is not here (pip install 'quantattn[dbn]')")
pytest.importorskip("numba", reason="numba is not here (pip install 'quantattn[book]')")

import databento_dbn as dbn
import zstandard
from dbn_records import (
    LEVELS,
    START,
    UNDEFINED,
    Order,
    header,
    literal,
    mbo,
    mbo_file,
    mbp,
    refusal,
    stream,
    trade,
    write,
)

from quantattn.data.recognise import recognise
from quantattn.data.schema import BookEvents, Trades, check, level_columns
from quantattn.data.sources import SOURCES, dbn_format, runs, scan_dbn

NAMES = [name for level in range(1, LEVELS + 1) for name in level_columns(level)]
BEST = NAMES[:4]


@pytest.mark.parametrize("seed", range(4))
def test_the_book_at_the_end_of_events_is_what_a_literal_reader_finds(tmp_path: Path, seed: int) -> None:
    orders = stream(600, seed)
    source = scan_dbn(mbo_file(tmp_path, orders), LEVELS, tick="1")
    frame = check(source.frame.collect(), BookEvents)
    # An event that ends with a fill or with nothing, and whose last row came earlier, has no complete row.
    ends = [order for order in orders if order[5] & 128]
    told = [book for order, book in zip(ends, literal(orders), strict=True) if order[0] not in "FN"]
    assert frame.filter("complete").select(NAMES).rows() == told
    before = frame.with_row_index().filter(~pl.col("complete") & (pl.col("index") > 8))["index"]
    assert frame[before].select(NAMES).equals(frame[before - 1].select(NAMES))
    assert source.schema == "mbo"
    assert {action: table.height for action, table in source.tables.items()} == {
        action: sum(order[0] == action for order in orders) for action in "FN"
    }


def test_trades_fills_and_nothing_change_no_book(tmp_path: Path) -> None:
    orders = [order for order in stream(400, 7) if order[0] in "ACMR" or not order[5] & 128]
    alone = [order for order in orders if order[0] in "ACMR"]
    made = [scan_dbn(mbo_file(tmp_path, each), LEVELS, tick="1").frame.collect() for each in (orders, alone)]
    books = [frame.filter("complete").select(NAMES) for frame in made]
    assert books[0].equals(books[1])
    assert books[0].height > 100
    assert made[0].height > made[1].height


def test_one_event_worked_out_by_hand(tmp_path: Path) -> None:
    # A buyer takes 3 of the 5 offered at 101: the aggressor, the fill, and what becomes of the order that rested.
    orders: list[Order] = [
        ("R", "N", UNDEFINED, 0, 0, 40),
        ("A", "A", 101 * 10**9, 5, 11, 40),
        ("A", "B", 100 * 10**9, 4, 12, 168),
        ("T", "B", 101 * 10**9, 3, 99, 0),
        ("F", "A", 101 * 10**9, 3, 11, 0),
        ("M", "A", 101 * 10**9, 2, 11, 130),
        ("C", "B", 100 * 10**9, 1, 12, 130),
    ]
    frame = scan_dbn(mbo_file(tmp_path, orders), tick="0.25").frame.collect()
    shown = frame.select("kind", "side", "price", "size", "order_id", *BEST, "complete").rows()
    ask, bid = 101 * 10**9, 100 * 10**9
    assert shown == [
        (10, 0, None, 0, 0, None, 0, None, 0, False),
        (1, -1, ask, 5, 11, None, 0, None, 0, False),
        (1, 1, bid, 4, 12, ask, 5, bid, 4, True),
        (4, -1, ask, 3, 0, ask, 5, bid, 4, False),
        (3, -1, ask, 5, 11, ask, 5, bid, 4, False),
        (1, -1, ask, 2, 11, ask, 2, bid, 4, True),
        (2, 1, bid, 1, 12, ask, 2, bid, 3, True),
    ]
    assert frame["event_time"].to_list() == [START + 1000 * n for n in (0, 1, 2, 3, 5, 5, 6)]
    assert (frame["available_time"] - frame["event_time"]).unique().to_list() == [300]
    assert frame["entity"].unique().to_list() == ["ESH4"]


def test_a_feed_that_marks_no_end_of_events_says_so(tmp_path: Path) -> None:
    orders = [(*order[:5], order[5] & ~128) for order in stream(60, 1)]
    source = scan_dbn(mbo_file(tmp_path, orders), LEVELS)
    frame = source.frame.collect()
    assert frame["complete"].equals((frame["kind"] != 3).rename("complete"))
    assert any("no record has F_LAST" in note for note in source.report.notes)


def test_before_the_first_snapshot_there_is_no_book(tmp_path: Path) -> None:
    early: list[Order] = [("A", "A", 101 * 10**9, 5, 11, 130), ("A", "B", 100 * 10**9, 4, 12, 130)]
    source = scan_dbn(mbo_file(tmp_path, early + stream(60, 3)), tick="1")
    frame = source.frame.collect()
    assert frame[:2].select(*BEST, "complete").rows() == [(None, 0, None, 0, False)] * 2
    assert frame["complete"].any()
    assert any("2 rows come before the first snapshot" in note for note in source.report.notes)
    lone = scan_dbn(mbo_file(tmp_path, early)).frame.collect()
    assert lone["ask_price_1"].null_count() == 2


def test_every_dress_and_version_gives_the_same_table(tmp_path: Path) -> None:
    body = b"".join(mbo(n, order) for n, order in enumerate(stream(300, 1)))
    plain = scan_dbn(write(tmp_path, header() + body), LEVELS)
    whole = header() + body
    frames = b"".join(zstandard.compress(whole[a : a + 777]) for a in range(0, len(whole), 777))
    dresses = {
        "v1.dbn": header(version=1) + body,
        "v2.dbn": header(version=2) + body,
        "frames.dbn.zst": frames,
        "x.dbn.gz": gzip.compress(whole[:999]) + gzip.compress(whole[999:]),
    }
    for name, data in dresses.items():
        assert scan_dbn(write(tmp_path, data, name), LEVELS).frame.collect().equals(plain.frame.collect()), name
    # What a one-shot reader would have seen: the first frame alone.
    assert len(zstandard.ZstdDecompressor().decompressobj().decompress(frames)) == 777
    stamped = header(ts_out=True) + b"".join(mbo(n, o, ts_out=START) for n, o in enumerate(stream(300, 1)))
    assert scan_dbn(write(tmp_path, stamped), LEVELS).frame.collect().equals(plain.frame.collect())


def test_instruments_and_publishers_keep_books_of_their_own(tmp_path: Path) -> None:
    one, two = stream(200, 1), stream(200, 2)
    alone = [scan_dbn(mbo_file(tmp_path, each), LEVELS, tick="1").frame.collect() for each in (one, two)]
    pairs = [(mbo(n, a, 7), mbo(n, b, 9)) for n, (a, b) in enumerate(zip(one, two, strict=False))]
    both = scan_dbn(write(tmp_path, header() + b"".join(map(b"".join, pairs))), LEVELS, tick="1")
    frame = check(both.frame.collect(), BookEvents)
    assert [instrument.entity for instrument in both.instruments] == ["ESH4", "NQH4"]
    for name, own in zip(("ESH4", "NQH4"), alone, strict=True):
        drop = ("seq", "entity")
        assert frame.filter(pl.col("entity") == name).drop(drop).equals(own.drop(drop)[: frame.height])
    venues = [(mbo(n, a, 7), mbo(n, b, 7, publisher=2)) for n, (a, b) in enumerate(zip(one, two, strict=False))]
    split = scan_dbn(write(tmp_path, header() + b"".join(map(b"".join, venues))), LEVELS, tick="1")
    assert sorted(split.frame.collect()["entity"].unique()) == ["ESH4@1", "ESH4@2"]
    ids = scan_dbn(write(tmp_path, header(symbols={}) + b"".join(map(b"".join, pairs))), LEVELS, tick="1")
    assert sorted(ids.frame.collect()["entity"].unique()) == ["7", "9"]
    assert any("2 instrument ids have no symbol" in note for note in ids.report.notes)


def test_files_that_memory_does_not_hold_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two instruments, events that a fill of a later piece ends, and files that overlap in time."""
    one, two = stream(300, 3), stream(300, 4)
    for name, publisher in (("a.dbn", 1), ("b.dbn", 1), ("c.dbn", 2)):
        rows = [mbo(n, o, i, publisher) for n, pair in enumerate(zip(one, two, strict=False)) for o, i in pair_of(pair)]
        write(tmp_path, header() + b"".join(rows), name)
    book = (99 * 10**9, 101 * 10**9, 3, 4)
    deep = write(tmp_path, header("mbp-1") + b"".join(mbp(n, o, [book]) for n, o in enumerate(one) if o[0] != "F"), "m")
    for path, levels in ((tmp_path, 3), (deep, 1)):
        monkeypatch.undo()
        whole = scan_dbn(path, levels)
        for kept, size, piece in ((3_000, 37, 500), (9_000, 1_000, 5_000)):
            monkeypatch.setattr(runs, "KEPT", kept)
            monkeypatch.setattr(runs, "TABLE", kept)
            monkeypatch.setattr(runs, "ROWS", size)
            monkeypatch.setattr(dbn_format, "_PIECE", piece)
            scratch = tmp_path / f"{levels} {kept}"
            scratch.mkdir()
            other = scan_dbn(path, levels, scratch=scratch)
            assert [*scratch.glob("*/*.arrow")]
            for _ in range(2):
                assert other.frame.collect().equals(whole.frame.collect())
            assert (other.tally, other.report, other.instruments) == (whole.tally, whole.report, whole.instruments)
            assert all(other.tables[action].equals(table) for action, table in whole.tables.items())


def pair_of(pair: tuple[Order, Order]) -> list[tuple[Order, int]]:
    return [(pair[0], 7), (pair[1], 9)]


def test_undefined_and_disordered_times_are_counted(tmp_path: Path) -> None:
    orders = stream(9, 0)
    times = [(START + n, START + n + 5) for n in range(9)]
    times[3], times[4] = (2**64 - 1, START + 9), (START + 4, 2**64 - 1)
    times[6], times[7] = (START + 99, START + 12), (START + 1, START + 2)
    body = b"".join(mbo(n, o, ts_event=t[0], ts_recv=t[1]) for n, (o, t) in enumerate(zip(orders, times, strict=True)))
    source = scan_dbn(write(tmp_path, header() + body), tick="1")
    frame = check(source.frame.collect(), BookEvents)
    assert (frame["available_time"] - START).to_list() == [5, 6, 7, 9, 9, 10, 12, 12, 13]
    assert (frame["event_time"] - START).to_list() == [0, 1, 2, 9, 4, 5, 12, 1, 8]
    said = " ".join(source.report.notes)
    assert "1 records have no ts_event" in said
    assert "1 records have no ts_recv" in said
    assert "1 records have a ts_event after their ts_recv" in said
    assert "2 records have a ts_recv before that of a record before them" in said
    assert "the largest fall of ts_recv is 10 ns" in said


def test_levels_are_read_as_they_are_shipped(tmp_path: Path) -> None:
    p = 10**9
    empty = (UNDEFINED, UNDEFINED, 0, 0)
    books = [
        [(99 * p, 101 * p, 4, 5), (98 * p, UNDEFINED, 2, 0)],
        [(99 * p, 101 * p, 4, 2), (98 * p, UNDEFINED, 2, 0)],
        [(100 * p, 101 * p, 1, 2), (99 * p, UNDEFINED, 4, 0)],
    ]
    orders: list[Order] = [
        ("A", "A", 101 * p, 5, 0, 130),
        ("T", "B", 101 * p, 3, 0, 0),
        ("M", "A", 101 * p, 2, 0, 130),
        ("A", "N", 100 * p, 1, 0, 130),
    ]
    shown = [books[0], books[0], books[1], books[2]]
    for depth, schema in ((1, "mbp-1"), (10, "mbp-10")):
        full = [[*book, *[empty] * 8][:depth] for book in shown]
        body = b"".join(mbp(n, order, book) for n, (order, book) in enumerate(zip(orders, full, strict=True)))
        source = scan_dbn(write(tmp_path, header(schema) + body), levels=2)
        frame = check(source.frame.collect(), BookEvents)
        assert frame.select("kind", "side", "price", "size").rows() == [
            (1, -1, 101 * p, 5),
            (4, -1, 101 * p, 3),
            (9, -1, 101 * p, 2),
            (9, 0, None, 0),
        ]
        assert frame.select(*BEST, "complete").rows() == [
            (101 * p, 5, 99 * p, 4, True),
            (101 * p, 5, 99 * p, 4, False),
            (101 * p, 2, 99 * p, 4, True),
            (101 * p, 2, 100 * p, 1, True),
        ]
        if depth == 10:
            assert frame.select(NAMES[4:]).rows()[-1] == (None, 0, 99 * p, 4)
        assert source.tally.crossed == 0


def test_trades_have_the_side_of_the_order_that_rested(tmp_path: Path) -> None:
    body = trade(0, "B", 5 * 10**9, 3) + trade(1, "A", -4 * 10**9, 2) + trade(2, "N", 5 * 10**9 + 10**7, 1)
    source = scan_dbn(write(tmp_path, header("trades") + body))
    frame = check(source.frame.collect(), Trades)
    assert frame.select("kind", "side", "price", "size").rows() == [
        (4, -1, 5 * 10**9, 3),
        (4, 1, -4 * 10**9, 2),
        (4, 0, 5 * 10**9 + 10**7, 1),
    ]
    assert source.instruments[0].tick == 10**7
    assert any("taken to be 0.01" in note for note in source.report.notes)


def test_a_trade_shows_the_quotes_that_it_met_and_they_tell_the_tick(tmp_path: Path) -> None:
    p = 10**9
    trades: list[Order] = [("T", "B", 101 * p, 3, 0, 0), ("T", "A", 99 * p, 2, 0, 130), ("T", "N", 99 * p, 2, 0, 0)]
    books = [(99 * p, 101 * p, 4, 5), (99 * p, 101 * p + p // 4, 4, 2), (99 * p, UNDEFINED, 2, 0)]
    body = b"".join(mbp(n, order, [book]) for n, (order, book) in enumerate(zip(trades, books, strict=True)))
    source = scan_dbn(write(tmp_path, header("tbbo") + body))
    frame = check(source.frame.collect(), BookEvents)
    assert frame.select("kind", "side", "price", "size", *BEST, "complete").rows() == [
        (4, -1, 101 * p, 3, 101 * p, 5, 99 * p, 4, True),
        (4, 1, 99 * p, 2, 101 * p + p // 4, 2, 99 * p, 4, True),
        (4, 0, 99 * p, 2, None, 0, 99 * p, 2, True),
    ]
    # No trade has a price in quarters: the quotes have.
    assert source.instruments[0].tick == p // 4
    assert not any("F_LAST" in note for note in source.report.notes)
    # In mbp-1 a trade is within an event unless it is the last of it, and an order is no record of tbbo.
    whole = scan_dbn(write(tmp_path, header("mbp-1") + body)).frame.collect()
    assert whole["complete"].to_list() == [False, True, False]
    order = mbp(0, ("A", "B", 99 * p, 4, 0, 130), [books[0]])
    assert "unknown action" in refusal(write(tmp_path, header("tbbo") + order))


def test_other_kinds_of_records_are_passed_over_and_counted(tmp_path: Path) -> None:
    orders = stream(50, 2)
    system = bytes(dbn.SystemMsg(START, "heartbeat"))
    body = b"".join(system + mbo(n, order) for n, order in enumerate(orders)) + trade(0, "B", 10**9, 1)
    path = write(tmp_path, header(None) + body)
    source = scan_dbn(path, LEVELS, schema="mbo")
    assert source.frame.collect().equals(scan_dbn(mbo_file(tmp_path, orders), LEVELS).frame.collect())
    path = write(tmp_path, header(None) + body)
    assert any(f"{len(orders)} records of type system are no mbo" in note for note in source.report.notes)
    said = refusal(path)
    assert "several schemas, expected one of mbo, mbp-1, mbp-10, trades, tbbo, " in said
    assert said.endswith(", ohlcv-1d as schema=NAME")
    assert recognise(path).read  # with a schema that the doctor asks for
    assert "holds the schema mbo, expected the schema trades" in refusal(mbo_file(tmp_path, orders), schema="trades")


def test_nothing_later_changes_an_earlier_row(tmp_path: Path) -> None:
    orders = stream(300, 4)
    whole = scan_dbn(mbo_file(tmp_path, orders), LEVELS, tick="1").frame.collect()
    for cut in (1, 9, 50, 299):
        other = orders[:cut] + stream(300, 5)[9:150]
        rows = whole.filter(pl.col("event_time") < START + 1000 * cut).height
        made = scan_dbn(mbo_file(tmp_path, other), LEVELS, tick="1").frame.collect()
        assert made[:rows].equals(whole[:rows])


FIGURES = {
    "esh4-glbx-mdp3-20231224.mbo.dbn.zst": (8_725, 1, "ESH4", (4799.50, 23, 4799.00, 16)),
    "orderbooks_mbo_2024-05-08T00-00-00_2s.dbn.zst": (13_818, 185, "ESM4", (5214.25, 17, 5214.00, 28)),
    "futures_mbp-1_2024-07-01T23-58_2024-07-02T00-02.dbn.zst": (2_288, 2_168, "ESU4", (5529.25, 6, 5529.00, 24)),
}
"""Rows, complete rows, entity, and the last book."""


@pytest.mark.parametrize("name", FIGURES)
def test_real_files(realdata: Path, name: str) -> None:
    rows, complete, entity, last = FIGURES[name]
    source = scan_dbn(realdata / "lob" / "databento" / name)
    frame = check(source.frame.collect(), BookEvents)
    assert (frame.height, int(frame["complete"].sum())) == (rows, complete)
    assert frame["entity"].unique().to_list() == [entity]
    assert source.instruments[0].tick == 250_000_000
    ask, ask_size, bid, bid_size = frame.select(BEST).row(-1)
    assert (ask / 1e9, ask_size, bid / 1e9, bid_size) == last
    # The feed is whole: no message speaks of an order that is not there, and no complete book is crossed or locked.
    assert not any(vars(source.tally).values())
    trades = frame.filter(pl.col("kind") == 4)
    # A buyer pays the ask that stood, a seller gets the bid: the side is that of the order that rested.
    paid = pl.when(pl.col("side") == -1).then(pl.col("ask_price_1")).otherwise(pl.col("bid_price_1"))
    assert trades.select((pl.col("price") == paid).all()).item()
    assert not source.report.rows_set_aside


def test_real_vectors(realdata: Path) -> None:
    folder = realdata / "lob" / "databento" / "tiny"
    two, three = (scan_dbn(folder / f"test_data.mbo{v}.dbn").frame.collect() for v in ("", ".v3"))
    assert two.equals(three)
    assert two.select("kind", "side", "price", "size", "order_id").rows() == [
        (2, -1, 3722_750_000_000, 1, 647_784_973_705),
        (2, -1, 3723_000_000_000, 1, 647_784_973_631),
    ]
    deep = scan_dbn(folder / "test_data.mbp-10.dbn", levels=10).frame.collect()
    assert deep.select(*BEST, "ask_price_10", "bid_size_10").row(0) == (
        *(3720_500_000_000, 10, 3720_250_000_000, 24),
        *(3722_750_000_000, 67),
    )
    assert "holds the schema imbalance" in refusal(folder / "test_data.imbalance.dbn")
    assert "is DBZ, the container before DBN" in refusal(folder / "test_data.mbo.dbz")
    assert SOURCES["databento"] is scan_dbn


@pytest.mark.parametrize("schema", ["mbo", "mbp-1", "trades"])
def test_a_file_without_records_is_an_empty_table(tmp_path: Path, schema: str) -> None:
    source = scan_dbn(write(tmp_path, header(schema)))
    assert check(source.frame.collect(), Trades if schema == "trades" else BookEvents).height == 0
    assert source.report.rows_read == 0
    assert source.instruments == ()
