"""Zips of XBRL: read like the document in them, by content, within limits, whatever they state about themselves."""

from __future__ import annotations

import io
import random
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from quantattn.data.filings.index import FilingIndex, read_index
from quantattn.data.filings.package import MOST_FILES, NotInIt, unpack_main
from quantattn.data.filings.parsed import FACTS_ALONE, NOT_A_FILING, SIZE_LIMIT, UNREADABLE
from quantattn.data.filings.pool import Limits
from quantattn.data.filings.text import TooLarge
from quantattn.data.recognise.look import Look
from quantattn.data.sources.filings import FilingSource, scan_filings
from tests.data.filings.instances import PLAIN, inline, instance

FACT = f"<acme:Sales {PLAIN} decimals='0'>12</acme:Sales>"
COVER = "<ix:nonNumeric name='dei:DocumentType' contextRef='year'>10-K</ix:nonNumeric>"
SOLD = f"<ix:nonFraction name='acme:Sales' {PLAIN} decimals='0'>12</ix:nonFraction>"
PAGE = inline(f"{COVER}<p>Item 1. Business</p><p>We sold {SOLD} anvils in the year, to customers of every kind.</p>")
OTHER_PAGE = inline("<p>Exhibit</p>" + "<p>longer than the filing</p>" * 99)
SCHEMA = "<?xml version='1.0'?><xs:schema xmlns:xs='http://www.w3.org/2001/XMLSchema'/>"
LABELS = "<?xml version='1.0'?><link:linkbase xmlns:link='http://www.xbrl.org/2003/linkbase'/>"
EDGAR = {"acme.xsd": SCHEMA, "acme_lab.xml": LABELS, "acme_pre.xml": LABELS}
NUMBER = "0000000123-24-000001"
NAME = f"{NUMBER}-xbrl.zip"


def zipped(files: Mapping[str, str | bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return made.getvalue()


@pytest.fixture
def index(tmp_path: Path) -> FilingIndex:
    path = tmp_path / "index.csv"
    path.write_text(f"accession,acceptance_datetime,cik,form\n{NUMBER},2024-03-15T10:15:00.000Z,123,10-K\n")
    return read_index(path, "utc")


def scan(
    folder: Path, content: bytes, index: FilingIndex, name: str = NAME, limits: Limits | None = None
) -> FilingSource:
    folder.mkdir()
    (folder / name).write_bytes(content)
    return scan_filings(folder, index=index, facts=True, workers=1, limits=limits)


def test_a_package_is_read_as_the_page_in_it(tmp_path: Path, index: FilingIndex) -> None:
    both = EDGAR | {"ex99.htm": OTHER_PAGE, "acme-20231231.htm": PAGE, "acme_htm.xml": instance(FACT)}
    read = scan(tmp_path / "zip", zipped(both), index)
    alone = scan(tmp_path / "page", PAGE.encode(), index, f"{NUMBER}.htm")
    ours, theirs = read.frame.collect(), alone.frame.collect()
    assert ours.height == 1
    assert ours.drop("file").equals(theirs.drop("file"))
    assert ours["accession"].to_list() == [NUMBER]  # from the name of the zip
    assert read.facts is not None
    assert alone.facts is not None
    assert read.facts.height == 2
    assert read.facts.drop("file", strict=False).equals(alone.facts.drop("file", strict=False))


def test_a_package_without_a_page_is_read_as_its_instance(tmp_path: Path, index: FilingIndex) -> None:
    read = scan(tmp_path / "zip", zipped(EDGAR | {"acme.xml": instance(FACT)}), index)
    assert read.documents["status"].to_list() == [FACTS_ALONE]
    assert read.facts is not None
    assert read.facts.select("concept", "value", "accession").row(0) == ("acme:Sales", 12, NUMBER)


@pytest.mark.parametrize("order", [1, -1])
def test_names_and_order_say_nothing(order: int) -> None:
    files: dict[str, str | bytes] = {
        "../../etc/passwd": LABELS,
        "/instance.htm": SCHEMA,
        "x.png": b"\x89PNG\0" * 9,
        "a": OTHER_PAGE,
        "b.txt": PAGE,
    }
    given = dict(list(files.items())[::order])
    assert unpack_main(zipped(given), 10**6).decode() == PAGE


@pytest.mark.parametrize(
    ("content", "status", "sentence"),
    [
        (zipped(EDGAR), NOT_A_FILING, "a zip of 3 files, none of which is a page with inline XBRL or an XBRL instance"),
        (zipped({}), NOT_A_FILING, "binary"),  # an empty archive has no file to begin with
        (zipped(EDGAR | {"a.htm": PAGE})[:-30], UNREADABLE, "a zip that cannot be read"),
        (zipped({"inner.zip": zipped({"a.htm": PAGE})}), NOT_A_FILING, "binary"),
        (zipped({"a.htm": PAGE + " " * 9_000_000}), SIZE_LIMIT, "a zip with a document larger than"),
    ],
)
def test_what_is_no_filing_is_set_aside_with_a_sentence(
    content: bytes, status: str, sentence: str, tmp_path: Path, index: FilingIndex
) -> None:
    read = scan(tmp_path / "zip", content, index, limits=Limits(file_mib=8))
    (row,) = read.documents.iter_rows(named=True)
    assert row["status"] == status
    assert sentence in row["detail"]


def test_a_bomb_and_what_lies_about_itself_are_stopped() -> None:
    bomb = zipped({"a.htm": PAGE + " " * 20_000_000})
    assert len(bomb) < 100_000
    with pytest.raises(TooLarge, match="larger than 1,000,000 bytes"):
        unpack_main(bomb, 1_000_000)
    with pytest.raises(NotInIt, match="a zip of 1,001 files, expected 1 to 1,000"):
        unpack_main(zipped({f"{n}.htm": PAGE for n in range(MOST_FILES + 1)}, zipfile.ZIP_STORED), 10**6)
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):  # of which zipfile unpacks more than it is asked for
        with pytest.raises(ValueError, match="cannot be read: packed in another way"):
            unpack_main(zipped({"a.htm": PAGE}, method), 10**6)
    locked = bytearray(zipped({"a.htm": PAGE}))
    for at in (locked.index(b"PK\x03\x04") + 6, locked.index(b"PK\x01\x02") + 8):
        struct.pack_into("<H", locked, at, 1)  # says that it is encrypted
    with pytest.raises(ValueError, match="cannot be read: it is encrypted"):
        unpack_main(bytes(locked), 10**6)


def test_damage_is_a_sentence_and_never_another_error() -> None:
    rng, whole = random.Random(0), zipped(EDGAR | {"a.htm": PAGE, "b.xml": instance(FACT)})
    refused = 0
    for _ in range(400):
        broken = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            broken[rng.randrange(4, len(broken))] = rng.randrange(256)
        cut = bytes(broken[: rng.randint(4, len(broken))] if rng.random() < 0.3 else broken)
        try:
            unpack_main(cut, 10**6)
        except ValueError:
            refused += 1
    assert 100 < refused < 400


def test_doctor_looks_into_a_package(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(zipped(EDGAR | {"a.htm": PAGE}))
    (tmp_path / "b.zip").write_bytes(zipped(EDGAR))
    assert Look.at(tmp_path / "a.zip").text == PAGE
    assert Look.at(tmp_path / "b.zip").fault.startswith("is a zip of 3 files, none of which is a page")
