"""The account of a folder of filings, a line a file, and what a text conserves by a count that is not ours."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from quantattn.cli.diagnosis.telling import lines_of
from quantattn.data.examine import examine
from quantattn.data.filings.index import FilingIndex
from quantattn.data.recognise import FORMATS
from quantattn.data.sources.filings import scan_filings

Maker = Callable[..., str]
FILINGS = next(form for form in FORMATS if form.name == "filings")


def account(folder: Path) -> list[str]:
    source = scan_filings(folder, filing_dates="latest")
    lines = lines_of(examine(source)[0], FILINGS, source.report)
    return [line.words for line in lines if line.label == "files"]


def test_every_file_has_a_line(tmp_path: Path, submission: Maker) -> None:
    body = "Item 1. Business\nWe make anvils.\nItem 2. Properties\nNone.\nItem 3. Legal Proceedings\nThe anvil case."
    (tmp_path / "a.txt").write_text(submission(body, accepted="20240315163025"))
    (tmp_path / "b.txt").write_text(submission("Item 5. Other\nX.", form="8-K", accession="0000000123-96-000002",
                                               accepted=None, filed="19960628"))  # fmt: skip
    (tmp_path / "c.txt").write_text(submission(form="4", accession="0000000123-24-000003"))
    (tmp_path / "d.gz").write_bytes(gzip.compress(b"words")[:-3])
    assert account(tmp_path) == [
        "file   form  accepted (UTC)          characters  kept    items    status",
        "a.txt  10-K  2024-03-15 20:30:25     99          100.0%  3 of 23  ok",
        "b.txt  8-K   by 1996-06-29 02:00:00  16          100.0%  1 of 1   ok",
        "c.txt  4     2024-03-15 14:15:00     -           -       -        other form (4)",
        "d.gz   -     -                       -           -       -        unreadable (damaged gzip: the file "
        "ends before its content does)",
    ]


def test_a_folder_in_which_nothing_can_be_read_has_an_account_too(tmp_path: Path, submission: Maker) -> None:
    (tmp_path / "a.txt").write_text(submission(form="4"))
    assert account(tmp_path)[1:] == ["a.txt  4     2024-03-15 14:15:00  -           -     -      other form (4)"]


INVISIBLE = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u2060\ufeff]")


def test_what_a_file_says_is_shown_on_one_line_and_obeyed_by_no_terminal(tmp_path: Path, submission: Maker) -> None:
    (tmp_path / "a\x1b[2J.txt").write_text(
        f"<DOCUMENT>\n<TYPE>10-\x1b[31mK{'x' * 90}\n<TEXT>\nA.\n</TEXT>\n</DOCUMENT>\n"
    )
    (tmp_path / "b.txt").write_text(submission(form="10-K\x1b[31m"))
    _, first, second = account(tmp_path)
    assert first.startswith("a�[2J.txt  10-�[31MKXXXXXXXXXX…  -")
    assert second.split("  ")[-1] == "unreadable (form '10-K\\x1b[31m': expected a short name such as 10-K)"
    assert all(line.isprintable() for line in (first, second))


class Counter(HTMLParser):
    """Visible characters of a page as the standard library's parser tells text from tags."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.visible = self.depth = 0
        self.skipped: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        style = (dict(attrs).get("style") or "").replace(" ", "").lower()
        if self.skipped:
            self.skipped += [tag] if tag == self.skipped[-1] else []
        elif tag in ("head", "title", "style", "script", "ix:header") or "display:none" in style:
            self.skipped = [tag]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        if self.skipped and tag == self.skipped[-1]:
            self.skipped.pop()

    def handle_data(self, data: str) -> None:
        if not self.skipped:
            self.visible += sum(map(len, INVISIBLE.sub("", data).split()))


@pytest.mark.parametrize(
    "name",
    [
        "html_10-K/MEDICIS_10-K_FY1999.html.gz",
        "html_10-K/IBM_10-K_0000051143-24-000012.html.gz",
        "html_10-Q/AAPL_10-Q_0000320193-23-000077.html.gz",
        "html_8-K/FLOWERS_2023_8-K.html",
    ],
)
def test_real_pages_keep_every_visible_character(realdata: Path, name: str) -> None:
    path = realdata / "filings" / name
    if not path.is_file():
        pytest.skip("the real data holds other filings")
    content = path.read_bytes()
    counter = Counter()
    counter.feed((gzip.decompress(content) if path.suffix == ".gz" else content).decode("latin-1"))
    index = FilingIndex([{"name": path.name, "accepted": "20240102120000", "cik": "1"}])
    (text,) = scan_filings(path, index=index).frame.collect()["text"]
    assert sum(map(len, text.split())) == pytest.approx(counter.visible, rel=0.002)
