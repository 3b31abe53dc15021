"""Tardis files by hand: what every column becomes, how books and trades meet, and what is refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import polars as pl
import pytest

from quantattn.data.schema import CLEAR, EXECUTE, UPDATE, BookEvents, Trades, check
from quantattn.data.sources import SOURCES, scan_tardis

pytest.importorskip("numba", reason="numba is not here (pip install 'quantattn[book]')")

T = 1_600_000_000_000_000  # µs
HEAD = "exchange,symbol,timestamp,local_timestamp"
TRADES = f"{HEAD},id,side,price,amount"
CHANGES = f"{HEAD},is_snapshot,side,price,amount"
SNAPSHOTS = f"{HEAD},asks[0].price,asks[0].amount,bids[0].price,bids[0].amount"
BOOK = ["ask_price_1", "ask_size_1", "bid_price_1", "bid_size_1"]
WHOLE = {"price_exponent": -1, "size_exponent": 0}


def write(path: Path, header: str, *rows: str, end: str = "\n") -> Path:
    path.write_bytes(end.join([header, *rows, ""]).encode())
    return path


def row(local: int, rest: str, venue: int | None = None, symbol: str = "X-P") -> str:
    return f"deribit,{symbol},{T + (local - 5 if venue is None else venue)},{T + local},{rest}"


STORY = [
    row(10, "true,ask,101.5,4"),
    row(10, "true,bid,100,7"),
    row(20, "false,bid,100.5,2"),
    row(20, "false,ask,101.5,0"),
    row(20, "false,ask,102,9"),
    row(30, "false,bid,99,0"),
    row(40, "true,bid,90,1"),
]


def test_changes_are_messages_and_a_snapshot_begins_the_book_anew(tmp_path: Path) -> None:
    source = scan_tardis(write(tmp_path / "book.csv", CHANGES, *STORY), 1, **WHOLE)
    frame = check(source.frame.collect(), BookEvents)
    assert frame.select("kind", "side", "price", "size", "complete", *BOOK).rows() == [
        (CLEAR, 0, None, 0, False, None, 0, None, 0),
        (UPDATE, -1, 1015, 4, False, None, 0, None, 0),
        (UPDATE, 1, 1000, 7, True, 1015, 4, 1000, 7),
        (UPDATE, 1, 1005, 2, False, 1015, 4, 1000, 7),
        (UPDATE, -1, 1015, 0, False, 1015, 4, 1000, 7),
        (UPDATE, -1, 1020, 9, True, 1020, 9, 1005, 2),
        (UPDATE, 1, 990, 0, True, 1020, 9, 1005, 2),
        (CLEAR, 0, None, 0, False, 1020, 9, 1005, 2),
        (UPDATE, 1, 900, 1, True, None, 0, 900, 1),
    ]
    assert frame["entity"].unique().to_list() == ["deribit:X-P"]
    assert frame["available_time"].to_list()[2:4] == [(T + 10) * 1000, (T + 20) * 1000]
    assert frame["event_time"].to_list()[2:4] == [(T + 5) * 1000, (T + 15) * 1000]
    assert (source.tally.absent, source.report.rows_read) == (1, 9)
    (instrument,) = source.instruments
    assert (instrument.price_exponent, instrument.size_exponent, instrument.tick) == (-1, 0, 5)
    assert scan_tardis(tmp_path / "book.csv", 1, tick="0.1", **WHOLE).instruments[0].tick == 1
    assert SOURCES["tardis"] is scan_tardis


def test_trades_alone_are_trades_and_beside_a_book_events_of_it(tmp_path: Path) -> None:
    rows = [row(15, "t1,buy,101.5,3"), row(20, "t2,sell,100.5,1"), row(20, ",unknown,100.5,1")]
    path = write(tmp_path / "a_trades.csv", TRADES, *rows)
    trades = check(scan_tardis(path, **WHOLE).frame.collect(), Trades)
    assert trades.select("kind", "side", "price", "size", "trade_id").rows() == [
        (EXECUTE, -1, 1015, 3, "t1"),
        (EXECUTE, 1, 1005, 1, "t2"),
        (EXECUTE, 0, 1005, 1, None),
    ]
    write(tmp_path / "b_book.csv", CHANGES, *STORY)
    alone = scan_tardis(tmp_path / "b_book.csv", 1, **WHOLE).frame.collect()
    both = check(scan_tardis(tmp_path, 1, **WHOLE).frame.collect(), BookEvents)
    assert both.filter(pl.col("kind") != EXECUTE).drop("seq").equals(alone.drop("seq"))
    # At one receipt the book comes first, so the trades at 20 see its new best levels.
    assert both.filter(kind=EXECUTE).select("trade_id", *BOOK).rows() == [
        ("t1", 1015, 4, 1000, 7),
        ("t2", 1020, 9, 1005, 2),
        (None, 1020, 9, 1005, 2),
    ]


def test_a_snapshot_is_one_row_and_trades_show_the_last_one(tmp_path: Path) -> None:
    write(tmp_path / "book.csv", SNAPSHOTS, row(10, "101.5,4,100,7"), row(30, ",,99,1"))
    write(tmp_path / "trades.csv", TRADES, row(5, "t0,buy,100,1"), row(20, "t1,buy,101.5,3"))
    frame = check(scan_tardis(tmp_path, **WHOLE).frame.collect(), BookEvents)
    assert frame.select("kind", "side", "price", *BOOK).rows() == [
        (EXECUTE, -1, 1000, None, 0, None, 0),
        (UPDATE, 0, None, 1015, 4, 1000, 7),
        (EXECUTE, -1, 1015, 1015, 4, 1000, 7),
        (UPDATE, 0, None, None, 0, 990, 1),
    ]
    with pytest.raises(ValueError, match="snapshots of 1 levels, but levels=2 was asked for"):
        scan_tardis(tmp_path, 2)
    write(tmp_path / "book2.csv", CHANGES, *STORY)
    with pytest.raises(ValueError, match=r"holds books of 2 kinds \(book\.csv and book2\.csv\)"):
        scan_tardis(tmp_path)


def test_levels_of_a_snapshot_follow_one_another(tmp_path: Path) -> None:
    titles = (f"{side}[{n}].{what}" for n in (0, 1) for side in ("asks", "bids") for what in ("price", "amount"))
    header = ",".join([HEAD, *titles])
    good, bad = row(10, "101,1,100,1,102,1,99,1"), row(20, "101,1,100,1,102,1,100,1")
    path = write(tmp_path / "s.csv", header, good, bad, row(30, "101,1,100,1,,,,"))
    with pytest.raises(ValueError, match=r"s\.csv, line 3: found prices of levels out of order"):
        scan_tardis(path)
    assert scan_tardis(path, 1).report.rows_read == 3
    source = scan_tardis(path, on_bad="quarantine", set_aside=tmp_path / "aside.csv")
    assert (source.report.rows_read, source.report.rows_set_aside) == (2, {"levels out of order": 1})


def test_two_clocks_are_kept_and_counted(tmp_path: Path) -> None:
    rows = [row(10, "a,buy,1,1", venue=500), row(9, "b,buy,1,1"), row(12, "c,buy,1,1")]
    source = scan_tardis(write(tmp_path / "t.csv", TRADES, *rows), **WHOLE)
    frame = check(source.frame.collect(), Trades)
    assert [time // 1000 - T for time in frame["available_time"]] == [10, 10, 12]
    assert [time // 1000 - T for time in frame["event_time"]] == [10, 4, 7]
    assert [time // 1000 - T for time in frame["exchange_time"]] == [500, 4, 7]
    assert frame["trade_id"].to_list() == ["a", "b", "c"]
    assert any(
        "in 1 rows the venue's clock is ahead of receipt, by up to 0.000 s" in note for note in source.report.notes
    )
    assert any("1 times fall by up to 1 s" in note for note in source.report.notes)
    later = [row(2_000_000, "a,buy,1,1"), row(900_000, "b,buy,1,1")]
    with pytest.raises(ValueError, match=r"t\.csv, line 3: found .* ns, more than a second before an earlier line"):
        scan_tardis(write(tmp_path / "t.csv", TRADES, *later))


@pytest.mark.parametrize("place", range(8, 40, 4))
def test_another_future_leaves_every_earlier_row_its_bits(tmp_path: Path, place: int) -> None:
    rows = [
        row(
            10 * (n // 3),
            f"{'true' if n < 6 else 'false'},{'ask' if n % 2 else 'bid'},{90 + n % 2 * 9 + n % 5},{n % 4}",
        )
        for n in range(40)
    ]
    place -= place % 3
    other = [
        *rows[:place],
        *(line.replace(",90", ",91").replace("ask", "bid") for line in rows[place:][::-1][:5][::-1]),
    ]
    made = [
        scan_tardis(write(tmp_path / f"{n}.csv", CHANGES, *each), 3, tick="1").frame.collect()
        for n, each in enumerate((rows, other))
    ]
    until = pl.col("available_time") < (T + 10 * (place // 3)) * 1000
    assert made[0].filter(until).height >= place
    assert made[0].filter(until).equals(made[1].filter(until))
    assert not made[0].equals(made[1])


BAD = {
    "fields": (row(20, "false,bid,100"), "found 7 fields, expected 8: exchange, symbol"),
    "too many": (row(20, "false,bid,100,1,1"), "found 9 fields, expected 8"),
    "empty": ("", "found 1 fields, expected 8"),
    "price": (row(20, "false,bid,-1,1"), "found '-1' as price, expected an unsigned decimal number below"),
    "digits": (row(20, "false,bid,1.23,1"), "found '1.23' as price, .* with no digit beyond 10\\^-1"),
    "huge": (
        row(20, f"false,bid,1,{'9' * 30}"),
        "found '9{30}' as amount, expected an unsigned decimal number below 2\\^63",
    ),
    "side": (row(20, "false,buy,1,1"), "found 'buy' as side, expected one of bid, ask"),
    "flag": (row(20, "True,bid,1,1"), "found 'True' as is_snapshot, expected one of true, false"),
    "unit": (
        f"deribit,X-P,1600000000,{T + 20},false,bid,1,1",
        "found '1600000000' as timestamp, expected a time between 2009 and",
    ),
    "name": (row(20, "false,bid,1,1", symbol=""), "found '' as symbol, expected a name"),
    "swapped": (row(20, "false,100,bid,1"), "found '100' as side, expected one of bid, ask"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_line_is_refused_by_name_or_set_aside_and_is_a_gap(tmp_path: Path, case: str) -> None:
    line, words = BAD[case]
    path = write(tmp_path / "book.csv", CHANGES, *STORY[:3], line, *STORY[3:])
    with pytest.raises(ValueError, match=rf"^book\.csv, line 5: {words}") as caught:
        scan_tardis(path, 1, **WHOLE)
    assert "\n" not in str(caught.value)
    source = scan_tardis(path, 1, on_bad="quarantine", set_aside=tmp_path / "aside.csv", **WHOLE)
    assert sum(source.report.rows_set_aside.values()) == 1
    aside = pl.read_csv(tmp_path / "aside.csv")
    assert aside.select("file", "line").rows() == [("book.csv", 5)]
    frame = check(source.frame.collect(), BookEvents)
    assert frame.height == source.report.rows_read == 9
    # No book from the gap to the next snapshot.
    assert frame["bid_price_1"].to_list() == [None, None, 1000, *[1000] * 2, *[None] * 3, 900]
    assert source.tally.breaks == 1
    kept = scan_tardis(path, 1, on_gap="keep", on_bad="quarantine", set_aside=tmp_path / "aside.csv", **WHOLE)
    assert kept.frame.collect()["bid_price_1"].to_list() == [None, None, 1000, 1000, 1000, 1005, 1005, 1005, 900]


def test_files_that_are_not_what_they_should_be(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.csv, line 1: found columns 'a, b', expected the header of Tardis trades"):
        scan_tardis(write(tmp_path / "a.csv", "a,b"))
    with pytest.raises(ValueError, match=r"holds no row that can be used$"):
        scan_tardis(write(tmp_path / "a.csv", TRADES))
    bad, aside = write(tmp_path / "a.csv", TRADES, row(10, "a,up,1,1"), row(11, "b,buy,1")), tmp_path / "aside.csv"
    with pytest.raises(ValueError, match=r"can be used; 2 lines cannot, the first in line [23]: found .*, expected "):
        scan_tardis(bad, on_bad="quarantine", set_aside=aside)
    with pytest.raises(ValueError, match="does not exist; expected a Tardis CSV file"):
        scan_tardis(tmp_path / "none.csv")
    rows = [row(10, "a,buy,1,1"), row(20, "b,buy,1,1")]
    write(tmp_path / "a.csv", TRADES, *rows)
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress((tmp_path / "a.csv").read_bytes()))
    with pytest.raises(ValueError, match=r"b\.csv\.gz and a\.csv hold deribit:X-P at the same time"):
        scan_tardis(tmp_path)
    alone = scan_tardis(tmp_path / "b.csv.gz").frame.collect()
    assert alone.equals(scan_tardis(write(tmp_path / "c.csv", TRADES, *rows, end="\r\n")).frame.collect())
    dressed = write(tmp_path / "d.csv", "\ufeff" + TRADES, *rows, "", "", end="\r\n")
    source = scan_tardis(dressed)
    assert alone.equals(source.frame.collect())
    assert "d.csv: 2 empty lines at its end" in source.report.notes
    cut = (tmp_path / "a.csv").read_bytes()[:-2]
    (tmp_path / "d.csv").write_bytes(cut + b"3")
    assert any("the last line has no end" in note for note in scan_tardis(tmp_path / "d.csv").report.notes)
    for wrong, words in (
        ({"levels": 0}, "levels must be at least 1"),
        ({"tick": "0"}, "tick must be a price step above 0"),
        ({"tick": 0.1}, "tick must be decimal text"),
        ({"on_gap": "no"}, "on_gap must be"),
        ({"on_bad": "skip"}, "on_bad must be"),
        ({"on_bad": "quarantine"}, "go together"),
        ({"price_exponent": 3}, "price_exponent must be a whole number"),
    ):
        with pytest.raises(ValueError, match=words):
            scan_tardis(tmp_path / "a.csv", **wrong)  # type: ignore[arg-type]
