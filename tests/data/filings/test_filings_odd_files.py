"""What people point a reader at by mistake, and headers whose times cannot be: a sentence each, and nothing is lost."""

from __future__ import annotations

import io
import tarfile
import time
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from quantattn.data.sources.filings import scan_filings

Maker = Callable[..., str]


def told(path: Path) -> list[tuple[str, str]]:
    """Status and detail of each file; none of them is a row."""
    source = scan_filings(path, workers=1)
    assert source.frame.collect().height == 0
    return source.documents.select("status", "detail").rows()


def two(submission: Maker) -> tuple[str, str]:
    return submission(), submission(accession="0000000123-24-000002")


def test_an_archive_of_filings_is_told_to_be_unpacked(tmp_path: Path, submission: Maker) -> None:
    tar, zipped = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w:gz") as archive, zipfile.ZipFile(zipped, "w") as other:
        for number, text in enumerate(two(submission)):
            entry = tarfile.TarInfo(f"{number}.nc")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
            other.writestr(f"{number}.nc", text)
    (tmp_path / "20240315.nc.tar.gz").write_bytes(tar.getvalue())
    (tmp_path / "filings.zip").write_bytes(zipped.getvalue())
    (first, one), (second, another) = told(tmp_path)
    assert first == second == "not a filing"
    assert one.startswith("a tar archive")
    assert "unpack it" in one
    assert "unpack them into a folder" in another


@pytest.mark.parametrize("brand", ["SEC", "IMS"])
def test_two_submissions_in_one_file_are_not_taken_for_one(tmp_path: Path, submission: Maker, brand: str) -> None:
    one, other = two(submission)
    (tmp_path / "all.txt").write_text(one + other.replace("SEC-", f"{brand}-"))
    assert told(tmp_path) == [
        ("unreadable", "a second submission begins in it, expected one a file: cut it where each begins")
    ]
    (tmp_path / "all.txt").write_text(one.replace("We sold", "As <SEC-DOCUMENT> says, we sold"))
    assert scan_filings(tmp_path).frame.collect().height == 1


def test_a_time_that_has_not_come_is_none(tmp_path: Path, submission: Maker) -> None:
    """New York is behind UTC, so a stamp of now is not ahead of the clock; one of two days ahead is."""
    now = datetime.fromtimestamp(time.time(), UTC)
    for days in (-7, 2):
        day = now + timedelta(days=days)
        (tmp_path / f"{days + 7}.txt").write_text(
            submission(
                accepted=f"{day:%Y%m%d}120000", filed=f"{day:%Y%m%d}", accession=f"0000000123-26-00000{days + 7}"
            )
        )
    documents = scan_filings(tmp_path).documents
    assert documents["status"].to_list() == ["ok", "unreadable"]
    assert documents["detail"][1] == (
        f"accepted on {now + timedelta(days=2):%Y-%m-%d}, a day that has not come by this machine's clock"
    )


@pytest.mark.parametrize(
    ("accepted", "filed", "kept"),
    [
        ("20240315101500", "20240315", True),
        ("20240314190000", "20240315", True),  # in the evening
        ("20231222190000", "20231226", True),  # before a long weekend
        ("20240410101500", "20240315", True),  # later than its date: never early
        ("20230315101500", "20240315", False),
    ],
)
def test_an_acceptance_long_before_the_filing_date_is_refused(
    tmp_path: Path, submission: Maker, accepted: str, filed: str, kept: bool
) -> None:
    (tmp_path / "a.txt").write_text(submission(accepted=accepted, filed=filed))
    documents = scan_filings(tmp_path).documents
    assert (documents["status"][0] == "ok") is kept
    if not kept:
        assert documents["detail"][0] == "its header says accepted 2023-03-15 and filed as of 2024-03-15"
