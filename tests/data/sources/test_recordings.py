"""Recorded messages by hand: chains of depth, late snapshots, books shipped whole, ids of levels, connections."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from quantattn.data.schema import CLEAR, EXECUTE, UPDATE, BookEvents, check
from quantattn.data.sources import SOURCES, scan_capture, scan_hftbacktest

pytest.importorskip("numba", reason="numba is not here (pip install 'quantattn[book]')")

T = 1_700_000_000_000  # ms
BOOK = ["ask_price_1", "ask_size_1", "bid_price_1", "bid_size_1"]
WHOLE = {"price_exponent": -1, "size_exponent": 0}
Message = tuple[int, dict[str, Any]]


def recording(path: Path, messages: list[Message]) -> Path:
    lines = (f"{(T + at) * 10**6 + 7} {json.dumps(message)}\n" for at, message in messages)
    path.write_text("".join(lines))
    return path


def depth(first: int, last: int, bids: list[list[str]], asks: list[list[str]], **more: Any) -> dict[str, Any]:
    body = {"e": "depthUpdate", "E": T, "s": "ETHUSDT", "U": first, "u": last, "b": bids, "a": asks, **more}
    return {"stream": "ethusdt@depth@100ms", "data": body}


SNAPSHOT = {"lastUpdateId": 103, "bids": [["99", "1"], ["98", "2"]], "asks": [["101", "3"]]}
COVERED = depth(90, 100, [["99", "9"]], [["101", "9"]])
NEWER = depth(101, 105, [["99", "0"]], [["100.5", "4"]])
FOLLOWS = depth(106, 107, [["99.5", "6"]], [])
TRADE = {"data": {"e": "trade", "E": T, "s": "ETHUSDT", "t": 5, "p": "100.5", "q": "1", "T": T - 2, "m": False}}
TICKER = {"data": {"u": 107, "s": "ETHUSDT", "b": "99.5", "B": "6", "a": "100.5", "A": "4"}}
LAST = (1005, 4, 995, 6)


def final(path: Path, messages: list[Message], **how: Any) -> tuple[int | None, ...]:
    frame = scan_hftbacktest(recording(path, messages), 1, **WHOLE, **how).frame.collect()
    return check(frame, BookEvents).select(BOOK).row(-1)


@pytest.mark.parametrize("place", range(4))
def test_wherever_a_snapshot_arrives_the_book_is_the_same(tmp_path: Path, place: int) -> None:
    """Changes that came before it and are newer than it are applied with it; those that it covers never."""
    messages = [COVERED, NEWER, FOLLOWS]
    messages.insert(place, SNAPSHOT)
    assert final(tmp_path / "a.txt", [*enumerate(messages), (9, TRADE)]) == LAST


def test_rows_by_hand(tmp_path: Path) -> None:
    messages = [(1, COVERED), (2, TRADE), (3, SNAPSHOT), (4, NEWER), (5, TICKER), (6, FOLLOWS), (7, TRADE)]
    source = scan_hftbacktest(recording(tmp_path / "a.txt", messages), 1, **WHOLE)
    frame = check(source.frame.collect(), BookEvents)
    nothing, opened = (None, 0, None, 0), (1010, 3, 990, 1)
    expected = [
        (1, UPDATE, 1, 990, 9, None, False, *nothing),
        (1, UPDATE, -1, 1010, 9, None, True, *nothing),
        (2, EXECUTE, -1, 1005, 1, "5", True, *nothing),
        (3, CLEAR, 0, None, 0, None, False, *nothing),
        (3, UPDATE, 1, 990, 1, None, False, *nothing),
        (3, UPDATE, 1, 980, 2, None, False, *nothing),
        (3, UPDATE, -1, 1010, 3, None, True, *opened),
        (4, UPDATE, 1, 990, 0, None, False, *opened),
        (4, UPDATE, -1, 1005, 4, None, True, 1005, 4, 980, 2),
        (6, UPDATE, 1, 995, 6, None, True, *LAST),
        (7, EXECUTE, -1, 1005, 1, "5", True, *LAST),
    ]
    columns = ["available_time", "kind", "side", "price", "size", "trade_id", "complete", *BOOK]
    assert frame.select(columns).rows() == [((T + at) * 10**6 + 7, *rest) for at, *rest in expected]
    assert frame["exchange_time"].to_list()[2:4] == [(T - 2) * 10**6, None]
    assert (source.tally.unopened, source.tally.breaks) == (2, 0)
    assert any("make no row: bookTicker 1" in note for note in source.report.notes)
    assert SOURCES["hftbacktest"] is scan_hftbacktest
    assert SOURCES["capture"] is scan_capture


def test_a_gap_in_the_ids_ends_the_book_until_the_next_snapshot(tmp_path: Path) -> None:
    opened: list[Message] = [(1, SNAPSHOT), (2, NEWER)]
    gap = depth(108, 109, [["99.5", "6"]], [])
    nothing = (None, 0, None, 0)
    path = tmp_path / "a.txt"
    assert final(path, [*opened, (3, gap)]) == nothing
    assert final(path, [*opened, (3, gap)], on_gap="keep") == LAST
    again = {**SNAPSHOT, "lastUpdateId": 109}
    assert final(path, [*opened, (3, gap), (4, again)]) == (1010, 3, 990, 1)
    older = {**SNAPSHOT, "lastUpdateId": 102}
    assert final(path, [*opened, (3, older)]) == (1005, 4, 980, 2)
    # A message without a level can be the one behind the gap.
    empty = [*opened, (3, depth(108, 109, [], [])), (4, depth(110, 111, [["99.5", "6"]], []))]
    assert final(path, empty) == nothing
    # Futures say which id was the last before, and theirs are not consecutive.
    futures = [(1, SNAPSHOT), (2, depth(90, 105, [["99", "0"]], [["100.5", "4"]], pu=80))]
    assert final(path, [*futures, (3, depth(120, 130, [["99.5", "6"]], [], pu=105))]) == LAST
    assert final(path, [*futures, (3, depth(106, 130, [["99.5", "6"]], [], pu=104))]) == nothing
    covered, after = depth(90, 103, [], [["101", "9"]], pu=80), depth(105, 110, [["99", "7"]], [], pu=103)
    for order in ([covered, after, SNAPSHOT], [covered, SNAPSHOT, after], [SNAPSHOT, covered, after]):
        assert final(path, [*enumerate(order), (9, TRADE)]) == (1010, 3, 990, 7)


def test_a_chain_goes_on_in_the_next_file(tmp_path: Path) -> None:
    recording(tmp_path / "1.txt", [(1, SNAPSHOT), (2, NEWER)])
    recording(tmp_path / "2.txt", [(3, FOLLOWS)])
    frame = scan_hftbacktest(tmp_path, 1, **WHOLE).frame.collect()
    assert frame.select(BOOK).row(-1) == LAST
    recording(tmp_path / "2.txt", [(3, depth(107, 108, [["99.5", "6"]], []))])
    assert scan_hftbacktest(tmp_path, 1, **WHOLE).tally.breaks == 1
    recording(tmp_path / "3.txt", [(2, FOLLOWS)])
    with pytest.raises(ValueError, match=r"3\.txt and 2\.txt hold ETHUSDT at the same time"):
        scan_hftbacktest(tmp_path)


def test_quotes_are_one_row_each(tmp_path: Path) -> None:
    messages = [(1, TRADE), (2, TICKER), (3, NEWER), (4, TRADE)]
    source = scan_hftbacktest(recording(tmp_path / "a.txt", messages), book="quotes", **WHOLE)
    frame = check(source.frame.collect(), BookEvents)
    nothing = (None, 0, None, 0)
    assert frame.select("kind", "side", *BOOK).rows() == [
        (EXECUTE, -1, *nothing),
        (UPDATE, 0, *LAST),
        (EXECUTE, -1, *LAST),
    ]
    assert source.tally is None


def test_hyperliquid_ships_whole_books(tmp_path: Path) -> None:
    sides = [[{"px": "99", "sz": "1", "n": 1}], [{"px": "101", "sz": "2", "n": 1}, {"px": "102", "sz": "3", "n": 2}]]
    book = {"channel": "l2Book", "data": {"coin": "BTC", "time": T, "levels": sides}}
    trades = [{"coin": "BTC", "side": side, "px": "101", "sz": "1", "time": T - 50_000, "tid": 8} for side in "BA"]
    messages = [(1, book), (2, {"channel": "trades", "data": trades}), (3, {"channel": "pong"})]
    source = scan_hftbacktest(recording(tmp_path / "a.txt", messages), 2, **WHOLE)
    frame = check(source.frame.collect(), BookEvents)
    assert frame.select("kind", "side", *BOOK, "ask_price_2", "bid_price_2", "bid_size_2").rows() == [
        (UPDATE, 0, 1010, 2, 990, 1, 1020, None, 0),
        (EXECUTE, -1, 1010, 2, 990, 1, 1020, None, 0),
        (EXECUTE, 1, 1010, 2, 990, 1, 1020, None, 0),
    ]
    assert frame["event_time"].to_list()[1] == (T - 50_000) * 10**6
    sides[1].reverse()
    with pytest.raises(ValueError, match=r"a\.txt, line 1: found asks out of order, expected the best first"):
        scan_hftbacktest(recording(tmp_path / "a.txt", messages), 2, **WHOLE)


BAD = {
    "no receipt": ("x {}", "no receipt|found 'x', expected a whole number below 2\\^63 at the beginning"),
    "no json": (f"{T * 10**6} {{", "found no JSON"),
    "a list": (f"{T * 10**6} []", "expected a JSON object"),
    "NaN": (f'{T * 10**6} {{"a": NaN}}', "NaN is no JSON"),
    "nested": (f"{T * 10**6} {'[' * 100_000}", "found no JSON"),
    "unit": (f"{T} {{}}", "expected a time between 2009 and 2100"),
    "ids": (f"{T * 10**6 + 8} {json.dumps(depth(5, 4, [], []))}", "found first update 5 after last 4"),
    "level": (f"{T * 10**6 + 8} {json.dumps(depth(106, 107, [['1']], []))}", "among b, expected a price and a size"),
    "price": (f"{T * 10**6 + 8} {json.dumps(depth(106, 107, [['x', '1']], []))}", "price: found 'x', expected a"),
    "float": (f"{T * 10**6 + 8} {json.dumps(depth(106, 107, [[True, '1']], []))}", "found True as price"),
    "field": (f'{T * 10**6 + 8} {{"e": "trade", "s": "A", "m": "true"}}', "found 'true' as 'm', expected true or"),
    "back": (f"{(T - 5000) * 10**6} {{}}", "found receipt .*, expected times that rise"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_line_is_refused_or_set_aside_and_is_a_gap(tmp_path: Path, case: str) -> None:
    line, words = BAD[case]
    path = recording(tmp_path / "a.txt", [(1, SNAPSHOT), (2, NEWER)])
    path.write_text(f"{path.read_text()}{line}\n{(T + 9) * 10**6} {json.dumps(FOLLOWS)}\n")
    with pytest.raises(ValueError, match=rf"^a\.txt, line 3: .*({words})") as caught:
        scan_hftbacktest(path, **WHOLE)
    assert len(str(caught.value)) < 300
    source = scan_hftbacktest(path, 1, on_bad="quarantine", set_aside=tmp_path / "aside.csv", **WHOLE)
    assert sum(source.report.rows_set_aside.values()) == 1
    assert source.tally.breaks == 1
    assert source.frame.collect()["bid_price_1"].to_list()[-2:] == [980, None]


def capture(path: Path, *lines: str | Message) -> Path:
    made = [f"{(T + each[0]) / 1000:.6f}: {json.dumps(each[1])}" if isinstance(each, tuple) else each for each in lines]
    path.write_text("".join(f"{line}\n" for line in made))
    return path


def bitmex(action: str, *rows: dict[str, Any], table: str = "orderBookL2") -> dict[str, Any]:
    return {"table": table, "action": action, "data": [{"symbol": "XBTUSD", **each} for each in rows]}


PARTIAL = bitmex(
    "partial", {"id": 1, "side": "Sell", "size": 3, "price": 101}, {"id": 2, "side": "Buy", "size": 4, "price": 99.5}
)
OPENED = "wss://www.bitmex.com/realtime <-> 1700000000.0"


def test_levels_are_named_by_ids(tmp_path: Path) -> None:
    lines = [
        OPENED,
        'wss://www.bitmex.com/realtime <- 1700000000.1: {"op":"subscribe"}',
        (1, {"info": "Welcome"}),
        (2, bitmex("update", {"id": 2, "side": "Buy", "size": 1})),
        (3, PARTIAL),
        (4, bitmex("update", {"id": 2, "side": "Buy", "size": 5})),
        (5, bitmex("insert", {"id": 3, "side": "Buy", "size": 7, "price": 100})),
        (
            6,
            bitmex(
                "insert",
                {"timestamp": "2023-11-14T22:13:20.001Z", "side": "Sell", "size": 2, "price": 100, "trdMatchID": "x"},
                table="trade",
            ),
        ),
        (7, bitmex("delete", {"id": 3, "side": "Buy"}, {"id": 1, "side": "Sell"})),
        (8, bitmex("update", {"id": 2, "side": "Sell", "size": 6})),
    ]
    source = scan_capture(capture(tmp_path / "a.0", *lines), 1, **WHOLE)
    frame = check(source.frame.collect(), BookEvents)
    assert frame.filter("complete").select("kind", "side", *BOOK).rows() == [
        (UPDATE, -1, 1010, 3, 995, 4),
        (UPDATE, 1, 1010, 3, 995, 5),
        (UPDATE, 1, 1010, 3, 1000, 7),
        (EXECUTE, 1, 1010, 3, 1000, 7),
        (UPDATE, -1, None, 0, 995, 5),
        (UPDATE, -1, 995, 6, None, 0),
    ]
    assert not any(vars(source.tally).values())
    assert frame.filter(kind=EXECUTE)["exchange_time"].to_list() == [(T + 1) * 10**6]
    # A connection that begins anew is a gap, and its changes wait for a new partial.
    again = scan_capture(capture(tmp_path / "a.0", *lines, OPENED, lines[5], (11, PARTIAL)), 1, **WHOLE)
    assert again.tally.breaks == 1
    assert again.frame.collect().select(BOOK).row(-1) == (1010, 3, 995, 4)
    unknown = (4, bitmex("delete", {"id": 9, "side": "Buy"}))
    with pytest.raises(
        ValueError, match=r"a\.0, line 6: found delete of level 9, expected one that was brought before"
    ):
        scan_capture(capture(tmp_path / "a.0", *lines[:5], unknown), 1, **WHOLE)
    with pytest.raises(
        ValueError, match=r"a\.0, line 1: found b'hello', expected '<seconds>: <JSON>' or a control line"
    ):
        scan_capture(capture(tmp_path / "a.0", "hello"))
    with pytest.raises(ValueError, match=r"a\.0, line 1: found keys .*, expected messages of kraken, bitmex, .*bybit"):
        scan_capture(capture(tmp_path / "a.0", (1, {"x": 1})))


def test_changes_alone_have_no_book_unless_it_may_begin_empty(tmp_path: Path) -> None:
    def event(channel: str, **body: Any) -> dict[str, Any]:
        kind = "trade" if "trades" in channel else "data"
        return {"event": kind, "channel": channel, "data": {"microtimestamp": str(T * 1000), **body}}

    trade = event("live_trades_ethusd", id=4, type=1, price_str="99.5", amount_str="2", price=99.5, amount=2.0)
    lines = [(1, event("diff_order_book_ethusd", bids=[["99.5", "1"]], asks=[["100", "2"]])), (2, trade)]
    path = capture(tmp_path / "a.0", *lines)
    source = scan_capture(path, 1, **WHOLE)
    assert source.frame.collect().select("kind", "side", *BOOK).rows()[-1] == (EXECUTE, 1, None, 0, None, 0)
    assert any("no snapshot of ethusd came" in note for note in source.report.notes)
    empty = scan_capture(path, 1, from_empty=True, **WHOLE).frame.collect()
    assert empty.select(BOOK).row(-1) == (1000, 2, 995, 1)
    whole = capture(tmp_path / "b.0", (1, event("order_book_ethusd", bids=[["99.5", "1"]], asks=[])), *lines[1:])
    shipped = scan_capture(whole, 1, **WHOLE).frame.collect()
    assert shipped.select("kind", *BOOK).rows()[-1] == (EXECUTE, None, 0, 995, 1)
    assert shipped["kind"].to_list()[0] == CLEAR
    assert shipped.filter(pl.col("kind") == EXECUTE)["trade_id"].to_list() == ["4"]
