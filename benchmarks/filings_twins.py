"""Items of 8-K filings beside those of edgar-crawler: how many agree, and each that does not, with what is missing.

    python benchmarks/filings_twins.py RAW.zip EXTRACTED.zip

The archives are `tests/fixtures/RAW_FILINGS/8-K.zip` and `tests/fixtures/EXTRACTED_FILINGS/8-K.zip` of
github.com/lefterisloukas/edgar-crawler. Two items agree when 0.95 of the letters and digits of both stand in words
that match in order: 2 M / (A + B). A line at the end that says "Part II", a page number or "Table of contents" is left
out of both. For each of the others: the file, the item, the agreement, the share of their words that ours has, that of
our words that theirs has, and the first words that stand in one of the two alone.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import tempfile
import zipfile
from pathlib import Path

from quantattn.data.filings.forms import FAMILIES
from quantattn.data.filings.items import Items
from quantattn.data.filings.pool import ParsePool

FURNITURE = re.compile(r"\n\W*(?:part\s+[iv]+\W*|\d{1,3}|table of contents)\W*$", re.IGNORECASE)
WORD = re.compile(r"[A-Za-z0-9]+")
AGREES = 0.95
SHOWN = 70


def compare(theirs: str, ours: str) -> tuple[float, float, float, str]:
    """Agreement, share of their words, share of ours, and what stands in one alone, shortened."""
    texts = [FURNITURE.sub("", text.rstrip()) for text in (theirs, ours)]
    found = [list(WORD.finditer(text)) for text in texts]
    a, b = ([match.group().lower() for match in matches] for matches in found)
    if a == b:
        return 1.0, 1.0, 1.0, ""
    codes = difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    same = sum(len("".join(a[i:j])) for tag, i, j, _, _ in codes if tag == "equal")
    sizes = [max(1, len("".join(words))) for words in (a, b)]
    alone = []
    for tag, *bounds in codes:
        for side, who in enumerate(("theirs", "ours")):
            start, end = bounds[2 * side : 2 * side + 2]
            if tag != "equal" and end > start:
                piece = texts[side][found[side][start].start() : found[side][end - 1].end()]
                alone.append((len(piece), f"{who}: {' '.join(piece.split())[:SHOWN]!r}"))
    return 2 * same / sum(sizes), same / sizes[0], same / sizes[1], max(alone)[1]


def main() -> None:
    """Print a line an item that differs, and how many there are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("raw", type=Path)
    parser.add_argument("extracted", type=Path)
    given = parser.parse_args()
    raw, extracted = zipfile.ZipFile(given.raw), zipfile.ZipFile(given.extracted)
    files = {Path(name).stem: name for name in raw.namelist() if Path(name).suffix in (".txt", ".htm")}
    items = agreed = 0
    with tempfile.TemporaryDirectory() as folder, ParsePool(workers=1) as pool:
        for name in sorted(each for each in extracted.namelist() if each.endswith(".json")):
            stem = Path(name).stem
            file = Path(folder, "filing" + Path(files[stem]).suffix)
            file.write_bytes(raw.read(files[stem]))
            parsed = pool.parse(file, FAMILIES, "8-K")
            ours = Items(parsed.text or "", parsed.sections, ())
            told = json.loads(extracted.read(name))
            for key, theirs in told.items():
                if not key.startswith("item_") or not theirs.strip():
                    continue
                items += 1
                item = key.removeprefix("item_")
                own = ours[item] if item in ours else ""  # noqa: SIM401  # it has no `get`
                agreement, of_theirs, of_ours, alone = compare(theirs, own)
                agreed += agreement >= AGREES
                if agreement < AGREES:
                    print(f"{stem}  {item:5} {agreement:.3f}  {of_theirs:.2f} {of_ours:.2f}  {alone}")
    print(f"{agreed:,} of {items:,} items agree ({agreed / items:.1%})")


if __name__ == "__main__":
    main()
