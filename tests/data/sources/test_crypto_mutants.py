"""Damaged feeds: whatever the bytes, one sentence or a checked table whose rows are all accounted for."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_binance import DEPTH, NAME, NEXT, SNAPSHOT, SPOT
from test_bitstamp_log import HEADER
from test_bitstamp_log import STORY as ORDERS
from test_kraken import QUOTES
from test_kraken import VERSIONS as KRAKEN
from test_recordings import FOLLOWS, NEWER, OPENED, PARTIAL, TICKER, TRADE, T
from test_recordings import SNAPSHOT as OPENS
from test_tardis import CHANGES
from test_tardis import STORY as LEVELS

from quantattn.data.schema import BookEvents, Trades, check
from quantattn.data.sources import (
    scan_binance,
    scan_binance_depth,
    scan_bitstamp,
    scan_capture,
    scan_hftbacktest,
    scan_tardis,
)
from quantattn.data.sources.source import Source

pytest.importorskip("numba", reason="numba is not here (pip install 'quantattn[book]')")


def text(*lines: str) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def captured(messages: list[Any]) -> bytes:
    return text(*(f"{T // 1000 + n}.5: {json.dumps(each)}" for n, each in enumerate(messages)))


RECORDED = [json.dumps(each) for each in (OPENS, NEWER, TICKER, TRADE, FOLLOWS)]
HFT = text(*(f"{(T + n) * 10**6} {each}" for n, each in enumerate(RECORDED)))
FEEDS: dict[str, tuple[str, bytes, Callable[..., Source]]] = {
    "tardis": ("a.csv", text(CHANGES, *LEVELS), scan_tardis),
    "trades": (
        NAME,
        text(*(SPOT.format(1_735_689_600_000 + n).replace("4,", f"{n},", 1) for n in range(9))),
        scan_binance,
    ),
    "depth": ("a.csv", text(DEPTH, *SNAPSHOT, *NEXT), scan_binance_depth),
    "orders": ("a.csv", text(HEADER, *ORDERS), scan_bitstamp),
    "recording": ("a.txt", HFT, scan_hftbacktest),
    "gzip": ("a.gz", gzip.compress(HFT, mtime=0), scan_hftbacktest),
    "kraken 1": (
        "a.0",
        text(*(f"{T // 1000 + n}.5: {json.dumps(each)}" for n, each in enumerate(KRAKEN[1]))),
        scan_capture,
    ),
    "kraken 2": (
        "a.0",
        text(*(f"{T // 1000 + n}.5: {json.dumps(each)}" for n, each in enumerate(KRAKEN[2]))),
        scan_capture,
    ),
    "quotes": ("a.0", captured(QUOTES["tickers of OKX"] * 2), partial(scan_capture, book="quotes")),
    "capture": ("a.0", text(OPENED, *(f"{T // 1000 + n}.5: {json.dumps(PARTIAL)}" for n in range(3))), scan_capture),
}
TOKENS = [
    b"",
    b"-",
    b".",
    b"9" * 40,
    b"NaN",
    b"1e999",
    b"\0",
    b"\xff\xfe",
    b'"',
    b"[" * 3000,
    b"\r",
    b"\n",
    b",",
    b"\r\n",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mutants")


@pytest.mark.parametrize("feed", FEEDS)
@settings(
    max_examples=int(os.environ.get("QUANTATTN_CRYPTO_MUTANTS", "15")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_a_mutant_is_a_sentence_or_a_table(feed: str, folder: Path, data: st.DataObject) -> None:
    name, whole, scan = FEEDS[feed]
    at, length = data.draw(st.integers(0, len(whole))), data.draw(st.sampled_from([0, 0, 1, 2, 30, len(whole)]))
    put = data.draw(st.sampled_from(TOKENS) | st.binary(max_size=20))
    path = folder / name
    path.write_bytes(whole[:at] + put + whole[at + length :])
    aside = {"on_bad": "quarantine", "set_aside": folder / "aside.csv"} if data.draw(st.booleans()) else {}
    try:
        source = scan(path, **aside)
    except ValueError as error:
        said = str(error)
        assert "\n" not in said
        assert len(said) < 400
        assert name in said
        return
    frame = check(source.frame.collect(), Trades if feed == "trades" else BookEvents)
    assert frame.height == source.report.rows_read > 0


@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("feed", FEEDS)
def test_a_table_is_the_same_kept_or_made_again_in_pieces_of_any_size(
    feed: str, damaged: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, whole, scan = FEEDS[feed]
    aside: dict[str, object] = {}
    if damaged:
        lines = (gzip.decompress(whole) if name.endswith("gz") else whole).splitlines(keepends=True)
        middle = len(lines) // 2 + 1
        whole = b"".join([*lines[:middle], b"nothing of the kind\n", *lines[middle:]])
        aside = {"on_bad": "quarantine", "set_aside": folder / "aside.csv"}
    (folder / name).write_bytes(whole)
    kept = scan(folder / name, **aside)
    assert sum(kept.report.rows_set_aside.values()) == damaged
    frame = kept.frame.collect()
    monkeypatch.setattr("quantattn.data.sources.crypto.build.KEPT", 0)
    for size in (50, 333, 1 << 24):
        monkeypatch.setattr("quantattn.data.sources.pieces.PIECE", size)
        again = scan(folder / name, **aside)
        assert (again.report, again.instruments) == (kept.report, kept.instruments)
        for _ in range(2):
            assert again.frame.collect().equals(frame)
        last = pl.col("kind") == frame["kind"][-1]
        few = again.frame.filter(last).select("seq", "price").head(2).collect()
        assert few.equals(frame.filter(last).select("seq", "price").head(2))


@pytest.mark.parametrize("feed", FEEDS)
def test_a_file_cut_inside_a_row_is_never_silent(feed: str, folder: Path) -> None:
    name, whole, scan = FEEDS[feed]
    path = folder / name
    for cut in range(1, len(whole) - 1, max(1, len(whole) // 25)):
        path.write_bytes(whole[:cut])
        try:
            source = scan(path)
        except ValueError:
            continue
        ended = whole[:cut].endswith(b"\n") or whole[cut : cut + 1] == b"\n"
        assert ended or any("the last line has no end" in note for note in source.report.notes)


@pytest.mark.parametrize("feed", [feed for feed in FEEDS if feed != "gzip"])
def test_what_comes_later_changes_no_earlier_row(feed: str, folder: Path) -> None:
    name, whole, scan = FEEDS[feed]
    path = folder / name
    path.write_bytes(whole)
    frame = scan(path).frame.collect()
    lines, compared = whole.splitlines(keepends=True), 0
    for kept in range(1, len(lines)):
        path.write_bytes(b"".join(lines[:kept]))
        try:
            part = scan(path).frame.collect()
        except ValueError:  # a header, or messages that make no row
            continue
        before = pl.col("available_time") < part["available_time"].max()
        assert part.filter(before).equals(frame.filter(before))
        compared += part.filter(before).height
    assert compared
