"""Small LOBSTER days for the tests of their reading."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from quantattn.data.sources import scan_lobster

NAME = "TEST_2012-06-21_34200000_57600000_{}_1.csv"
MIDNIGHT = 1_340_251_200 * 10**9  # 2012-06-21 00:00 in New York is 04:00 UTC
MESSAGES = [
    "34200.017459617,5,0,1,2238200,-1",
    "34200.18960767,1,11885113,21,2238100,1",
    "34200.190226476,4,11885113,21,2238100,1",
    "34200.190226476,4,11534792,26,2237500,1",
    "34201,3,11534793,100,2239500,-1",
]
BOOKS = [
    "2239500,100,2231800,100",
    "2239500,100,2238100,21",
    "2239500,100,2237500,100",
    "2239500,100,2237500,74",
    "9999999999,0,-9999999999,0",
]


def write_pair(folder: Path, messages: list[str], books: list[str], name: str = NAME, end: str = "\n") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for role, lines in (("message", messages), ("orderbook", books)):
        (folder / name.format(role)).write_text("".join(f"{line}{end}" for line in lines), newline="")
    return folder


def one_error(*args: object, **settings: object) -> str:
    with pytest.raises(ValueError) as caught:
        scan_lobster(*args, **settings)  # type: ignore[arg-type]
    return str(caught.value)


def rounded(decimals: int, rows: int = 40) -> list[str]:
    times = (Decimal(34200) + Decimal(i * 37) / 10**decimals for i in range(rows))
    texts = (f"{time:f}".rstrip("0").rstrip(".") if decimals else f"{time:f}" for time in times)
    return [f"{text},1,{i},5,2238100,1" for i, text in enumerate(texts)]
