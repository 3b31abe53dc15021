"""Captures of Kraken and tickers of OKX by hand: books held against their checksums, levels that fall out of view."""

from __future__ import annotations

import random
import zlib
from pathlib import Path
from typing import Any

import pytest
from test_captures import ROWS, WHOLE, T, capture, okx

from quantattn.data.schema import CLEAR, UPDATE, BookEvents, check
from quantattn.data.sources import scan_capture

pytest.importorskip("numba", reason="numba is not here (pip install 'quantattn[book]')")

HOST = "ws.kraken.com"
STAMP, ISO = f"{T // 1000}.000000", "2023-11-14T22:13:20.000000Z"
DEPTH = 10
Side = dict[str, str]


def digits(*sides: Side) -> int:
    """The checksum in the words of the venue's page: asks from the lowest, bids from the highest, ten of each."""
    said = ""
    for sign, side in zip((1, -1), sides, strict=True):
        for price in sorted(side, key=lambda text: sign * float(text))[:10]:
            said += "".join(str(int(number.replace(".", ""))) for number in (price, side[price]))
    return zlib.crc32(said.encode())


def first(body: dict[str, Any], channel: str = f"book-{DEPTH}") -> list[Any]:
    return [7, body, channel, "X"]


def second(kind: str, bids: Side, asks: Side, checksum: int | None = None) -> dict[str, Any]:
    sides = {
        name: [{"price": float(price), "qty": float(size)} for price, size in side.items()]
        for name, side in (("bids", bids), ("asks", asks))
    }
    more = {} if checksum is None else {"checksum": checksum}
    return {"channel": "book", "type": kind, "data": [{"symbol": "X", **sides, **more, "timestamp": ISO}]}


def shipped(bids: Side, asks: Side) -> list[Any]:
    sides = {name: [[*level, STAMP] for level in side.items()] for name, side in (("bs", bids), ("as", asks))}
    return first(sides)


def changed(bids: Side, asks: Side, checksum: int) -> list[Any]:
    """Of both sides, as the venue sends it: two objects, the checksum in the last."""
    parts = [{name: [[*level, STAMP] for level in side.items()]} for name, side in (("a", asks), ("b", bids)) if side]
    parts[-1] = {**parts[-1], "c": str(checksum)}
    return [7, *parts, f"book-{DEPTH}", "X"]


def rows(path: Path, **more: Any) -> list[tuple[Any, ...]]:
    frame = check(scan_capture(path, 1, **WHOLE, **more).frame.collect(), BookEvents)
    columns = ("ask_price_1", "ask_size_1", "bid_price_1", "bid_size_1")
    return frame.select("kind", "side", "price", "size", *columns).rows()


AFTER = {"100.5": "4", "101": "3"}
VERSIONS: dict[int, list[Any]] = {
    1: [
        {"event": "systemStatus", "connectionID": 1, "status": "online"},
        shipped({"99": "1"}, {"101": "3"}),
        changed({"99": "0"}, {"100.5": "4"}, digits(AFTER, {})),
        {"event": "heartbeat"},
        [9, [["100.5", "2", STAMP, "b", "l", ""]], "trade", "X"],
    ],
    2: [
        {
            "method": "subscribe",
            "result": {"channel": "book", "depth": DEPTH, "symbol": "X"},
            "success": True,
            "time_in": ISO,
        },
        {"channel": "trade", "type": "snapshot", "data": [{"symbol": "X", "side": "up"}]},
        second("snapshot", {"99": "1"}, {"101": "3"}),
        second("update", {"99": "0"}, {"100.5": "4"}),
        {
            "channel": "trade",
            "type": "update",
            "data": [{"symbol": "X", "side": "buy", "qty": 2, "price": 100.5, "trade_id": 5, "timestamp": ISO}],
        },
    ],
}


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("version", VERSIONS)
def test_both_versions_tell_the_same_market(tmp_path: Path, version: int, told: bool) -> None:
    path = capture(tmp_path / "a.0", HOST if told else None, VERSIONS[version])
    assert rows(path) == ROWS
    frame = scan_capture(path, 1, **WHOLE).frame.collect()
    assert frame["trade_id"].to_list()[-1] == (None if version == 1 else "5")
    assert frame["event_time"].unique().to_list() == [T * 10**6]


