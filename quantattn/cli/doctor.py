"""`quantattn doctor PATH`: what is in a folder of data, and what is wrong with it."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from rich.console import Console

from quantattn.cli.errors import DONE, FAILED, UsageError
from quantattn.cli.terminal import console
from quantattn.data.sources.source import Source


def run(arguments: list[str]) -> int:
    """Read PATH with the loader that fits it and print its account; 1 when something had to be set aside."""
    parser = argparse.ArgumentParser("quantattn doctor", description="Say what is in a folder of data.")
    parser.add_argument("path", type=Path, help="a folder, or a file")
    parser.add_argument("--kind", choices=sorted(KINDS), help="what to take it for; found out by default")
    given = parser.parse_args(arguments)
    if not given.path.exists():
        raise UsageError(f"{given.path}: there is no such file or folder")
    kind = given.kind or kind_of(given.path)
    with tempfile.TemporaryDirectory() as scratch:
        source = KINDS[kind](given.path, Path(scratch) / "set_aside.csv")
        return tell(console(), given.path, kind, source)


def kind_of(path: Path) -> str:
    """ "lobster" when there are message or order-book tables, "itch" by the names of files, else "filings"."""
    files = [path] if path.is_file() else path.rglob("*")
    names = [file.name.lower() for file in files if file.is_file()]
    tables = (name for name in names if name.endswith((".csv", ".csv.gz")))
    if any("message" in name or "orderbook" in name for name in tables):
        return "lobster"
    return "itch" if any("itch" in name for name in names) else "filings"


def _lobster(path: Path, set_aside: Path) -> Source:
    from quantattn.data.sources.lobster import scan_lobster

    return scan_lobster(path, on_bad="quarantine", set_aside=set_aside)


def _itch(path: Path, set_aside: Path) -> Source:
    from quantattn.data.sources.itch import scan_itch

    return scan_itch(path)


def _filings(path: Path, set_aside: Path) -> Source:
    from quantattn.data.sources.filings import scan_filings

    return scan_filings(path)


KINDS = {"lobster": _lobster, "itch": _itch, "filings": _filings}
"""Kind of data → how it is read."""


NOT_A_FILING = "not a filing"
WHAT_IS_READ = (
    "it reads LOBSTER message and order-book files (.csv, .csv.gz), Nasdaq ITCH 5.0 files ('itch' in their name) and "
    "EDGAR filings (.txt, .htm, .nc)"
)
ADVICE = {
    "no acceptance time": "give data.source.index=FILE with their acceptance times, or data.source.filing_dates=latest "
    "for those whose filing date is known",
    "no entity or date": "give data.source.entity and data.source.date for files of one stock and day",
}
"""Reason for setting aside → what can be done about it."""


def tell(out: Console, path: Path, kind: str, source: Source) -> int:
    """Print what was read and what was set aside."""
    report = source.report
    if set(report.rows_set_aside) == {NOT_A_FILING} and report.rows_read == 0:
        out.print(f"{path}: {len(report.files)} files, none that this version reads: {WHAT_IS_READ}")
        return FAILED
    out.print(f"{path}: {kind}, {len(report.files)} files, {report.rows_read:,} rows read")
    for instrument in source.instruments:
        out.print(f"  {instrument.entity}: prices in 10^{instrument.price_exponent}, tick {instrument.tick}")
    for note in report.notes:
        out.print(f"  note: {note}")
    for reason, rows in report.rows_set_aside.items():
        out.print(f"  set aside: {rows:,} rows, {reason}")
        if (advice := ADVICE.get(reason)) is not None:
            out.print(f"    {advice}")
    if not report.rows_set_aside:
        out.print("  nothing was set aside")
    return FAILED if report.rows_set_aside else DONE
