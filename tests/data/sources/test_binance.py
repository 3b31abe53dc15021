"""Binance by hand: four layouts of trades, two units of time, ids, floats; depth chained by its ids."""

from __future__ import annotations

import datetime as dt
import io
import zipfile
from pathlib import Path
from zoneinfo import ZoneInfo

import polars as pl
import pytest

from quantattn.data.schema import CLEAR, EXECUTE, UPDATE, BookEvents, Trades, check
from quantattn.data.sources import SOURCES, scan_binance, scan_binance_depth

NAME = "BTCUSDT-trades-2025-01-01.csv"
DAY = 1_735_689_600  # 2025-01-01 UTC in seconds
SPOT = "4,93500.12,0.00100000,93.5,{},True,True"
LAYOUTS = {
    "spot trades": (SPOT, None, None),
    "futures trades": ("4,93500.12,0.001,93.5,{},true", None, None),
    "spot aggregates": ("4,93500.12,0.00100000,11,13,{},True,True", 11, 13),
    "futures aggregates": ("4,93500.12,0.001,11,13,{},true", 11, 13),
}
HEADERS = {
    "futures trades": "id,price,qty,quote_qty,time,is_buyer_maker",
    "futures aggregates": "agg_trade_id,price,quantity,first_trade_id,last_trade_id,transact_time,is_buyer_maker",
}


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.mark.parametrize("unit", [10**3, 10**6])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_trade(tmp_path: Path, layout: str, unit: int) -> None:
    form, first, last = LAYOUTS[layout]
    row = form.format(DAY * unit + unit // 4)
    files = [write(tmp_path / NAME, row)]
    if layout in HEADERS:
        files.append(write(tmp_path / f"x_{NAME}", HEADERS[layout], row))
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        archive.writestr(NAME, f"{row}\n")
    files.append(tmp_path / NAME.replace(".csv", ".zip"))
    files[-1].write_bytes(raw.getvalue())
    for file in files:
        source = scan_binance(file)
        frame = check(source.frame.collect(), Trades)
        columns = ["entity", "available_time", "kind", "side", "price", "size", "trade_id"]
        when = DAY * 10**9 + 250 * 10**6
        expected = ("BTCUSDT", when, EXECUTE, 1, 9_350_012_000_000, 100_000, "4", first, last)
        assert frame.select(*columns, "first_trade_id", "last_trade_id").rows() == [expected]
        assert frame["event_time"].to_list() == [when]
    assert (SOURCES["binance"], SOURCES["binance_depth"]) == (scan_binance, scan_binance_depth)


def test_the_unit_is_decided_once_and_checked_against_every_row_and_the_name(tmp_path: Path) -> None:
    rows = [SPOT.format(DAY * 1000), SPOT.format(DAY * 10**6).replace("4,", "5,", 1)]
    with pytest.raises(
        ValueError, match=rf"{NAME}, line 2: found '{DAY * 10**6}' as time, expected a time between 2009"
    ):
        scan_binance(write(tmp_path / NAME, *rows))
    with pytest.raises(ValueError, match=f"found '{DAY}' as the time of the first row, expected 13 digits"):
        scan_binance(write(tmp_path / NAME, SPOT.format(DAY)))
    for wrong in (DAY - 1, DAY + 86_400):
        with pytest.raises(
            ValueError, match=r"line 1: found time .* ns, expected one of 2025-01-01, which the name says"
        ):
            scan_binance(write(tmp_path / NAME, SPOT.format(wrong * 1000)))
    month = write(tmp_path / "BTCUSD_PERP-trades-2025-01.csv", SPOT.format((DAY + 30 * 86_400) * 1000))
    assert scan_binance(month).frame.collect()["entity"].to_list() == ["BTCUSD_PERP"]
    with pytest.raises(ValueError, match=r"expected one of 2024-12, which"):
        scan_binance(write(tmp_path / "BTCUSDT-trades-2024-12.csv", SPOT.format(DAY * 1000)))


def test_the_buyer_who_rested_was_sold_to(tmp_path: Path) -> None:
    maker, taker = SPOT.format(DAY * 1000), SPOT.format(DAY * 1000).replace("True", "False").replace("4,", "5,", 1)
    assert scan_binance(write(tmp_path / NAME, maker, taker)).frame.collect()["side"].to_list() == [1, -1]


def test_ids_rise_and_what_is_lacking_is_counted(tmp_path: Path) -> None:
    rows = [SPOT.format(DAY * 1000 + n).replace("4,", f"{number},", 1) for n, number in enumerate([4, 5, 9, 9, 8])]
    with pytest.raises(ValueError, match=rf"{NAME}, line 4: found id 9 after 9, expected ids that rise"):
        scan_binance(write(tmp_path / NAME, *rows))
    aside = tmp_path / "aside.csv"
    source = scan_binance(tmp_path / NAME, on_bad="quarantine", set_aside=aside)
    assert source.report.rows_set_aside == {"id does not rise": 2}
    assert source.frame.collect()["trade_id"].to_list() == ["4", "5", "9"]
    assert any("3 ids are lacking" in note for note in source.report.notes)
    assert pl.read_csv(aside)["line"].to_list() == [4, 5]


def test_parquet_with_floats(tmp_path: Path) -> None:
    table = pl.DataFrame(
        {
            "timestamp": [dt.datetime(2025, 1, 1, tzinfo=dt.UTC)] * 2,
            "trade_id": [7, 8],
            "price": [93_500.12, 0.1 + 0.2],
            "quantity": [0.00031099999999999997, 2.0],
            "buyer_maker": ["True", "False"],
        }
    )
    path = tmp_path / "btcusdt-trades.parquet"
    table.write_parquet(path)
    source = scan_binance(path)
    frame = check(source.frame.collect(), Trades)
    assert frame.select("entity", "side", "price", "size").rows() == [
        ("BTCUSDT", 1, 9_350_012_000_000, 31_100),
        ("BTCUSDT", -1, 30_000_000, 200_000_000),
    ]
    assert sum("is a float in the file" in note for note in source.report.notes) == 2
    table.with_columns(price=pl.Series([1 / 3, 1.0])).write_parquet(path)
    with pytest.raises(ValueError, match=r"btcusdt-trades\.parquet, line 1: found .* of which the price cannot be"):
        scan_binance(path)
    for unit, ns in (("ms", 10**6), ("us", 10**3), ("ns", 1)):
        # The last two leave 64 bits as nanoseconds and come back in our days.
        for number in (
            -5,
            2**63 - 1,
            2**62,
            -(2**62),
            *((2**64 + 1_735_689_600 * 10**9 + ns) // ns for _ in range(ns > 1)),
        ):
            far = pl.Series([1_735_689_600 * 10**9 // ns, number]).cast(pl.Datetime(unit))
            table.with_columns(timestamp=far).write_parquet(path)
            with pytest.raises(ValueError, match=rf"line 2: found \({number}, .* of which the time cannot be"):
                scan_binance(path)
    local = dt.datetime(2025, 1, 1, tzinfo=dt.UTC).astimezone(ZoneInfo("America/New_York"))
    table.with_columns(timestamp=pl.Series([local] * 2)).write_parquet(path)
    assert scan_binance(path).frame.collect()["event_time"].equals(frame["event_time"])
    table.drop("price").write_parquet(path)
    with pytest.raises(ValueError, match="expected timestamp, trade_id, price"):
        scan_binance(path)
    table.write_parquet(path, compression="uncompressed")
    whole = path.read_bytes()
    said: list[str] = []
    for place in range(len(whole) - 1_000, len(whole) - 900):  # where the file says where its columns lie
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            scan_binance(path)
        except ValueError as error:  # and never what polars panics with
            said.append(str(error))
    assert len(said) > 20
    assert "\n" not in "".join(said)
    path.write_bytes(b"PAR1 and nothing else")
    with pytest.raises(ValueError, match="is no Parquet file that can be read"):
        scan_binance(path)


def test_files_without_a_symbol_or_a_layout(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", SPOT.format(DAY * 1000))
    with pytest.raises(ValueError, match=r"x\.csv: no row says the symbol .*; give entity=SYMBOL"):
        scan_binance(path)
    assert scan_binance(path, entity="ETHUSDT").instruments[0].entity == "ETHUSDT"
    with pytest.raises(ValueError, match="found 3 fields, expected 6 or 7 of trades"):
        scan_binance(write(tmp_path / "x.csv", "1,2,3"), entity="A")
    with pytest.raises(ValueError, match=r"x\.csv, line 1: found 'x4' as id, expected a whole number"):
        scan_binance(write(tmp_path / "x.csv", "x" + SPOT.format(DAY * 1000)), entity="A")
    for empty in ("", HEADERS["futures trades"] + "\n"):
        path.write_text(empty)
        with pytest.raises(ValueError, match=r"x\.csv"):
            scan_binance(path, entity="A")


DEPTH = "symbol,timestamp,first_update_id,last_update_id,side,update_type,price,qty,pu"


def depth(ms: int, first: int, last: int, side: str, kind: str, price: str, qty: str, previous: int = -1) -> str:
    return f"BTCUSDT,{DAY * 1000 + ms},{first},{last},{side},{kind},{price},{qty},{previous}"


SNAPSHOT = [depth(0, 100, 100, "b", "snap", "99.5", "2"), depth(0, 100, 100, "a", "snap", "100", "3")]
COVERED = [depth(1, 95, 99, "b", "set", "99.5", "0", 94)]
NEXT = [depth(2, 98, 103, "b", "set", "99.5", "1", 97), depth(2, 98, 103, "b", "set", "99.9", "5", 97)]
AFTER = [depth(3, 104, 105, "a", "set", "100", "0", 103)]


def test_depth_is_chained_from_its_snapshot(tmp_path: Path) -> None:
    pytest.importorskip("numba", reason="numba is not here (pip install 'quantattn[book]')")
    write(tmp_path / "snap.csv", DEPTH, *SNAPSHOT)
    write(tmp_path / "update.csv", DEPTH, *COVERED, *NEXT, *AFTER)
    source = scan_binance_depth(tmp_path, 1, price_exponent=-1, size_exponent=0)
    frame = check(source.frame.collect(), BookEvents)
    assert frame.select("kind", "price", "size", "bid_price_1", "bid_size_1", "ask_price_1").rows() == [
        (CLEAR, None, 0, None, 0, None),
        (UPDATE, 995, 2, None, 0, None),
        (UPDATE, 1000, 3, 995, 2, 1000),
        (UPDATE, 995, 1, 995, 2, 1000),
        (UPDATE, 999, 5, 999, 5, 1000),
        (UPDATE, 1000, 0, 999, 5, None),
    ]
    assert any("1 messages were left out: the snapshot before covers them" in note for note in source.report.notes)
    assert vars(source.tally) == {"absent": 0, "unopened": 0, "breaks": 0, "crossed": 0, "locked": 0}
    # Without the message in the middle the chain is broken, and no book is shown.
    write(tmp_path / "update.csv", DEPTH, *AFTER)
    broken = scan_binance_depth(tmp_path, 1)
    assert broken.tally.breaks == 1
    assert broken.frame.collect()["bid_price_1"].to_list()[-1] is None
    alone = scan_binance_depth(tmp_path / "update.csv", 1)
    assert any("no snapshot of BTCUSDT came" in note for note in alone.report.notes)
    assert alone.tally.unopened == 1


def test_depth_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.csv, line 1: found columns 'symbol', expected symbol, timestamp"):
        scan_binance_depth(write(tmp_path / "a.csv", "symbol"))
    wrong = depth(2, 98, 103, "b", "set", "1", "1").removesuffix("-1") + "x"
    with pytest.raises(
        ValueError, match=r"a\.csv, line 2: found 'x' as pu, expected a whole number below 2\^63, or -1"
    ):
        scan_binance_depth(write(tmp_path / "a.csv", DEPTH, wrong))
