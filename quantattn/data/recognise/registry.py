"""Every format that the library knows by sight. A new source is one entry here, beside its sniffing function."""

from __future__ import annotations

from quantattn.data.recognise import documents, exchange, long_table, prices, venues
from quantattn.data.recognise.formats import Format

_NEW_YORK = "America/New_York"
NOTE, INDEX, TICKERS = "note", "index of filings", "list of tickers"

FORMATS: tuple[Format, ...] = (
    Format(
        "databento",
        "Databento DBN",
        exchange.databento,
        "databento",
        asks={"schema": "which records to read, of those that it holds: schema=mbo"},
    ),
    Format(
        "itch",
        "Nasdaq ITCH 5.0",
        exchange.itch,
        "itch",
        _NEW_YORK,
        "XNAS",
        asks={"date": "the day of the session, which no message says: date=2019-12-30"},
        beside=(NOTE,),
    ),
    Format("tardis", "Tardis CSV", venues.tardis, "tardis"),
    Format("binance_depth", "Binance depth", venues.binance_depth, "binance_depth"),
    Format("bitstamp", "Bitstamp order log", venues.bitstamp, "bitstamp"),
    Format("hftbacktest", "hftbacktest recording", venues.hftbacktest, "hftbacktest"),
    Format("capture", "websocket capture", venues.capture, "capture"),
    Format(
        "binance",
        "Binance trades",
        venues.binance,
        "binance",
        asks={"entity": "the symbol, which no row says: entity=BTCUSDT"},
    ),
    Format(
        "lobster",
        "LOBSTER",
        exchange.lobster,
        "lobster",
        _NEW_YORK,
        "XNAS",
        asks={
            "entity": "the ticker, which no row says: entity=AMZN",
            "date": "the day, which no row says: date=2012-06-21",
            "rounded_times": "whether times that a spreadsheet rounded are good enough: rounded_times=true",
        },
        beside=(NOTE,),
    ),
    Format("taq", "NYSE TAQ", exchange.taq, "taq", _NEW_YORK, "XNYS", beside=(NOTE,)),
    Format("ticks", "currency quotes", prices.ticks, "ticks"),
    Format("bars", "bars", prices.bars, "bars"),
    Format("fi2010", "FI-2010", documents.fi2010, "fi2010"),
    Format("", TICKERS, documents.tickers),
    Format("", INDEX, documents.filing_index),
    Format("filings", "EDGAR filing", documents.filings, "filings", _NEW_YORK, beside=(NOTE, INDEX, TICKERS)),
    Format(
        "table",
        "table of events",
        long_table.table,
        "table",
        asks={
            "id": "the column of the entity: id=client_id",
            "time": "the column of the time: time=date",
            "columns": "the other columns and their types: columns={kind:category,amount:decimal2}",
        },
    ),
    Format("", NOTE, documents.note),
)
"""In the order of how much a claim says: the first that holds is taken, the others are named beside it."""
NO_ENTRY = {
    "synthetic": "it is made, not read",
    "tables": "a folder of tables that belong together is told by `bundle`",
    "prepared": "a folder of shards is told by `bundle`",
}
"""Sources that have no entry, and why."""
