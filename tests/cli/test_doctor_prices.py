"""Files of bars and quotes as vendors write them: what the doctor tells of a file reads it, to the last digit."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import polars as pl
import pytest

from quantattn.cli.diagnosis.reading import open_reading
from quantattn.data.recognise import recognise
from quantattn.data.sources import scan_bars
from quantattn.data.sources.source import Source

DAY = int(dt.datetime(2024, 1, 2, tzinfo=dt.UTC).timestamp()) * 10**9
MINUTE = 60 * 10**9
BAR = "1.10,1.30,1.00,1.20"
KLINE = "1704153600000,1.10,1.30,1.00,1.20,5.50000000,1704153659999,6.1,7,2.5,2.7,0\n"
KLINES = (
    "open_time,open,high,low,close,volume,close_time,quote_volume,count,"
    "taker_buy_volume,taker_buy_quote_volume,ignore\n"
)


def told(path: Path, text: str) -> Source:
    """The file, read with what it was taken for."""
    path.write_text(text)
    found = recognise(path)
    assert found.format is not None
    assert found.read, found.sentence
    return open_reading(found.format, path, found.claim.settings, ()).read(path.parent / "aside.csv")


@pytest.mark.parametrize(
    ("text", "end", "volume"),
    [
        (KLINE, DAY + MINUTE, 550_000_000),
        (KLINES + KLINE, DAY + MINUTE, 550_000_000),
        (KLINE.replace("1704153600000", "1704153600000000").replace("9999,6", "9999999,6"), DAY + MINUTE, 550_000_000),
        (f"20240101 190000;{BAR.replace(',', ';')};0\n", DAY + MINUTE, 0),
        (f"2024.01.02,00:01,{BAR},55\n", DAY + MINUTE, 55),
        (f"<DATE>\t<TIME>\t<OPEN>\t<HIGH>\t<LOW>\t<CLOSE>\t<TICKVOL>\n2024.01.02\t00:01:00\t{BAR}\t55\n", None, 55),
        (f"Gmt time,Open,High,Low,Close,Volume\n02.01.2024 00:01:00.000,{BAR},5.5\n", DAY + MINUTE, 550_000_000),
        (f"Local time,Open,High,Low,Close,Volume\n02.01.2024 02:01:00.000 GMT+0200,{BAR},5\n", DAY + MINUTE, 5),
        (f"timestamp_utc,open,high,low,close,volume\n2024-01-02T00:01:00,{BAR},5\n", DAY + MINUTE, 5),
        (f"timestamp,open,high,low,close,volume\n1704153660000,{BAR},0.0000000001\n", DAY + MINUTE, 1),
        (f"open_time,open,high,low,close\n2024-01-02 00:00:00,{BAR}\n2024-01-02 00:01:00,{BAR}\n", DAY + MINUTE, None),
        (f"https://vendor.example\nunix,open,high,low,close,volume\n1704153660,{BAR},5\n", DAY + MINUTE, 5),
        (f"ticker,window_start,open,high,low,close\nABC,{DAY},{BAR}\nABC,{DAY + MINUTE},{BAR}\n", DAY + MINUTE, None),
        (f"Date,Open,High,Low,Close,Volume\n01/02/2024,{BAR},5\n01/13/2024,{BAR},5\n", DAY + 1440 * MINUTE, 5),
    ],
    ids=range(14),
)
def test_bars(tmp_path: Path, text: str, end: int | None, volume: int | None) -> None:
    if "<DATE>" in text:
        text, end = text.replace(BAR, BAR.replace(",", "\t")), DAY + MINUTE
    source = told(tmp_path / "ABC-1m-2024-01-02.csv", text)
    row = source.frame.collect().row(0, named=True)
    assert row["entity"] == "ABC"
    assert row["available_time"] == end
    assert [row[name] for name in ("open", "high", "low", "close")] == [
        110_000_000,
        130_000_000,
        100_000_000,
        120_000_000,
    ]
    assert row["volume"] == volume
    assert not source.report.rows_set_aside


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("20240101 190001007,1.10,1.20,0\n", DAY + 1_007_000_000),
        ("Gmt time,Ask,Bid,AskVolume,BidVolume\n02.01.2024 00:00:01.007,1.20,1.10,0.75,2\n", DAY + 1_007_000_000),
        ("timestamp,askPrice,bidPrice\n1704153601007,1.20,1.10\n", DAY + 1_007_000_000),
        ("TIMESTAMP, bid, offer\n2024-01-02 00:00:01.007, 1.10, 1.20\n", DAY + 1_007_000_000),
    ],
)
def test_quotes(tmp_path: Path, text: str, time: int) -> None:
    row = told(tmp_path / "EURUSD.csv", text).frame.collect().row(-1, named=True)
    assert (row["available_time"], row["bid_price_1"], row["ask_price_1"]) == (time, 1_100_000, 1_200_000)


def test_returns_are_no_closes_and_starts_want_a_length(tmp_path: Path) -> None:
    path = tmp_path / "ABC.csv"
    path.write_text("date,return\n2024-01-02,0.01\n2024-01-03,-0.02\n")
    assert recognise(path).format.name == "table"  # type: ignore[union-attr]
    path.write_text("date,ABC\n2024-01-02,1.01\n2024-01-03,1.02\n")
    assert recognise(path).format.name == "bars"  # type: ignore[union-attr]
    # One start does not say how long its bar is, and a bar whose low is above its close is none.
    with pytest.raises(ValueError, match=r"ABC\.csv: its column 'open_time' holds the starts of bars.*length=1m"):
        told(path, f"open_time,open,high,low,close\n2024-01-02 00:01:00,{BAR}\n")
    path.write_text("2024.01.02,00:01,1.10,1.30,1.25,1.20,55\n")
    assert recognise(path).format is None


def test_day_and_month_that_nothing_tells_apart_are_named(tmp_path: Path) -> None:
    path = tmp_path / "ABC.csv"
    path.write_text(f"Date,Open,High,Low,Close\n01/02/2024,{BAR}\n")
    assert "nothing tells whether its times are '%m/%d/%Y' or '%d/%m/%Y'" in recognise(path).claim.why


def test_of_a_file_without_a_sound_row_the_first_is_shown(tmp_path: Path) -> None:
    text = f"date,time,open,high,low,close\n2024-01-02,00:01,{BAR},7\n2024-01-02,00:02,{BAR},7\n"
    with pytest.raises(
        ValueError, match=r"ABC\.csv holds no bar .*2 rows cannot, the first in ABC\.csv, line 2: another"
    ):
        told(tmp_path / "ABC.csv", text)
    with pytest.raises(ValueError, match=r"no quote .*1 rows cannot, the first in Q\.csv, line 2: impossible price"):
        told(tmp_path / "Q.csv", "timestamp,bid,ask\n2024-01-02,0,1\n")


@pytest.mark.parametrize("kind", [pl.Datetime("us"), pl.Datetime("ns", "Europe/Paris"), pl.String(), pl.Int64()])
def test_parquet_is_read_as_text_of_the_same_values_is(tmp_path: Path, kind: pl.DataType) -> None:
    stamps = pl.Series("time", [(DAY + n * MINUTE) // 10**6 for n in (2, 1, 3)])
    rows = pl.DataFrame(
        {
            "open": [1.1, 0.1 + 0.2, 1e-7],
            "high": [2.0] * 3,
            "low": [1e-9] * 3,
            "close": [1.5, None, 0.25],
            "volume": [5] * 3,
        }
    )
    if kind == pl.Int64():
        times = stamps
    elif kind == pl.String():
        times = pl.from_epoch(stamps, "ms").dt.to_string("%Y-%m-%d %H:%M:%S")
    else:
        zone = getattr(kind, "time_zone", None)
        times = pl.from_epoch(stamps, "ms").cast(pl.Datetime(kind.time_unit))  # type: ignore[attr-defined]
        times = times if zone is None else times.dt.replace_time_zone("UTC").dt.convert_time_zone(zone)
    path = tmp_path / "ABC.parquet"
    rows.with_columns(times.alias("time"), more=pl.lit([1])).write_parquet(path)
    found = recognise(path)
    assert found.format is not None
    assert found.format.name == "bars"
    source = open_reading(found.format, path, found.claim.settings, ()).read(tmp_path / "aside.csv")
    text = rows.with_columns(pl.from_epoch(stamps, "ms").dt.to_string("%Y-%m-%dT%H:%M:%S").alias("time"))
    same = told(tmp_path / "ABC.csv", text.write_csv())
    assert source.frame.collect().equals(same.frame.collect())
    assert source.report.rows_read == 2
    assert "ABC.parquet: 1 of them have no close and are no bars: 0 before the first of their instrument, 0 after" in (
        "\n".join(source.report.notes)
    )
    rows.drop("close").with_columns(times.alias("time")).write_parquet(path)
    with pytest.raises(ValueError, match=r"ABC\.parquet has the columns .*; expected a time and a close among them"):
        scan_bars(path)
    rows.with_columns(times.alias("time"), close=pl.lit([1.0])).write_parquet(path)
    with pytest.raises(ValueError, match=r"ABC\.parquet: column 'close' is List.*; expected text, numbers or times"):
        scan_bars(path)
