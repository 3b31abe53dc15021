"""Formats are told by what is in a file, under any name that does not matter; and nothing that is there is an error."""

from __future__ import annotations

import gzip
import lzma
import struct
import zipfile
from pathlib import Path

import polars as pl
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quantattn.data.recognise import FORMATS, bundle, one_format, recognise, recognise_folder
from quantattn.data.recognise.long_table import quoted
from quantattn.data.recognise.registry import NO_ENTRY
from quantattn.data.sources import SOURCES
from quantattn.data.sources.itch_format import MESSAGES

TARDIS = "exchange,symbol,timestamp,local_timestamp"
EXAMPLES = {
    "tardis": f"{TARDIS},id,side,price,amount\nbitmex,XBTUSD,1577836800000000,1577836800000100,a,buy,7000,10\n",
    "binance_depth": "symbol,timestamp,first_update_id,last_update_id,side,update_type,price,qty,pu\n"
    "BTCUSDT,1600000000000,1,2,b,set,10000.1,1.5,-1\n",
    "bitstamp": "id,timestamp,exchange.timestamp,price,volume,action,direction\n"
    "1,1430438404518,1430438404000,2,3,created,bid\n",
    "hftbacktest": '1723075200000000000 {"stream":"ethusdt@trade","data":{}}\n',
    "capture": 'wss://x.example/ <-> 1626993367.38\n1626993367.5: {"table":"trade"}\n',
    "binance": "1,100.5,2,201,1600000000000,true,true\n2,100.6,1,100.6,1600000000001,false,true\n",
    "lobster": "34200.004241176,1,16113575,18,5853300,1\n34200.1,5,0,1,5853400,-1\n",
    "taq": "DATE,TIME_M,SYM_ROOT,PRICE,SIZE\n20180102,9:30:00.5,A,10.5,100\n",
    "ticks": "timestamp,bid,ask\n2013-01-01T22:00:00Z,86.7,86.8\n",
    "bars": "date,open,high,low,close,volume\n2024-01-02,1,2,0.5,1.5,100\n",
    "fi2010": "  ".join(["1.2345678e-01"] * 200) + "\n" + "  ".join(["1.2345678e+00"] * 200) + "\n",
    "filings": "<SEC-HEADER>0000037996-17-000084.hdr.sgml : 20170101\n<ACCEPTANCE-DATETIME>20170101120000\n",
    "table": "client_id,when,kind,amount\n1,2020-01-01,a,1.25\n1,2020-01-02,b,2.50\n2,2020-01-01,a,0.75\n",
}
"""Format → the beginning of a file of it."""


def itch(count: int, *, zeros: bool = False) -> bytes:
    body = b"S" + bytes(MESSAGES["S"].itemsize - 1)
    return (struct.pack(">H", 0 if zeros else len(body)) + body) * count


def write(folder: Path, text: str | bytes, name: str = "data") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("kind", EXAMPLES)
@pytest.mark.parametrize("packing", ["plain", "gzip", "xz", "zip"])
def test_the_content_says_the_format_whatever_the_name_and_the_packing(tmp_path: Path, kind: str, packing: str) -> None:
    text = EXAMPLES[kind].encode()
    path = tmp_path / "data"
    if packing == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("inside", text)
    else:
        path.write_bytes({"plain": bytes, "gzip": gzip.compress, "xz": lzma.compress}[packing](text))
    found = recognise(path)
    assert found.format is not None
    assert (found.format.name, found.read, found.sentence) == (kind, True, "")
    assert found.look.packing == ("" if packing == "plain" else packing)


@pytest.mark.parametrize("zeros", [False, True])
def test_itch_is_told_by_its_framing_and_dbn_by_its_first_bytes(tmp_path: Path, zeros: bool) -> None:
    assert recognise(write(tmp_path, itch(9, zeros=zeros))).format == next(f for f in FORMATS if f.name == "itch")
    # Negative controls: a length that is not that of the type, and types that do not exist.
    assert recognise(write(tmp_path, b"\x00\x0bS" + bytes(200))).format is None
    found = recognise(write(tmp_path, b"DBN\x09" + bytes(100)))
    assert found.format is None
    assert "begins with 44 42 4e" in found.sentence


def test_a_parquet_file_is_told_by_its_columns(tmp_path: Path) -> None:
    table = pl.DataFrame(
        {"user_id": [1, 1, 2], "at": ["2020-01-01", "2020-01-02", "2020-01-03"], "paid": ["1.5", "2", "3"]}
    )
    table.with_columns(pl.col("at").str.to_datetime()).write_parquet(tmp_path / "data")
    found = recognise(tmp_path / "data")
    assert found.format is not None
    assert (found.format.name, dict(found.claim.settings)) == (
        "table",
        {"time": "at", "id": "user_id", "columns": "{paid:decimal1}"},
    )


