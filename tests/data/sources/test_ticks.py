"""Quote ticks in every layout, broken ones, and the real file."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from quantattn.data.schema import BookEvents, check
from quantattn.data.sources import SOURCES, scan_ticks

HEADER = "timestamp,bid,ask\n"
START = 1_357_077_600 * 10**9  # 2013-01-01 22:00 UTC


def write(folder: Path, text: str, name: str = "USDJPY.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def refusal(path: Path, **more: object) -> str:
    with pytest.raises(ValueError) as caught:
        scan_ticks(path, **more)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_layout_says_the_same(tmp_path: Path) -> None:
    named = HEADER + "2013-01-01 22:00:00.295000+00:00,86.655,86.728\n2013-01-01 23:00:01+01:00,86.655,86.73\n"
    plain = "USD/JPY,20130101 22:00:00.295,86.655,86.728\nUSD/JPY,20130101 22:00:01.000,86.655,86.730\n"
    other = "Gmt time;Ask;Bid;AskVolume;BidVolume\n01.01.2013 22:00:00.295;86.728;86.655;1.5;2\n"
    other += "01.01.2013 22:00:01.000;86.73;86.655;0.75;2\n"
    made = [
        scan_ticks(write(tmp_path, named)),
        scan_ticks(write(tmp_path, plain, "TrueFX.csv")),
        scan_ticks(
            write(tmp_path, other, "d.csv"), entity="USDJPY", time_format="%d.%m.%Y %H:%M:%S%.f", size_exponent=-2
        ),
    ]
    frames = [check(source.frame.collect(), BookEvents) for source in made]
    assert frames[0].equals(frames[1])
    assert frames[0].select("side", "price", "size", "event_time", "ask_price_1", "ask_size_1", "complete").rows() == [
        (1, 86_655_000, 0, START + 295 * 10**6, None, 0, False),
        (-1, 86_728_000, 0, START + 295 * 10**6, 86_728_000, None, True),
        (-1, 86_730_000, 0, START + 10**9, 86_730_000, None, True),
    ]
    drop = ("size", "ask_size_1", "bid_size_1")
    assert frames[2].drop(drop).equals(frames[0].drop(drop))
    assert frames[2]["ask_size_1"].to_list() == [0, 150, 75]
    assert any("no sizes" in note for note in made[0].report.notes)
    assert made[0].instruments[0].tick == 1000
    assert made[0].instruments[0].entity == "USDJPY"


def test_oddities_are_counted_and_kept(tmp_path: Path) -> None:
    row = "2013-01-01 22:00:0{}+00:00,{},{}\n"
    quotes = [(5, 2, 3), (1, 1, 2), (5, 2, 3), (6, 3, 3), (7, 4, 3)]
    source = scan_ticks(write(tmp_path, HEADER + "".join(row.format(*quote) for quote in quotes)))
    said = " ".join(source.report.notes)
    for part in (
        "1 quotes are older",
        "1 quotes have a bid above",
        "1 quotes have a bid equal",
        "1 quotes are equal to",
    ):
        assert part in said
    frame = check(source.frame.collect(), BookEvents).filter("complete")
    assert ((frame["event_time"] - START) // 10**9).to_list() == [1, 5, 5, 6, 7]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("2013-01-01 22:00,1.x,2", "impossible price"),
        ("2013-01-01 22:00,1,0", "impossible price"),
        ("2013-01-01 22:00,1.1234567,2", "impossible price"),
        ("yesterday,1,2", "no time"),
        ("2013-01-01 22:00,1", "another number of fields than 3"),
    ],
)
def test_a_bad_row_is_refused_or_set_aside(tmp_path: Path, row: str, reason: str) -> None:
    good = "2013-01-01 22:00:00,1,2\n"
    path = write(tmp_path, HEADER + good + row + "\n" + good)
    assert refusal(path).startswith(f"USDJPY.csv, line 3: {reason}")
    source = scan_ticks(path, on_bad="quarantine", set_aside=tmp_path / "aside.csv")
    assert source.report.rows_set_aside == {reason: 1}
    assert source.frame.filter("complete").collect().height == 2


def test_files_that_are_none(tmp_path: Path) -> None:
    assert "is empty" in refusal(write(tmp_path, ""))
    assert "no column for bid" in refusal(write(tmp_path, "timestamp,a,b\n"))
    assert "holds no quote" in refusal(write(tmp_path, HEADER))
    assert "columns may give" in refusal(write(tmp_path, HEADER), columns={"x": "y"})
    assert "no column for ask" in refusal(write(tmp_path, HEADER), columns={"ask": "offer"})


def test_the_real_file(realdata: Path) -> None:
    source = scan_ticks(realdata / "lob" / "fx_and_taq" / "truefx_usdjpy-ticks.csv", entity="USDJPY")
    frame = check(source.frame.collect(), BookEvents)
    assert (frame.height, int(frame["complete"].sum())) == (1_185, 1_000)
    assert frame["event_time"][0] == START + 295 * 10**6
    assert frame.filter("complete").select("bid_price_1", "ask_price_1").row(0) == (86_655_000, 86_728_000)
    assert not source.report.rows_set_aside
    assert source.instruments[0].tick == 1000
    assert SOURCES["ticks"] is scan_ticks
    assert frame.select((pl.col("bid_price_1") <= pl.col("ask_price_1")).all()).item()
