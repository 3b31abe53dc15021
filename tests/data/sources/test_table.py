"""A long table of any make: what is read, exactly, and what is refused, by line and reason."""

from __future__ import annotations

import gzip
import lzma
import zipfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantattn.data.schema import Events, check
from quantattn.data.sources.table import TableSource, scan_table
from quantattn.data.sources.table_types import Column

DAY = 86_400 * 10**9
ROWS = [("b", "2020-01-02", "x", "1.50"), ("a", "2020-01-03", "y;z", "-0.05"), ("a", "2020-01-01", "", "")]
WANTED: dict[str, Any] = {"id": "who", "time": "when", "columns": {"kind": "category", "amount": "decimal2"}}
READ = [
    ("a", 18262 * DAY, 2, None, None),
    ("a", 18264 * DAY, 1, "y;z", -5),
    ("b", 18263 * DAY, 0, "x", 150),
]
"""The rows as they must come out: entity, time, seq, kind, amount; 18262 days lie between 1970 and 2020."""


def text(separator: str = ";", end: str = "\n", header: bool = True) -> bytes:
    rows = [("who", "when", "kind", "amount")] if header else []
    lines = [separator.join(f'"{field}"' for field in row) for row in [*rows, *ROWS]]
    return end.join(lines).encode()


def rows_of(source: TableSource) -> list[tuple[Any, ...]]:
    frame = check(source.frame.collect(), Events)
    assert frame.height == source.report.rows_read
    return frame.select("entity", "event_time", "seq", "kind", "amount").rows()


