"""Days parsed by compiled code are the days that the CSV scanner reads, and what is not plain is left to it."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lobster_pairs import BOOKS, MESSAGES, NAME, write_pair

from quantattn.data.sources import lobster, lobster_whole, scan_lobster
from quantattn.data.sources.lobster_files import MESSAGE_COLUMNS, open_file
from quantattn.data.sources.lobster_whole import read_whole

pytest.importorskip("numba", reason="numba is not here (pip install 'quantattn[book]')")

ROWS = [*MESSAGES, "34201.5,7,0,0,-1,-1", "34201.50,7,0,0,0,-1", "34202.000000001,1,5,10,2238200,1"]
LEVELS = BOOKS + [BOOKS[0]] * 2 + ["2239500,100,2238200,10"]


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(lobster, "_COMPILED_FROM", 0)
    return monkeypatch


def outcome(folder: Path) -> object:
    """The table and the report, or the sentence."""
    try:
        source = scan_lobster(folder)
    except ValueError as error:
        return str(error)
    frame = source.frame.collect()
    return frame.schema, frame.rows(), source.report


def whole(folder: Path, name: str = NAME) -> pl.DataFrame | None:
    message, book = folder / name.format("message"), folder / name.format("orderbook")
    read = read_whole(open_file(message, MESSAGE_COLUMNS), open_file(book, None))
    return None if read is None else read[0]


@pytest.mark.parametrize("dress", ["plain", "crlf", "header", "no end", "gzip"])
def test_every_dress_is_parsed_and_gives_the_same_table(tmp_path: Path, dress: str, always: pytest.MonkeyPatch) -> None:
    head = (["Time,Type,OrderId,Size,Price,Direction"], ["Ask,AskSize,Bid,BidSize"]) if dress == "header" else ([], [])
    folder = write_pair(tmp_path, head[0] + ROWS, head[1] + LEVELS, end="\r\n" if dress == "crlf" else "\n")
    for file in [*folder.iterdir()]:
        if dress == "no end":
            file.write_bytes(file.read_bytes()[:-1])
        if dress == "gzip":
            file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
            file.unlink()
    made = whole(folder, f"{NAME}.gz" if dress == "gzip" else NAME)
    assert made is not None
    assert made["ns"][-3:].to_list() == [34_201_500_000_000, 34_201_500_000_000, 34_202_000_000_001]
    fast = outcome(folder)
    always.setattr(lobster, "TABLE", 0)  # nothing is held, so that the scanner reads the files again
    assert outcome(folder) == fast
    always.undo()
    assert outcome(folder) == fast


PIECES = [
    "",
    "0",
    "9",
    "-",
    "+",
    " ",
    ".",
    ",",
    "\r",
    "\n",
    "e",
    '"',
    "\u00e9",
    "1e3",
    "34200.1234567890",
    "99999999999999999999",
]


@given(
    row=st.integers(0, len(ROWS) - 1),
    book=st.booleans(),
    at=st.integers(0, 40),
    cut=st.integers(0, 6),
    piece=st.sampled_from(PIECES),
    threads=st.sampled_from([1, 2, 3, 40]),
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_lines_have_the_same_outcome(
    tmp_path: Path, row: int, book: bool, at: int, cut: int, piece: str, threads: int
) -> None:
    """Whatever the number of threads, each of which is given a part of a file, down to less than a line."""
    lines = [[*ROWS], [*LEVELS]]
    own = lines[book]
    own[row] = own[row][:at] + piece + own[row][at + cut :]
    folder = write_pair(tmp_path, *lines)
    plain = outcome(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lobster, "_COMPILED_FROM", 0)
        patch.setattr(lobster_whole, "_PIECE", 1)
        patch.setattr(pl, "thread_pool_size", lambda: threads)
        assert outcome(folder) == plain


@pytest.mark.parametrize("part", [1, 2, 7, 1 << 16])
def test_pieces_are_whole_lines_and_all_of_them(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lobster_whole, "_PART", part)
    monkeypatch.setattr(lobster_whole, "_PIECE", 1)
    for text in (b"\n", b"a\n", b"a long line\n\n\nb\n", b"\n" * 9, b"1\n22\n333\n4444\n55555\n"):
        for threads in range(1, 12):
            monkeypatch.setattr(pl, "thread_pool_size", lambda threads=threads: threads)
            pieces = [bytes(piece) for piece in lobster_whole._pieces(np.frombuffer(text, np.uint8))]
            assert b"".join(pieces) == text
            assert all(piece.endswith(b"\n") for piece in pieces)
            assert len(pieces) <= threads


@pytest.mark.parametrize(
    "line", ["34201.0000000001,1,5,10,2,1", "034201,1,5,10,2,1", "34201.,1,5,10,2,1", ".5,1,5,10,2,1", "+1,1,5,10,2,1"]
)
def test_what_is_not_plain_is_not_parsed(tmp_path: Path, line: str) -> None:
    assert whole(write_pair(tmp_path, [*ROWS, line], [*LEVELS, LEVELS[0]])) is None
    assert whole(write_pair(tmp_path, [*ROWS, "34203,1,5,10,2,1"], [*LEVELS, LEVELS[0]])) is not None
    assert whole(write_pair(tmp_path, [*ROWS, "34203,1,5,10,2,1"], LEVELS)) is None


LAST = "34203.5,1,9,10,2238200,1"
BOOK = "2239500,100,2238200,10"


@pytest.mark.parametrize(
    ("line", "level", "kept"),
    [
        ("86399.999999999,1,9,0,1,1", BOOK, True),
        ("86400,1,9,0,1,1", BOOK, False),
        ("34203.5,0,9,10,2238200,1", BOOK, False),
        ("34203.5,8,9,10,2238200,1", BOOK, False),
        ("34203.5,1,9,-1,2238200,1", BOOK, False),
        ("34203.5,5,9,10,2238200,0", BOOK, True),
        ("34203.5,4,9,10,2238200,0", BOOK, False),
        ("34203.5,5,9,10,2238200,2", BOOK, False),
        ("34203.5,7,0,0,1,-1", BOOK, True),
        ("34203.5,7,0,0,2,-1", BOOK, False),
        ("34203.5,7,0,0,-2,-1", BOOK, False),
        ("34203.5,1,9,10,0,1", BOOK, False),
        ("34202.000000000,1,9,10,2238200,1", BOOK, False),
        (LAST, "9999999999,0,-9999999999,0", True),
        (LAST, "0,100,2238200,10", False),
        (LAST, "2239500,100,0,10", False),
        (LAST, "2239500,-1,2238200,10", False),
        (LAST, "2239500,100,2238200,-1", False),
    ],
)
def test_rows_at_the_edge_of_every_rule(
    tmp_path: Path, line: str, level: str, kept: bool, always: pytest.MonkeyPatch
) -> None:
    folder = write_pair(tmp_path, [*ROWS, line], [*LEVELS, level])
    assert (whole(folder) is not None) == kept
    fast = outcome(folder)
    assert isinstance(fast, str) != kept
    always.undo()
    assert outcome(folder) == fast


@pytest.mark.parametrize("decimals", [[3, 3], [3, 2], [6, 0], [9, 1]])
@pytest.mark.parametrize("strangers", [(), (5, 17), (29,)])
def test_doubts_are_the_same(
    tmp_path: Path, decimals: list[int], strangers: tuple[int, ...], always: pytest.MonkeyPatch
) -> None:
    """Orders of both sides, of which some are not in the book after them, under clocks of every kind."""
    rows = []
    for i in range(30):
        time = f"{34200 + i}.{'7' * decimals[i % 2]}".removesuffix(".")
        price = 2238200 - 100 * (i in strangers) + 1300 * (i % 2)
        rows.append(f"{time},1,{i},10,{price},{1 - i % 2 * 2}")
    folder = write_pair(tmp_path, rows, [BOOK] * 30)
    fast = outcome(folder)
    assert ("not in the book" in str(fast)) == (bool(strangers) and decimals != [3, 2])  # those are refused as rounded
    always.undo()
    assert outcome(folder) == fast


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("together", [0, 700, 1 << 26])
def test_days_are_numbered_and_joined_as_when_they_are_read_again(
    tmp_path: Path, always: pytest.MonkeyPatch, threads: int, together: int
) -> None:
    always.setattr(pl, "thread_pool_size", lambda: threads)
    always.setattr(lobster, "_TOGETHER", together)
    for day in (21, 22, 25):
        deep = [f"{line},9999999999,0,-9999999999,0" if day == 22 else line for line in LEVELS]
        write_pair(tmp_path, ROWS, deep, NAME.replace("06-21", f"06-{day}"))
    fast = outcome(tmp_path)
    always.setattr(lobster, "TABLE", 250)  # some days are held
    assert outcome(tmp_path) == fast
    always.undo()
    assert outcome(tmp_path) == fast
