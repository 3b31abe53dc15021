"""Processor seconds and peak memory of reading filings, beside two peers, on one core.

    python benchmarks/filings_items.py FOLDER [--work items|submissions] [--rounds N] [--peers SITE]

`items`: from files of 10-K HTML to their items. `submissions`: from full submissions to their header (accession number,
form, filer, acceptance time) and the text of their main document. Files of FOLDER that are neither are left out.
`pip install beautifulsoup4 lxml edgartools`, or `pip install --target SITE …` and --peers SITE; a peer that is not
there is skipped with a sentence. Every reader runs in a process of its own.

What counts is equal. Seconds are processor time, system calls included, of the process and of its child. They begin
after one small document of warming up, which is told beside them as the start: for peers it imports what they are, for
ours it starts the guarded child in which files are parsed, interpreter and all. All files are opened, unpacked and
decoded by the same function. In the seconds of ours are the child's work, what goes through the pipe and what the
caller makes of it; the child's memory is added to the peak. Items are looked for by ours and by BeautifulSoup in both
works, by edgartools in `items` alone. Ours also checks that no text was lost, which no peer does. Characters at the end
of a row show that the text is much the same: white space, hidden parts and what is a heading differ.
BeautifulSoup is used after the method of edgar-crawler, written here: text of the page, plain text too, then for each
item the longest stretch to a heading of a later one.
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
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from quantattn.data.filings.forms import FAMILIES, family
from quantattn.data.filings.item_names import scheme_of
from quantattn.data.filings.items import Items
from quantattn.data.filings.pool import ParsePool
from quantattn.data.filings.submission import has_header, parse_submission
from quantattn.data.filings.text import decode, is_html, read_bytes

READERS = {
    "quantattn": "selectolax",
    "BeautifulSoup (lxml)": "bs4",
    "edgartools": "edgar",
}
"""Reader → the module that it cannot do without."""
SUBMISSION = (
    "<SEC-DOCUMENT>0000000123-24-000001.txt : 20240315\n<SEC-HEADER>0000000123-24-000001.hdr.sgml : 20240315\n"
    "<ACCEPTANCE-DATETIME>20240315101500\nACCESSION NUMBER:\t\t0000000123-24-000001\n"
    "CONFORMED SUBMISSION TYPE:\t8-K\nFILED AS OF DATE:\t\t20240315\n\nFILER:\n\n\tCOMPANY DATA:\n"
    "\t\tCOMPANY CONFORMED NAME:\t\t\tACME\n\t\tCENTRAL INDEX KEY:\t\t\t0000000123\n</SEC-HEADER>\n"
    "<DOCUMENT>\n<TYPE>8-K\n<SEQUENCE>1\n<FILENAME>a.htm\n<TEXT>\n<html><body><p>Anvils.</p></body></html>\n</TEXT>\n"
    "</DOCUMENT>\n</SEC-DOCUMENT>\n"
)
WARM = "<html><body><p>Item 1. Business</p><p>Anvils.</p><p>Item 2. Properties</p><p>None.</p></body></html>"
Read = Callable[[list[Path], ParsePool], list[dict[str, int]]]
"""Files, and a pool of one child for who needs it → characters of every item, or value, of each."""


def ours(files: list[Path], pool: ParsePool) -> list[dict[str, int]]:
    """Lexbor in a child, then one search for all headings."""
    found = []
    for file in files:
        parsed = pool.parse(file, FAMILIES, "10-K")
        assert parsed.text is not None, parsed
        items = Items(parsed.text, parsed.sections, ())
        found.append({name: len(items[name]) for name in items.status})
    return found


def our_submissions(files: list[Path], pool: ParsePool) -> list[dict[str, int]]:
    """Header and main document in a child."""
    found = []
    for file in files:
        parsed = pool.parse(file, FAMILIES)
        assert parsed.text is not None, parsed
        values = {"accession": parsed.accession, "form": parsed.form, "cik": parsed.ciks[0]}
        found.append(sizes(values | {"accepted": parsed.accepted, "text": parsed.text}))
    return found


def sizes(values: Mapping[str, object]) -> dict[str, int]:
    """Characters of each value that there is."""
    return {name: len(str(value)) for name, value in values.items() if value}


def soup(files: list[Path], _: ParsePool) -> list[dict[str, int]]:
    """BeautifulSoup, then one search for each pair of items."""
    return [longest_stretches(soup_text(page_of(file)), "10-K") for file in files]


def soup_text(page: str) -> str:
    """Text of a page, a line a block."""
    from bs4 import BeautifulSoup

    tree = BeautifulSoup(page, "lxml")
    for cell in tree.find_all(["td", "th"]):
        cell.append(" ")
    for block in tree.find_all(["p", "div", "tr", "br", "li"]):
        block.append("\n")
    return re.sub(r"[^\S\n]+", " ", tree.get_text())


def longest_stretches(text: str, form: str) -> dict[str, int]:
    """Characters of each item of a form: of several headings of it, from the one farthest from the next item's."""
    names = [name.rpartition(".")[2] if name.startswith("I") else name for name in scheme_of(form).names]
    items = {}
    for n, name in enumerate(names):
        start = rf"\n[^\S\n]*ITEMS?\s*{re.escape(name)}[.*~\-:\s(]"
        begins = [match.start() for match in re.finditer(start, text, re.IGNORECASE)]
        spans: list[int] = []
        for later in names[n + 1 :] if begins else ():
            end = re.compile(rf"\n[^\S\n]*ITEMS?\s*{re.escape(later)}[.*~\-:\s(]", re.IGNORECASE)
            spans += [match.start() - at for at in begins if (match := end.search(text, at + 1))]
            if spans:
                break
        if spans or begins:
            items[name] = max(spans, default=len(text) - begins[-1] if begins else 0)
    return items


