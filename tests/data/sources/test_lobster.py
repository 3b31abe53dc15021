"""LOBSTER files: what every column means, whatever the dress of the file, and the real days."""

from __future__ import annotations

import datetime as dt
import gzip
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lobster_pairs import BOOKS, MESSAGES, MIDNIGHT, NAME, one_error, rounded, write_pair

from quantattn.data.schema import BookEvents, Instrument, check
from quantattn.data.sources import scan_lobster
from quantattn.data.sources.source import Source, file_sha256


def test_every_column_means_what_the_format_says(tmp_path: Path) -> None:
    source = scan_lobster(write_pair(tmp_path, MESSAGES, BOOKS))
    table = check(source.frame.collect(), BookEvents)
    assert table["event_time"].to_list() == [
        MIDNIGHT + ns for ns in (34200017459617, 34200189607670, 34200190226476, 34200190226476, 34201000000000)
    ]
    assert table["available_time"].equals(table["event_time"])
    assert table["seq"].to_list() == [0, 1, 2, 3, 4]
    assert table["kind"].to_list() == [5, 1, 4, 4, 3]
    assert table["side"].to_list() == [0, 1, 1, 1, -1]  # the hidden execution is unsigned
    assert table["price"].to_list() == [2238200, 2238100, 2238100, 2237500, 2239500]
    assert table["size"].to_list() == [1, 21, 21, 26, 100]
    assert table["order_id"].to_list() == [0, 11885113, 11885113, 11534792, 11534793]
    assert table["ask_price_1"].to_list() == [2239500] * 4 + [None]  # an empty level has no price
    assert table["bid_price_1"].to_list() == [2231800, 2238100, 2237500, 2237500, None]
    assert table["ask_size_1"].to_list() == [100] * 4 + [0]
    assert table["entity"].unique().to_list() == ["TEST"]
    assert not any(dtype.is_float() for dtype in table.dtypes)
    assert source.instruments == (Instrument("TEST", -4, 100),)
    assert source.report.files[NAME.format("message")] == file_sha256(tmp_path / NAME.format("message"))
    assert (source.report.rows_read, dict(source.report.rows_set_aside)) == (5, {})


def test_exchange_time_follows_daylight_saving(tmp_path: Path) -> None:
    for date, hours in (("2012-01-17", 5), ("2012-07-17", 4)):
        folder = write_pair(
            tmp_path / date, ["34200.000000001,1,1,1,100,1"], BOOKS[:1], NAME.replace("2012-06-21", date)
        )
        start = dt.datetime.fromisoformat(date).replace(tzinfo=dt.UTC) + dt.timedelta(hours=hours)
        expected = int(start.timestamp()) * 10**9 + 34200 * 10**9 + 1
        assert scan_lobster(folder).frame.collect()["event_time"].to_list() == [expected]
    folder = write_pair(tmp_path / "change", MESSAGES, BOOKS, NAME.replace("2012-06-21", "2012-03-11"))
    said = one_error(folder)
    assert said.startswith(NAME.replace("2012-06-21", "2012-03-11").format("message"))
    assert "the clocks of America/New_York change on 2012-03-11" in said


def test_halt_lasts_until_trading_resumes(tmp_path: Path) -> None:
    messages = [
        "36000.000000001,1,1,10,2238100,1",
        "36023.5,7,0,0,-1,-1",
        "36024.5,3,1,10,2238100,1",
        "36323.5,7,0,0,0,-1",
        "36723.5,7,0,0,1,-1",
        "36724.5,7,0,0,-1,-1",
    ]
    table = scan_lobster(write_pair(tmp_path, messages, BOOKS[:1] * 6)).frame.collect()
    assert table["halted"].to_list() == [False, True, True, True, False, True]
    assert table["price"].to_list() == [2238100, None, 2238100, None, None, None]
    assert table["side"].to_list() == [1, 0, 1, 0, 0, 0]


