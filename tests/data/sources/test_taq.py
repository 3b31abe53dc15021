"""TAQ's trades and quotes in their dialects, what is set aside and why, and the real file."""

from __future__ import annotations

import datetime as dt
import gzip
from pathlib import Path

import polars as pl
import pytest

from quantattn.data.recognise import recognise
from quantattn.data.schema import BookEvents, Trades, check
from quantattn.data.sources import SOURCES, scan_taq

HEADER = "DT,EX,SYMBOL,COND,SIZE,PRICE,CORR\n"
OPEN = 1_514_903_400 * 10**9  # 2018-01-02 09:30 in New York


def write(folder: Path, text: str, name: str = "taq.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def refusal(path: Path, **more: object) -> str:
    with pytest.raises(ValueError) as caught:
        scan_taq(path, **more)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


ROWS = [
    "2018-01-02 09:30:00.000000001,P,XY,,100,157.8,0",
    "2018-01-02 09:30:00.5,T,XY,F I,2,157.805,00",
    "2018-01-02 09:30:00.5,T,XY,F I,2,157.805,00",
    "2018-01-02 09:30:01,D,XY,4 B,7,100,0",
    "2018-01-02 09:30:02,D,XY,@ TI,7,157.9,0",
    "2018-01-02 09:30:03,D,XY,,7,157.9,8",
    "2018-01-02 09:30:03,D,XY,Z,7,157.9,10",
]


NATIVE = "Time|Exchange|Symbol|Sale Condition|Trade Volume|Trade Price|Trade Correction Indicator|Trade Id\n"


def test_the_files_of_the_exchange_itself_have_their_day_in_the_name(tmp_path: Path) -> None:
    rows = ["093000000000001|P|XY||100|157.8|00|1", "093000500000000|T|XY| F I|2|157.805|00|2"]
    text = NATIVE + "\n".join([*rows, rows[1]])
    native = write(tmp_path, text + "\nEND|20180102|3|||||\n", "EQY_US_ALL_TRADE_20180102")
    found = scan_taq(native).frame.collect()
    assert found.equals(scan_taq(write(tmp_path, HEADER + "\n".join(ROWS[:3]) + "\n")).frame.collect())
    assert recognise(native).format.name == "taq"  # type: ignore[union-attr]
    header = "Time|Exchange|Symbol|Bid_Price|Bid_Size|Offer_Price|Offer_Size\n"
    quotes = write(tmp_path, header + "093000000000001|P|XY|1.5|3|1.75|2\nEND|20180102|1||||\n", "BBO_A_20180102")
    assert scan_taq(quotes).frame.collect().select("event_time", "price", "size", "bid_price_1").rows() == [
        (OPEN + 1, 1_500_000, 3, None),
        (OPEN + 1, 1_750_000, 2, 1_500_000),
    ]
    # Without a day in the name there is none, and eight digits within others are none.
    for name in ("EQY_US_ALL_TRADE", "EQY_120180102"):
        assert "or DATE (or a day in the file's name)" in refusal(write(tmp_path, NATIVE + rows[0] + "\n", name))


def test_spaces_around_names_and_cells_are_none_of_theirs(tmp_path: Path) -> None:
    text = HEADER + "\n".join(ROWS) + "\n"
    spaced = scan_taq(write(tmp_path, text.replace(",", " , "), "a.csv"))
    assert spaced.frame.collect().equals(scan_taq(write(tmp_path, text)).frame.collect())


def test_trades_worked_out_by_hand(tmp_path: Path) -> None:
    source = scan_taq(write(tmp_path, HEADER + "\n".join(ROWS) + "\n"))
    frame = check(source.frame.collect(), Trades)
    assert frame.select("event_time", "kind", "side", "price", "size", "exchange", "condition").rows() == [
        (OPEN + 1, 4, 0, 157_800_000, 100, "P", ""),
        (OPEN + 5 * 10**8, 4, 0, 157_805_000, 2, "T", "F I"),
        (OPEN + 5 * 10**8, 4, 0, 157_805_000, 2, "T", "F I"),
        (OPEN + 2 * 10**9, 4, 0, 157_900_000, 7, "D", "@ TI"),
    ]
    assert frame["available_time"].to_list() == frame["event_time"].to_list()
    assert source.report.rows_read == 4
    assert source.report.rows_set_aside == {
        "correction 10": 1,
        "correction 8": 1,
        "sale condition 4: derivatively priced": 1,
    }
    assert source.left_out.collect()["line"].to_list() == [5, 7, 8]
    assert any("1 rows are equal to an earlier row" in note for note in source.report.notes)
    assert source.kind == "trades"
    assert source.instruments[0].tick == 10_000


def test_the_clock_may_show_another_zone(tmp_path: Path) -> None:
    here, there = (scan_taq(write(tmp_path, HEADER + "\n".join(ROWS) + "\n"), **zone) for zone in ({}, {"zone": "UTC"}))
    five_hours = 5 * 3600 * 10**9  # of New York behind UTC in January
    assert (here.frame.collect()["event_time"] - there.frame.collect()["event_time"]).unique().to_list() == [five_hours]


def test_what_is_set_aside_can_be_chosen(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER + "\n".join(ROWS) + "\n")
    every = scan_taq(path, conditions="")
    assert every.report.rows_set_aside == {"correction 10": 1, "correction 8": 1}
    once = scan_taq(path, duplicates="drop", conditions="T")
    assert once.report.rows_set_aside == {
        "correction 10": 1,
        "correction 8": 1,
        "exact duplicate of an earlier row": 1,
        "sale condition T": 1,
    }
    assert once.report.rows_read + sum(once.report.rows_set_aside.values()) == len(ROWS)
    for setting in ("duplicates", "book", "clock_step"):
        assert f"{setting} must be one of" in refusal(path, **{setting: "x"})


def test_dialects_say_the_same(tmp_path: Path) -> None:
    wrds = "DATE,TIME_M,EX,SYM_ROOT,SYM_SUFFIX,TR_SCOND,SIZE,PRICE,TR_CORR\n"
    wrds += "20180102,9:30:00.000000001,P,XY,,,100,157.80,00\n2018-01-02,09:30:00.5,T,XY,A,F I,2.0,157.805000,00\n"
    old = "SYMBOL\tDATE\tTIME\tPRICE\tSIZE\tG127\tCORR\tCOND\tEX\n"
    old += (
        "XY\t20180102\t9:30:00.000000001\t157.8\t100\t0\t0\t\tP\nXY.A\t20180102\t9:30:00.5\t157.805\t2\t0\t0\tF I\tT\n"
    )
    packed = tmp_path / "b.csv.gz"
    packed.write_bytes(gzip.compress(old.encode()))
    one, two = scan_taq(write(tmp_path, wrds)), scan_taq(packed)
    assert one.frame.collect().equals(two.frame.collect())
    assert [each.entity for each in one.instruments] == ["XY", "XY.A"]
    assert one.frame.collect()["size"].to_list() == [100, 2]


def test_rows_are_put_in_order_and_ties_keep_theirs(tmp_path: Path) -> None:
    rows = [f"2018-01-02 09:30:0{9 - n // 2},P,{'BA'[n % 2]},,{n + 1},1,0" for n in range(10)]
    frame = check(scan_taq(write(tmp_path, HEADER + "\n".join(rows))).frame.collect(), Trades)
    assert frame["entity"].to_list() == ["A"] * 5 + ["B"] * 5
    assert frame["size"].to_list() == [10, 8, 6, 4, 2, 9, 7, 5, 3, 1]
    same = [f"2018-01-02 09:30:00,P,A,,{n},1,0" for n in (3, 1, 2)]
    assert scan_taq(write(tmp_path, HEADER + "\n".join(same))).frame.collect()["size"].to_list() == [3, 1, 2]


def test_times_that_a_float_has_held_are_told_and_rounded_when_asked(tmp_path: Path) -> None:
    def stamp(seconds: float) -> str:
        nanoseconds = int(seconds * 10**9)  # what a float keeps of a time in 2018
        day = dt.datetime(1970, 1, 1) + dt.timedelta(seconds=nanoseconds // 10**9)
        return f"{day:%Y-%m-%d %H:%M:%S}.{nanoseconds % 10**9:09}"

    times = [1_514_885_400.1 + n * 0.537 for n in range(40)]
    path = write(tmp_path, HEADER + "".join(f"{stamp(t)},P,A,,1,1,0\n" for t in times))
    source = scan_taq(path)
    assert any("ns of whole ms and not on them" in note for note in source.report.notes)
    whole = scan_taq(path, clock_step="ms")
    assert not whole.report.notes
    exact = [round(t * 1000) * 10**6 + 18_000 * 10**9 for t in times]  # New York is five hours behind
    assert whole.frame.collect()["event_time"].to_list() == exact
    assert (source.frame.collect()["event_time"] - pl.Series(exact)).abs().max() < 250


QUOTES = "DATE,TIME_M,EX,BID,BIDSIZ,ASK,ASKSIZ,QU_COND,SYM_ROOT,SYM_SUFFIX\n"


def test_quotes_of_several_exchanges(tmp_path: Path) -> None:
    rows = [
        "20180102,9:30:00,N,10.00,5,10.02,6,R,XY,",
        "20180102,9:30:01,P,10.01,2,10.02,1,R,XY,",
        "20180102,9:30:02,P,0,0,10.03,1,R,XY,",
        "20180103,9:30:00,P,9.99,3,10.05,1,R,XY,",
    ]
    path = write(tmp_path, QUOTES + "\n".join(rows) + "\n")
    best = scan_taq(path)
    frame = check(best.frame.collect(), BookEvents)
    assert best.kind == "quotes"
    shown = frame.filter("complete").select("ask_price_1", "ask_size_1", "bid_price_1", "bid_size_1", "exchange").rows()
    assert shown == [
        (10_020_000, 6, 10_000_000, 5, "N"),
        (10_020_000, 7, 10_010_000, 2, "P"),
        (10_020_000, 6, 10_000_000, 5, "P"),
        (10_050_000, 1, 9_990_000, 3, "P"),  # a new day knows nothing of the one before
    ]
    apart = scan_taq(path, book="exchange")
    frame = check(apart.frame.collect(), BookEvents)
    assert [each.entity for each in apart.instruments] == ["XY@N", "XY@P"]
    own = frame.filter(pl.col("complete") & (pl.col("entity") == "XY@P"))
    assert own["bid_price_1"].to_list() == [10_010_000, None, 9_990_000]
    assert own["bid_size_1"].to_list() == [2, 0, 3]


BAD = [
    ("2018-01-02 25:00:00,P,A,,1,1,0", "no time"),
    ("2018-03-11 02:30:00,P,A,,1,1,0", "no time"),  # New York's clocks jumped over it
    ("2018-01-02 09:30:00,P,,,1,1,0", "no symbol"),
    ("2018-01-02 09:30:00,P,A,,1,0,0", "impossible price"),
    ("2018-01-02 09:30:00,P,A,,1,1.0000001,0", "impossible price"),
    ("2018-01-02 09:30:00,P,A,,1.5,1,0", "impossible size"),
    ("2018-01-02 09:30:00,P,A,,1,1", "another number of fields than 7"),
]


@pytest.mark.parametrize(("row", "reason"), BAD)
def test_a_bad_row_is_refused_or_set_aside(tmp_path: Path, row: str, reason: str) -> None:
    good = "2018-01-02 09:31:00,P,A,,1,1,0\n"
    path = write(tmp_path, HEADER + good + row + "\n" + good)
    said = refusal(path)
    assert said.startswith(f"taq.csv, line 3: {reason}")
    source = scan_taq(path, on_bad="quarantine", set_aside=tmp_path / "aside.csv")
    assert source.report.rows_set_aside == {reason: 1}
    assert source.report.rows_read == 2
    assert pl.read_csv(tmp_path / "aside.csv")["line"].to_list() == [3]


def test_files_that_are_none(tmp_path: Path) -> None:
    assert "is empty" in refusal(write(tmp_path, ""))
    assert "expected columns of TAQ" in refusal(write(tmp_path, "DT,PRICE,SIZE\n"))
    assert "expected columns of TAQ" in refusal(write(tmp_path, "DATE,SYMBOL,PRICE,SIZE\n"))
    write(tmp_path, QUOTES, "q.csv")
    write(tmp_path, HEADER, "taq.csv")
    assert "holds files of trades and of quotes" in refusal(tmp_path)


def test_the_real_file(realdata: Path) -> None:
    path = realdata / "lob" / "fx_and_taq" / "taq_trades_raw_XXX.csv.gz"
    source = scan_taq(path)
    frame = check(source.frame.collect(), Trades)
    aside = source.report.rows_set_aside
    assert (frame.height, sum(aside.values())) == (76_660, 603)
    assert (aside["correction 8"], aside["correction 10"]) == (1, 1)
    said = " ".join(source.report.notes)
    assert "5,850 rows are equal to an earlier row" in said
    assert "118 ns of whole ms" in said
    once = scan_taq(path, duplicates="drop", clock_step="ms").report
    assert once.rows_set_aside["exact duplicate of an earlier row"] == 5_850
    assert once.rows_read + sum(once.rows_set_aside.values()) == 77_263
    assert SOURCES["taq"] is scan_taq
