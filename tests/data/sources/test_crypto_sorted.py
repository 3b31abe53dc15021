"""Feeds of several instruments, and books merged with trades: sorted, on disk where memory is not to hold them."""

from __future__ import annotations

import gc
import random
import tempfile
from pathlib import Path

import polars as pl
import pytest
from test_tardis import CHANGES, SNAPSHOTS, TRADES, row, write

from quantattn.data.schema import CANONICAL_ORDER
from quantattn.data.sources import runs, scan_tardis

pytest.importorskip("numba", reason="numba is not here (pip install 'quantattn[book]')")

SYMBOLS = ("C", "A", "B")
WHOLE = {"price_exponent": -1, "size_exponent": 0}
FEEDS = {
    "trades": ("trades",),
    "changes": ("changes",),
    "snapshots": ("snapshots",),
    "changes and trades": ("changes", "trades"),
    "snapshots and trades": ("snapshots", "trades"),
}


def lines(kind: str) -> list[tuple[str, str]]:
    """(symbol, line) in the order of receipt, many of them at one time."""
    rng = random.Random(kind)
    made = []
    for n in range(150):
        symbol, price = rng.choice(SYMBOLS), rng.randint(90, 99)
        rest = {
            "trades": f"{n},{rng.choice(['buy', 'sell'])},{price}.5,{rng.randint(1, 9)}",
            "changes": f"{'true' if n < 20 else 'false'},{rng.choice(['bid', 'ask'])},{price},{rng.randint(0, 9)}",
            "snapshots": f"{price + 1},{rng.randint(1, 9)},{price},{rng.randint(1, 9)}",
        }[kind]
        made.append((symbol, row(10 * (n // 7), rest, symbol=symbol)))
    return made


def written(folder: Path, kinds: tuple[str, ...], only: str | None = None) -> Path:
    folder.mkdir()
    for kind in kinds:
        header = {"trades": TRADES, "changes": CHANGES, "snapshots": SNAPSHOTS}[kind]
        own = [line for symbol, line in lines(kind) if only in (None, symbol)]
        write(folder / f"{kind}.csv", header, *own)
    return folder


@pytest.mark.parametrize("kinds", FEEDS.values(), ids=FEEDS)
def test_a_table_is_the_same_sorted_in_memory_or_on_disk_in_pieces_of_any_size(
    kinds: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, scratch = written(tmp_path / "feed", kinds), tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    held = scan_tardis(path, **WHOLE)
    frame = held.frame.collect()
    assert frame.equals(frame.sort(CANONICAL_ORDER, maintain_order=True))
    assert not [*scratch.iterdir()]
    monkeypatch.setattr(runs, "KEPT", 0)
    monkeypatch.setattr("quantattn.data.sources.crypto.build.KEPT", 0)
    for rows, piece in ((1, 200), (7, 1 << 24), (1000, 700)):
        monkeypatch.setattr(runs, "ROWS", rows)
        monkeypatch.setattr("quantattn.data.sources.pieces.PIECE", piece)
        again = scan_tardis(path, **WHOLE)
        assert (again.report, again.instruments, again.tally) == (held.report, held.instruments, held.tally)
        for _ in range(2):
            assert again.frame.collect().equals(frame)
        assert [*scratch.glob("quantattn-rows-*/*.arrow")]
        del again
        gc.collect()
        assert not [*scratch.iterdir()]


def test_a_book_that_is_shipped_is_shown_by_its_own_instrument_alone(tmp_path: Path) -> None:
    books = [("B", 100), ("A", 500), ("B", 101), ("A", 501), ("B", 102)]
    shipped = [row(10 * n, f"{bid + 1},1,{bid},1", symbol=symbol) for n, (symbol, bid) in enumerate(books)]
    write(tmp_path / "books.csv", SNAPSHOTS, *shipped)
    trades = [row(25, "1,buy,501.5,1", symbol="A"), row(45, "2,buy,103.5,1", symbol="B")]
    write(tmp_path / "trades.csv", TRADES, *trades)
    shown = scan_tardis(tmp_path, **WHOLE).frame.select(pl.col("entity").str.tail(1), "bid_price_1").collect()
    assert shown.rows() == [("A", 5000), ("A", 5000), ("A", 5010), ("B", 1000), ("B", 1010), ("B", 1020), ("B", 1020)]


@pytest.mark.parametrize("kinds", FEEDS.values(), ids=FEEDS)
def test_rows_of_an_instrument_among_others_are_those_that_it_has_alone(kinds: tuple[str, ...], tmp_path: Path) -> None:
    together = scan_tardis(written(tmp_path / "feed", kinds), **WHOLE).frame.collect()
    for symbol in SYMBOLS:
        alone = scan_tardis(written(tmp_path / symbol, kinds, symbol), **WHOLE).frame.collect()
        own = together.filter(pl.col("entity") == f"deribit:{symbol}")
        assert own.drop("seq").equals(alone.drop("seq"))
        assert own["seq"].rank("dense").equals(alone["seq"].rank("dense"))
