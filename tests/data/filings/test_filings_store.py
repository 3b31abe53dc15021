"""What was parsed is kept by what it depends on: the same table with and without, and no file is parsed twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from quantattn.data.filings.forms import FAMILIES
from quantattn.data.filings.parsed import OK
from quantattn.data.filings.pool import TIME_LIMIT, Limits, ParsePool
from quantattn.data.filings.store import ParsedStore
from quantattn.data.sources.filings import scan_filings

Maker = Callable[..., str]


@pytest.fixture
def folder(tmp_path: Path, submission: Maker) -> Path:
    """Three submissions, the one with items and an exhibit, and a file that is none."""
    home = tmp_path / "filings"
    home.mkdir()
    report = "<DOCUMENT>\n<TYPE>EX-13\n<SEQUENCE>2\n<TEXT>\nBusiness\n\nWe make anvils.\n</TEXT>\n</DOCUMENT>\n"
    body = "FORM 10-K\n\nItem 1. Business\n\nIncorporated by reference to the annual report to shareholders.\n"
    for number in range(3):
        accession = f"0000000123-24-00000{number}"
        text = submission(body + f"Anvil {number}.\n", accession=accession, more=report if number else "")
        (home / f"{number}.txt").write_text(text)
    (home / "note.bin").write_bytes(b"\x00\x01")
    return home


def kept(store: Path) -> dict[str, int]:
    return {str(path.relative_to(store)): path.stat().st_mtime_ns for path in sorted(store.rglob("*.gz"))}


def test_the_table_is_the_same_and_nothing_is_parsed_again(folder: Path, tmp_path: Path) -> None:
    asked = {"items": True, "facts": True, "workers": 1}
    plain = scan_filings(folder, **asked)  # type: ignore[arg-type]
    assert plain.frame.collect().height == 3
    for _ in range(2):
        read = scan_filings(folder, **asked, store=tmp_path / "store")  # type: ignore[arg-type]
        assert read.frame.collect().equals(plain.frame.collect())
        assert read.documents.equals(plain.documents)
        assert read.report == plain.report
    assert len(kept(tmp_path / "store")) == 4


def test_only_what_is_new_or_has_changed_is_parsed(folder: Path, tmp_path: Path, submission: Maker) -> None:
    def read(**asked: object) -> tuple[int, int]:
        store = ParsedStore(tmp_path / "store")
        with ParsePool(workers=1) as pool:
            for file in sorted(folder.iterdir()):
                found = store.parse(pool, file, FAMILIES, None, False, bool(asked.get("facts", False)))
                assert found == pool.parse(file, FAMILIES, None, False, bool(asked.get("facts", False)))
        store.forget_others()
        return store.parsed, store.standing

    assert read() == (4, 0)
    before = kept(tmp_path / "store")
    assert read() == (0, 4)
    (folder / "3.txt").write_text(submission("FORM 10-K\n\nNew.", accession="0000000123-24-000003"))
    assert read() == (1, 4)
    assert before.items() <= kept(tmp_path / "store").items()
    (folder / "0.txt").write_text(submission("FORM 10-K\n\nOther.", accession="0000000123-24-000000"))
    assert read() == (1, 4)
    (folder / "1.txt").rename(folder / "4.txt")  # a name may carry an accession number
    assert read() == (1, 4)
    assert len(kept(tmp_path / "store")) == 5
    assert read(facts=True) == (5, 0)
    (folder / "2.txt").unlink()
    assert read(facts=True) == (0, 4)
    assert len(kept(tmp_path / "store")) == 4


def test_a_damaged_parse_is_made_again(folder: Path, tmp_path: Path) -> None:
    plain = scan_filings(folder, workers=1).frame.collect()
    scan_filings(folder, workers=1, store=tmp_path / "store")
    for path, damage in zip(sorted((tmp_path / "store").rglob("*.gz")), (b"", b"\x1f\x8b", b"{}", None), strict=True):
        content = path.read_bytes()
        middle = len(content) // 2
        turned = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        path.write_bytes(turned if damage is None else damage)
    assert scan_filings(folder, workers=1, store=tmp_path / "store").frame.collect().equals(plain)
    store = ParsedStore(tmp_path / "store")
    with ParsePool(workers=1) as pool:
        for file in sorted(folder.iterdir()):
            store.parse(pool, file, FAMILIES, None, False, False)
    assert (store.parsed, store.standing) == (0, 4)


def test_what_a_limit_broke_off_is_tried_again(tmp_path: Path, folder: Path) -> None:
    """The time of a child is no property of the file; the limits are part of the question."""
    store = ParsedStore(tmp_path / "store")
    with ParsePool(Limits(wall_seconds=0.01), workers=1) as pool:  # a child needs more than that to start
        assert store.parse(pool, folder / "0.txt", FAMILIES, None, False, False).status == TIME_LIMIT
    assert kept(tmp_path / "store") == {}
    with ParsePool(workers=1) as pool:
        assert store.parse(pool, folder / "0.txt", FAMILIES, None, False, False).status == OK
    with ParsePool(Limits(cpu_seconds=21), workers=1) as pool:
        store.parse(pool, folder / "0.txt", FAMILIES, None, False, False)
    assert (store.parsed, store.standing, len(kept(tmp_path / "store"))) == (3, 0, 2)