def test_a_table_tells_its_entity_its_time_and_the_types_of_its_columns(tmp_path: Path) -> None:
    found = recognise(write(tmp_path, EXAMPLES["table"])).claim.settings
    assert found == {"time": "when", "id": "client_id", "columns": "{kind:category,amount:decimal2}"}
    without = recognise(write(tmp_path, "client_id,bins\n1,0\n2,3\n"))
    assert not without.read
    assert "without a column of times (client_id, bins)" in without.sentence
    rows = "".join(f"{n % 3};98110{n} 00:00:00;x;y{n}\n" for n in range(1, 9))
    dated = recognise(write(tmp_path, "card_id;issued;a <b;first word\n" + rows)).claim
    assert dated.settings["time_format"] == "'%y%m%d %H:%M:%S'"
    assert dated.settings["columns"] == "{first word:category}"
    assert "leaves out 'a <b'" in dated.why
    # An id that no two rows share names rows, and no entity.
    numbered = "".join(f"{n},2020-01-0{n},{n}.25\n" for n in range(1, 6))
    cards = recognise(write(tmp_path, "when,cc_num,amt\n2020-01-01,7,1\n2020-01-02,7,1\n2020-01-02,8,1\n")).claim
    assert cards.settings["id"] == "cc_num"
    assert "id" not in recognise(write(tmp_path, "transaction_id,date,amount\n" + numbered)).claim.settings
    # A number is not taken for a time when no calendar has it: months above 12 of a column of six digits.
    assert not recognise(write(tmp_path, "id,born\n1,706213\n2,455204\n")).read


def test_every_source_has_an_entry_or_a_reason() -> None:
    entries = {form.source for form in FORMATS if form.source}
    assert entries | set(NO_ENTRY) == set(SOURCES)
    assert not entries & set(NO_ENTRY)
    names = [form.name for form in FORMATS if form.name]
    assert len(names) == len(set(names))


def test_what_cannot_be_looked_into_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut = gzip.compress(b"date,close\n2024-01-02,1\n" * 100)[:20]
    for name, content, said in (
        ("empty", b"", "empty: is empty"),
        ("garbage", bytes(range(256)) * 4, "it is binary of no known format; it begins with 00 01 02 03 04 05 06 07"),
        ("cut", cut, "its gzip is damaged"),
        ("words", b"?!\n", "it is text of no known format; it begins with '?!'"),
    ):
        found = recognise(write(tmp_path, content, name))
        assert (found.format, found.read) == (None, False)
        assert said in found.sentence

    def refuse(self: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refuse)
    assert recognise(tmp_path / "words").sentence == "words: cannot be opened: Permission denied"


def test_a_few_damaged_lines_do_not_hide_a_format(tmp_path: Path) -> None:
    lines = ["34200.1,1,5,10,5853300,1"] * 10
    lines[3] = "34200.1,one,5,10,5853300,1"
    found = recognise(write(tmp_path, "\n".join(lines) + "\n")).format
    assert found is not None
    assert found.name == "lobster"


def test_a_folder_has_a_format_when_its_data_have_one(tmp_path: Path) -> None:
    write(tmp_path, EXAMPLES["lobster"], "A_message_1.csv")
    write(tmp_path, "These are the files of a vendor. " * 20, "README.txt")
    write(tmp_path, b"", ".hidden")
    found, more = recognise_folder(tmp_path)
    assert (len(found), more) == (2, False)
    only = one_format(found)
    assert only is not None
    assert only.name == "lobster"
    write(tmp_path, EXAMPLES["bars"], "bars.csv")
    assert one_format(recognise_folder(tmp_path)[0]) is None
    (tmp_path / "bars.csv").write_bytes(b"\0\1\2")
    assert one_format(recognise_folder(tmp_path)[0]) is None


def test_tables_of_a_bank_are_told_as_one(tmp_path: Path) -> None:
    assert bundle(tmp_path) is None
    for name in ("account", "card", "disp", "loan"):
        write(tmp_path, "x", f"{name}.asc")
    assert bundle(tmp_path) is None
    write(tmp_path, "x", "trans_first.asc.gz")
    found = bundle(tmp_path)
    assert found is not None
    assert found[0].name == "berka"


@given(st.binary(max_size=400) | st.text(max_size=200).map(str.encode))
@settings(max_examples=60, deadline=None)
def test_no_bytes_are_an_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    found = recognise(write(tmp_path_factory.mktemp("any"), content))
    assert found.read == (found.sentence == "")


@given(st.text(st.characters(codec="ascii", exclude_categories=("Cc",)), min_size=1, max_size=20))
@example("null")
@example(".0")
@example("a'b")
@example("\\")
@settings(max_examples=60, deadline=None)
def test_a_quoted_value_is_read_back_by_the_grammar_of_overrides(text: str) -> None:
    value = OverridesParser.create().parse_override(f"key={quoted(text)}").value()
    assert isinstance(value, (str, QuotedString))
    assert (value.text if isinstance(value, QuotedString) else value) == text
