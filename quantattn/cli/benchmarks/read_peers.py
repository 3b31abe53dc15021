"""Readers that the benchmark of reading sets beside each other; peers are imported when their turn comes.

Each takes a file or a folder and returns a function that gives what it read as columns, so that the making of columns
that can be compared is not timed.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from quantattn.cli.benchmarks.read_inputs import DAY
from quantattn.data.market.sessions import midnight
from quantattn.data.schema import DELETE, NEW
from quantattn.data.sources import scan_dbn, scan_itch, scan_lobster

Columns = Mapping[str, Any]
MESSAGE = ["time", "kind", "order_id", "size", "price", "side"]
BOOK = ["ask_price", "ask_size", "bid_price", "bid_size"]
ZONE = "America/New_York"


@dataclass(frozen=True)
class Reader:
    """How a file is read.

    Attributes:
        read: returns what gives the columns.
        needs: packages that have to be there, other than those of the project.
        few: whether it is in Python message by message and sees a short file.
        digest: columns by which it is compared with the first reader of its kind of file; none where it gives less.
    """

    read: Callable[[Path], Callable[[], Columns]]
    needs: tuple[str, ...] = ()
    few: bool = False
    digest: tuple[str, ...] = ()


def _lobster(path: Path) -> Callable[[], Columns]:
    frame = scan_lobster(path).frame.collect()
    return lambda: {
        "event_time": frame["event_time"].to_numpy(),
        **{name: frame[name].to_numpy() for name in ("kind", "order_id", "size")},
        **{name: frame[f"{name}_1"].to_numpy() for name in BOOK},
    }


def _polars(path: Path) -> Callable[[], Columns]:
    def one(file: Path, names: list[str]) -> pl.DataFrame:
        return pl.read_csv(file, has_header=False, new_columns=names)

    days = [
        pl.concat([one(file, MESSAGE), one(_partner(file), BOOK)], how="horizontal")
        for file in sorted(path.glob("*_message_*"))
    ]
    frame = pl.concat(days)
    return lambda: {name: frame[name].to_numpy() for name in frame.columns}


def _pandas(path: Path) -> Callable[[], Columns]:
    pd = importlib.import_module("pandas")
    days = []
    for file in sorted(path.glob("*_message_*")):
        day = pd.concat(
            [pd.read_csv(file, header=None, names=MESSAGE), pd.read_csv(_partner(file), header=None, names=BOOK)],
            axis=1,
        )
        day = day[day["kind"].between(1, 7) & (day["size"] >= 0)]
        start = pd.Timestamp(file.name.split("_")[1], tz=ZONE)
        day.insert(0, "event_time", start + pd.to_timedelta((day["time"] * 1e9).round().astype("int64"), unit="ns"))
        for name in ("ask_price", "bid_price", "price"):
            day[name] = day[name].where(day[name].abs() < 9_999_999_999) / 10_000
        day.insert(0, "entity", file.name.split("_")[0])
        days.append(day.drop(columns="time"))
    table = pd.concat(days, ignore_index=True)
    table["entity"] = table["entity"].astype("category")
    return lambda: {
        "event_time": table["event_time"].dt.as_unit("ns").astype("int64").to_numpy(),
        **{name: table[name].to_numpy() for name in ("kind", "order_id", "size", "ask_size", "bid_size")},
        **{name: np.round(table[name].to_numpy() * 10_000) for name in ("ask_price", "bid_price")},
    }


def _partner(file: Path) -> Path:
    return file.with_name(file.name.replace("_message_", "_orderbook_"))


def _itch(path: Path) -> Callable[[], Columns]:
    frame = scan_itch(path, date=DAY).frame.collect()

    def columns() -> Columns:
        books = frame.select(f"{name}_1" for name in BOOK).fill_null(0)
        time = frame["event_time"] - midnight(_date(), ZONE)
        return changes(frame["entity"], time, books.rename({f"{name}_1": name for name in BOOK}))

    return columns


def _itch_book(path: Path) -> Callable[[], Columns]:
    batches = _itch_book_batches(path)

    def columns() -> Columns:
        depth = _depth(batches)
        stock = depth["locate"].replace_strict(_symbols(batches), return_dtype=pl.String)
        return changes(stock, depth["time"], depth.select(BOOK))

    return columns


def _itch_book_sorted(path: Path) -> Callable[[], Columns]:
    """What `scan_itch` gives, made of the peer's tables: sorted by stock, the book in every row, the file hashed."""
    with path.open("rb") as file:
        hashlib.file_digest(file, "sha256").hexdigest()
    batches = _itch_book_batches(path)
    messages = pl.concat([pl.DataFrame(dict(batch.messages)) for batch in batches])
    symbols = _symbols(batches)
    rank, order = np.zeros(65536, np.uint16), sorted(symbols, key=symbols.__getitem__)
    rank[order] = np.arange(len(order))
    table = messages.join(_depth(batches).select("seq", *BOOK), on="seq", how="left", maintain_order="left")
    key = rank[table["locate"].to_numpy()]
    places = np.argsort(key, kind="stable")  # of 16 bits, which is fastest
    table, stock = table[places], pl.Series(key[places])
    entity = pl.Series([symbols[code] for code in order]).gather(stock).alias("entity")
    begins = (stock != stock.shift(1)).fill_null(True)
    filled = (pl.when(begins).then(pl.col(name).fill_null(0)).otherwise(pl.col(name)).forward_fill() for name in BOOK)
    table = table.with_columns(entity, *filled)

    def columns() -> Columns:
        time = table["ts_event"] - midnight(_date(), ZONE)
        return changes(table["entity"], time, table.select(BOOK))

    return columns