@pytest.mark.parametrize("separator", [",", ";", "\t", "|", "^"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_any_separator_and_end_of_line_give_the_same_rows(tmp_path: Path, separator: str, end: str) -> None:
    file = tmp_path / "t.csv"
    file.write_bytes(b"\xef\xbb\xbf" + text(separator, end))
    given = {"separator": separator} if separator == "^" else {}
    assert rows_of(scan_table(file, **WANTED, **given)) == READ


def test_compressed_files_and_parts_of_one_table(tmp_path: Path) -> None:
    packed = {"t.csv.gz": gzip.compress(text()[:40]) + gzip.compress(text()[40:]), "t.csv.xz": lzma.compress(text())}
    for name, content in packed.items():
        (tmp_path / name).write_bytes(content)
    with zipfile.ZipFile(tmp_path / "t.csv.zip", "w") as archive:
        archive.writestr("inside.csv", text())
    halves = []
    for half in (text().split(b"\n")[:2], text().split(b"\n")[2:]):
        frame = pl.DataFrame({"line": [line.decode() for line in half]})
        frame.write_csv(
            tmp_path / "half", include_header=False, quote_style="never", compression="zstd", check_extension=False
        )
        halves.append((tmp_path / "half").read_bytes())
    (tmp_path / "half").unlink()
    (tmp_path / "t.csv.zst").write_bytes(b"".join(halves))  # of two frames
    for file in sorted(tmp_path.iterdir()):
        assert rows_of(scan_table(file, **WANTED)) == READ, file
    folder = tmp_path / "parts"
    folder.mkdir()
    lines = text().split(b"\n")
    for number, line in enumerate(lines[1:]):
        (folder / f"{number}.csv").write_bytes(lines[0] + b"\n" + line + b"\n")
    assert rows_of(scan_table(folder, **WANTED)) == READ
    assert rows_of(scan_table(folder / "*.csv", **WANTED)) == READ


def test_text_that_is_not_utf8_is_said_of_every_kind_of_file(tmp_path: Path) -> None:
    given: dict[str, Any] = {"id": "who", "time": "when", "columns": {"kind": "category"}}
    frame = pl.DataFrame({"who": ["a", "b"], "when": ["2020-01-01"] * 2, "kind": ["zebra"] * 2})
    frame.write_parquet(tmp_path / "x.parquet", compression="uncompressed")
    frame.write_csv(tmp_path / "x.csv")
    for file in tmp_path.iterdir():
        file.write_bytes(file.read_bytes().replace(b"zebra", b"\xff\xfe\xfd\xfc\xfb"))
    with pytest.raises(ValueError, match=r"x\.parquet cannot be read: .*UTF-8"):
        scan_table(tmp_path / "x.parquet", **given)
    for quote in ('"', None):
        with pytest.raises(ValueError, match=r"x\.csv.* is not UTF-8; convert the file first"):
            scan_table(tmp_path / "x.csv", quote=quote, **given)


def test_parquet_delta_hive_and_a_frame_give_the_same_rows(tmp_path: Path) -> None:
    frame = pl.DataFrame(ROWS, orient="row", schema=["who", "when", "kind", "amount"])
    frame = frame.with_columns(
        pl.col("when").str.to_date(),
        pl.when(pl.col("kind") != "").then("kind").alias("kind"),
        pl.when(pl.col("amount") != "").then("amount").cast(pl.Decimal(10, 2)).alias("amount"),
    )
    frame.write_parquet(tmp_path / "t.parquet")
    frame.write_delta(str(tmp_path / "delta"))
    for number, who in enumerate(("b", "a")):
        folder = tmp_path / "hive" / f"part={number}" / f"who={who}"
        folder.mkdir(parents=True)
        frame.filter(pl.col("who") == who).drop("who").write_parquet(folder / "0.parquet")
    for table in (tmp_path / "t.parquet", tmp_path / "delta", tmp_path / "hive", frame.lazy()):
        assert rows_of(scan_table(table, **WANTED)) == READ, table
    floats = frame.with_columns(pl.col("amount").cast(pl.Float64), pl.col("when").cast(pl.Datetime("us")))
    assert rows_of(scan_table(floats.lazy(), **WANTED)) == READ
    with pytest.raises(ValueError, match="the id 'amount' is Float64, expected text or whole numbers"):
        scan_table(floats.lazy(), **(WANTED | {"id": "amount"}))


@pytest.mark.parametrize(
    ("form", "zone", "written", "time"),
    [
        ("day", "UTC", "12", 12 * DAY),
        ("day", "UTC", "12 10:23:26", 12 * DAY + 37_406 * 10**9),
        ("yymmdd", "UTC", "930101", 725_846_400 * 10**9),
        ("yymmdd", "Europe/Prague", "930701", (741_484_800 - 7_200) * 10**9),
        ("s", "Europe/Prague", "1577836800.000000001", 1_577_836_800 * 10**9 + 1),
        ("ms", "UTC", "1577836800123", 1_577_836_800_123 * 10**6),
        ("iso", "UTC", "2020-01-01T02:00:00.123456789+02:00", 1_577_836_800_123_456_789),
        ("iso", "America/New_York", "2020-01-01 00:00", (1_577_836_800 + 18_000) * 10**9),
        ("iso", "America/New_York", "2020-01-01T00:00:00Z", 1_577_836_800 * 10**9),
        ("%d.%m.%Y %H:%M", "UTC", "01.01.2020 00:01", 1_577_836_860 * 10**9),
    ],
)
def test_times_in_every_form(tmp_path: Path, form: str, zone: str, written: str, time: int) -> None:
    file = tmp_path / "t.csv"
    file.write_text(f"who,when,kind\n1,{written},x\n")
    source = scan_table(file, id="who", time="when", columns={"kind": "category"}, time_format=form, zone=zone)
    assert source.frame.collect()["event_time"].to_list() == [time]


def test_days_from_another_origin_and_times_of_several_columns(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("who,day,date,clock,kind\n1,2,03.01.2020,10:00,x\n")
    given: dict[str, Any] = {"id": "who", "columns": {"kind": "category"}}
    source = scan_table(file, time="day", time_format="day", origin="2020-01-01", **given)
    assert source.frame.collect()["event_time"].to_list() == [18264 * DAY]
    assert any("counted from 2020-01-01" in note for note in source.report.notes)
    source = scan_table(file, time=["date", "clock"], time_format="%d.%m.%Y %H:%M", **given)
    assert source.frame.collect()["event_time"].to_list() == [18264 * DAY + 36_000 * 10**9]


def test_when_a_row_is_known(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("who,when,seen,kind\n1,2020-01-01,2020-01-03,x\n1,2020-01-02,2020-01-02,y\n")
    given: dict[str, Any] = {"id": "who", "time": "when", "columns": {"kind": "category"}}
    column = scan_table(file, available="seen", **given).frame.collect()
    assert column["kind"].to_list() == ["y", "x"], "rows stand in the order in which they were known"
    delayed = scan_table(file, delay="1d", **given).frame.collect()
    assert (delayed["available_time"] - delayed["event_time"]).to_list() == [DAY, DAY]
    file.write_text("who,when,seen,kind\n1,2020-01-02,2020-01-01,x\n")
    with pytest.raises(ValueError, match=r"t\.csv:2: available before it happened; the row is '1,2020-01-02,2020"):
        scan_table(file, available="seen", **given)


def test_renaming_keeping_and_the_id_of_another_table(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("card,when,value\n1,2020-01-01,5\n2,2020-01-01,6\n3,2020-01-01,7\n")
    (tmp_path / "cards.csv").write_text("card;holder\n1;ann\n2;bob\n")
    given: dict[str, Any] = {
        "id": "card",
        "time": "when",
        "columns": {"amount": "integer"},
        "rename": {"value": "amount"},
    }
    through = {"path": str(tmp_path / "cards.csv"), "id": "card", "to": "holder"}
    source = scan_table(tmp_path / "t.csv", keep={"card": [1, 2]}, through=through, **given)
    assert source.frame.collect().select("entity", "amount").rows() == [("ann", 5), ("bob", 6)]
    assert "1 rows are passed over by keep (card)" in source.report.notes
    with pytest.raises(ValueError, match=r"t\.csv:4: card is not in cards\.csv; the row is '3,2020-01-01,7'"):
        scan_table(tmp_path / "t.csv", through=through, **given)
    (tmp_path / "cards.csv").write_text("card;holder\n1;ann\n1;bob\n")
    with pytest.raises(ValueError, match=r"cards\.csv holds card '1' twice; expected one holder for each"):
        scan_table(tmp_path / "t.csv", through=through, **given)


CENTS = "column 'amount' is not a decimal number with at most 2 places that fits 64 bits"
BAD = {
    "1,2020-01-01,x": "another number of fields than 4",
    "1,2020-01-01,x,1,2": "another number of fields than 4",
    '1,2020-01-01,"x,1': "a quote that does not close, or stands inside of a field",
    '1,2020-01-01,a"b"c,1': "a quote that does not close, or stands inside of a field",
    "1,2020-01-01,x\x00,1": "a control character in the line",
    ",2020-01-01,x,1": "column 'who' is empty",
    "1,,x,1": "column 'when' is not a time in the form 'iso' between the years 1678 and 2261",
    "1,2020-02-30,x,1": "column 'when' is not a time in the form 'iso' between the years 1678 and 2261",
    "1,1500-01-01,x,1": "column 'when' is not a time in the form 'iso' between the years 1678 and 2261",
    "1,2020-01-01,x,1.005": CENTS,
    "1,2020-01-01,x,1e3": CENTS,
    "1,2020-01-01,x,92233720368547758.08": CENTS,
}


@pytest.mark.parametrize(("line", "reason"), BAD.items())
def test_a_bad_row_is_named_by_its_line_and_reason(tmp_path: Path, line: str, reason: str) -> None:
    file = tmp_path / "t.csv"
    file.write_text(f"who,when,kind,amount\n\n1,2020-01-01,x,1\n{line}\n")
    with pytest.raises(ValueError) as refused:
        scan_table(file, **WANTED)
    assert str(refused.value) == f"t.csv:4: {reason}; the row is {line!r}"


def test_quarantine_counts_every_bad_row_and_writes_it_down(tmp_path: Path) -> None:
    file, beside = tmp_path / "t.csv", tmp_path / "bad.csv"
    lines = [line for line in BAD if "\x00" not in line]
    file.write_text("\n".join(["who,when,kind,amount", "1,2020-01-01,x,1", *lines, "2,2020-01-01,x,2"]))
    source = scan_table(file, on_bad="quarantine", set_aside=beside, **WANTED)
    assert source.frame.collect()["entity"].to_list() == ["1", "2"]
    assert sum(source.report.rows_set_aside.values()) == len(lines)
    assert set(source.report.rows_set_aside) == {BAD[line] for line in lines}
    written = pl.read_csv(beside)
    assert written["text"].to_list() == lines
    assert written["line"].to_list() == list(range(3, 3 + len(lines)))
    with pytest.raises(ValueError, match="go together"):
        scan_table(file, on_bad="quarantine", **WANTED)


def test_a_last_line_without_an_end_is_read_and_noted(tmp_path: Path) -> None:
    for name in ("t.csv", "t.csv.xz"):
        pack = lzma.compress if name.endswith("xz") else bytes
        (tmp_path / name).write_bytes(pack(text()))
        cut = scan_table(tmp_path / name, **WANTED)
        (tmp_path / name).write_bytes(pack(text() + b"\n"))
        whole = scan_table(tmp_path / name, **WANTED)
        assert rows_of(cut) == rows_of(whole) == READ
        assert any(f"{name}: the last line has no end" in note for note in cut.report.notes)
        assert not any("no end" in note for note in whole.report.notes)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    cases = {
        "empty.csv": (b"", "empty.csv is empty; expected a header line"),
        "header.csv": (b"who,when,kind,amount\n", "header.csv: no row is left"),
        "other.csv": (b"a;b\n1;2\n", "other.csv has no column 'who', 'when', 'kind', 'amount'; it has a, b"),
        "cr.csv": (b"who,when\rkind,amount\n", "cr.csv: the first line is 'who,when\\rkind,amount', which is no row"),
        "twice.csv": (b"who,when,kind,amount,who\n", "twice.csv: the header names 'who' twice"),
        "latin.csv": (b"who,when,kind,amount\n1,2020-01-01,\xe9,1\n", "latin.csv:2: byte 14 of the line is not UTF-8"),
        "cut.csv.gz": (gzip.compress(text() * 500)[:-20], "cut.csv.gz cannot be read: "),
        "cut.csv.xz": (lzma.compress(text() * 500)[:-20], "cut.csv.xz cannot be read: "),
        "no.csv.zip": (b"PK no archive", "no.csv.zip cannot be read: "),
        "no.parquet": (b"PAR1 no table", "no.parquet"),
    }
    for name, (content, sentence) in cases.items():
        file = tmp_path / name
        file.write_bytes(content)
        with pytest.raises(ValueError) as refused:
            scan_table(file, **WANTED)
        assert sentence in str(refused.value)
        assert "\n" not in str(refused.value)
    with pytest.raises(ValueError, match="holds both"):
        scan_table(tmp_path, **WANTED)
    with pytest.raises(ValueError, match="there is no such file or folder"):
        scan_table(tmp_path / "nothing*.csv", **WANTED)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"columns": {"amount": "money"}}, "a column's type must be category, integer, float, or decimal0 … decimal18"),
        ({"columns": {"amount": "decimal"}}, "a column's type must be"),
        ({"columns": {"entity": "category"}}, "columns must name one or more, none of them entity"),
        ({"columns": {}}, "columns must name one or more"),
        ({"time_format": "german"}, "time_format must be one of iso, day"),
        ({"zone": "Mars/Olympus"}, "no time zone 'Mars/Olympus'"),
        ({"delay": "soon"}, "a duration must be a whole number with one of ns"),
        ({"delay": "1d", "available": "when"}, "exclude each other"),
        ({"rename": {"x": "y"}}, "rename gives the names y, which are not among columns"),
        ({"separator": ";;"}, "separator must be one ASCII character"),
        ({"on_bad": "drop"}, "on_bad must be 'refuse' or 'quarantine'"),
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path: Path, changed: dict[str, Any], sentence: str) -> None:
    file = tmp_path / "t.csv"
    file.write_bytes(text())
    with pytest.raises(ValueError, match=sentence):
        scan_table(file, **(WANTED | changed))


def test_a_file_without_a_header(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_bytes(text(header=False))
    assert rows_of(scan_table(file, names=["who", "when", "kind", "amount"], **WANTED)) == READ
    with pytest.raises(ValueError, match="expected 3 fields"):
        scan_table(file, names=["who", "when", "kind"], id="who", time="when", columns={"kind": "category"})


@settings(max_examples=80, deadline=None)
@given(st.decimals(allow_nan=False, allow_infinity=False, places=3), st.integers(0, 6))
def test_decimals_are_exact_or_missing(number: Decimal, places: int) -> None:
    frame = pl.DataFrame({"x": [f"{number:f}"]})
    found = frame.select(Column.parse(f"decimal{places}").read(pl.col("x"), False)).item()
    exact = number * 10**places
    fits = exact == exact.to_integral_value() and -(2**63) <= exact < 2**63
    assert found == (int(exact) if fits else None)


LINE = st.text(st.sampled_from('ab1.-",;\r\x00é \t'), max_size=24)


@settings(max_examples=10, deadline=None)
@given(st.lists(LINE, max_size=60))
def test_whatever_a_file_holds_every_line_is_read_or_counted(tmp_path_factory: Any, lines: list[str]) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    file = folder / "t.csv"
    file.write_bytes("\n".join(["who,when,kind,amount", "1,2020-01-01,x,1", *lines]).encode())
    source = scan_table(file, on_bad="quarantine", set_aside=folder / "bad.csv", **WANTED)
    frame = check(source.frame.collect(), Events)
    filled = sum(1 for line in lines if line not in ("", "\r"))
    assert frame.height == source.report.rows_read
    assert source.report.rows_read + sum(source.report.rows_set_aside.values()) == 1 + filled
