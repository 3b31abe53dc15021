"""Files of lines in pieces: the same lines whatever the compression and the size of a piece, and damage named."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from quantattn.data.recognise import recognise
from quantattn.data.sources.pieces import DamagedFile, Piece, read_pieces
from quantattn.data.sources.text_rows import first_lines

LINES = [b"", b"a,1", b"\xff", b"x" * 3000, b"b,2\r", b"", b"last"]
DATA = b"\n".join(LINES)


def zipped(*members: bytes) -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
        for n, member in enumerate(members):
            archive.writestr(f"{n}.csv", member)
    return raw.getvalue()


def pieces(tmp_path: Path, data: bytes, size: int = 1 << 24) -> list[Piece]:
    path = tmp_path / "feed.bin"
    path.write_bytes(data)
    return list(read_pieces(path, size))


DRESSES = {
    "plain": DATA,
    "gzip": gzip.compress(DATA),
    "two gzips": gzip.compress(DATA[:1000]) + gzip.compress(DATA[1000:]),
    "xz": lzma.compress(DATA),
    "zip": zipped(DATA),
}


@pytest.mark.parametrize("dress", DRESSES)
@pytest.mark.parametrize("size", [1, 7, 1024, 1 << 24])
def test_every_dress_and_size_gives_the_same_lines(tmp_path: Path, dress: str, size: int) -> None:
    found = pieces(tmp_path, DRESSES[dress], size)
    assert b"".join(piece.data for piece in found) == DATA
    lines = [line for piece in found for line in piece.lines()]
    assert lines == [(n + 1, line.removesuffix(b"\r")) for n, line in enumerate(LINES)]


def test_an_empty_file_has_no_piece_and_an_ended_line_no_line_after_it(tmp_path: Path) -> None:
    assert pieces(tmp_path, b"") == []
    assert [line for piece in pieces(tmp_path, b"a\n\n") for line in piece.lines()] == [(1, b"a"), (2, b"")]


def test_a_line_of_many_blocks_is_put_together_once(tmp_path: Path) -> None:
    """Copied at each of 65,536 blocks it would be 256 GiB."""
    line = b"a" * (1 << 23)
    (tmp_path / "x").write_bytes(line + b"\nb")
    began = time.process_time()
    assert list(read_pieces(tmp_path / "x", 1 << 7)) == [Piece(1, line + b"\n"), Piece(2, b"b")]
    assert time.process_time() - began < 3


@pytest.mark.parametrize("dress", ["gzip", "xz", "zip"])
def test_a_stream_that_breaks_off_is_never_read_to_a_silent_end(tmp_path: Path, dress: str) -> None:
    whole = DRESSES[dress]
    for cut in random.Random(0).sample(range(7, len(whole)), min(40, len(whole) - 7)):
        with pytest.raises(DamagedFile, match=r"feed\.bin") as caught:
            pieces(tmp_path, whole[:cut])
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dress", [bytes, gzip.compress, zipped])
@pytest.mark.parametrize("size", [1, 1 << 24])
def test_a_byte_order_mark_is_no_part_of_the_first_line(
    tmp_path: Path, dress: Callable[[bytes], bytes], size: int
) -> None:
    mark = b"\xef\xbb\xbf"
    found = pieces(tmp_path, dress(mark + b"a,1\n" + mark + b"b,2\n"), size)
    # In the middle of a file it is a character like others.
    assert b"".join(piece.data for piece in found) == b"a,1\n" + mark + b"b,2\n"
    with pytest.raises(DamagedFile, match=r"feed\.bin is UTF-16, expected UTF-8; convert the file first"):
        pieces(tmp_path, dress("a,1\n".encode("utf-16")), size)


def test_what_macos_puts_into_a_zip_is_no_file_of_it(tmp_path: Path) -> None:
    path = tmp_path / "feed.zip"
    for inside in ("book.csv", "folder/book.csv"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(inside, "date,close\n2024-01-02,1\n")
            archive.writestr(f"__MACOSX/._{inside}", b"\0\5\x16\7")
            archive.writestr(".DS_Store", b"\0\0\0\1Bud1")
        assert [line for piece in read_pieces(path) for _, line in piece.lines()] == [b"date,close", b"2024-01-02,1"]
        assert first_lines(path, 2) == ["date,close", "2024-01-02,1"]
        assert recognise(path).read
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("other.csv", "a")
    with pytest.raises(DamagedFile, match="holds 2 files, expected a zip of one"):
        list(read_pieces(path))
    assert "; unpack it, and name the file or the folder" in recognise(path).sentence
    (tmp_path / "a.csv.bz2").write_bytes(bz2.compress(b"date,close\n2024-01-02,1\n"))
    assert (
        recognise(tmp_path / "a.csv.bz2").sentence == "a.csv.bz2: it is packed with bzip2, which is not read; unpack it"
    )


def test_zstandard_of_any_number_of_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zstandard = pytest.importorskip("zstandard", reason="zstandard is not here (pip install zstandard)")
    pack = zstandard.ZstdCompressor().compress
    whole = pack(DATA[:1000]) + pack(DATA[1000:])
    for size in (1, 1024):
        assert b"".join(piece.data for piece in pieces(tmp_path, whole, size)) == DATA
    for cut in range(7, len(whole)):
        if cut == len(pack(DATA[:1000])):
            continue  # the end of a frame: nothing says that another should follow
        with pytest.raises(DamagedFile, match=r"feed\.bin breaks off after about byte"):
            pieces(tmp_path, whole[:cut])
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(RuntimeError, match="pip install zstandard"):
        pieces(tmp_path, whole)


def test_what_cannot_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DamagedFile, match="holds 2 files, expected a zip of one"):
        pieces(tmp_path, zipped(b"a", b"b"))
    named = zipped(b"a").replace(b"0.csv", b"\xaf.csv").replace(b"\x14\x00\x00\x00", b"\x14\x00\x00\x08")
    with pytest.raises(DamagedFile, match=r"feed\.bin is no zip that can be read: "):
        pieces(tmp_path, named)
    monkeypatch.setattr("quantattn.data.sources.pieces.LONGEST_LINE", 100)
    with pytest.raises(DamagedFile, match="line 2: expected lines of at most 100 bytes"):
        pieces(tmp_path, b"a\n" + b"x" * 200, 10)
