"""Damaged files of TAQ, ticks and bars: refused in one sentence, or every line of them accounted for."""

from __future__ import annotations

import gzip
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quantattn.data.market.encode import schema_of
from quantattn.data.schema import check
from quantattn.data.sources import Source, scan_bars, scan_taq, scan_ticks

MUTANTS = int(os.environ.get("QUANTATTN_TEXT_MUTANTS", "12"))
"""How many damaged files of each kind are read; 3,000 take some ten minutes."""

TRADES = "DT,EX,SYMBOL,COND,SIZE,PRICE,CORR\n" + "".join(
    f"2018-01-02 09:30:{n:02}.5,P,XY,F I,{n + 1},157.{n:02},0\n" for n in range(12)
)
QUOTES = "DATE,TIME_M,EX,BID,BIDSIZ,ASK,ASKSIZ,SYM_ROOT,SYM_SUFFIX\n" + "".join(
    f"20180102,9:30:{n:02},{'NP'[n % 2]},10.{n:02},5,11.{n:02},6,XY,\n" for n in range(12)
)
TICKS = "timestamp,bid,ask\n" + "".join(f"2013-01-01 22:00:{n:02}.295+00:00,86.6{n:02},86.7{n:02}\n" for n in range(12))
OHLCV = "Date,Open,High,Low,Close,Volume\n" + "".join(f"2024-07-{n},1.{n},2.5,0.5,1.{n},{n}00\n" for n in range(10, 20))
PANEL = "date,AB,CD\n" + "".join(f"2024-07-{n},1.{n},\n" for n in range(10, 20))
THREE = "Price,Close,High\nTicker,AA,AA\nDate,,\n" + "".join(f"2024-07-{n},1.{n},2.5\n" for n in range(10, 20))
KINDS = {
    "trades": (TRADES, scan_taq),
    "quotes": (QUOTES, scan_taq),
    "ticks": (TICKS, scan_ticks),
    "bars": (OHLCV, scan_bars),
    "panel": (PANEL, scan_bars),
    "three header rows": (THREE, scan_bars),
}


def mutant(text: str, draw: random.Random) -> bytes:
    data = bytearray(text.encode())
    for _ in range(draw.randint(1, 3)):
        place = draw.randrange(len(data))
        match draw.randrange(5):
            case 0:
                data[place] ^= 1 << draw.randrange(8)
            case 1:
                del data[place : place + draw.randint(1, 20)]
            case 2:
                data[place:place] = bytes(draw.choice(b',;"\n\r\0 .-e9/:+') for _ in range(draw.randint(1, 6)))
            case 3:
                data[place:place] = data[max(0, place - 30) : place]
            case 4 if place > 40:
                del data[place:]
    return bytes(data)


def outcome(scan: Callable[..., Source], path: Path, **more: Any) -> str:
    """ "" when the table is sound, else the refusal."""
    try:
        frame = scan(path, **more).frame.collect()
    except ValueError as error:
        return str(error)
    check(frame, schema_of(frame.columns))
    return ""


@pytest.mark.parametrize("kind", KINDS)
def test_mutants_are_refused_in_one_sentence_or_read_whole(tmp_path: Path, kind: str) -> None:
    text, scan = KINDS[kind]
    draw = random.Random(kind)
    refused = 0
    for number in range(MUTANTS):
        data = mutant(text, draw)
        path = tmp_path / ("x.csv.gz" if number % 5 == 0 else "x.csv")
        if number % 5 == 0:
            data = gzip.compress(data)
            data = data[: draw.choice([len(data), draw.randrange(len(data))])]
        path.write_bytes(data)
        said = outcome(scan, path)
        assert "\n" not in said
        refused += bool(said)
        aside = outcome(scan, path, on_bad="quarantine", set_aside=tmp_path / "aside.csv")
        assert "\n" not in aside
        assert said or not aside  # what is read whole is read in quarantine too
    assert refused > MUTANTS // 4


@pytest.mark.parametrize("kind", ["trades", "ticks"])
def test_in_quarantine_every_line_is_accounted_for(tmp_path: Path, kind: str) -> None:
    text, scan = KINDS[kind]
    draw = random.Random(kind)
    header, *rows = text.splitlines(keepends=True)
    for _ in range(MUTANTS):
        body = mutant("".join(rows), draw).replace(b"\r", b"")
        path = tmp_path / "x.csv"
        path.write_bytes(header.encode() + body)
        said = outcome(scan, path, on_bad="quarantine", set_aside=tmp_path / "aside.csv")
        if said:
            assert "UTF-8" in said or "holds no quote" in said
            continue
        source = scan(path, on_bad="quarantine", set_aside=tmp_path / "aside.csv")
        read = source.report.rows_read
        if kind == "ticks":
            read = source.frame.collect()["complete"].sum()
        lines = sum(bool(line) for line in body.split(b"\n"))
        assert read + sum(source.report.rows_set_aside.values()) == lines
