"""Real filings: the items of another tool, a status for every item, nothing lost."""

from __future__ import annotations

import difflib
import gzip
import json
import re
from pathlib import Path

import pytest

from quantattn.data.filings.index import FilingIndex
from quantattn.data.filings.items import items_of
from quantattn.data.sources.filings import scan_filings

FURNITURE = re.compile(r"\n\W*(?:part\s+[iv]+\W*|\d{1,3}|table of contents)\W*$", re.IGNORECASE)


@pytest.fixture(scope="module")
def folder(realdata: Path) -> Path:
    if not (realdata / "filings").is_dir():
        pytest.skip("the real data holds no filings")
    return realdata / "filings"


def agreement(theirs: str, ours: str) -> float:
    """Letters and digits in words that match in order, of both texts: 2 M / (A + B), case and furniture aside."""
    a, b = (re.findall(r"[a-z0-9]+", FURNITURE.sub("", text.rstrip()).lower()) for text in (theirs, ours))
    if a == b:
        return 1.0
    blocks = difflib.SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
    return 2 * sum(len("".join(a[i : i + n])) for i, _, n in blocks) / len("".join(a + b))


def theirs(path: Path) -> dict[str, str]:
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return {key[5:]: text for key, text in json.loads(content).items() if key.startswith("item_") and text.strip()}


def test_current_reports_as_another_tool_cuts_them(folder: Path) -> None:
    source = scan_filings(
        folder / "edgar_crawler_raw_8-K",
        index=folder / "edgar_crawler_FILINGS_METADATA.csv.gz",
        filing_dates="latest",
    )
    texts = dict(source.frame.collect().select("accession", "text").iter_rows())
    shares = []
    for path in sorted((folder / "edgar_corpus_json_8-K").glob("*.json")):
        ours = items_of(texts[path.stem.split("_")[-1]], "8-K")
        twin = theirs(path)
        assert list(ours.status) == list(twin)
        shares += [agreement(text, ours[name]) for name, text in twin.items()]
    assert len(shares) == 13
    assert min(shares) >= 0.95


def test_annual_reports_put_together_from_another_tools_items_come_apart_again(folder: Path) -> None:
    """The raw files are not there; their items, one after another, are a text whose items are known."""
    shares = []
    for path in sorted((folder / "edgar_corpus_json_10-K").glob("*.json.gz")):
        twin = theirs(path)
        ours = items_of("\n".join(twin.values()), "10-K")
        shares += [agreement(text, ours[name]) if name in ours else 0.0 for name, text in twin.items()]
    assert len(shares) == 264
    assert sum(share >= 0.95 for share in shares) == 263  # the other is an item 4A that they have within 4


@pytest.mark.parametrize(
    ("name", "form", "absent"),
    [
        ("html_10-K/IBM_10-K_0000051143-24-000012.html.gz", "10-K", set()),
        ("html_10-K/MEDICIS_10-K_FY1999.html.gz", "10-K", {"1A", "1B", "1C", "9A", "9B", "9C", "15", "16"}),
        ("html_10-K/NORFOLKSOUTHERN_10-K_FY2008.htm.gz", "10-K", {"1C", "9C", "16"}),
        (
            "old_ascii/PERKINELMER_10-K405_2001_main.txt.gz",
            "10-K405",
            {"1A", "1B", "1C", "7A", "9A", "9B", "9C", "15", "16"},
        ),
        ("html_10-Q/TXN_10-Q_0000097476-23-000035.html.gz", "10-Q", {"I.3", "II.1", "II.3", "II.4", "II.5"}),
        ("old_ascii/AMAZON_8-K_0000891020-98-001352.txt", "8-K", set()),
    ],
)
def test_every_item_of_a_filing(folder: Path, name: str, form: str, absent: set[str]) -> None:
    """What is absent was looked for in each file by hand: it has no heading of that number."""
    entry = {"filename": Path(name).name, "accepted": "20240102120000", "cik": "1", "form": form}
    (text,) = scan_filings(folder / name, index=FilingIndex([entry])).frame.collect()["text"]
    found = items_of(text, form)
    assert "".join(piece for _, piece in found.pieces()) == text
    assert {item for item, status in found.status.items() if status == "missing"} == absent
    assert found.outside[1] < 200
