"""The real files of crypto venues: every row accounted for, and rebuilt books against what the venues said of them."""

from __future__ import annotations

import bisect
import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from quantattn.data.market import count_flags
from quantattn.data.schema import CANCEL, CLEAR, EXECUTE, UPDATE, BookEvents, Trades, check
from quantattn.data.sources import (
    scan_binance,
    scan_binance_depth,
    scan_bitstamp,
    scan_capture,
    scan_hftbacktest,
    scan_tardis,
)
from quantattn.data.sources.decimals import scaled

pytest.importorskip("numba", reason="numba is not here (pip install 'quantattn[book]')")

ETH = "hftbacktest_spot_ethusdt_20240808.gz"
SMALL = {
    "tardis_binance-futures_book_snapshot_25_BTCUSDT.csv": (scan_tardis, BookEvents, 10),
    "tardis_bitmex_trades_XBTUSD.csv": (scan_tardis, Trades, 10),
    "tardis_deribit_incremental_book_L2_BTC-PERPETUAL.csv": (scan_tardis, BookEvents, 16),
    "binance_btcusdt-trades.parquet": (scan_binance, Trades, 2_001),
    "binance_btcusdt-depth-snap.csv": (scan_binance_depth, BookEvents, 101),
    "binance_btcusdt-depth-update.csv": (scan_binance_depth, BookEvents, 100),
    "hftbacktest_hyperliquid_btcusd_20250126.gz": (scan_hftbacktest, BookEvents, 110),
    "cryptofeed_BITSTAMP.ws.1.0.gz": (scan_capture, BookEvents, 1_960),
}


@pytest.fixture
def crypto(realdata: Path) -> Path:
    return realdata / "lob" / "crypto"


@pytest.mark.parametrize("name", SMALL)
def test_every_row_of_the_small_files_is_read(crypto: Path, name: str) -> None:
    scan, schema, rows = SMALL[name]
    source = scan(crypto / name)
    frame = check(source.frame.collect(), schema)
    assert frame.height == source.report.rows_read == rows
    assert not source.report.rows_set_aside


def test_the_book_of_depth_is_that_of_the_best_quotes(crypto: Path) -> None:
    """Each depth message and each quote carries the id of the update that it follows from."""
    source = scan_hftbacktest(crypto / ETH, 1)
    frame = check(source.frame.collect(), BookEvents)
    assert (frame.height, source.tally.breaks, source.tally.crossed, source.tally.locked) == (114_921, 0, 0, 0)
    ends = frame.filter(pl.col("complete") & (pl.col("kind") == UPDATE) & pl.col("bid_price_1").is_not_null())
    columns = ("bid_price_1", "bid_size_1", "ask_price_1", "ask_size_1")
    book = dict(zip(ends["available_time"], ends.select(columns).rows(), strict=True))
    ids: list[int] = []
    quotes: list[tuple[int, ...]] = []
    depths: list[tuple[int, int]] = []
    with gzip.open(crypto / ETH, "rt") as lines:
        for line in lines:
            received, _, text = line.partition(" ")
            message: dict[str, Any] = json.loads(text)
            body = message.get("data", {})
            if message.get("stream", "").endswith("bookTicker"):
                ids.append(body["u"])
                quotes.append(tuple(scaled(body[name], -8) for name in "bBaA"))
            elif message.get("stream", "").endswith("depth@100ms"):
                depths.append((int(received), body["u"]))
    compared = [(book[at], quotes[bisect.bisect_right(ids, last) - 1]) for at, last in depths if at in book]
    assert len(compared) == 3_432
    assert all(rebuilt == quoted for rebuilt, quoted in compared)
    # The control: one quote earlier is another book more often than not.
    before = [(book[at], quotes[bisect.bisect_right(ids, last) - 2]) for at, last in depths if at in book]
    assert sum(rebuilt != quoted for rebuilt, quoted in before) > 2_000


