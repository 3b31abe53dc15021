"""DBN files damaged in every way: refused in one sentence, or set aside and counted."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import polars as pl
import pytest

pytest.importorskip("databento_dbn", reason="databento-dbn is not here (pip install 'quantattn[dbn]')")
pytest.importorskip("numba", reason="numba is not here (pip install 'quantattn[book]')")

import zstandard
from dbn_records import LEVELS, UNDEFINED, Order, header, mbo, mbo_file, refusal, stream, write

from quantattn.data.schema import BookEvents, check
from quantattn.data.sources import scan_dbn


def outcome(path: Path) -> str:
    """ "read" when the table is sound, else the refusal."""
    try:
        check(scan_dbn(path).frame.collect(), BookEvents)
    except ValueError as error:
        return str(error)
    return "read"


BAD: list[tuple[Order, str]] = [
    (("A", "N", 10**9, 1, 5, 130), "no side"),
    (("M", "B", UNDEFINED, 1, 5, 130), "no price"),
    (("T", "B", UNDEFINED, 1, 5, 130), "no price"),
]


@pytest.mark.parametrize(("order", "reason"), BAD)
def test_a_bad_record_is_refused_or_set_aside(tmp_path: Path, order: Order, reason: str) -> None:
    orders = stream(40, 6)
    path = mbo_file(tmp_path, [*orders[:20], order, *orders[20:]])
    said = refusal(path)
    assert "record 20" in said
    assert reason in said
    aside = tmp_path / "aside.csv"
    source = scan_dbn(path, LEVELS, on_bad="quarantine", set_aside=aside, tick="1")
    assert source.report.rows_set_aside == {reason: 1}
    assert pl.read_csv(aside).select("file", "record", "reason").rows() == [("x.dbn", 20, reason)]
    clean = scan_dbn(mbo_file(tmp_path, orders), LEVELS, tick="1").frame.collect()
    drop = ["event_time", "available_time"]
    assert source.frame.collect().drop(drop).equals(clean.drop(drop))


def test_letters_and_times_that_cannot_be(tmp_path: Path) -> None:
    record = bytearray(mbo(0, ("A", "B", 10**9, 1, 5, 130)))
    for place, value, reason in (
        (38, ord("x"), "unknown action"),
        (39, 0, "unknown side"),
        (15, 0x80, "impossible time"),
    ):
        changed = bytearray(record)
        changed[place] = value
        assert reason in refusal(write(tmp_path, header() + changed))


def test_damage_is_named(tmp_path: Path) -> None:
    body = b"".join(mbo(n, order) for n, order in enumerate(stream(30, 1)))
    start = header()
    whole = start + body
    for cut in range(1, len(whole), 5):
        # Between records nothing tells that some are missing.
        if (cut - len(start)) % 56 if cut > len(start) else cut % 16:
            said = refusal(write(tmp_path, whole[:cut]))
            assert ("ends within" if cut > 2 else "does not begin with") in said
    packed = zstandard.compress(whole)
    for cut in range(5, len(packed), 11):
        assert "breaks off within a zstd frame" in refusal(write(tmp_path, packed[:cut]))
    assert "zstd stream is broken" in refusal(write(tmp_path, packed[:6] + bytes(40) + packed[46:]))
    assert "gzip stream is broken" in refusal(write(tmp_path, gzip.compress(whole)[:-9]))
    assert "does not begin with DBN" in refusal(write(tmp_path, body))
    assert "version 9" in refusal(write(tmp_path, b"DBN\x09" + whole[4:]))
    torn = whole[: len(start) + 56] + b"\x01" + whole[len(start) + 57 :]
    assert f"byte {len(start) + 56}: found a record of type 160 with 4 bytes" in refusal(write(tmp_path, torn))
    folder = tmp_path / "none"
    folder.mkdir()
    with pytest.raises(ValueError, match="holds no file that ends in"):
        scan_dbn(folder)


def test_mutants_are_refused_in_one_sentence_or_read_whole(tmp_path: Path) -> None:
    draw = random.Random(5)
    whole = header() + b"".join(mbo(n, order) for n, order in enumerate(stream(60, 1)))
    refused = 0
    for number in range(150):
        data = bytearray(whole if number % 3 else zstandard.compress(whole))
        for _ in range(draw.randint(1, 3)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        path = write(tmp_path, bytes(data[: draw.choice([len(data), draw.randrange(len(data))])]))
        said = outcome(path)
        assert "\n" not in said
        assert said.startswith(path.name) or said == "read"
        refused += said != "read"
    assert 50 < refused < 150
