"""Damaged filings: no crash, no hang, no silent emptiness; every file is read or set aside with a reason.

`QUANTATTN_MUTANTS=20000 pytest tests/data/filings/test_filings_mutants.py` makes so many of them.
"""

from __future__ import annotations

import gzip
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from quantattn.data.filings.index import FilingIndex
from quantattn.data.filings.parsed import NO_FORM, NOT_A_FILING, OTHER_FORM, SIZE_LIMIT, UNREADABLE
from quantattn.data.filings.pool import MEMORY_LIMIT, TIME_LIMIT, Limits
from quantattn.data.filings.reading import DUPLICATE, NO_FILER, NO_TIME
from quantattn.data.sources.filings import scan_filings

Maker = Callable[..., str]
COUNT = int(os.environ.get("QUANTATTN_MUTANTS", "240"))
BATCH = 80
SEED = 20261130
REAL = (
    "full_submission/ABVC_8-K_0001213900-25-032135.txt.gz",
    "full_submission/MINIMAL_0001564590-20-004475.txt",
    "full_submission/ACORN_8-K_0001493152-25-001317.nc.gz",
    "full_submission/IFF_8-K_0001140361-25-017716.txt.gz",
    "old_ascii/FOODCONCEPTS_8-K_0000703901-98-000003.txt",
    "old_ascii/ALABAMAPOWER_8-K_0000092122-05-000042.txt",
    "old_ascii/AMAZON_8-K_0000891020-98-001352.txt",
    "old_ascii/APPLE_8-K_0000320193-96-000027.txt",
    "html_8-K/ORACLE_2024_8-K.html",
    "html_8-K/PREMIER_2021_8-K.html",
    "html_10-K/MEDICIS_10-K_FY1999.html.gz",
    "html_10-K/VERIZON_10-K_FY2008.htm.gz",
    "edgar_crawler_raw_8-K/1001039_8K_2013_0001001039-13-000031.htm",
)
"""Small to middling ones of each kind."""
KNOWN = {"ok", NOT_A_FILING, OTHER_FORM, NO_FORM, NO_FILER, NO_TIME, DUPLICATE, UNREADABLE, SIZE_LIMIT}
ENCODINGS = ("utf-16", "utf-16-le", "utf-8-sig", "cp037", "utf-7", "utf-32")
NEWLINES = (b"\r", b"\r\n", b"\n\r", b"\x0b", b"\x0c", b"\x85", b"\xe2\x80\xa8", b"")
NESTS = (
    b"<div>",
    b"<table><tr><td>",
    b"<font size=1>",
    b"<DOCUMENT>",
    b"<TEXT>",
    b"<ix:nonNumeric>",
    b"<!--",
    b"<p",
    b"(",
)
TOKENS = (b"a", b"9", b"&", b"<", b"item 1. ", b"-", b" ", b"\t", b"\xff", b"\x00", b"1, ", b"begin 644 a\n")


def damaged(content: bytes, other: bytes, dice: random.Random) -> bytes:
    """One damage of ten kinds, anywhere."""
    at, size = dice.randrange(len(content)), dice.choice([1, 20, 2_000])
    before, after = content[:at], content[at:]
    start = dice.randrange(len(other))
    kind = dice.randrange(10)
    if kind == 0:
        return before
    if kind == 1:
        return before + after[size:]
    if kind == 2:
        return before + dice.randbytes(size) + after
    if kind == 3:
        return before + other[start : start + size * 10] + after
    if kind == 4:
        return before + dice.choice(NESTS) * size + after
    if kind == 5:
        return before + dice.choice(TOKENS) * dice.choice([10, 1_000, 200_000]) + after
    if kind == 6:
        return (
            before + after[: size * 10].decode("latin-1").encode(dice.choice(ENCODINGS), "replace") + after[size * 10 :]
        )
    if kind == 7:
        return before + after.replace(b"\n", dice.choice(NEWLINES))
    if kind == 8:
        return before + after.replace(
            *dice.choice([(b"</", b"<"), (b">", b""), (b'"', b"'"), (b"<TEXT>", b""), (b"0", b"x")])
        )
    packed = gzip.compress(content, 1)
    return packed[: dice.randrange(len(packed))] if dice.random() < 0.5 else packed + after[:size]