class Venue:
    """A market that sends what changed of a book of `DEPTH` levels, and no word of levels that are out of view."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.sides: tuple[Side, Side] = ({}, {})
        for n in range(DEPTH):
            self.sides[0][f"{99 - n}.5"], self.sides[1][f"{101 + n}.5"] = f"{n + 1}.0", f"{n + 2}.0"

    def view(self) -> tuple[Side, Side]:
        kept = (
            sorted(side, key=lambda text: sign * float(text))[:DEPTH]
            for side, sign in zip(self.sides, (-1, 1), strict=True)
        )
        bids, asks = ({price: side[price] for price in each} for side, each in zip(self.sides, kept, strict=True))
        return bids, asks

    def change(self) -> tuple[Side, Side]:
        """Some levels set, and all those told whose size in view is another one than before."""
        before = self.view()
        for _ in range(self.draw.randint(1, 3)):
            which = self.draw.randint(0, 1)
            price = f"{self.draw.randint(80, 100) if which == 0 else self.draw.randint(101, 121)}.5"
            size = self.draw.choice([0, 0, 1, 2, 30])
            if size:
                self.sides[which][price] = f"{size}.0"
            elif len(self.sides[which]) > 1:
                self.sides[which].pop(price, None)
        told: list[Side] = []
        for old, new, whole in zip(before, self.view(), self.sides, strict=True):
            gone = {price: "0.0" for price in old if price not in whole}
            told.append(gone | {price: size for price, size in new.items() if old.get(price) != size})
        return told[0], told[1]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("seed", range(3))
def test_every_checksum_of_a_long_market_holds(tmp_path: Path, version: int, seed: int) -> None:
    venue, say = Venue(seed), changed if version == 1 else lambda *sides: second("update", *sides)
    messages: list[Any] = [shipped(*venue.view()) if version == 1 else second("snapshot", *venue.view())]
    ends = []
    for _ in range(300):
        bids, asks = venue.change()
        if bids or asks:
            now = venue.view()
            messages.append(say(bids, asks, digits(now[1], now[0])))
            ends.append(now)
    path = capture(tmp_path / "a.0", HOST, messages)
    source = scan_capture(path, DEPTH, **WHOLE)
    assert source.tally.breaks == 0
    frame = source.frame.collect()
    last = {name: values[-1] for name, values in frame.to_dict(as_series=False).items()}
    for side, own in zip(("bid", "ask"), ends[-1], strict=True):
        shown = {last[f"{side}_price_{n}"]: last[f"{side}_size_{n}"] for n in range(1, DEPTH + 1)}
        shown.pop(None, None)
        assert shown == {int(price.replace(".", "")): int(float(size)) for price, size in own.items()}
    # What was set and is out of view would come back, if it were not forgotten.
    assert sum(len(side) for side in venue.sides) > sum(len(side) for side in ends[-1])


def test_a_checksum_that_does_not_hold_is_a_gap(tmp_path: Path) -> None:
    start, end = shipped({"99": "1"}, {"101": "3"}), changed({"98": "2"}, {}, 0)
    wrong = changed({"99": "0"}, {"100.5": "4"}, digits(AFTER, {}) ^ 1)
    path = capture(tmp_path / "a.0", HOST, [start, wrong, end, start])
    source = scan_capture(path, 1, **WHOLE)
    assert source.tally.breaks == 1
    made = rows(path)
    assert [row[4:] for row in made[4:6]] == [(None, 0, None, 0)] * 2
    assert made[-1] == ROWS[2]
    assert rows(path, on_gap="keep")[4] == ROWS[4]


def test_a_book_whose_own_checksum_does_not_hold_is_refused(tmp_path: Path) -> None:
    sides = {"99.0": "1.0"}, {"101.0": "3.0"}
    good = digits(sides[1], sides[0])
    for message, holds in ((second("snapshot", *sides, good), True), (second("snapshot", *sides, good ^ 1), False)):
        path = capture(tmp_path / "a.0", HOST, [message])
        if holds:
            assert rows(path) == ROWS[:3]
            continue
        with pytest.raises(ValueError, match=r"a\.0, line 2: found a book whose checksum is not \d+, expected one"):
            scan_capture(path)


def ticker(**body: Any) -> dict[str, Any]:
    return okx("tickers", None, instId="X", last="1", lastSz="1", **body)


QUOTES: dict[str, list[Any]] = {
    "ticker of version 1": [
        [7, {"a": ["101", "3", "3"], "b": ["99", "1", "1"], "c": ["1", "1"]}, "ticker", "X"],
        [7, {"a": ["100.5", "4", "4"], "b": ["98", "2", "2"]}, "ticker", "X"],
    ],
    "spread": [
        [7, ["99", "101", STAMP, "1", "3"], "spread", "X"],
        [7, ["98", "100.5", STAMP, "2", "4"], "spread", "X"],
    ],
    "ticker of version 2": [
        {
            "channel": "ticker",
            "type": "update",
            "data": [{"symbol": "X", "bid": bid, "bid_qty": bought, "ask": ask, "ask_qty": sold}],
        }
        for bid, bought, ask, sold in ((99, 1, 101, 3), (98, 2, 100.5, 4))
    ],
    "tickers of OKX": [
        ticker(bidPx="99", bidSz="1", askPx="101", askSz="3"),
        ticker(bidPx="98", bidSz="2", askPx="100.5", askSz="4"),
    ],
}
BOOK = {"spread": shipped({"1": "1"}, {}), "tickers of OKX": okx("bbo-tbt", None, bids=[["1", "1"]], asks=[])}


@pytest.mark.parametrize("case", QUOTES)
def test_quotes_are_books_of_one_level(tmp_path: Path, case: str) -> None:
    host = "ws.okx.com" if "OKX" in case else HOST
    books = [BOOK[case]] if case in BOOK else []
    path = capture(tmp_path / "a.0", host, [*QUOTES[case], *books])
    second_quote = [(UPDATE, 1, 980, 2, None, 0, None, 0), (UPDATE, -1, 1005, 4, 1005, 4, 980, 2)]
    made = [row if row[0] != CLEAR else (CLEAR, *row[1:4]) for row in rows(path, book="quotes")]
    assert [row[:4] for row in made] == [row[:4] for row in (*ROWS[:3], ROWS[0], *second_quote)]
    assert (made[2][4:], made[-1][4:]) == (ROWS[2][4:], second_quote[-1][4:])
    if not books:
        with pytest.raises(ValueError, match=r"holds no row that can be used; messages that make none: .*ticker"):
            scan_capture(path)


def test_a_side_without_an_order_is_empty(tmp_path: Path) -> None:
    path = capture(tmp_path / "a.0", "ws.okx.com", [ticker(bidPx="", bidSz="", askPx="101", askSz="3")])
    assert rows(path, book="quotes")[-1] == (UPDATE, -1, 1010, 3, 1010, 3, None, 0)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ([7, {}], "expected number, content, channel and pair in a list"),
        ([7, [["1", "1", STAMP, "up"]], "trade", "X"], "found side 'up', expected b or s"),
        ([7, [["1", "1"]], "trade", "X"], "expected price, volume, time and side of a trade"),
        ([7, {"a": [["1"]], "c": "1"}, "book-10", "X"], "found .'1'. among a, expected a price, a size and a time"),
        ([7, {"a": [["1", "1"]], "c": "1"}, "book-10", "X"], "among a, expected a price, a size and a time"),
        ([7, [], "book-10", "X"], "as book, expected a list of rows"),
        ({"feed": "book", "product_id": "X"}, "found a feed of Kraken's futures, expected its spot market"),
        (second("update", {"1": "1"}, {}) | {"data": [1]}, "as data, expected a list of rows"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, message: Any, words: str) -> None:
    with pytest.raises(ValueError, match=rf"a\.0, line 2: .*{words}"):
        scan_capture(capture(tmp_path / "a.0", HOST, [message]))


def test_lists_are_messages_of_kraken_alone(tmp_path: Path) -> None:
    path = capture(tmp_path / "a.0", "ws.okx.com", [okx("bbo-tbt", None, bids=[["1", "1"]], asks=[]), [1]])
    with pytest.raises(ValueError, match=r"a\.0, line 3: found \['1'\], expected a JSON object"):
        scan_capture(path)
    path = capture(tmp_path / "a.0", "stream.bybit.com", [{"topic": "tickers.X"}])
    with pytest.raises(ValueError, match="found a capture of bybit, expected one of kraken or okx for book=quotes"):
        scan_capture(path, book="quotes")
    with pytest.raises(ValueError, match="book must be 'depth' or 'quotes', got 'all'"):
        scan_capture(path, book="all")  # type: ignore[arg-type]
