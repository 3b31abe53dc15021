"""What the doctor says of data, and that the command it suggests is one that works."""

from __future__ import annotations

import gzip
import json
import shlex
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from quantattn.cli import main


class Doctor:
    """Calls the command; (exit code, standard output, standard error)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._patch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: str | Path, command: str = "doctor") -> tuple[int, str, str]:
        self._patch.setattr(sys, "argv", ["quantattn", *map(str, arguments)])
        code = main(command)
        said = self._capsys.readouterr()
        return code, said.out, said.err.strip()


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Doctor:
    return Doctor(monkeypatch, capsys)


def trades(path: Path, rows: int = 900, broken: int = 0) -> Path:
    """TAQ trades of one morning, a second apart, whose price goes up and down by a cent."""
    lines = ["DATE,TIME_M,SYM_ROOT,PRICE,SIZE,TR_SCOND,TR_CORR,EX"]
    for n in range(rows):
        minute, second = divmod(n, 60)
        price = "none" if n < broken else f"10.{50 + (n * n) % 7}"
        lines.append(f"20180103,{10 + minute // 60}:{minute % 60:02d}:{second:02d},ACME,{price},{1 + n % 5}00,@,00,N")
    path.write_text("\n".join(lines) + "\n")
    return path


def lobster(folder: Path, name: str = "ACME_2012-06-21_34200000_57600000") -> Path:
    messages = ["34200.1,1,1,10,1000000,1", "34201.1,1,2,10,1000050,1", "34203.1,4,2,10,1000050,1"]
    (folder / f"{name}_message_1.csv").write_text("\n".join(messages) + "\n")
    (folder / f"{name}_orderbook_1.csv").write_text(
        "1000200,5,1000000,10\n1000200,5,1000050,10\n1000200,5,1000000,10\n"
    )
    return folder / f"{name}_message_1.csv"


def test_an_account_says_format_reason_times_tick_and_what_to_run(tmp_path: Path, doctor: Doctor) -> None:
    path = lobster(tmp_path)
    code, said, errors = doctor(path)
    assert (code, errors) == (0, "")
    lines = said.splitlines()
    assert "LOBSTER (data=lobster), because its rows are seconds, a type from 1 to 7" in lines[0]
    assert "rows         3 of ACME" in said
    assert "2012-06-21 13:30:00.1 to 2012-06-21 13:30:03.1 UTC; 2012-06-21 09:30:00.1 to" in said
    assert "largest within a day 2 s after 2012-06-21 09:30:01.1 (ACME)" in said
    assert "kinds        new 2 (66.7 %), execute 1 (33.3 %)" in said
    assert (
        "! tick         declared 0.01, but 3 prices are no multiple of it; the greatest step of all prices is 0.005"
        in said
    )
    *command, decisions = shlex.split(lines[-1])
    assert command == ["python", "train.py", "experiment=lobster", f"data.path={path}"]
    assert decisions == "data.prepare.decision_every=1"


def test_the_suggested_command_trains(tmp_path: Path, doctor: Doctor) -> None:
    path = trades(tmp_path / "it's a file.csv", broken=2)
    code, said, _ = doctor(path)
    assert code == 1
    assert "2 rows, impossible price" in said
    python, script, *overrides = shlex.split(said.splitlines()[-1])
    assert (python, script) == ("python", "train.py")
    assert "data.source.on_bad=quarantine" in overrides
    small = ["trainer.max_steps=2", f"paths.output_dir={tmp_path / 'run'}", "data.prepare.n_bins=4"]
    overrides = [each.replace("set_aside.csv", str(tmp_path / "set_aside.csv")) for each in overrides]
    code, said, errors = doctor(*overrides, *small, command="train")
    assert (code, errors) == (0, "")
    assert (tmp_path / "run" / "report.html").is_file()
    # Negative control: without what the doctor added the data are refused.
    code, _, errors = doctor(
        *(each for each in overrides if "aside" not in each and "on_bad" not in each), command="train"
    )
    assert code != 0
    assert "impossible price" in errors


def test_the_json_holds_what_is_printed(tmp_path: Path, doctor: Doctor) -> None:
    path = trades(tmp_path / "trades.csv", broken=1)
    code, said, _ = doctor(path, "--json", tmp_path / "facts.json")
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert code == 1
    assert facts["format"]["name"] == "taq"
    assert (facts["found"]["rows"], facts["report"]["rows_set_aside"]) == (899, {"impossible price": 1})
    assert facts["command"] == said.splitlines()[-1]
    assert f"rows         {facts['found']['rows']:,} of ACME" in said


@pytest.mark.parametrize("ending", ["svg", "html"])
def test_the_picture_needs_nothing_but_itself(tmp_path: Path, doctor: Doctor, ending: str) -> None:
    file = tmp_path / f"picture.{ending}"
    assert doctor(trades(tmp_path / "trades.csv", 50), "--picture", file)[0] == 0
    text = file.read_text()
    for outside in ('src="http', "url(http", '<link rel="stylesheet', "@import"):
        assert outside not in text
    if ending == "svg":
        root = ElementTree.fromstring(text)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
    for words in ("price of ACME", "events a minute", "trades.csv: NYSE TAQ"):
        assert words in text


def test_wrong_usage_is_told_with_the_nearest_word_before_anything_is_read(tmp_path: Path, doctor: Doctor) -> None:
    path = lobster(tmp_path)
    for arguments, sentence in (
        ((tmp_path / "nowhere",), "nowhere: there is no such file or folder"),
        ((path, "--set", "levls=1"), "--set levls: LOBSTER has no such setting; did you mean 'levels'?"),
        ((path, "--set", "levels"), "--set levels: write NAME=VALUE"),
        ((path, "--picture", "a.png"), "--picture a.png: a picture is written as .svg or .html"),
        ((path, "--json", tmp_path / "no" / "a.json"), "there is no folder"),
        ((path, "--rows", "0"), "--rows must be at least 1, got 0"),
    ):
        code, said, errors = doctor(*arguments)
        assert (code, sentence in errors) == (2, True), errors
        assert "rows  " not in said


def test_what_no_file_says_is_asked_for_and_taken(tmp_path: Path, doctor: Doctor) -> None:
    path = lobster(tmp_path, "mine")
    code, _, errors = doctor(path)
    assert code == 2
    assert "--set entity=AMZN (the ticker, which no row says); --set date=2012-06-21 (the day" in errors
    code, said, _ = doctor(path, "--set", "entity=ACME", "--set", "date=2020-07-01")
    assert code == 0
    assert "2020-07-01 13:30:00.1" in said
    assert "data.source.entity=ACME data.source.date=2020-07-01" in said.splitlines()[-1]


def test_a_table_is_read_as_it_was_guessed_and_the_guess_is_in_the_command(tmp_path: Path, doctor: Doctor) -> None:
    rows = "".join(f"{n % 3},2020-01-{1 + n % 28:02d},{'ab'[n % 2]},{n}.50\n" for n in range(60))
    (tmp_path / "paid.csv").write_text("client_id,when,kind,amount\n" + rows)
    code, said, _ = doctor(tmp_path / "paid.csv")
    assert code == 0
    assert "60 of 3 entities" in said
    assert "amount, decimal2: 60 values, 0.5 to 59.5" in said
    assert "'data.source.columns={kind:category,amount:decimal2}'" in said.splitlines()[-1]
    code, _, errors = doctor(tmp_path / "paid.csv", "--set", "columns={amount:decimal9x}")
    assert code == 1
    assert "decimal9x" in errors


def test_a_folder_of_several_formats_is_listed(tmp_path: Path, doctor: Doctor) -> None:
    lobster(tmp_path)
    trades(tmp_path / "trades.csv", 20)
    (tmp_path / "README.txt").write_text("These are files of two vendors, for a test of a folder. " * 5)
    code, said, _ = doctor(tmp_path)
    assert code == 0
    assert "4 files of several formats" in said
    assert "LOBSTER (data=lobster): 2 files" in said
    assert "NYSE TAQ (data=taq): 1 files" in said
    (tmp_path / "junk").write_bytes(b"\0\1")
    code, said, _ = doctor(tmp_path)
    assert code == 1
    assert "junk: it is binary of no known format" in said


def test_what_cannot_be_read_is_one_sentence(tmp_path: Path, doctor: Doctor) -> None:
    packed = gzip.compress(trades(tmp_path / "trades.csv", 3000).read_bytes())
    for name, content, sentence in (
        ("empty.csv", b"", "empty.csv: is empty"),
        ("junk.bin", bytes(64), "junk.bin: it is binary of no known format"),
        ("cut.csv.gz", packed[: len(packed) // 2], "cut.csv.gz cannot be read"),
    ):
        (tmp_path / name).write_bytes(content)
        code, said, errors = doctor(tmp_path / name)
        assert code == 1
        assert errors.startswith("quantattn doctor: ")
        assert sentence in errors
        assert "\n" not in errors
        assert "rows   " not in said


def test_filings_without_a_time_are_told_which_setting_gives_them_one(tmp_path: Path, doctor: Doctor) -> None:
    page = "<html><body><p>FORM 10-K</p><p>" + "Annual report of ACME. " * 40 + "</p></body></html>"
    (tmp_path / "acme-10k.htm").write_text(page)
    code, said, _ = doctor(tmp_path)
    assert code == 1
    assert "1 rows, no acceptance time" in said
    assert "give data.source.index=FILE" in said


def test_the_page_shows_what_is_printed(monkeypatch: pytest.MonkeyPatch, doctor: Doctor) -> None:
    root = Path(__file__).resolve().parents[2]
    monkeypatch.chdir(root)
    shown = (
        (root / "docs" / "doctor.md").read_text("utf-8").split("$ quantattn doctor data/sample\n")[1].split("```")[0]
    )
    assert doctor("data/sample") == (0, shown, "")


def test_an_empty_folder_is_one_sentence(tmp_path: Path, doctor: Doctor) -> None:
    assert doctor(tmp_path) == (1, "", f"quantattn doctor: {tmp_path} holds no files")