@given(
    steps=st.lists(
        st.tuples(st.sampled_from([0, 0, 1, 10, 999, 10**9]), st.integers(1, 4), st.integers(1, 10**10)),
        min_size=1,
        max_size=12,
    ),
    header=st.booleans(),
    end=st.sampled_from(["\n", "\r\n"]),
    zipped=st.booleans(),
    last_newline=st.booleans(),
    trailing_zeros=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_any_dress_of_the_same_rows_gives_the_same_table(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[int, int, int]],
    header: bool,
    end: str,
    zipped: bool,
    last_newline: bool,
    trailing_zeros: bool,
) -> None:
    folder, now, messages, expected = tmp_path_factory.mktemp("dress"), 34_200_000_000_001, [], []
    for i, (step, kind, price) in enumerate(steps):
        now += step
        text = f"{now // 10**9}.{now % 10**9:09d}"
        messages.append(f"{text if trailing_zeros or i == 0 else text.rstrip('0').rstrip('.')},{kind},{i},5,{price},-1")
        expected.append((MIDNIGHT + int(Decimal(text) * 10**9), i, kind, price))
    heads = {"message": "Time,Type,OrderId,Size,Price,Direction", "orderbook": "Ask,AskVolume,Bid,BidVolume"}
    for role, lines in (("message", messages), ("orderbook", BOOKS[:1] * len(steps))):
        text = end.join([heads[role]] * header + lines) + end * last_newline
        path = folder / (NAME.format(role) + ".gz" * zipped)
        path.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    table = scan_lobster(folder).frame.collect()
    assert table.select("event_time", "seq", "kind", "price").rows() == expected


def test_names_of_any_kind_with_entity_and_date_as_arguments(tmp_path: Path) -> None:
    folder = write_pair(tmp_path / "a", MESSAGES, BOOKS, "{}.csv")
    (folder / "orderbook.csv").rename(folder / "Order_Book.csv")
    (folder / "message.csv").rename(folder / "MESSAGES.csv")
    expected = scan_lobster(write_pair(tmp_path / "b", MESSAGES, BOOKS)).frame.collect()
    assert scan_lobster(folder, entity="TEST", date="2012-06-21").frame.collect().equals(expected)
    assert "entity and date must be given" in one_error(folder)
    assert "so date must be given" in one_error(folder, entity="TEST")
    assert "names 2012-06-21, but date=2012-06-22" in one_error(tmp_path / "b", date=dt.date(2012, 6, 22))


def test_several_days_and_entities_come_in_canonical_order(tmp_path: Path) -> None:
    for name in ("B_2012-06-22", "B_2012-06-21", "A_2012-06-22"):
        write_pair(tmp_path / name[0], MESSAGES, BOOKS, name + "_34200000_57600000_{}_1.csv")
    table = check(scan_lobster(tmp_path).frame.collect(), BookEvents)
    assert table["entity"].to_list() == ["A"] * 5 + ["B"] * 10
    assert table["seq"].to_list() == [*range(5), *range(10)]
    write_pair(tmp_path / "again", MESSAGES, BOOKS, "B_2012-06-22_34200000_57600000_{}_5.csv")
    assert "both hold B on 2012-06-22" in one_error(tmp_path)


def test_levels(tmp_path: Path) -> None:
    deep = [f"{row},9999999999,0,2200000,{i}" for i, row in enumerate(BOOKS)]
    write_pair(tmp_path, MESSAGES, deep, "DEEP_2012-06-21_34200000_57600000_{}_2.csv")
    two = scan_lobster(tmp_path).frame.collect()
    assert two["bid_size_2"].to_list() == [0, 1, 2, 3, 4]
    assert two["ask_price_2"].to_list() == [None] * 5
    one = scan_lobster(tmp_path, levels=1).frame.collect()
    assert one.equals(two.select(one.columns))
    assert "has 2 levels of the book, but levels=3" in one_error(tmp_path, levels=3)
    write_pair(tmp_path, MESSAGES, BOOKS)
    both = scan_lobster(tmp_path)
    assert both.frame.collect().columns == one.columns
    assert any("has 2 levels of the book, 1 were kept" in note for note in both.report.notes)


