"""Limits of parsing from outside: they reach the child, and what they cannot be is refused before anything is read."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from quantattn.cli import main
from quantattn.data.filings.pool import Limits, ParsePool

ASKED = ["experiment=filings", "labels=none", "objective=masked_language", "trainer.max_steps=1"]
REFUSED = [
    ("cpu_seconds=0", "cpu_seconds must be a whole number from 1 to 1,000,000, got 0"),
    ("cpu_seconds=1.5", "cpu_seconds must be a whole number from 1 to 1,000,000, got 1.5"),
    ("cpu_seconds=true", "cpu_seconds must be a whole number from 1 to 1,000,000, got True"),
    ("wall_seconds=nan", "wall_seconds must be a number from 0.01 to 1,000,000, got nan"),
    ("memory_mib=32", "memory_mib must be a whole number from 64 to 1,000,000, got 32"),
    ("memory_mib=null", "memory_mib must be a whole number from 64 to 1,000,000, got None"),
    ("file_mib=-1", "file_mib must be a number from 0.001 to 1,000,000, got -1"),
    ("size_mib=much", "size_mib must be a number from 0.001 to 1,000,000, got 'much'"),
    ("min_share=1.5", "min_share must be a number from 0 to 1, got 1.5"),
    ("cpu_secs=5", "unknown setting 'data.source.limits.cpu_secs'; did you mean"),
]


@pytest.mark.parametrize(("setting", "sentence"), REFUSED)
def test_limits_that_cannot_be_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], setting: str, sentence: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["quantattn", *ASKED, f"data.path={tmp_path}", f"data.source.limits.{setting}"])
    assert main("train") == 2
    error = capfd.readouterr().err
    assert len(error.strip().splitlines()) == 1
    assert sentence in error
    assert "data.source.limits" in error


def test_a_limit_of_the_configuration_reaches_the_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two files beyond the limit, and none within: the run ends with their number and with the reason."""
    (tmp_path / "filings").mkdir()
    for name in ("one.htm", "other.htm"):
        page = "<html><body><p>FORM 10-K</p>" + "<p>We make anvils.</p>" * 200 + "</body></html>"
        (tmp_path / "filings" / name).write_text(page)
    given = [*ASKED, f"data.path={tmp_path / 'filings'}", "data.source.limits.file_mib=0.001"]
    monkeypatch.setattr(sys, "argv", ["quantattn", *given, f"paths.output_dir={tmp_path / 'run'}"])
    assert main("train") == 1
    assert "the source holds no filing: size limit (2)" in capfd.readouterr().err


def test_the_least_memory_is_enough_to_start_a_child(tmp_path: Path) -> None:
    (tmp_path / "a.htm").write_text("<html><body><p>FORM 10-K</p><p>We make anvils.</p></body></html>")
    with ParsePool(Limits(memory_mib=64), workers=1) as pool:
        assert pool.parse(tmp_path / "a.htm", ("10-K",)).text == "FORM 10-K\nWe make anvils."
