"""Bars in every layout, worked examples of their ends, and the real files."""

from __future__ import annotations

import datetime as dt
import gzip
import lzma
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantattn.data.schema import Bars, check
from quantattn.data.sources import SOURCES, scan_bars
from quantattn.data.sources.text_rows import is_rounded, rounded

HEADER = "Date,Open,High,Low,Close,Volume\n"


def write(folder: Path, text: str, name: str = "ABC.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def refusal(path: Path, **more: object) -> str:
    with pytest.raises(ValueError) as caught:
        scan_bars(path, **more)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def at(text: str, zone: str = "UTC") -> int:
    return int(dt.datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()) * 10**9


def test_a_bar_is_exact_and_known_at_the_close_of_its_session(tmp_path: Path) -> None:
    # A day in summer, the half day after Thanksgiving, and a day in winter.
    text = HEADER + "2024-07-05,10.1,10.5,9.99,10.25,1000\n2024-11-29,1,1,1,1,5\n2024-12-02,2.5,2.5,2.5,2.5,0\n"
    source = scan_bars(write(tmp_path, text), calendar="XNYS")
    frame = check(source.frame.collect(), Bars)
    assert frame.drop("available_time").rows() == [
        ("ABC", 0, at("2024-07-05 20:00"), 1_010_000_000, 1_050_000_000, 999_000_000, 1_025_000_000, 1000),
        ("ABC", 1, at("2024-11-29 18:00"), *[100_000_000] * 4, 5),
        ("ABC", 2, at("2024-12-02 21:00"), *[250_000_000] * 4, 0),
    ]
    assert frame["available_time"].equals(frame["event_time"].rename("available_time"))
    assert source.instruments[0].tick == 1_000_000
    assert "whether prices are adjusted" in source.report.notes[-1]


@pytest.mark.parametrize(
    ("zone", "calendar", "length", "stamp", "end"),
    [
        (None, None, 0, "2024-03-10", at("2024-03-11 00:00")),
        ("America/New_York", None, 0, "2024-03-10", at("2024-03-11 04:00")),  # the day on which clocks go forward
        ("America/New_York", None, 0, "2024-03-09", at("2024-03-10 05:00")),
        (None, "24/7", 0, "2024-03-10", at("2024-03-11 00:00")),
        (None, "CMES", 0, "2024-03-11", at("2024-03-11 22:00")),  # opened the evening before
        (None, "XNYS", 0, "2024-07-05 09:35", at("2024-07-05 13:35")),
        ("America/New_York", None, "5m", "2024-07-05 09:35", at("2024-07-05 13:40")),
        ("America/New_York", None, 0, "2024-07-05T09:35:00+02:00", at("2024-07-05 07:35")),
        (None, "XNYS", "1d", "2024-07-05", at("2024-07-06 04:00")),
    ],
)
def test_when_a_bar_ends(
    tmp_path: Path, zone: str | None, calendar: str | None, length: str | int, stamp: str, end: int
) -> None:
    path = write(tmp_path, f"timestamp,close\n{stamp},5\n")
    assert scan_bars(path, zone=zone, calendar=calendar, length=length).frame.collect()["available_time"].item() == end


def test_every_layout_says_the_same(tmp_path: Path) -> None:
    wide = write(tmp_path, "date,AB,CD\n2024-07-03,1.5,\n2024-07-05,1.75,20\n", "wide.csv")
    long = write(tmp_path, "Symbol;Date;Close\nCD;2024-07-05;20\nAB;2024-07-05;1.75\nAB;2024-07-03;1.50\n", "long.csv")
    rows = "Price,Close,Close,Volume,Volume\nTicker,AB,CD,AB,CD\nDate,,,,\n"
    three = write(tmp_path, rows + "2024-07-03,1.5,,7,\n2024-07-05,1.75,20.0,8,9\n", "three.csv")
    made = [scan_bars(path, calendar="XNYS") for path in (wide, long, three)]
    drop = ("seq", "volume")
    frames = [check(source.frame.collect(), Bars).drop(drop) for source in made]
    assert frames[0].equals(frames[1])
    assert frames[0].equals(frames[2])
    assert frames[0]["entity"].to_list() == ["AB", "AB", "CD"]
    assert made[2].frame.collect()["volume"].to_list() == [7, 8, 9]
    for source in (made[0], made[2]):
        assert any("1 of them have no close" in note and "1 before the first" in note for note in source.report.notes)
    for name, data in (("x.csv.gz", gzip.compress(wide.read_bytes())), ("y.csv.xz", lzma.compress(wide.read_bytes()))):
        (tmp_path / name).write_bytes(data)
        assert scan_bars(tmp_path / name, calendar="XNYS").frame.collect().drop(drop).equals(frames[0])


def test_columns_can_be_named(tmp_path: Path) -> None:
    path = write(tmp_path, "day,Price,Close,Adj Close,cum_vol\n05.07.2024,1,20,10,7\n")
    source = scan_bars(
        path, columns={"time": "day", "close": "Adj Close", "volume": "cum_vol"}, time_format="%d.%m.%Y", entity="Z"
    )
    assert source.frame.collect().select("entity", "close", "volume").rows() == [("Z", 10 * 10**8, 7)]
    assert any("not read: Price, Close" in note for note in source.report.notes)
    assert "no column 'x'" in refusal(path, columns={"time": "x"})
    assert "columns may give" in refusal(path, columns={"when": "day"})


@given(st.decimals(-(10**6), 10**6, places=12, allow_nan=False), st.integers(0, 10))
@settings(max_examples=80, deadline=None)
def test_rounding_is_half_to_even_and_told(number: Decimal, places: int) -> None:
    text = pl.DataFrame({"text": [f"{number:f}", f"{number:E}"]})
    made = text.select(value=rounded(pl.col("text"), places), lost=is_rounded(pl.col("text"), places))
    exact = number.scaleb(places)
    assert made["value"].to_list() == [int(exact.to_integral_value(ROUND_HALF_EVEN))] * 2
    assert made["lost"].to_list() == [exact != exact.to_integral_value()] * 2


def test_many_digits_are_rounded_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path, "date,close\n2024-07-03,0.123456785\n2024-07-05,0.123456795\n2024-07-08,1.5\n")
    source = scan_bars(path)
    assert source.frame.collect()["close"].to_list() == [12_345_678, 12_345_680, 150_000_000]
    assert any("2 bars have prices with more digits, rounded to 10^-8" in note for note in source.report.notes)
    assert source.instruments[0].tick == 1
    exact = scan_bars(path, price_exponent=-9, tick="0.5")
    assert exact.frame.collect()["close"].to_list() == [123_456_785, 123_456_795, 1_500_000_000]
    assert exact.instruments[0].tick == 500_000_000
    assert not any("rounded to" in note for note in exact.report.notes)


