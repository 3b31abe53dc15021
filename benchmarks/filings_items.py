"""Processor seconds and peak memory from files of 10-K HTML to their items, beside two peers, on one core.

    python benchmarks/filings_items.py FOLDER [--peers SITE]

FOLDER holds main documents (.htm, .html, gzip or not). `pip install beautifulsoup4 lxml edgartools`, or
`pip install --target SITE …` and --peers SITE; a peer that is not there is skipped with a sentence. Every reader runs
in a process of its own, after one small document of warming up. Ours parses in a guarded child: its time is in the
seconds, its memory is added to the peak. The second is the method of edgar-crawler, written here with BeautifulSoup:
text of the page, then for each item the longest stretch to a heading of a later one.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from quantattn.data.filings.item_names import scheme_of
from quantattn.data.filings.items import Items
from quantattn.data.filings.text import decode, is_html, read_bytes

READERS = {
    "quantattn": "selectolax",
    "BeautifulSoup (lxml), longest stretch": "bs4",
    "edgartools": "edgar",
}
"""Reader → the module that it cannot do without."""
WARM = "<html><body><p>Item 1. Business</p><p>Anvils.</p><p>Item 2. Properties</p><p>None.</p></body></html>"
Read = Callable[[list[Path]], tuple[list[dict[str, int]], int]]
"""Files → characters of every item of each, and KiB that child processes had at their peak."""


def ours(files: list[Path]) -> tuple[list[dict[str, int]], int]:
    """Lexbor in a child, then one search for all headings."""
    from quantattn.data.filings.pool import ParsePool

    found = []
    with ParsePool(workers=1) as pool:
        for file in files:
            parsed = pool.parse(file, ("10-K",), "10-K")
            assert parsed.text is not None, parsed
            items = Items(parsed.text, parsed.sections, ())
            found.append({name: len(items[name]) for name in items.status})
        peaks = [re.search(r"VmHWM:\s+(\d+)", Path("/proc", str(n), "status").read_text()) for n in pool.processes]
    return found, sum(int(peak.group(1)) for peak in peaks if peak)


def soup(files: list[Path]) -> tuple[list[dict[str, int]], int]:
    """BeautifulSoup, then one search for each pair of items."""
    from bs4 import BeautifulSoup

    names = scheme_of("10-K").required
    found = []
    for file in files:
        tree = BeautifulSoup(page_of(file), "lxml")
        for cell in tree.find_all(["td", "th"]):
            cell.append(" ")
        for block in tree.find_all(["p", "div", "tr", "br", "li"]):
            block.append("\n")
        text = re.sub(r"[^\S\n]+", " ", tree.get_text())
        items = {}
        for n, name in enumerate(names):
            start = rf"\n[^\S\n]*ITEMS?\s*{name}[.*~\-:\s(]"
            begins = [match.start() for match in re.finditer(start, text, re.IGNORECASE)]
            spans: list[int] = []
            for later in names[n + 1 :]:
                end = re.compile(rf"\n[^\S\n]*ITEMS?\s*{later}[.*~\-:\s(]", re.IGNORECASE)
                spans += [match.start() - at for at in begins if (match := end.search(text, at + 1))]
                if spans:
                    break
            if spans or begins:
                items[name] = max(spans, default=len(text) - begins[-1] if begins else 0)
        found.append(items)
    return found, 0


def edgartools(files: list[Path]) -> tuple[list[dict[str, int]], int]:
    """The sections of edgartools."""
    from edgar.documents import HTMLParser, ParserConfig

    found = []
    for file in files:
        document = HTMLParser(ParserConfig(form="10-K", max_document_size=2**30)).parse(page_of(file))
        found.append({name: len(section.text()) for name, section in document.sections.items()})
    return found, 0


def page_of(file: Path) -> str:
    """The page that a file holds, gzip or not."""
    return decode(read_bytes(file, 2**30))


READ: dict[str, Read] = dict(zip(READERS, (ours, soup, edgartools), strict=True))


def processor_seconds() -> float:
    """Of this process and of its children that have ended; time of waiting for the core is not in it."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def once(reader: str, folder: Path) -> None:
    """Warm up, read every page, print one line of JSON."""
    files = sorted(file for file in folder.iterdir() if file.is_file())
    files = [file for file in files if is_html(page_of(file))]
    size = sum(len(page_of(file)) for file in files)
    with tempfile.NamedTemporaryFile(suffix=".htm") as warm:
        Path(warm.name).write_text(WARM)
        READ[reader]([Path(warm.name)])
    began = processor_seconds()
    items, children = READ[reader](files)
    seconds = processor_seconds() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + children
    row = {"seconds": seconds, "peak_mib": peak // 1024, "pages": len(files), "mib": size / 2**20}
    print(json.dumps(row | {"items": sum(map(len, items)), "chars": sum(sum(each.values()) for each in items)}))


def main() -> None:
    """Print one row a reader."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--peers", type=Path, help="a folder that peers were installed to")
    parser.add_argument("--once", choices=READERS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.peers is not None:
        sys.path.append(str(given.peers))
    if given.once:
        once(given.once, given.folder)
        return
    call = [sys.executable, __file__, *sys.argv[1:], "--once"]
    for reader, module in READERS.items():
        if importlib.util.find_spec(module) is None:
            print(f"{reader}: skipped, the package {module} is not installed")
            continue
        environment = os.environ | {"OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
        done = subprocess.run([*call, reader], capture_output=True, text=True, check=True, env=environment)
        row = json.loads(done.stdout.splitlines()[-1])
        print(
            f"{reader:38} {row['seconds']:7.2f} s  {row['mib'] / row['seconds']:6.1f} MiB/s  {row['peak_mib']:6,} MiB  "
            f"{row['items']} items, {row['chars']:,} characters in {row['pages']} pages of {row['mib']:.1f} MiB"
        )


if __name__ == "__main__":
    main()