def test_the_venue_is_ahead_of_receipt_and_both_times_are_kept(crypto: Path) -> None:
    source = scan_hftbacktest(crypto / ETH, book="quotes")
    frame = check(source.frame.collect(), BookEvents)
    assert frame.height == 24_077 + 6_106
    trades = frame.filter(kind=EXECUTE)
    ahead = trades["exchange_time"] - trades["available_time"]
    assert ahead.min() > 1_000_000_000  # type: ignore[operator]
    assert (trades["event_time"] == trades["available_time"]).all()
    assert any(
        "in 6,106 rows the venue's clock is ahead of receipt, by up to 1.275 s" in n for n in source.report.notes
    )
    # Over a hundred events the mid rises after buyers and falls after sellers.
    mid = (frame["ask_price_1"] + frame["bid_price_1"]).alias("mid")
    moved = (
        frame.with_columns(moved=mid.shift(-100) - mid.shift(1))
        .filter(kind=EXECUTE)
        .group_by("side")
        .agg(pl.col("moved").mean())
    )
    by_side = dict(moved.iter_rows())
    assert by_side[-1] > 0 > by_side[1]


def test_the_books_of_bitmex_are_those_of_its_quotes(crypto: Path) -> None:
    name = "cryptofeed_BITMEX.ws.1.0.gz"
    source = scan_capture(crypto / name, 1)
    frame = check(source.frame.collect(), BookEvents)
    assert (frame.height, frame["entity"].n_unique(), frame.filter(kind=CLEAR).height) == (14_360, 10, 10)
    assert not any(vars(source.tally).values())
    names = ["bid_price_1", "bid_size_1", "ask_price_1", "ask_size_1"]
    ends = {str(key[0]): own for key, own in frame.filter("complete").group_by("entity")}
    found = 0
    with gzip.open(crypto / name, "rt") as lines:
        for line in lines:
            received, _, text = line.partition(": ")
            if line.startswith("wss") or '"quote","action":"insert"' not in text:
                continue
            at = scaled(received, -9)
            for quote in json.loads(text, parse_float=str, parse_int=str)["data"]:
                values = [
                    scaled(quote[f"{side}{what}"], -10 if what == "Price" else -8)
                    for side in ("bid", "ask")
                    for what in ("Price", "Size")
                ]
                near = pl.col("available_time").is_between(at - 1_500_000_000, at + 1_500_000_000)
                same = pl.all_horizontal(pl.col(n) == v for n, v in zip(names, values, strict=True))
                found += 1
                assert ends[quote["symbol"]].select((near & same).any()).item(), quote
    assert found == 426


def test_the_order_log_of_bitstamp(crypto: Path) -> None:
    source = scan_bitstamp(crypto / "bitstamp_2015-05-01_orders.csv.xz", 1)
    frame = check(source.frame.collect(), BookEvents)
    assert source.report.rows_set_aside == {"order already gone or made": 26, "the same line twice": 1}
    assert frame.height == 50_414 - 27
    tally = source.tally
    assert (tally.unknown_ids, tally.reused_ids, tally.overdrawn, tally.contradicting) == (184, 0, 0, 0)
    assert count_flags(frame.lazy()) == {"crossed": 781, "locked": 153, "one_sided": 9}
    fills = frame.filter(pl.col("kind").is_in([CANCEL, EXECUTE]) & (pl.col("size") > 0))
    columns = ("kind", "side", "size", "order_id", "available_time")
    pairs = fills.with_columns(pl.col(name).shift(-1).alias(f"{name}_2") for name in columns).filter(
        (pl.col("size") == pl.col("size_2"))
        & (pl.col("side") == -pl.col("side_2"))
        & (pl.col("available_time_2") - pl.col("available_time") < 10**9)
    )
    older = pl.when(pl.col("order_id") < pl.col("order_id_2")).then("kind").otherwise("kind_2")
    younger = pl.when(pl.col("order_id") < pl.col("order_id_2")).then("kind_2").otherwise("kind")
    right = pairs.filter((older == EXECUTE) & (younger == CANCEL)).height
    assert (pairs.height, right) == (482, 477)


def test_the_update_of_depth_does_not_follow_from_the_snapshot(crypto: Path, tmp_path: Path) -> None:
    for part in ("snap", "update"):
        name = f"binance_btcusdt-depth-{part}.csv"
        (tmp_path / name).symlink_to(crypto / name)
    source = scan_binance_depth(tmp_path, 1)
    frame = check(source.frame.collect(), BookEvents)
    assert (frame.height, source.tally.breaks, source.tally.unopened) == (201, 1, 100)
    # The best bid of the snapshot is the best of its 100 rows, and no book is shown after the break.
    best = max(
        scaled(line.split(",")[6], -8) for line in (crypto / "binance_btcusdt-depth-snap.csv").read_text().split()[1:]
    )
    assert frame["bid_price_1"].drop_nulls().unique().to_list() == [best]
    assert frame["bid_price_1"].to_list()[-1] is None