@pytest.mark.parametrize("decimals", [0, 1, 2, 3, 4, 5])
def test_rounded_times_are_refused_or_marked_never_silent(tmp_path: Path, decimals: int) -> None:
    folder = write_pair(tmp_path, rounded(decimals), BOOKS[:1] * 40)
    said = one_error(folder)
    assert f"has {decimals} decimals" in said
    assert "rounded_times=True" in said
    source = scan_lobster(folder, rounded_times=True)
    assert source.frame.collect()["seq"].to_list() == list(range(40))
    assert any("accepted as rounded" in note for note in source.report.notes)


def test_coarser_clocks_are_taken_and_noted(tmp_path: Path) -> None:
    for decimals in (3, 6):
        rows = [f"{34200 + i}.{i:0{decimals}d},1,{i},5,2238100,1" for i in range(40)]
        notes = scan_lobster(write_pair(tmp_path / str(decimals), rows, BOOKS[:1] * 40)).report.notes
        assert any("taken for the resolution" in note for note in notes)
    few = scan_lobster(write_pair(tmp_path / "few", rounded(1, 3), BOOKS[:1] * 3))
    assert any("too few rows" in note for note in few.report.notes)
    exact = scan_lobster(write_pair(tmp_path / "exact", MESSAGES, BOOKS))
    assert not any("decimals" in note for note in exact.report.notes)


def real(realdata: Path, stem: str, **settings: object) -> Source:
    return scan_lobster(realdata / "lob" / "lobster" / stem, **settings)  # type: ignore[arg-type]


def test_the_amazon_day_agrees_with_decimal_arithmetic(realdata: Path) -> None:
    name = "AMZN_2012-06-21_34200000_57600000_{}_1.csv.gz"
    source = real(realdata, name.format("message"))
    table = check(source.frame.collect(), BookEvents)
    assert table.height == source.report.rows_read == 57_515
    assert source.report.notes == ()
    for role, columns in (
        ("message", ["event_time", "kind", "order_id", "size", "price"]),
        ("orderbook", ["ask_price_1", "ask_size_1", "bid_price_1", "bid_size_1"]),
    ):
        with gzip.open(realdata / "lob" / "lobster" / name.format(role), "rt") as file:
            rows = [line.rstrip("\n").split(",") for line in file]
        if role == "message":
            expected = [(MIDNIGHT + int(Decimal(row[0]) * 10**9), *map(int, row[1:5])) for row in rows]
            side = [0 if row[1] == "5" else int(row[5]) for row in rows]
            assert table["side"].to_list() == side
        else:
            expected = [tuple(map(int, row)) for row in rows]
        assert table.select(columns).rows() == expected


def test_the_apple_part_is_read_and_said_to_stop_early(realdata: Path) -> None:
    source = real(realdata, "AAPL_2012-06-21_34200000_57600000_message_10.csv")
    table = check(source.frame.collect(), BookEvents)
    assert table.height == 999
    assert "bid_size_10" in table.columns
    assert any("stops at millisecond 34249086" in note for note in source.report.notes)


def test_the_apple_book_without_messages_is_refused(realdata: Path) -> None:
    with pytest.raises(
        ValueError, match=r"AAPL_2012-06-21_34200000_57600000_orderbook_1\.csv\.gz is an order-book file"
    ):
        real(realdata, "AAPL_2012-06-21_34200000_57600000_orderbook_1.csv.gz")


def test_the_rounded_day_is_refused_or_marked(realdata: Path) -> None:
    given = {"entity": "AMZN", "date": "2012-06-21"}
    with pytest.raises(ValueError, match="has 5 decimals"):
        real(realdata, "AMZN_hdr_rounded_message_1.csv.gz", **given)
    accepted = real(realdata, "AMZN_hdr_rounded_message_1.csv.gz", rounded_times=True, **given).frame.collect()
    exact = real(realdata, "AMZN_2012-06-21_34200000_57600000_message_1.csv.gz").frame.collect()
    assert accepted.drop("event_time", "available_time").equals(exact.drop("event_time", "available_time"))
    assert (accepted["event_time"] - exact["event_time"]).abs().max() == 5000  # half of 10 µs
