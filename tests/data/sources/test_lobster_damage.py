"""One sentence for each thing that can be wrong with a LOBSTER file, and a table of what is left."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lobster_pairs import BOOKS, MESSAGES, NAME, one_error, rounded, write_pair

from quantattn.data.schema import BookEvents, check
from quantattn.data.sources import scan_lobster

BROKEN = {
    "34200.190226476,4,11534792,26": ("line 4 has 4 columns", "expected 6"),
    "34200.190226476,4,11534792,26,2237500,1,9": ("line 4 has 7 columns", "expected 6"),
    "": ("line 4 is empty", "expected 6"),
    "34200.190226476,4,11534792,26.5,2237500,1": ("line 4", "'26.5' as size", "expected an integer"),
    "34200.190226476,4,11534792,26,,1": ("line 4", "'' as price", "expected an integer"),
    "34200.190226476,4,11534792,26,2237500,-": ("line 4", "'-' as side", "expected an integer"),
    "3.42E+04,4,11534792,26,2237500,1": ("line 4", "'3.42E+04' as time", "spreadsheet", "expected seconds"),
    "34200.1902264760,4,11534792,26,2237500,1": ("line 4", "'34200.1902264760' as time", "at most 9"),
    "86400.0,4,11534792,26,2237500,1": ("line 4", "'86400.0' as time", "below 86400"),
    "34200.190226475,4,11534792,26,2237500,1": ("line 4", "'34200.190226475' as time", "never fall"),
    "34200.190226476,9,11534792,26,2237500,1": ("line 4", "'9' as kind", "from 1 to 7"),
    "34200.190226476,4,11534792,26,2237500,0": ("line 4", "'0' as side", "1 or -1"),
    "34200.190226476,4,11534792,-26,2237500,1": ("line 4", "'-26' as size", "at least 0"),
    "34200.190226476,4,11534792,26,-1,1": ("line 4", "'-1' as price", "positive price"),
    "34200.190226476,7,0,0,2,-1": ("line 4", "'2' as price", "for a halt -1, 0 or 1"),
}


@pytest.mark.parametrize("line", BROKEN)
def test_a_broken_message_is_named_and_can_be_set_aside(tmp_path: Path, line: str) -> None:
    folder = write_pair(tmp_path / "in", [*MESSAGES[:3], line, MESSAGES[4]], BOOKS)
    said = one_error(folder)
    assert NAME.format("message") in said
    assert all(words in said for words in BROKEN[line]), said
    aside = tmp_path / "aside.csv"
    source = scan_lobster(folder, on_bad="quarantine", set_aside=aside)
    assert source.frame.collect().equals(
        scan_lobster(write_pair(tmp_path / "clean", MESSAGES, BOOKS)).frame.collect().filter(pl.col("seq") != 3)
    )
    rows = list(csv.DictReader(aside.read_text().splitlines()))
    assert [(row["entity"], row["file"], row["line"], row["text"]) for row in rows] == [
        ("TEST", NAME.format("message"), "4", line)
    ]
    assert dict(source.report.rows_set_aside) == {rows[0]["reason"]: 1}
    assert source.report.rows_read == 4


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("2239500,100,2237500", "line 4 has 3 columns"),
        ("2239500,100,2237500,x", "'x' as bid_size_1"),
        ("2239500,-100,2237500,74", "'-100' as ask_size_1"),
        ("2239500,100,0,74", "'0' as bid_price_1"),
    ],
)
def test_a_broken_book_row_is_named(tmp_path: Path, line: str, words: str) -> None:
    said = one_error(write_pair(tmp_path, MESSAGES, [*BOOKS[:3], line, BOOKS[4]]))
    assert NAME.format("orderbook") in said
    assert words in said


def test_the_time_of_a_row_that_is_left_out_does_not_condemn_the_next(tmp_path: Path) -> None:
    broken = "50000.1,9,11534792,26,2237500,1"  # an unknown type, and a time far ahead
    folder = write_pair(tmp_path, [*MESSAGES[:2], broken, *MESSAGES[3:]], BOOKS)
    source = scan_lobster(folder, on_bad="quarantine", set_aside=tmp_path / "out" / "aside.csv")
    assert dict(source.report.rows_set_aside) == {"unknown type": 1}
    assert source.frame.collect().height == len(MESSAGES) - 1


def test_a_byte_order_mark_is_no_part_of_the_first_time(tmp_path: Path) -> None:
    """Also where the files are read line by line, because another line is broken."""
    folder = write_pair(tmp_path, [*MESSAGES[:3], MESSAGES[3].replace("26", "2x"), *MESSAGES[4:]], BOOKS)
    for path in folder.glob("*.csv"):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert "line 4: found '2x' as size" in one_error(folder)
    source = scan_lobster(folder, on_bad="quarantine", set_aside=tmp_path / "out" / "aside.csv")
    assert dict(source.report.rows_set_aside) == {"not an integer": 1}


def test_a_broken_first_line_is_not_taken_for_a_header(tmp_path: Path) -> None:
    broken = ["nan" + MESSAGES[0][MESSAGES[0].index(",") :], *MESSAGES[1:]]
    folder = write_pair(tmp_path, broken, ["x" + BOOKS[0], *BOOKS[1:]])
    assert "line 1: found 'nan' as time" in one_error(folder)
    source = scan_lobster(folder, on_bad="quarantine", set_aside=tmp_path / "out" / "aside.csv")
    assert dict(source.report.rows_set_aside) == {"not a time": 1}
    assert source.report.rows_read == len(MESSAGES) - 1


def test_line_numbers_count_the_header_as_an_editor_does(tmp_path: Path) -> None:
    books = ["Ask,AskVolume,Bid,BidVolume", *BOOKS[:4], "2239500,x,2237500,74"]
    scan_lobster(write_pair(tmp_path, MESSAGES, books), on_bad="quarantine", set_aside=tmp_path / "aside")
    rows = list(csv.DictReader((tmp_path / "aside").read_text().splitlines()))
    assert [(row["file"], row["line"]) for row in rows] == [(NAME.format("orderbook"), "6")]
    messages = ["Time,Type,OrderId,Size,Price,Direction", *MESSAGES[:4], "34201,3,1,x,2239500,-1"]
    assert "line 6" in one_error(write_pair(tmp_path, messages, BOOKS))


def test_a_file_that_stops_in_the_middle_of_a_line(tmp_path: Path) -> None:
    folder = write_pair(tmp_path, MESSAGES, BOOKS)
    path = folder / NAME.format("message")
    path.write_bytes(path.read_bytes()[:-12])
    said = one_error(folder)
    assert "line 5 has 4 columns" in said
    assert "stop early" in said


def test_a_file_that_stops_between_lines(tmp_path: Path) -> None:
    said = one_error(write_pair(tmp_path, MESSAGES, BOOKS[:3]))
    assert "has 5 rows" in said
    assert "has 3" in said
    assert "the book stops early" in said
    assert "the message file stops early" in one_error(write_pair(tmp_path, MESSAGES[:4], BOOKS))


def test_files_that_do_not_belong_together_are_noted(tmp_path: Path) -> None:
    messages = [f"{34200 + i}.000000001,1,{i},5,{2238000 + 100 * i},1" for i in range(50)]
    books = [f"2300000,5,{2238000 + 100 * i},5" for i in range(50)]
    assert scan_lobster(write_pair(tmp_path / "right", messages, books)).report.notes[:-1] == ()
    notes = scan_lobster(write_pair(tmp_path / "shifted", messages, books[1:] + books[:1])).report.notes
    assert "50 of 50 new orders are not in the book after them, the first in line 1" in notes[0]
    sellers = [line.removesuffix(",1") + ",-1" for line in messages]
    assert any(
        "not in the book" in note for note in scan_lobster(write_pair(tmp_path / "s", sellers, books)).report.notes
    )


def test_rows_that_stand_twice_are_noted(tmp_path: Path) -> None:
    folder = write_pair(tmp_path, [*MESSAGES[:2], *MESSAGES[1:]], [*BOOKS[:2], *BOOKS[1:]])
    source = scan_lobster(folder)
    assert source.report.rows_read == len(MESSAGES) + 1, "noted, not removed"
    assert "1 of 2 new orders have the number of an earlier one" in " ".join(source.report.notes)
    clean = scan_lobster(write_pair(tmp_path / "clean", MESSAGES, BOOKS))
    assert "earlier one" not in " ".join(clean.report.notes)


def test_a_gzip_stream_that_breaks_off(tmp_path: Path) -> None:
    write_pair(tmp_path, MESSAGES * 1, BOOKS)
    lines = [
        f"{34200 + i // 50}.{i % 50 * 7:02d}0000001,1,{i * 7919 % 100_003},5,{2238000 + i * i % 997},1"
        for i in range(5000)
    ]
    for role, rows in (("message", lines), ("orderbook", BOOKS[:1] * 5000)):
        (tmp_path / NAME.format(role)).unlink()
        packed = gzip.compress("".join(f"{row}\n" for row in rows).encode())
        (tmp_path / (NAME.format(role) + ".gz")).write_bytes(
            packed[: len(packed) // 2] if role == "message" else packed
        )
    said = one_error(tmp_path)
    assert f"{NAME.format('message')}.gz breaks off in line" in said


def test_a_partner_that_is_missing(tmp_path: Path) -> None:
    for role, lacking in (("message", "order-book"), ("orderbook", "message")):
        folder = write_pair(tmp_path / role, MESSAGES, BOOKS)
        (folder / NAME.format("orderbook" if role == "message" else "message")).unlink()
        said = one_error(folder / NAME.format(role))
        assert NAME.format(role) in said
        assert f"without its {lacking} file" in said
        assert said == one_error(folder)


@pytest.mark.parametrize("row", ["2239500,100,2231800", "2239500,100,2231800,100,1"])
def test_a_book_must_have_four_columns_a_level(tmp_path: Path, row: str) -> None:
    assert "expected 4 a level" in one_error(write_pair(tmp_path, MESSAGES, [row] * 5))


def test_empty_files_and_folders(tmp_path: Path) -> None:
    assert "does not exist" in one_error(tmp_path / "nowhere")
    assert "holds no .csv" in one_error(tmp_path)
    assert "is empty" in one_error(write_pair(tmp_path / "empty", [], []))
    (tmp_path / "prices.csv").write_text("1\n")
    assert "no LOBSTER file" in one_error(tmp_path / "prices.csv")


def test_a_header_without_rows(tmp_path: Path) -> None:
    folder = write_pair(tmp_path, ["Time,Type,OrderId,Size,Price,Direction"], ["Ask,AskSize,Bid,BidSize"])
    assert one_error(folder).endswith("holds a header and no row; expected one row a message")
    write_pair(tmp_path, MESSAGES, BOOKS, name=NAME.replace("06-21", "06-22"))
    source = scan_lobster(tmp_path, on_bad="quarantine", set_aside=tmp_path / "aside.csv")
    assert (source.report.rows_read, list(source.report.rows_set_aside)) == (len(MESSAGES), ["empty file"])


def test_a_pair_that_cannot_be_used_is_set_aside_whole(tmp_path: Path) -> None:
    write_pair(tmp_path, MESSAGES, BOOKS)
    write_pair(tmp_path, MESSAGES, BOOKS[:3], NAME.replace("TEST", "UNEVEN"))
    write_pair(tmp_path, rounded(5), BOOKS[:1] * 40, NAME.replace("TEST", "ROUNDED"))
    source = scan_lobster(tmp_path, on_bad="quarantine", set_aside=tmp_path / "out" / "aside.csv")
    assert dict(source.report.rows_set_aside) == {"row counts differ": 5, "rounded times": 40}
    assert source.frame.collect()["entity"].unique().to_list() == ["TEST"]
    assert sum("set aside" in note for note in source.report.notes) == 2
    for path in tmp_path.glob("TEST*"):
        path.unlink()
    assert "every file was set aside" in one_error(tmp_path, on_bad="quarantine", set_aside=tmp_path / "aside.csv")


DAMAGE = st.tuples(
    st.booleans(),  # in the message file, or in the book
    st.integers(0, 10**6),  # where
    st.sampled_from(
        [b"", b",", b"\n", b"\r", b'"', b"0", b"-", b".", b"e", b" ", b"\x00", b"\xff", b"\xef\xbb\xbf", b"nan"]
    ),
    st.sampled_from([0, 1, 5, 10**6]),  # how many bytes it takes the place of
)


@given(damage=st.lists(DAMAGE, min_size=1, max_size=3), zipped=st.booleans(), flip=st.booleans())
@settings(max_examples=60, deadline=None)
def test_whatever_was_damaged_one_sentence_or_a_table_comes_out(
    tmp_path_factory: pytest.TempPathFactory, damage: list[tuple[bool, int, bytes, int]], zipped: bool, flip: bool
) -> None:
    folder = tmp_path_factory.mktemp("damage")
    texts = {role: "\n".join(lines).encode() for role, lines in (("message", MESSAGES), ("orderbook", BOOKS))}
    for in_message, where, instead, count in damage:
        role = "message" if in_message else "orderbook"
        place = where % (len(texts[role]) + 1)
        texts[role] = texts[role][:place] + instead + texts[role][place + count :]
    for role, text in texts.items():
        packed = bytearray(gzip.compress(text) if zipped else text)
        if zipped and flip:
            packed[damage[0][1] % len(packed)] ^= 16
        (folder / (NAME.format(role) + ".gz" * zipped)).write_bytes(packed)
    for settings_ in ({}, {"on_bad": "quarantine", "set_aside": folder / "aside"}):
        try:
            source = scan_lobster(folder, **settings_)  # type: ignore[arg-type]
        except ValueError as error:
            assert "\n" not in str(error)  # noqa: PT017
            assert NAME.split("{")[0] in str(error)  # noqa: PT017
            continue
        table = check(source.frame.collect(), BookEvents)
        assert table.height == source.report.rows_read
        lines = max(len(text.splitlines()) for text in texts.values())
        assert table.height + sum(source.report.rows_set_aside.values()) <= lines


def test_settings_that_make_no_sense(tmp_path: Path) -> None:
    assert "'refuse' or 'quarantine'" in one_error(tmp_path, on_bad="ignore")
    assert "go together" in one_error(tmp_path, on_bad="quarantine")
    assert "go together" in one_error(tmp_path, set_aside=tmp_path / "aside.csv")
    assert "levels must be at least 1" in one_error(tmp_path, levels=0)
