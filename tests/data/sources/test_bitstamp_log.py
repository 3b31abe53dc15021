"""An order log by hand: what each action does to its order, who took and who rested, what is set aside."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from quantattn.data.schema import CANCEL, DELETE, EXECUTE, NEW, BookEvents, check
from quantattn.data.sources import SOURCES, scan_bitstamp

pytest.importorskip("numba", reason="numba is not here (pip install 'quantattn[book]')")

T = 1_430_438_400_000  # ms, a whole second
HEADER = "id,timestamp,exchange.timestamp,price,volume,action,direction"
BOOK = ["ask_price_1", "ask_size_1", "bid_price_1", "bid_size_1"]


def line(number: int, at: int, price: str, volume: int, action: str, direction: str, made: int = 0) -> str:
    return f"{number},{T + at},{T + made},{price},{volume},{action},{direction}"


def write(path: Path, *lines: str) -> Path:
    path.write_bytes("\n".join([HEADER, *lines, ""]).encode())
    return path


STORY = [
    line(1, 10, "100.0", 50, "created", "ask"),
    line(2, 20, "99", 70, "created", "bid"),
    line(3, 30, "100.5", 80, "created", "bid"),  # takes order 1, and rests with what is left
    line(3, 31, "100.5", 30, "changed", "bid"),
    line(1, 32, "100.0", 0, "deleted", "ask"),
    line(4, 40, "100", 10, "created", "ask", made=-1000),  # takes from order 3, which rests now
    line(3, 41, "100.5", 20, "changed", "bid"),
    line(4, 42, "100", 0, "deleted", "ask"),
    line(3, 50, "100.5", 20, "changed", "bid"),
    line(2, 60, "99", 70, "deleted", "bid"),
    line(9, 70, "101", 40, "changed", "ask"),  # stood before the log began
    line(8, 80, "98", 0, "deleted", "bid"),  # the same, and is gone
]


def test_each_line_does_to_its_order_what_it_says(tmp_path: Path) -> None:
    source = scan_bitstamp(write(tmp_path / "o.csv", *STORY), 1, price_exponent=-1)
    frame = check(source.frame.collect(), BookEvents)
    assert frame.select("order_id", "kind", "side", "price", "size", *BOOK).rows() == [
        (1, NEW, -1, 1000, 50, 1000, 50, None, 0),
        (2, NEW, 1, 990, 70, 1000, 50, 990, 70),
        (3, NEW, 1, 1005, 80, 1000, 50, 1005, 80),
        (3, CANCEL, 1, 1005, 50, 1000, 50, 1005, 30),
        (1, EXECUTE, -1, 1000, 50, None, 0, 1005, 30),
        (4, NEW, -1, 1000, 10, 1000, 10, 1005, 30),
        (3, EXECUTE, 1, 1005, 10, 1000, 10, 1005, 20),
        (4, CANCEL, -1, 1000, 10, None, 0, 1005, 20),
        (3, CANCEL, 1, 1005, 0, None, 0, 1005, 20),
        (2, DELETE, 1, 990, 70, None, 0, 1005, 20),
        (9, NEW, -1, 1010, 40, 1010, 40, 1005, 20),
        (8, EXECUTE, 1, 980, 0, 1010, 40, 1005, 20),
    ]
    assert (source.tally.unknown_ids, source.tally.crossed, source.tally.overdrawn) == (1, 4, 0)
    # A stamp is when the order was made: it dates new orders alone.
    dated = [0, 0, 0, 31, 32, -1000, 41, 42, 50, 60, 70, 80]
    assert [time // 10**6 - T for time in frame["event_time"]] == dated
    assert [time // 10**6 - T for time in frame["available_time"]] == [10, 20, 30, 31, 32, 40, 41, 42, 50, 60, 70, 80]
    assert frame["exchange_time"].to_list()[5] == (T - 1000) * 10**6
    assert SOURCES["bitstamp"] is scan_bitstamp
    (tmp_path / "o.csv.xz").write_bytes(lzma.compress((tmp_path / "o.csv").read_bytes().replace(b"\n", b"\r\n")))
    assert scan_bitstamp(tmp_path / "o.csv.xz", 1, price_exponent=-1).frame.collect().equals(frame)


def test_every_share_that_was_taken_rested_or_came(tmp_path: Path) -> None:
    """Executions and what takers lost are the same shares, here 50 and 10 of each."""
    frame = scan_bitstamp(write(tmp_path / "o.csv", *STORY)).frame.collect()
    taken, took = (frame.filter(kind=kind)["size"].sum() for kind in (EXECUTE, CANCEL))
    assert taken == took == 60


@pytest.mark.parametrize("place", range(2, 12))
def test_another_future_leaves_every_earlier_row_its_bits(tmp_path: Path, place: int) -> None:
    other = [*STORY[:place], line(77, 90, "95", 5, "created", "ask"), line(78, 91, "101", 9, "created", "bid")]
    made = [scan_bitstamp(write(tmp_path / "o.csv", *each), 2).frame.collect() for each in (STORY, other)]
    assert made[0].head(place).equals(made[1].head(place))


def test_lines_of_an_order_that_is_gone_are_set_aside_whatever_on_bad_says(tmp_path: Path) -> None:
    gone = [line(1, 33, "100.0", 0, "deleted", "ask"), line(1, 34, "100.0", 7, "changed", "ask")]
    twice = line(2, 20, "99", 70, "created", "bid")
    path = write(tmp_path / "o.csv", *STORY[:2], twice, *STORY[2:5], STORY[4], *gone, *STORY[5:])
    source = scan_bitstamp(path, 1)
    assert source.report.rows_set_aside == {"the same line twice": 2, "order already gone or made": 2}
    plain = scan_bitstamp(write(tmp_path / "o.csv", *STORY), 1).frame.collect()
    assert source.frame.collect().drop("seq").equals(plain.drop("seq"))


BAD = {
    "action": (
        line(5, 90, "100", 1, "made", "ask"),
        "found 'made' as action, expected one of created, changed, deleted",
    ),
    "direction": (line(5, 90, "100", 1, "created", "sell"), "found 'sell' as direction, expected one of bid, ask"),
    "volume": (line(5, 90, "100", -1, "created", "bid"), "found '-1' as volume, expected a whole number below"),
    "decimal": (line(5, 90, "100", 1, "created", "bid").replace(",1,c", ",1.0,c"), "found '1.0' as volume"),
    "price": (line(5, 90, "1e", 1, "created", "bid"), "found '1e' as price"),
    "seconds": (
        line(5, 90, "100", 1, "created", "bid").replace(str(T + 90), "1430438400"),
        "as timestamp, expected a time",
    ),
    "back": (line(5, -5000, "100", 1, "created", "bid"), "more than a second before an earlier line"),
    "short": ("5,6", "found 2 fields, expected 7"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_line_is_refused_by_name_or_set_aside(tmp_path: Path, case: str) -> None:
    bad, words = BAD[case]
    path = write(tmp_path / "o.csv", *STORY, bad)
    with pytest.raises(ValueError, match=rf"^o\.csv, line 14: .*{words}"):
        scan_bitstamp(path)
    source = scan_bitstamp(path, 1, on_bad="quarantine", set_aside=tmp_path / "aside.csv")
    assert sum(source.report.rows_set_aside.values()) == 1
    assert source.frame.collect().height == source.report.rows_read == len(STORY)


def test_another_header_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n")
    with pytest.raises(ValueError, match=r"x\.csv, line 1: found columns 'a, b', expected id, timestamp"):
        scan_bitstamp(tmp_path / "x.csv")