@pytest.fixture(scope="module")
def originals(submission: Maker) -> list[bytes]:
    """Filings of every kind that the test makes itself, and real ones where they are."""
    page = "<html xmlns='x'><body><ix:header><ix:hidden><ix:nonNumeric name='dei:DocumentType'>10-K</ix:nonNumeric>"
    page += "</ix:hidden><ix:resources><xbrli:context id='c'><xbrli:period><xbrli:instant>2023-12-31</xbrli:instant>"
    page += "</xbrli:period></xbrli:context><xbrli:unit id='u'><xbrli:measure>iso4217:USD</xbrli:measure></xbrli:unit>"
    page += "</ix:resources></ix:header><ix:nonFraction name='x:y' contextRef='c' unitRef='u'>12</ix:nonFraction>"
    page += "<p>FORM 10-K</p><h1>Item 1. Business</h1>" + "<p>We make <b>anvils</b>.</p>" * 50
    page += "<table><tr><td>Sales</td><td>$</td><td>1,234</td></tr></table><p>Item 2. Properties</p><pre>a    b</pre>"
    old = (
        "FORM 10-K\n\nItem 1.  Business\n\n"
        + "We sold   more.\n" * 80
        + "<PAGE>  3\n<TABLE>\n<S>  <C>\na   1\n</TABLE>"
    )
    part = "<DOCUMENT>\n<TYPE>EX-13\n<SEQUENCE>2\n<TEXT>\nbegin 644 a.pdf\n#0V%T\n`\nend\n</TEXT>\n</DOCUMENT>\n"
    feed = "<SUBMISSION><ACCESSION-NUMBER>0000000123-24-000001<TYPE>8-K<FILING-DATE>20240315<FILER><CIK>123</FILER>"
    feed += "<DOCUMENT><TYPE>8-K<SEQUENCE>1<TEXT>Item 8.01 Other Events. Nothing.</TEXT></DOCUMENT></SUBMISSION>"
    made = [submission(old, more=part), submission(page), submission(old, brand="IMS", accepted=None), page, feed]
    folder = Path(os.environ.get("QUANTATTN_REALDATA", Path(__file__).parents[4] / "shared" / "realdata")) / "filings"
    real = [(folder / name).read_bytes() for name in REAL if (folder / name).is_file()]
    return [text.encode() for text in made] + [
        gzip.decompress(each) if each[:2] == b"\x1f\x8b" else each for each in real
    ]


def mutants(originals: list[bytes], first: int, count: int) -> dict[str, bytes]:
    """Name → bytes; each depends on its number alone."""
    made = {}
    for number in range(first, first + count):
        dice = random.Random(SEED + number)
        content, other = dice.sample(originals, 2)
        for _ in range(dice.randint(1, 3)):
            content = damaged(content, other, dice) or b"\n"
        made[f"{number:06}"] = content
    return made


def test_every_mutant_is_read_or_set_aside_with_a_reason(originals: list[bytes], tmp_path: Path) -> None:
    limits = Limits(cpu_seconds=10, wall_seconds=60)
    seen: Counter[str] = Counter()
    texts = 0
    for first in range(0, COUNT, BATCH):
        batch = mutants(originals, first, min(BATCH, COUNT - first))
        for name, content in batch.items():
            (tmp_path / name).write_bytes(content)
        began = time.monotonic()
        index = FilingIndex([{"name": name, "accepted": "20240315101500", "cik": "1"} for name in batch])
        source = scan_filings(tmp_path, index=index, filing_dates="latest", items=True, facts=True, limits=limits)
        assert time.monotonic() - began < limits.wall_seconds * len(batch)
        documents, table = source.documents, source.frame.collect()
        assert documents["file"].to_list() == list(batch)
        assert table.height + sum(source.report.rows_set_aside.values()) == len(batch)
        # A parser of ours that raised what it should not, or that died, is a bug and no reason.
        strange = documents.filter(~pl.col("status").is_in(KNOWN) | pl.col("detail").str.contains("parser error"))
        assert strange.filter(~pl.col("status").is_in([TIME_LIMIT, MEMORY_LIMIT])).rows() == []
        assert documents.filter((pl.col("status") != "ok") & (pl.col("detail") == "")).rows() == []
        assert table.filter((pl.col("text").str.strip_chars() == "") | (pl.col("share") < 0.95)).rows() == []
        assert documents.filter(pl.col("n_chars") < 1).rows() == []
        assert table.filter(pl.col("available_time") < pl.col("event_time")).rows() == []
        seen.update(documents["status"])
        texts += int(documents["n_chars"].is_not_null().sum())
        for name in batch:
            (tmp_path / name).unlink()
    print(f"{COUNT} mutants of {len(originals)} filings: {texts} texts, {dict(sorted(seen.items()))}")
    assert texts > COUNT / 3
    assert seen[TIME_LIMIT] + seen[MEMORY_LIMIT] <= COUNT / 500


def test_mutants_are_the_same_every_time(originals: list[bytes]) -> None:
    assert mutants(originals, 0, 5) == mutants(originals, 0, 5)
    assert mutants(originals, 3, 1)["000003"] == mutants(originals, 0, 5)["000003"]
