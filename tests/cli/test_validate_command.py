"""`quantattn validate`: what it prints and writes, and what it refuses before any work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from quantattn.attention.certificate import Certificate, Finding
from quantattn.cli import validate as command


def test_it_writes_the_certificate_and_its_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--backend=tiled", "--device=cpu", f"--json={tmp_path / 'c.json'}", f"--html={tmp_path / 'c.html'}"]
    assert command.run(asked) == 0
    printed = " ".join(capsys.readouterr().out.split())
    certificate = Certificate.from_json((tmp_path / "c.json").read_text("utf-8"))
    assert " ".join(certificate.headline().split()) in printed
    assert certificate.sha in printed
    page = (tmp_path / "c.html").read_text("utf-8")
    assert certificate.sha in page
    assert not re.search(r"(src|href)=.https?:", page)


def test_a_full_table_has_one_row_a_part() -> None:
    findings = [Finding("tiled", f"theorem: {i}", "float32", "bits", 0.0, 0.0, 0.0, "pass") for i in range(9)]
    findings += [Finding("state", "∅ ⊕ a = a", "float32", "bits", 0.0, 0.0, 0.0, "pass")]
    found = [(key, len(group)) for key, group in command.grouped(findings, by_part=True)]
    assert found == [(("tiled", "theorem", "float32"), 9), (("state", "laws", "float32"), 1)]
    assert len(list(command.grouped(findings))) == 10


def test_a_folder_that_is_not_there_is_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "validate", None)  # calling it would be an error of another kind
    with pytest.raises(SystemExit) as ended:
        command.run([f"--html={tmp_path / 'nowhere' / 'c.html'}"])
    assert ended.value.code == 2
    assert f"there is no folder {tmp_path / 'nowhere'} to write c.html in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("--device=nope", "a device is cpu, cuda or cuda:1 for the second GPU, got 'nope'"),
        ("--device=cuda:99", "cuda:99"),
        ("--workers=0", "a validation needs at least one worker, got 0"),
    ],
)
def test_a_device_or_a_number_of_workers_that_cannot_be_is_refused_before_any_work(
    asked: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "validate", None)
    with pytest.raises(SystemExit) as ended:
        command.run([asked])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