def edgartools(files: list[Path], _: ParsePool) -> list[dict[str, int]]:
    """The sections of edgartools."""
    from edgar.documents import HTMLParser, ParserConfig

    found = []
    for file in files:
        document = HTMLParser(ParserConfig(form="10-K", max_document_size=2**30)).parse(page_of(file))
        found.append({name: len(section.text()) for name, section in document.sections.items()})
    return found


def page_of(file: Path) -> str:
    """The page that a file holds, gzip or not."""
    return decode(read_bytes(file, 2**30))


def soup_submissions(files: list[Path], _: ParsePool) -> list[dict[str, int]]:
    """Labels of the header by patterns, the first document through BeautifulSoup whether HTML or not, as it does."""
    labels = {
        "accession": r"ACCESSION NUMBER:\s*(\S+)|<ACCESSION-NUMBER>(\S+)",
        "form": r"CONFORMED SUBMISSION TYPE:\s*(\S+)|<TYPE>(\S+)",
        "cik": r"CENTRAL INDEX KEY:\s*(\d+)|<CIK>(\d+)",
        "accepted": r"<ACCEPTANCE-DATETIME>(\d+)",
    }
    found = []
    for file in files:
        content = page_of(file)
        documents = re.findall("<DOCUMENT>.*?</DOCUMENT>", content, re.DOTALL)
        header = content[: content.index("<DOCUMENT>")]
        matches = {name: re.search(label, header) for name, label in labels.items()}
        values = {name: next(filter(None, match.groups())) for name, match in matches.items() if match}
        text = soup_text(documents[0])
        found.append(sizes(values | {"text": text}))
        longest_stretches(text, values["form"])
    return found


def edgar_submissions(files: list[Path], _: ParsePool) -> list[dict[str, int]]:
    """FilingSGML of edgartools; it looks for no items here."""
    from edgar.sgml import FilingSGML

    found = []
    for file in files:
        filing = FilingSGML.from_text(page_of(file))
        accepted = filing.header.acceptance_datetime
        values = {"accession": filing.accession_number, "form": filing.form, "cik": filing.cik, "accepted": accepted}
        found.append(sizes(values | {"text": filing.text()}))
    return found


READ: dict[str, tuple[Read, Read, Read]] = {
    "items": (ours, soup, edgartools),
    "submissions": (our_submissions, soup_submissions, edgar_submissions),
}


def processor_seconds(pool: ParsePool) -> float:
    """Of this process and of the child, to the nanosecond; time of waiting for the core is not in it."""
    children = (Path("/proc", str(process), "schedstat").read_text() for process in pool.processes)
    return time.process_time() + sum(int(each.split()[0]) for each in children) / 1e9


def peak_kib(pool: ParsePool) -> int:
    """Most memory that this process and the child had, KiB."""
    children = (Path("/proc", str(process), "status").read_text() for process in pool.processes)
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return own + sum(int(each.split("VmHWM:")[1].split()[0]) for each in children)


def once(reader: str, work: str, folder: Path, rounds: int) -> None:
    """Warm up, read every file so many times, print one line of JSON."""
    read = dict(zip(READERS, READ[work], strict=True))[reader]
    fits, example = (is_html, WARM) if work == "items" else (is_report, SUBMISSION)
    files = [file for file in sorted(folder.iterdir()) if file.is_file() and fits(page_of(file))] * rounds
    size = sum(len(page_of(file)) for file in files)
    with ParsePool(workers=1) as pool, tempfile.NamedTemporaryFile(suffix=".htm") as warm:
        Path(warm.name).write_text(example)
        times = [processor_seconds(pool)]
        read([Path(warm.name)], pool)
        times.append(processor_seconds(pool))
        values = read(files, pool)
        times.append(processor_seconds(pool))
        peak = peak_kib(pool)
    row = {"start": times[1] - times[0], "seconds": times[2] - times[1], "peak_mib": peak // 1024}
    row |= {"files": len(files), "mib": size / 2**20, "values": sum(map(len, values))}
    print(json.dumps(row | {"chars": sum(sum(each.values()) for each in values)}))


def is_report(text: str) -> bool:
    """Whether a file is a full submission of a form that is read."""
    if not has_header(text):
        return False
    submission = parse_submission(text)
    form = submission.header.form if submission.header else None
    return bool(submission.documents) and form is not None and family(form) is not None


def main() -> None:
    """Print one row a reader."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--work", choices=READ, default="items")
    parser.add_argument("--rounds", type=int, default=1, help="times that every file is read")
    parser.add_argument("--peers", type=Path, help="a folder that peers were installed to")
    parser.add_argument("--once", choices=READERS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.peers is not None:
        sys.path.append(str(given.peers))
    if given.once:
        once(given.once, given.work, given.folder, given.rounds)
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
            f"{reader:20} {row['seconds']:7.2f} s  (start {row['start']:.2f})  "
            f"{row['mib'] / row['seconds']:6.1f} MiB/s  {row['peak_mib']:6,} MiB  "
            f"{row['values']} {'items' if given.work == 'items' else 'values'}, {row['chars']:,} characters in "
            f"{row['files']} files of {row['mib']:.1f} MiB"
        )


if __name__ == "__main__":
    main()
