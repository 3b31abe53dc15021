"""Damage in tables of filings that were cut into items: told with its place, and no other row is lost."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import polars as pl
import pytest

from quantattn.data.filings.index import FilingIndex
from quantattn.data.recognise import recognise
from quantattn.data.sources.filings import scan_filings
from tests.data.filings.cut_records import ACCEPTED, RECORDS, index_of, parquet, record

BAD_LINES = {
    '{"cik": "1", "filename": "a", "item_1": "x", "item_1": "y"}': "JSON that says 'item_1' twice",
    '{"cik": "1", "filename": "a", "item_1": ': "damaged JSON",
    '{"cik": "1", "filename": "a", "item_1": [1]}': "item_1 holds a list, expected text",
    '{"cik": "one", "filename": "a", "section_1": "x"}': "central index key 'one'",
    '{"cik": "1", "filename": "a", "section_1": "x", "section_2": true}': "section_2 holds a bool, expected text",
    '{"cik": "1", "filename": "a", "section_1": ' + "[" * 100_000: "JSON that is nested too deep",
    "[1, 2]": "JSON that holds a list, expected an object with items",
}


def test_bad_lines_are_set_aside_with_their_number_and_no_other_is(tmp_path: Path) -> None:
    good = [record(number) for number in range(1, len(BAD_LINES) + 2)]
    lines = [json.dumps(good[0])]
    for bad, each in zip(BAD_LINES, good[1:], strict=True):
        lines += [bad, json.dumps(each)]
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    named = FilingIndex([*({"filename": each["filename"], "accepted": ACCEPTED} for each in good), TIMED])
    source = scan_filings(tmp_path / "x.jsonl", index=named, forms=("10-K",))
    assert source.report.rows_read == len(good)
    assert source.report.rows_set_aside == {"unreadable": len(BAD_LINES)}
    aside = source.documents.filter(pl.col("status") != "ok")
    assert aside["file"].to_list() == [f"x.jsonl, line {2 * n}" for n in range(1, len(BAD_LINES) + 1)]
    for found, wanted in zip(aside["detail"], BAD_LINES.values(), strict=True):
        assert found.startswith(wanted)
    with pytest.raises(ValueError, match=r"^x\.jsonl, line 2: JSON that says"):
        scan_filings(tmp_path / "x.jsonl", index=named, on_bad="refuse")


TIMED = {"filename": "a", "accepted": ACCEPTED, "form": "10-K"}


def test_a_file_that_breaks_off_says_so(tmp_path: Path) -> None:
    lines = [json.dumps(record(number)) for number in range(1, 400)]
    packed = gzip.compress("\n".join(lines).encode())
    index = FilingIndex({"filename": f"{n}_2015.txt", "accepted": ACCEPTED} for n in range(1, 400))
    (tmp_path / "x").write_bytes(packed[: len(packed) // 2])
    source = scan_filings(tmp_path, index=index)
    assert source.report.rows_read == 0  # a stream is unpacked in pieces of megabytes; this was one
    assert source.documents.row(-1, named=True)["detail"].startswith("what follows is lost: x breaks off")
    (tmp_path / "x").write_text(json.dumps(RECORDS)[:-200])
    source = scan_filings(tmp_path, index=index_of(*RECORDS))
    assert source.report.rows_read == 2
    assert source.documents.row(-1, named=True)["detail"].startswith("it and what follows are lost: damaged JSON")
    whole = parquet(tmp_path / "x", RECORDS).read_bytes()
    (tmp_path / "x").write_bytes(whole[:-20])
    source = scan_filings(tmp_path, index=index_of(*RECORDS))
    assert source.report.rows_read == 0
    assert source.documents["detail"][0].startswith("damaged Parquet")


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    """Bytes that are no UTF-8 in a file's name: JSON is read, of Parquet it is told."""
    columns, lines = parquet(tmp_path / "x", RECORDS).read_bytes(), "\n".join(map(json.dumps, RECORDS)).encode()
    (tmp_path / "x").unlink()
    try:
        for name, content in ((b"a\xff", columns), (b"b\xff", lines)):
            (tmp_path / os.fsdecode(name)).write_bytes(content)
    except OSError:
        pytest.skip("this file system takes no such name")
    source = scan_filings(tmp_path, index=index_of(*RECORDS))
    assert source.report.rows_read == len(RECORDS)
    assert source.documents.row(0, named=True)["detail"].startswith("a Parquet file whose path is no UTF-8")
    assert source.documents["file"].to_list()[:2] == ["a\\xff", "b\\xff, line 1"]
    assert recognise(tmp_path / os.fsdecode(b"b\xff")).read
    assert not recognise(tmp_path / os.fsdecode(b"a\xff")).read