def _itch_book_batches(path: Path) -> list[Any]:
    feed = importlib.import_module("itch_book").open(str(path), date=_date(), price_type="fixed")
    return list(feed.batches(tables=("messages", "depth", "symbols"), depth=1))


def _depth(batches: list[Any]) -> pl.DataFrame:
    names = dict(zip(("ask_px_00", "ask_sz_00", "bid_px_00", "bid_sz_00"), BOOK, strict=True))
    table = pl.concat(
        [pl.DataFrame({n: batch.depth[n] for n in ("seq", "locate", "ts_event", *names)}) for batch in batches]
    )
    table = table.rename(names).cast({"locate": pl.Int64, **dict.fromkeys(BOOK, pl.Int64)})
    return table.with_columns(time=pl.col("ts_event") - midnight(_date(), ZONE))


def _symbols(batches: list[Any]) -> dict[int, str]:
    return {int(row[0]): row[1].strip() for batch in batches for row in zip(*_first_two(batch.symbols), strict=True)}


def _first_two(symbols: Any) -> tuple[Any, Any]:
    return symbols["locate"], [str(name) for name in symbols["symbol"]]


def _itchcpp(path: Path) -> Callable[[], Columns]:
    books = importlib.import_module("itchcpp.book").BookManager()
    data, at, rows, names = path.read_bytes(), 0, [], {}
    while at < len(data):
        end = at + 2 + int.from_bytes(data[at : at + 2], "big")
        message = data[at:end]
        locate = message[3:5]
        if message[2] == ord("R"):
            names[locate] = message[13:21].decode().strip()
            books.track_symbol(names[locate])
        books.process_stream(message)
        book = books.book_for_symbol(names[locate])
        if book is not None:
            best, time = book.bbo(), int.from_bytes(message[7:13], "big")
            ask = (round(best.ask_price * 10_000), best.ask_shares) if best.has_ask else (0, 0)
            bid = (round(best.bid_price * 10_000), best.bid_shares) if best.has_bid else (0, 0)
            rows.append((names[locate], time, *ask, *bid))
        at = end
    return lambda: _of_rows(rows)


def _itchfeed(path: Path) -> Callable[[], Columns]:
    os.environ["ITCH_NO_CPP"] = "1"
    parser = importlib.import_module("itch.parser").MessageParser()
    with path.open("rb") as file:
        messages = list(parser.parse_file(file))
    return lambda: {"messages": np.array([len(messages)])}


def _meatpy(path: Path) -> Callable[[], Columns]:
    package, datetime = importlib.import_module("meatpy.itch50"), importlib.import_module("datetime")
    day = datetime.datetime.combine(_date(), datetime.time())
    books: dict[int, Any] = {}
    rows = []
    for message in package.ITCH50MessageReader().read_file(path):
        locate = message.stock_locate
        if locate not in books:
            books[locate] = package.ITCH50MarketProcessor(message.stock, day)
        book = books[locate]
        book.process_message(message)
        lob = book.current_lob
        if lob is not None:
            ask = (lob.ask_levels[0].price, lob.ask_levels[0].volume) if lob.ask_levels else (0, 0)
            bid = (lob.bid_levels[0].price, lob.bid_levels[0].volume) if lob.bid_levels else (0, 0)
            rows.append((book.instrument.decode().strip(), message.timestamp, *ask, *bid))
    return lambda: _of_rows(rows)


