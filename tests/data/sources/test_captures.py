"""Captures of several venues by hand: the same market, told in the words of each, becomes the same rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quantattn.data.schema import CLEAR, EXECUTE, UPDATE, BookEvents, check
from quantattn.data.sources import scan_capture

pytest.importorskip("numba", reason="numba is not here (pip install 'quantattn[book]')")

T = 1_700_000_000_000  # ms
ISO = "2023-11-14T22:13:20.000Z"
WHOLE = {"price_exponent": -1, "size_exponent": 0}
ROWS = [
    (CLEAR, 0, None, 0, None, 0, None, 0),
    (UPDATE, 1, 990, 1, None, 0, None, 0),
    (UPDATE, -1, 1010, 3, 1010, 3, 990, 1),
    (UPDATE, 1, 990, 0, 1010, 3, 990, 1),
    (UPDATE, -1, 1005, 4, 1005, 4, None, 0),
    (EXECUTE, -1, 1005, 2, 1005, 4, None, 0),
]
"""A book of a bid and an ask, a change of both sides, and a buyer who takes 2 at 100.5."""


def okx(channel: str, action: str | None, **body: Any) -> dict[str, Any]:
    more = {} if action is None else {"action": action}
    return {"arg": {"channel": channel, "instId": "X"}, **more, "data": [{"ts": str(T), **body}]}


def deribit(channel: str, data: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "subscription", "params": {"channel": f"{channel}.X.raw", "data": data}}


def change(number: int, **body: Any) -> dict[str, Any]:
    return deribit("book", {"timestamp": T, "instrument_name": "X", "change_id": number, **body})


def bybit(kind: str, update: int, bids: list[list[str]], asks: list[list[str]]) -> dict[str, Any]:
    body = {"s": "X", "b": bids, "a": asks, "u": update, "seq": 7}
    return {"topic": "orderbook.50.X", "type": kind, "ts": T, "data": body}


def binance(**body: Any) -> dict[str, Any]:
    return {"stream": "x@depth@100ms", "data": {"E": T, "s": "X", **body}}


BID, ASK, GONE, NEW = ["99", "1"], ["101", "3"], ["99", "0"], ["100.5", "4"]
VENUES: dict[str, list[dict[str, Any]]] = {
    "ws-feed.exchange.coinbase.com": [
        {"type": "snapshot", "product_id": "X", "bids": [BID], "asks": [ASK]},
        {"type": "l2update", "product_id": "X", "changes": [["buy", *GONE], ["sell", *NEW]], "time": ISO},
        {"type": "match", "product_id": "X", "trade_id": 5, "side": "sell", "price": "100.5", "size": "2", "time": ISO},
    ],
    "ws.okx.com:8443": [
        okx("books", "snapshot", bids=[[*BID, "0", "1"]], asks=[[*ASK, "0", "1"]], seqId=5, prevSeqId=-1),
        okx("books", "update", bids=[[*GONE, "0", "0"]], asks=[[*NEW, "0", "2"]], seqId=9, prevSeqId=5),
        okx("trades", None, instId="X", tradeId="5", px="100.5", sz="2", side="buy"),
    ],
    "www.deribit.com": [
        change(5, type="snapshot", bids=[["new", 99.0, 1.0]], asks=[["new", 101.0, 3.0]]),
        change(8, type="change", prev_change_id=5, bids=[["delete", 99.0, 7.0]], asks=[["new", 100.5, 4.0]]),
        deribit(
            "trades",
            [
                {
                    "instrument_name": "X",
                    "trade_id": "5",
                    "timestamp": T,
                    "price": 100.5,
                    "amount": 2,
                    "direction": "buy",
                }
            ],
        ),
    ],
    "stream.bybit.com": [
        bybit("snapshot", 4, [BID], [ASK]),
        bybit("delta", 5, [GONE], [NEW]),
        {"topic": "publicTrade.X", "data": [{"T": T, "s": "X", "S": "Buy", "v": "2", "p": "100.5", "i": "5"}]},
    ],
    "fstream.binance.com": [
        {"stream": "x@depth", "data": {"lastUpdateId": 4, "bids": [BID], "asks": [ASK]}},
        binance(e="depthUpdate", U=5, u=6, b=[GONE], a=[NEW]),
        binance(e="trade", t=5, p="100.5", q="2", T=T, m=False),
    ],
}
CHAINED = {"ws.okx.com:8443": (1, "prevSeqId"), "www.deribit.com": (1, "prev_change_id"), "stream.bybit.com": (1, "u")}


def capture(path: Path, host: str | None, messages: list[dict[str, Any]], first: int = 1) -> Path:
    opened = [] if host is None else [f"wss://{host}/ws?streams=x <-> {T / 1000}"]
    lines = [f"{(T + first + n) / 1000:.6f}: {json.dumps(each)}" for n, each in enumerate(messages)]
    path.write_text("\n".join([*opened, *lines, "", ""]))
    return path


def rows(path: Path, **more: Any) -> list[tuple[Any, ...]]:
    frame = check(scan_capture(path, 1, **WHOLE, **more).frame.collect(), BookEvents)
    columns = ("ask_price_1", "ask_size_1", "bid_price_1", "bid_size_1")
    assert frame["entity"].unique().to_list() == ["X"]
    assert frame.filter(kind=EXECUTE)["trade_id"].to_list() == ["5"] * frame.filter(kind=EXECUTE).height
    return frame.select("kind", "side", "price", "size", *columns).rows()


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("host", VENUES)
def test_the_same_market_is_the_same_rows(tmp_path: Path, host: str, told: bool) -> None:
    path = capture(tmp_path / "a.0", host if told else None, VENUES[host])
    assert rows(path) == ROWS
    assert "a.0: 1 empty lines at its end" in scan_capture(path, 1, **WHOLE).report.notes


@pytest.mark.parametrize("host", CHAINED)
def test_where_ids_are_lacking_there_is_no_book(tmp_path: Path, host: str) -> None:
    place, name = CHAINED[host]
    messages = json.loads(json.dumps(VENUES[host]))
    body = messages[place]
    while name not in body:
        body = next(body[each] for each in ("params", "data") if each in body)
        body = body[0] if isinstance(body, list) else body
    body[name] += 1
    source = scan_capture(capture(tmp_path / "a.0", host, messages), 1, **WHOLE)
    assert source.tally.breaks == 1
    assert rows(tmp_path / "a.0")[-1] == (EXECUTE, -1, 1005, 2, None, 0, None, 0)
    assert rows(tmp_path / "a.0", on_gap="keep")[-1] == ROWS[-1]


@pytest.mark.parametrize("host", CHAINED)
def test_a_book_that_comes_whole_again_needs_nothing_before_it(tmp_path: Path, host: str) -> None:
    messages = VENUES[host]
    source = scan_capture(capture(tmp_path / "a.0", host, [*messages, messages[0]]), 1, **WHOLE)
    assert source.tally.breaks == 0
    assert rows(tmp_path / "a.0")[-1] == ROWS[2]


def test_files_of_messages_alone_take_the_stamp_for_the_receipt(tmp_path: Path) -> None:
    path = tmp_path / "2024-12-01_X_ob50.data"
    path.write_text("".join(f"{json.dumps(each)}\n" for each in VENUES["stream.bybit.com"][:2]))
    assert rows(path) == ROWS[:-1]
    assert scan_capture(path, 1, **WHOLE).frame.collect()["available_time"].unique().to_list() == [T * 10**6]


@pytest.mark.parametrize(
    ("host", "message", "words"),
    [
        ("api.gemini.com", {"event": "heartbeat"}, "found a capture of api.gemini.com, expected messages of kraken, "),
        ("ws-feed.exchange.coinbase.com", {"type": "l2update", "changes": [["buy", "1"]]}, "found .'buy', '1'. among"),
        ("ws-feed.exchange.coinbase.com", {"type": "l2update", "changes": [["up", "1", "1"]]}, "found side 'up'"),
        ("ws.okx.com", okx("trades", None, side="up"), "found side 'up', expected buy or sell"),
        ("www.deribit.com", change(1, bids=[["old", 1, 1]], asks=[]), "among bids, expected an action, price and"),
        ("www.deribit.com", deribit("trades", [{"direction": "up"}]), "found direction 'up', expected buy or sell"),
        ("stream.bybit.com", bybit("whole", 1, [], []), "found type 'whole', expected snapshot or delta"),
        ("stream.bybit.com", {"topic": "publicTrade.X", "data": [{"S": "buy"}]}, "found side 'buy', expected Buy"),
        ("stream.bybit.com", {"topic": "publicTrade.X", "data": [1]}, "as data, expected a list of rows"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    tmp_path: Path, host: str, message: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=rf"a\.0, line 2: .*{words}"):
        scan_capture(capture(tmp_path / "a.0", host, [message]))
    aside = tmp_path / "aside.csv"
    with pytest.raises(ValueError, match=rf"a\.0 holds no row .*; 1 lines cannot, the first in line 2: .*{words}"):
        scan_capture(tmp_path / "a.0", on_bad="quarantine", set_aside=aside)


def test_messages_of_which_none_makes_a_row_are_counted(tmp_path: Path) -> None:
    messages = [{"topic": "tickers.X"}, {"success": True}, bybit("delta", 5, [], [])]
    path = capture(tmp_path / "a.0", "stream.bybit.com", messages)
    with pytest.raises(
        ValueError,
        match=r"a\.0 holds no row .*; messages that make none: answers 1, changes without a level 1, tickers 1",
    ):
        scan_capture(path)