BAD = [
    ("2024-07-04,1,1,1,1,1", "no session at XNYS", "line 3"),
    ("05/07/2024,1,1,1,1,1", "stamp that is not a time", "line 3"),
    ("2024-07-05,1,x,1,1,1", "price that is no decimal number", "line 3"),
    ("2024-07-05,1,1,1,99999999999999,1", "price that is no decimal number", "line 3"),
    ("2024-07-05,1,1,1,1,1.5", "volume that is no whole number of 10^0", "line 3"),
    ("2024-07-05,1,1,1,1,-2", "volume below 0", "line 3"),
    ("2024-07-05,1,1,1,1", "another number of fields than 6", "line 3"),
    ("2024-07-03,1,1,1,2,1", "second bar of", "line 3"),
]


@pytest.mark.parametrize(("row", "reason", "where"), BAD)
def test_a_bad_bar_is_refused_or_set_aside(tmp_path: Path, row: str, reason: str, where: str) -> None:
    path = write(tmp_path, HEADER + "2024-07-03,1,1,1,1,1\n" + row + "\n2024-07-08,1,1,1,3,1\n")
    said = refusal(path, calendar="XNYS")
    assert said.startswith(f"ABC.csv, {where}")
    assert reason in said
    aside = tmp_path / "aside.csv"
    source = scan_bars(path, calendar="XNYS", on_bad="quarantine", set_aside=aside)
    assert source.frame.collect()["close"].to_list() == [10**8, 3 * 10**8]
    assert sum(source.report.rows_set_aside.values()) == 1
    assert pl.read_csv(aside)["line"].to_list() == [3]