def _of_rows(rows: Iterable[tuple[Any, ...]]) -> Columns:
    frame = pl.DataFrame(rows, ["stock", "time", *BOOK], orient="row")
    return changes(frame["stock"], frame["time"], frame.select(BOOK))


def changes(stock: pl.Series, time: pl.Series, books: pl.DataFrame) -> Columns:
    """Best levels of each stock as they stood at the end of a nanosecond, where they are not those before."""
    table = books.with_columns(stock.alias("stock"), time.cast(pl.Int64).alias("time"))
    table = table.sort("stock", "time", maintain_order=True).cast(dict.fromkeys(BOOK, pl.Int64))
    table = table.filter(
        pl.struct("stock", "time").rle_id() != pl.struct("stock", "time").rle_id().shift(-1, fill_value=2**32 - 1)
    )
    own = pl.col("stock") == pl.col("stock").shift(1)
    moved = pl.any_horizontal(pl.col(name) != pl.when(own).then(pl.col(name).shift(1)).otherwise(0) for name in BOOK)
    return {name: table.filter(moved)[name].to_numpy() for name in ("time", *BOOK)}


def _dbn(path: Path) -> Callable[[], Columns]:
    frame = scan_dbn(path).frame.collect()

    def columns() -> Columns:
        # A modified order is a deletion and a new one, which the vendor has as one record.
        new = frame.filter((pl.col("kind") == NEW) & (pl.col("kind").shift(1, fill_value=0) != DELETE))
        return {name: new[name].to_numpy() for name in ("available_time", "price", "size", "order_id")}

    return columns


def _databento(path: Path) -> Callable[[], Columns]:
    return _to_df(path, {})


def _databento_integers(path: Path) -> Callable[[], Columns]:
    return _to_df(path, {"price_type": "fixed", "pretty_ts": False, "map_symbols": False})


def _to_df(path: Path, settings: Mapping[str, Any]) -> Callable[[], Columns]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pandas, about the peer's own calls
        table = importlib.import_module("databento").DBNStore.from_file(path).to_df(**settings)

    def columns() -> Columns:
        new = table[table["action"] == "A"]
        price, arrival = new["price"].to_numpy(), new.index
        if not settings:
            price, arrival = np.round(price * 1e9), arrival.as_unit("ns").asi8
        return {
            "available_time": np.asarray(arrival),
            "price": price,
            **{name: new[name].to_numpy() for name in ("size", "order_id")},
        }

    return columns


def _date() -> Any:
    return importlib.import_module("datetime").date.fromisoformat(DAY)


_SHIPPED = ("kind", "order_id", "size", *BOOK)
_BEST = ("time", *BOOK)
_ORDERS = ("available_time", "price", "size", "order_id")
READERS: Mapping[str, Mapping[str, Reader]] = {
    "lobster": {
        "quantattn": Reader(_lobster, digest=("event_time", *_SHIPPED)),
        "polars, as it is": Reader(_polars, digest=_SHIPPED),
        "pandas, cleaned": Reader(_pandas, ("pandas",), digest=("event_time", *_SHIPPED)),
    },
    "itch": {
        "quantattn": Reader(_itch, digest=_BEST),
        "itch-book, two tables": Reader(_itch_book, ("itch_book",), digest=_BEST),
        "itch-book, one sorted table": Reader(_itch_book_sorted, ("itch_book",), digest=_BEST),
        "itchcpp, book by book": Reader(_itchcpp, ("itchcpp",), few=True, digest=_BEST),
        "MeatPy": Reader(_meatpy, ("meatpy",), few=True, digest=_BEST),
        "itchfeed, decoding alone": Reader(_itchfeed, ("itch",), few=True),
    },
    "dbn": {
        "quantattn": Reader(_dbn, digest=_ORDERS),
        "databento to_df": Reader(_databento, ("databento",), digest=_ORDERS),
        "databento to_df, integers": Reader(_databento_integers, ("databento",), digest=_ORDERS),
    },
}
"""Kind of file → name → reader; the first is what the others are compared with."""
