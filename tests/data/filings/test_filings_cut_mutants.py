"""Damaged tables of cut filings and damaged XBRL instances: each is read or set aside with a reason, row by row.

`QUANTATTN_MUTANTS=5000 pytest tests/data/filings/test_filings_cut_mutants.py` makes so many of them.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from quantattn.data.filings.index import FilingIndex
from quantattn.data.filings.parsed import (
    FACTS_ALONE,
    NO_FORM,
    NO_ITEMS,
    NOT_A_FILING,
    OTHER_FORM,
    SIZE_LIMIT,
    UNREADABLE,
)
from quantattn.data.filings.pool import MEMORY_LIMIT, TIME_LIMIT, Limits
from quantattn.data.filings.reading import DUPLICATE, NO_FILER, NO_TIME
from quantattn.data.sources.filings import scan_filings
from tests.data.filings.instances import PLAIN, exhibit, instance
from tests.data.filings.test_filings_mutants import SEED, damaged

Maker = Callable[..., str]
COUNT = int(os.environ.get("QUANTATTN_MUTANTS", "60"))
BATCH = 60
KNOWN = {"ok", NOT_A_FILING, OTHER_FORM, NO_FORM, NO_FILER, NO_TIME, NO_ITEMS, DUPLICATE, UNREADABLE, SIZE_LIMIT}
KNOWN |= {FACTS_ALONE}
RECORDS = [
    {"filename": f"{n}_2015.txt", "cik": str(n), "year": "2015", "section_1": f"Item 1. Business\nWe sell {n}.\n" * 9}
    | {"section_1A": "Item 1A. Risk Factors\nAnvils fall. Ünser €." * n, "section_7": ""}
    for n in range(1, 8)
]


@pytest.fixture(scope="module")
def originals(submission: Maker) -> list[bytes]:
    """A table of each kind, and XBRL alone and within a submission."""
    tables = []
    for compression in ("uncompressed", "zstd", "snappy"):
        buffer = io.BytesIO()
        pl.DataFrame(RECORDS).write_parquet(buffer, compression=compression, row_group_size=3)
        tables.append(buffer.getvalue())
    lines = "\n".join(map(json.dumps, RECORDS))
    facts = "".join(f"<acme:X{n} {PLAIN} decimals='-3'>{n}000</acme:X{n}>" for n in range(40))
    facts += "<dei:DocumentType contextRef='year'>10-K</dei:DocumentType><acme:T contextRef='day'>Säge</acme:T>"
    quarterly = {
        "cik": 1,
        "filename": "q",
        "filing_type": "10-Q",
        "filing_date": "2016-02-26",
        "part_1": "Item 1. A\nb.",
    }
    texts = [
        *(lines, json.dumps(RECORDS), json.dumps(RECORDS, indent=1), json.dumps(RECORDS[0], indent=4)),
        *(json.dumps(quarterly | {"part_1_item_1": "Item 1. A"}), instance(facts), instance(facts)),
        *(submission(more=exhibit(instance(facts))), submission(more=exhibit(instance(facts), "XML"))),
    ]
    return [*tables, gzip.compress(lines.encode(), 1), *(text.encode() for text in texts)]


def test_every_mutant_is_read_or_set_aside_with_a_reason(originals: list[bytes], tmp_path: Path) -> None:
    limits = Limits(cpu_seconds=10, wall_seconds=60)
    named = [{"filename": each["filename"], "accepted": "20160226161500"} for each in RECORDS]
    seen: Counter[str] = Counter()
    facts = xbrl = 0
    for first in range(0, COUNT, BATCH):
        batch = []
        for number in range(first, min(COUNT, first + BATCH)):
            dice = random.Random(SEED + number)
            content, other = dice.sample(originals, 2)
            for _ in range(dice.randint(1, 2)):
                content = damaged(content, other, dice) or b"\n"
            batch.append(f"{number:06}")
            (tmp_path / batch[-1]).write_bytes(content)
        began = time.monotonic()
        index = FilingIndex([*named, *({"name": name, "accepted": "20160226161500", "cik": "1"} for name in batch)])
        source = scan_filings(tmp_path, index=index, filing_dates="latest", items=True, facts=True, limits=limits)
        assert time.monotonic() - began < limits.wall_seconds * len(batch)
        documents, table = source.documents, source.frame.collect()
        # No file vanishes: each has at least one line of the account.
        assert documents["file"].str.split(", ").list.first().unique().sort().to_list() == batch
        assert table.height + sum(source.report.rows_set_aside.values()) == documents.height
        strange = documents.filter(~pl.col("status").is_in(KNOWN) | pl.col("detail").str.contains("parser error"))
        assert strange.filter(~pl.col("status").is_in([TIME_LIMIT, MEMORY_LIMIT])).rows() == []
        assert documents.filter((pl.col("status") != "ok") & (pl.col("detail") == "")).rows() == []
        assert table.filter(pl.col("text").str.strip_chars() == "").rows() == []
        assert table.filter(pl.col("available_time") < pl.col("event_time")).rows() == []
        assert source.facts is not None
        facts += source.facts.height
        xbrl += int(documents["detail"].str.contains("XML|XBRL").sum())
        seen.update(documents["status"])
        for name in batch:
            (tmp_path / name).unlink()
    print(f"{COUNT} mutants of {len(originals)} files: {facts:,} facts, {dict(sorted(seen.items()))}")
    assert seen["ok"] + seen[DUPLICATE] > COUNT / 3
    assert xbrl > COUNT / 30  # the parser of instances was reached
    assert seen[TIME_LIMIT] + seen[MEMORY_LIMIT] <= COUNT / 500
