"""Databento's bars and quotes of stretches: made by the vendor's encoder, they come out as its decoder tells them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import databento_dbn as dbn
import polars as pl
import pytest
from dbn_records import START, UNDEFINED, header, refusal, write

from quantattn.data.recognise.exchange import databento
from quantattn.data.recognise.look import Look
from quantattn.data.schema import UPDATE, Bars, BookEvents, check
from quantattn.data.sources import scan_dbn

pytest.importorskip("numba", reason="numba is not here (pip install 'quantattn[book]')")

LENGTHS = {"ohlcv-1s": 1, "ohlcv-1m": 60, "ohlcv-1h": 3_600, "ohlcv-1d": 86_400}
PRICES = ("open", "high", "low", "close")
SECOND = 10**9


def bar(schema: str, n: int, prices: tuple[int, ...], volume: int, instrument: int = 7, **more: int) -> bytes:
    rtype = dbn.RType.from_schema(dbn.Schema.from_str(schema))
    begin = more.get("ts_event", START + n * LENGTHS[schema] * SECOND)
    return bytes(dbn.OHLCVMsg(rtype, 1, instrument, begin, *prices, volume))


def quote(n: int, book: tuple[int, int, int, int], price: int = UNDEFINED, side: str = "N", **more: int) -> bytes:
    """(bid, ask, bid size, ask size) at the end of second n, and what is told of the last trade."""
    end = more.get("ts_recv", START + (n + 1) * SECOND)
    kind = dbn.RType.from_schema(dbn.Schema.from_str("bbo-1s"))
    traded = more.get("ts_event", end - 5)
    return bytes(
        dbn.BBOMsg(
            kind,
            1,
            7,
            traded,
            price,
            more.get("size", 0),
            dbn.Side(side),
            end,
            more.get("flags", 128),
            levels=dbn.BidAskPair(*book),
        )
    )


def drawn(seed: int, n: int = 60) -> list[tuple[int, tuple[int, ...], int, int]]:
    draw, made = random.Random(seed), []
    for k in range(n):
        low, high = sorted((draw.randint(-5, 10**6), draw.randint(-5, 10**6)))
        made.append(
            (k, (draw.randint(low, high), high, low, draw.randint(low, high)), draw.randint(0, 9), draw.choice((7, 9)))
        )
    return made


def decoded(data: bytes) -> list[Any]:
    decoder = dbn.DBNDecoder()
    decoder.write(data)
    return decoder.decode()[1:]


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("schema", LENGTHS)
def test_bars_are_those_that_the_vendor_decodes(tmp_path: Path, schema: str, version: int) -> None:
    data = header(schema, version) + b"".join(bar(schema, *each) for each in drawn(version))
    source = scan_dbn(write(tmp_path, data), tick="0.01")
    frame = check(source.frame.collect(), Bars)
    told = [
        (
            {7: "ESH4", 9: "NQH4"}[each.instrument_id],
            each.ts_event + LENGTHS[schema] * SECOND,
            *(getattr(each, n) for n in (*PRICES, "volume")),
        )
        for each in decoded(data)
    ]
    assert frame.select("entity", "available_time", *PRICES, "volume").rows() == sorted(told, key=lambda row: row[:2])
    assert (frame["event_time"] == frame["available_time"]).all()
    assert (source.schema, source.report.rows_read, len(source.instruments)) == (schema, 60, 2)
    assert source.report.notes[0].endswith(f"60 records by action or kind: {schema} 60")


def test_no_later_bar_changes_an_earlier_row(tmp_path: Path) -> None:
    bars = [bar("ohlcv-1m", *each) for each in drawn(3)]
    whole, part = (
        scan_dbn(write(tmp_path, header("ohlcv-1m") + b"".join(some)), tick="1").frame.collect()
        for some in (bars, bars[:30])
    )
    last = int(part["available_time"].to_numpy().max())
    assert whole.filter(pl.col("available_time") <= last).equals(part)


@pytest.mark.parametrize(
    ("prices", "volume", "more", "reason"),
    [
        ((5, 9, 1, UNDEFINED), 1, {}, "no price"),
        ((5, 4, 1, 4), 1, {}, "impossible prices"),
        ((5, 9, 6, 7), 1, {}, "impossible prices"),
        ((5, 9, 1, 10), 1, {}, "impossible prices"),
        ((5, 9, 1, 0), 1, {}, "impossible prices"),
        ((5, 9, 1, 5), 2**63, {}, "impossible volume"),
        ((5, 9, 1, 5), 1, {"ts_event": 2**64 - 1}, "impossible time"),
        ((5, 9, 1, 5), 1, {"ts_event": 2**63 - 60 * SECOND}, "impossible time"),
    ],
)
def test_a_bar_that_cannot_be_is_refused_or_set_aside(
    tmp_path: Path, prices: tuple[int, ...], volume: int, more: dict[str, int], reason: str
) -> None:
    good = (5, 9, 1, 5)
    parts = [bar("ohlcv-1m", 0, good, 1), bar("ohlcv-1m", 1, prices, volume, **more), bar("ohlcv-1m", 2, good, 3)]
    path = write(tmp_path, header("ohlcv-1m") + b"".join(parts))
    assert f"record 1: {reason} (open 5, high" in refusal(path)
    source = scan_dbn(path, on_bad="quarantine", set_aside=tmp_path / "aside.csv")
    assert source.report.rows_set_aside == {reason: 1}
    assert source.frame.collect()["volume"].to_list() == [1, 3]
    assert pl.read_csv(tmp_path / "aside.csv")["record"].to_list() == [1]


def test_a_price_that_a_bar_lacks_is_null(tmp_path: Path) -> None:
    path = write(tmp_path, header("ohlcv-1d") + bar("ohlcv-1d", 0, (UNDEFINED, 9, UNDEFINED, 5), 0))
    assert scan_dbn(path).frame.collect().select(*PRICES).rows() == [(None, 9, None, 5)]


def test_quotes_stand_at_the_end_of_their_stretch(tmp_path: Path) -> None:
    books = [(99, 101, 1, 3), (98, UNDEFINED, 2, 4), (98, 100, 5, 6)]
    bare = [quote(n, book) for n, book in enumerate(books)]
    # What is told of the last trade, and when that was, is no part of the book.
    traded = [quote(n, book, 100, "A", size=7, ts_event=START + n) for n, book in enumerate(books)]
    unmarked = [quote(n, book, flags=128 * (n != 1)) for n, book in enumerate(books)]
    tables = []
    for some in (bare, traded, unmarked):
        source = scan_dbn(write(tmp_path, header("bbo-1s") + b"".join(some)), tick="0.000000001")
        tables.append(check(source.frame.collect(), BookEvents))
    assert tables[0].equals(tables[1])
    assert tables[0].equals(tables[2])
    names = ("event_time", "available_time", "kind", "side", "price", "size", "complete")
    times = [START + (n + 1) * SECOND for n in range(3)]
    assert tables[0].select(names).rows() == [(time, time, UPDATE, 0, None, 0, True) for time in times]
    levels = tables[0].select("bid_price_1", "ask_price_1", "bid_size_1", "ask_size_1").rows()
    assert levels == [(99, 101, 1, 3), (98, None, 2, 0), (98, 100, 5, 6)]


def test_a_quote_without_its_end_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, header("bbo-1s") + quote(0, (1, 2, 3, 4)) + quote(1, (1, 2, 3, 4), ts_recv=2**64 - 1))
    assert "record 1: impossible time" in refusal(path)


@pytest.mark.parametrize("schema", [*LENGTHS, "bbo-1s", "bbo-1m"])
def test_the_doctor_knows_them(tmp_path: Path, schema: str) -> None:
    claim = databento(Look.at(write(tmp_path, header(schema))))
    assert claim is not None
    assert claim.unread == ""
    assert f"it holds {schema} of GLBX.MDP3" in claim.why
    assert scan_dbn(tmp_path / "x.dbn").frame.collect().height == 0


def test_mutants_are_refused_in_a_sentence_or_read_whole(tmp_path: Path) -> None:
    draw, read, said = random.Random(5), 0, list[str]()
    wholes = [
        header("ohlcv-1m") + b"".join(bar("ohlcv-1m", *each) for each in drawn(1, 8)),
        header("bbo-1s") + b"".join(quote(n, (99, 101, n, 3)) for n in range(8)),
    ]
    for _ in range(60):
        data = bytearray(draw.choice(wholes))
        if draw.random() < 0.4:
            del data[draw.randrange(len(data)) :]
        for _ in range(draw.randint(0, 3)):
            if data:
                data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path = write(tmp_path, bytes(data))
        try:
            source = scan_dbn(path, tick="1")
        except ValueError as error:
            said.append(str(error))
            continue
        frame = source.frame.collect()
        check(frame, Bars if "close" in frame.columns else BookEvents)
        read += 1
        assert frame.height == source.report.rows_read
    assert read
    assert said
    assert all(each.startswith("x.dbn") and "\n" not in each for each in said)
