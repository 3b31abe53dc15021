"""Shards of filings: the table of the files, whatever was killed, added, changed or removed on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from shard_market import files, written

from quantattn.data.shards import PARSED, Written, pieces_of, prepare_shards, scan_prepared
from quantattn.data.sources.filings import scan_filings
from quantattn.data.sources.source import Source

REAL = Path(os.environ.get("QUANTATTN_REALDATA", Path(__file__).parents[4] / "shared" / "realdata"))
REAL = REAL / "filings" / "full_submission"
PREPARE = """
import sys
from pathlib import Path
from quantattn.data.shards import PARSED, pieces_of, prepare_shards
from quantattn.data.sources.filings import scan_filings

raw, out = sys.argv[1:]
asked = {"path": raw, "items": True, "workers": 1}
read = lambda own: scan_filings(**asked, store=Path(out) / PARSED, **own)
prepare_shards(pieces_of(scan_filings, asked | {"on_bad": "quarantine"}, read), out)
"""


def write(folder: Path, number: int, text: str = "We made anvils.") -> Path:
    """A submission; four filers, three days of two years, some files that are no filing."""
    folder.mkdir(exist_ok=True)
    accession, cik, day = f"0000000123-24-{number:06}", number % 4 + 1, f"{2023 + number % 2}0315"
    path = folder / f"{number:04}.txt"
    path.write_text(
        f"<SEC-DOCUMENT>{accession}.txt : {day}\n<SEC-HEADER>{accession}.hdr.sgml : {day}\n"
        f"<ACCEPTANCE-DATETIME>{day}10{number % 60:02}00\nACCESSION NUMBER:\t\t{accession}\n"
        f"CONFORMED SUBMISSION TYPE:\t{'4' if number % 7 == 6 else '10-K'}\nFILED AS OF DATE:\t\t{day}\n\nFILER:\n\n"
        f"\tCOMPANY DATA:\n\t\tCOMPANY CONFORMED NAME:\tACME {cik}\n\t\tCENTRAL INDEX KEY:\t{cik}\n</SEC-HEADER>\n"
        f"<DOCUMENT>\n<TYPE>10-K\n<SEQUENCE>1\n<TEXT>\nFORM 10-K\n\nItem 1. Business\n\n{text} {number}.\n</TEXT>\n"
        "</DOCUMENT>\n</SEC-DOCUMENT>\n"
    )
    return path


def prepared(raw: Path, out: Path) -> Written:
    asked: dict[str, Any] = {"path": str(raw), "items": True, "workers": 1}

    def read(own: Mapping[str, Any]) -> Source:
        return scan_filings(**asked, store=out / PARSED, **own)

    return prepare_shards(pieces_of(scan_filings, asked | {"on_bad": "quarantine"}, read), out)


def like_raw(raw: Path, out: Path) -> bool:
    """Whether table and account are those of the files, but for the manifest among the hashes."""
    source, again = scan_filings(raw, items=True, workers=1), scan_prepared(out)
    one, other = source.report.as_dict(), again.report.as_dict()
    assert isinstance(other["files"], dict)
    assert len(other["files"].pop("manifest.json")) == 64
    return again.frame.collect().equals(source.frame.collect(), null_equal=True) and one == other


def test_what_comes_out_is_what_was_filed(tmp_path: Path) -> None:
    for number in range(24):
        write(tmp_path / "raw", number)
    done = prepared(tmp_path / "raw", tmp_path / "out")
    assert like_raw(tmp_path / "raw", tmp_path / "out")
    frame = scan_prepared(tmp_path / "out").frame
    assert frame.collect_schema()["items"] == scan_filings(tmp_path / "raw", items=True).frame.collect_schema()["items"]
    held = [(shard.place.entity, shard.place.period) for shard in done.manifest.shards]
    assert held == sorted(held)
    assert len(held) == len(set(held)) == 4  # even filers in even years: a filer's year is one shard
    for shard in done.manifest.shards:
        rows = pl.read_parquet(shard.path(tmp_path / "out"))
        assert rows["entity"].unique().to_list() == [shard.place.entity]
    (filer,) = scan_prepared(tmp_path / "out", entities=["0000000002"]).frame.collect()["entity"].unique()
    assert filer == "0000000002"
    with pytest.raises(ValueError, match="has no 0000000009; it has 0000000001, 0000000002"):
        scan_prepared(tmp_path / "out", entities=["0000000009"])


@pytest.mark.skipif(not REAL.is_dir(), reason="the folder of real filings is not there")
def test_what_comes_out_is_what_was_filed_to_edgar(tmp_path: Path) -> None:
    done = prepared(REAL, tmp_path / "out")
    assert like_raw(REAL, tmp_path / "out")
    rows, aside = sum(shard.rows for shard in done.manifest.shards), done.manifest.report.rows_set_aside
    assert rows + sum(aside.values()) == len(list(REAL.iterdir()))


def test_only_what_is_new_is_parsed_and_only_its_shard_is_written(tmp_path: Path) -> None:
    raw, out = tmp_path / "raw", tmp_path / "out"
    for number in range(12):
        write(raw, number)
    prepared(raw, out)
    parses, shards = files(out / PARSED), written(out)
    assert prepared(raw, out).tally.written == 0
    write(raw, 12)  # after all others by name, so that no other row gets another `seq`
    assert prepared(raw, out).tally.written == 1
    assert like_raw(raw, out)
    assert parses.items() <= files(out / PARSED).items()
    assert len(files(out / PARSED)) == len(parses) + 1
    assert len(shards.items() - written(out).items()) == 1
    write(raw, 0, "We melted them.")
    prepared(raw, out)
    assert like_raw(raw, out)
    assert len(parses.items() - files(out / PARSED).items()) == 1
    for path in raw.glob("*[13579].txt"):
        path.unlink()
    assert prepared(raw, out).tally.removed == 2
    assert like_raw(raw, out)


def test_killed_at_any_time_it_goes_on_where_it_was(tmp_path: Path) -> None:
    """Once while files are parsed, once while shards are written; the end is that of a run that was never killed."""
    raw, out = tmp_path / "raw", tmp_path / "killed"
    for number in range(70):
        write(raw, number)
    prepared(raw, tmp_path / "whole")
    stood: dict[str, int] = {}
    for pattern, least in (("*.json.gz", 20), ("*.parquet", 1)):
        child = subprocess.Popen([sys.executable, "-c", PREPARE, str(raw), str(out)])
        while len(list(out.rglob(pattern))) < least:
            assert child.poll() is None
            time.sleep(0.002)
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        with pytest.raises(ValueError, match="no folder that `quantattn prepare` has finished"):
            scan_prepared(out)
        parses = {path.name: path.stat().st_mtime_ns for path in out.rglob("*.json.gz") if path.name[0] != "."}
        assert stood.items() <= parses.items()  # what was parsed was not parsed again
        stood = parses
    assert len(stood) >= 20
    prepared(raw, out)
    assert stood.items() <= {path.name: path.stat().st_mtime_ns for path in out.rglob("*.json.gz")}.items()
    names = [each for each in files(out) if each != "plan.json"]
    assert {name: files(out)[name] for name in names} == {name: files(tmp_path / "whole")[name] for name in names}
    assert like_raw(raw, out)
