"""What the doctor says of folders that this version can read in part, or not at all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from quantattn.cli import main
from quantattn.cli.doctor import kind_of


def doctor(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["quantattn", str(path)])
    code = main("doctor")
    said = capsys.readouterr()
    return code, " ".join((said.out + said.err).split())


def test_files_of_another_kind_are_not_called_filings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prices.csv").write_text("date,close\n2024-01-02,1.5\n")
    code, said = doctor(tmp_path, monkeypatch, capsys)
    assert code == 1
    assert "1 files, none that this version reads: it reads LOBSTER" in said
    assert "counts as public" not in said


def test_filings_without_a_time_are_told_which_setting_gives_them_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = "<html><body><p>FORM 10-K</p><p>" + "Annual report of ACME. " * 40 + "</p></body></html>"
    (tmp_path / "acme-10k.htm").write_text(page)
    code, said = doctor(tmp_path, monkeypatch, capsys)
    assert code == 1
    assert "set aside: 1 rows, no acceptance time give data.source.index=FILE" in said


def test_an_empty_folder_and_a_missing_one_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor(tmp_path, monkeypatch, capsys) == (1, f"quantattn doctor: {tmp_path} holds no files")
    code, said = doctor(tmp_path / "nowhere", monkeypatch, capsys)
    assert (code, said.endswith("nowhere: there is no such file or folder")) == (2, True)


def test_itch_files_are_known_by_their_names(tmp_path: Path) -> None:
    for name in ("01302020.NASDAQ_ITCH50.gz", "ex20101224.TEST_ITCH_50", "S013020-v50.itch"):
        path = tmp_path / name
        path.write_bytes(b"")
        assert kind_of(path) == "itch"
    assert kind_of(tmp_path) == "itch"
    (tmp_path / "X_message_1.csv").write_text("")
    assert kind_of(tmp_path) == "lobster"
