"""How files of crypto venues are told: as venues publish them, as vendors sell them, as researchers record them."""

from __future__ import annotations

import re

import polars as pl

from quantattn.data.recognise.formats import Claim
from quantattn.data.recognise.look import Look

_TARDIS = ("exchange", "symbol", "timestamp", "local_timestamp")
_TARDIS_KINDS: dict[tuple[str, ...], str] = {
    ("id", "side", "price", "amount"): "trades",
    ("is_snapshot", "side", "price", "amount"): "incremental_book_L2",
    ("ask_amount", "ask_price", "bid_price", "bid_amount"): "quotes",
}
_DEPTH = ("symbol", "timestamp", "first_update_id", "last_update_id", "side", "update_type", "price", "qty", "pu")
_ORDER_LOG = ("id", "timestamp", "exchange.timestamp", "price", "volume", "action", "direction")
_RECORDED = re.compile(r"\d{19} \{.*\}")
_CAPTURED = re.compile(r"\d{9,11}(\.\d{1,9})?: ([\[{].*[\]}]|b['\"].*)|(wss?|https?)://\S+ (<->|<-|->) \d+(\.\d+)?.*")
_BYBIT = re.compile(r'\{"topic":"orderbook\..*\}')
_TRADE = re.compile(r"\d+,[\d.]+,[\d.]+,([\d.]+,)?(\d{13}|\d{16}),(true|false|True|False)(,(true|false|True|False))?")
_AGGREGATE = re.compile(r"\d+,[\d.]+,[\d.]+,\d+,\d+,(\d{13}|\d{16}),(true|false|True|False)(,(true|false|True|False))?")
_PARQUET = {"timestamp", "trade_id", "price", "quantity", "buyer_maker"}


def tardis(look: Look) -> Claim | None:
    """The four columns that every CSV file of Tardis begins with."""
    if look.header[:4] != _TARDIS:
        return None
    kind = _TARDIS_KINDS.get(look.header[4:])
    if kind is None and len(look.header) > 4 and look.header[4] in ("asks[0].price", "bids[0].price"):
        kind = f"book_snapshot_{len(look.header[4:]) // 4}"
    if kind is not None:
        return Claim(f"its header is that of Tardis {kind}")
    return Claim(
        "its header begins as those of Tardis do",
        unread=f"it is a Tardis file of a kind that is not read, with the columns {', '.join(look.header[4:])[:120]}",
    )


def binance(look: Look) -> Claim | None:
    """Rows of trades or aggregate trades, with a header or without; or the columns of them in Parquet."""
    if look.columns is not None:
        stamped = isinstance(look.columns.get("timestamp"), pl.Datetime)
        found = stamped and set(look.columns) >= _PARQUET
        return Claim("it is Parquet with the columns of Binance's trades") if found else None
    rows = look.lines[1:20] if look.lines and not look.lines[0][:1].isdigit() else look.lines[:20]
    if look.mostly(_AGGREGATE, rows):
        return Claim("its rows are those of Binance's aggregate trades")
    if look.mostly(_TRADE, rows):
        return Claim("its rows are those of Binance's trades")
    return None


def binance_depth(look: Look) -> Claim | None:
    """The header of depth snapshots and updates."""
    return Claim("its header is that of Binance's depth snapshots and updates") if look.header == _DEPTH else None


def bitstamp(look: Look) -> Claim | None:
    """The header of an order log."""
    return Claim("its header is that of Bitstamp's order log") if look.header == _ORDER_LOG else None


def hftbacktest(look: Look) -> Claim | None:
    """Lines of a receipt in nanoseconds and an object of JSON."""
    if look.mostly(_RECORDED, look.lines[:20]):
        return Claim("its lines are 19 digits of a receipt in ns and an object of JSON, as hftbacktest records them")
    return None


def capture(look: Look) -> Claim | None:
    """Lines of a receipt in seconds, a colon and JSON, among control lines of the connection; or Bybit's own files."""
    if look.lines and look.mostly(_BYBIT, look.lines[:20]):
        return Claim("its lines are messages of Bybit's order books")
    if not look.mostly(_CAPTURED, look.lines[:20]):
        return None
    return Claim("its lines are seconds of a receipt, a colon and JSON, as cryptofeed captures websockets")