def test_files_that_are_no_bars(tmp_path: Path) -> None:
    assert "is empty" in refusal(write(tmp_path, ""))
    assert "expected a header" in refusal(write(tmp_path, "2024-07-03,1,2\n"))
    assert "no column of times" in refusal(write(tmp_path, "a,b\n1,2\n"))
    assert "no column close" in refusal(write(tmp_path, "date,open,high\n2024-07-03,1,2\n"))
    assert "twice" in refusal(write(tmp_path, "date,A,A\n2024-07-03,1,2\n"))
    assert "holds no bar that can be used" in refusal(write(tmp_path, "date,A\n2024-07-03,\n"))
    assert "no calendar" in refusal(write(tmp_path, "date,A\n2024-07-03,1\n"), calendar="NOPE")
    assert "not UTF-8" in refusal(_bytes(tmp_path / "b.csv", b"date,A\n2024-07-03,\xff\n"))
    assert "cannot be read" in refusal(_bytes(tmp_path / "c.csv.gz", gzip.compress(b"date,A\n" * 9000)[:-20]))
    assert "price_exponent" in refusal(write(tmp_path, "date,A\n2024-07-03,1\n"), price_exponent=1)


def _bytes(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_oddities_are_kept_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER + "2024-07-05,1,0.5,2,1.5,1\n2024-07-03,-37.63,1,-40,-37.63,1\n")
    source = scan_bars(path)
    assert source.frame.collect()["close"].to_list() == [-3_763_000_000, 150_000_000]  # in order of time
    said = " ".join(source.report.notes)
    assert "1 bars have a high or a low that does not hold the other prices" in said
    assert "1 bars have a close that is not above 0" in said


def test_nothing_later_changes_an_earlier_bar(tmp_path: Path) -> None:
    days = [f"2024-07-{day:02}" for day in (1, 2, 3, 5, 8, 9)]
    one = "".join(f"{day},{n}.5,{2 * n}\n" for n, day in enumerate(days, 1))
    other = one[: one.index(days[3])] + "".join(f"{day},77,\n" for day in days[3:])
    made = [scan_bars(write(tmp_path, "date,A,B\n" + text)).frame.collect() for text in (one, other)]
    past = [frame.filter(pl.col("event_time") < at("2024-07-05")).drop("seq") for frame in made]
    assert past[0].equals(past[1])
    assert past[0].height == 6


def test_real_prices(realdata: Path) -> None:
    source = scan_bars(realdata / "prices" / "yfinance_ohlcv_2000_2025", calendar="XNYS")
    frame = check(source.frame.collect(), Bars)
    assert frame.height == 149_730
    assert frame["entity"].n_unique() == 25
    assert not source.report.rows_set_aside
    # 2000-01-03 of AAPL, with the digits of the file: 0.8410477042198181.
    assert frame.filter(pl.col("entity") == "AAPL")["close"][0] == 84_104_770
    late = frame.filter(pl.col("entity") == "META")["event_time"].min()
    assert late == at("2012-05-18 20:00")  # listed on that day


@pytest.mark.parametrize(
    ("name", "rows", "entities"),
    [
        ("ml4t_sp500_index", 5_031, 1),
        ("pypfopt_stock_prices", 106_931, 20),
        ("skfolio_sp500_dataset", 166_260, 20),
        ("skfolio_sp500_index", 8_313, 1),
    ],
)
def test_real_panels(realdata: Path, name: str, rows: int, entities: int) -> None:
    source = scan_bars(realdata / "prices" / "panels" / f"{name}.csv.gz", calendar="XNYS")
    frame = check(source.frame.collect(), Bars)
    assert (frame.height, frame["entity"].n_unique()) == (rows, entities)
    assert not source.report.rows_set_aside
    if name.startswith("pypf"):
        assert any("35,589 of them have no close" in note for note in source.report.notes)


def test_real_dollar_bars(realdata: Path) -> None:
    path = realdata / "lob" / "fx_and_taq" / "es_dollar_bars.csv.gz"
    source = scan_bars(path, entity="ES", columns={"volume": "cum_vol"}, price_exponent=-2)
    frame = check(source.frame.collect(), Bars)
    assert frame.height == 24_079
    assert frame.row(0) == (
        "ES",
        1_420_153_223_723_000_000,
        0,
        1_420_153_223_723_000_000,
        205_300,
        205_675,
        205_100,
        205_675,
        34_102,
    )
    assert source.instruments[0].tick == 25
    assert SOURCES["bars"] is scan_bars
