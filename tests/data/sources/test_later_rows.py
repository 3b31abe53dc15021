"""Of files of rows in order of time: those that come later change nothing of what was read of earlier ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from lobster_pairs import write_pair

from quantattn.data.sources import scan_lobster, scan_table, scan_taq, scan_ticks
from quantattn.data.sources.source import Source

N = 40
Lines = list[str]


def clock(k: int) -> str:
    return f"2018-01-02 {10 + k // 60:02}:{k % 60:02}:{7 * k % 60:02}"


def lobster(folder: Path, rows: range, draw: np.random.Generator) -> Source:
    prices = 2_238_000 + 100 * np.cumsum(draw.integers(-2, 3, N))
    messages = [
        f"{34_200 + k}.{k + 1:09},{draw.choice([1, 2, 3, 4, 5])},{k + 1},{draw.integers(1, 90)},{prices[k]},1"
        for k in range(N)
    ]
    messages[7], messages[20] = f"{34_207}.5,7,0,0,-1,-1", f"{34_220}.5,7,0,0,1,-1"
    books = [f"{price + 200},{k + 1},{price},{k + 2}" for k, price in enumerate(prices)]
    return scan_lobster(write_pair(folder, messages[rows.start : rows.stop], books[rows.start : rows.stop]))


def one_file(scan: Callable[[Path], Source], header: str, line: Callable[[int, np.random.Generator], str]) -> object:
    def made(folder: Path, rows: range, draw: np.random.Generator) -> Source:
        lines = [line(k, draw) for k in range(N)]
        path = folder / "day.csv"
        path.write_text("\n".join([header, *lines[rows.start : rows.stop], ""]))
        return scan(path)

    return made


def quote(k: int, draw: np.random.Generator) -> str:
    bid = 86.0 + draw.integers(0, 50) / 1000
    return f"{clock(k).replace(' ', 'T')}.250Z,{bid:.3f},{bid + draw.integers(0, 9) / 1000:.3f}"


def trade(k: int, draw: np.random.Generator) -> str:
    return f"{clock(k)}.5,P,XY,{draw.choice(['', 'Z', '@'])},{draw.integers(1, 900)},{157 + k / 100:.2f},0"


def national(k: int, draw: np.random.Generator) -> str:
    return f"{clock(k)},{draw.choice(['N', 'P', 'T'])},XY,{150 + k % 7},{draw.integers(1, 9)},{160 - k % 5},3,R"


def booking(k: int, draw: np.random.Generator) -> str:
    return f"{draw.integers(0, 4)},{clock(k)},{draw.integers(-90, 90)}.50"


TABLE = {"id": "who", "time": "when", "columns": {"amount": "decimal2"}}
FILES = {
    "lobster": lobster,
    "ticks": one_file(scan_ticks, "timestamp,bid,ask", quote),
    "taq trades": one_file(scan_taq, "DT,EX,SYMBOL,COND,SIZE,PRICE,CORR", trade),
    "taq quotes": one_file(scan_taq, "DT,EX,SYMBOL,BID,BIDSIZ,OFR,OFRSIZ,MODE", national),
    "table": one_file(lambda path: scan_table(path, **TABLE), "who,when,amount", booking),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("kind", FILES)
def test_later_rows_change_no_earlier_one(tmp_path: Path, kind: str) -> None:
    def read(folder: str, rows: range, seed: int) -> pl.DataFrame:
        (tmp_path / folder).mkdir(exist_ok=True)
        made: pl.DataFrame = FILES[kind](tmp_path / folder, rows, np.random.default_rng(seed)).frame.collect()  # type: ignore[operator]
        return made

    whole, seen = read("whole", range(N), 0), 0
    for kept in range(5, N, 7):
        part = read("part", range(kept), 0)
        # `seq` numbers the rows of the file, which stand there in order of time, not of entities.
        last = part["available_time"].max()
        earlier = pl.col("available_time") < last
        assert part.filter(earlier).equals(whole.filter(earlier))
        seen += part.filter(earlier).height
    assert seen
    # A control: what is read does depend on the rows.
    assert not read("other", range(N), 1).equals(whole)
