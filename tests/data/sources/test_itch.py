"""ITCH files against a literal reader, damaged in every way, and the one real file."""

from __future__ import annotations

import gzip
import hashlib
import os
import random
from collections import Counter
from functools import partial
from pathlib import Path

import polars as pl
import pytest
from itch_messages import LENGTHS, MIDNIGHT, add, framed, literal, message, session, stock

from quantattn.data.schema import BookEvents, check
from quantattn.data.sources import SOURCES, itch_rows, runs, scan_itch
from quantattn.data.sources.itch_format import MESSAGES, read_pieces

pytest.importorskip("numba", reason="numba is not here (pip install 'quantattn[book]')")

NAME = "S062112-v50.itch"
COLUMNS = ["event_time", "kind", "side", "price", "size", "order_id"]
COLUMNS += ["ask_price_1", "ask_size_1", "bid_price_1", "bid_size_1"]
MUTANTS = int(os.environ.get("QUANTATTN_ITCH_MUTANTS", "300"))
"""How many damaged files the fuzz test reads; 50,000 take about five minutes."""


def write(folder: Path, data: bytes, name: str = NAME) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def one_error(data: bytes, folder: Path) -> str:
    with pytest.raises(ValueError) as caught:
        scan_itch(write(folder, data), date="2012-06-21")
    said = str(caught.value)
    assert "\n" not in said
    assert said.startswith(NAME)
    return said


def test_every_type_has_the_length_of_the_specification() -> None:
    assert {code: layout.itemsize for code, layout in MESSAGES.items()} == LENGTHS
    assert SOURCES["itch"] is scan_itch


@pytest.mark.parametrize("seed", range(3))
def test_a_session_is_what_a_literal_reader_finds(tmp_path: Path, seed: int) -> None:
    messages = session(400, seed)
    source = scan_itch(write(tmp_path, framed(messages)), date="2012-06-21")
    frame = check(source.frame.collect(), BookEvents)
    for name, rows in literal(messages).items():
        assert frame.filter(pl.col("entity") == name).select(COLUMNS).rows() == rows
    assert not any(count for name, count in vars(source.tally).items() if name not in ("crossed", "locked"))
    counts = Counter(chr(made[0]) for made in messages)
    assert {code: table.height for code, table in source.tables.items()} == {code: counts[code] for code in "SRI"}
    assert source.report.rows_read == frame.height == counts.total() + counts["U"] - sum(counts[c] for c in "SRI")
    assert source.tables["I"].select("stock", "far_price", "cross_type").unique().height <= 2
    assert source.tables["R"]["stock"].to_list() == ["AAA", "BB.C"]
    halts = frame.filter(pl.col("entity") == "AAA").select("kind", "halted").rows()
    states = [made[19:20] != b"T" for made in messages if made[:3] == b"H\0\1"]
    assert [halted for kind, halted in halts if kind == 7] == states
    assert frame.filter(~pl.col("printable"))["price"].unique().to_list() == [100_050]


def test_later_messages_change_no_earlier_row(tmp_path: Path) -> None:
    messages, seen = session(200, 2), 0
    whole = scan_itch(write(tmp_path, framed(messages)), date="2012-06-21").frame.collect()
    for kept in range(20, len(messages), 45):
        part = scan_itch(write(tmp_path, framed(messages[:kept])), date="2012-06-21").frame.collect()
        earlier = pl.col("available_time") < part["available_time"].max()
        assert part.filter(earlier).equals(whole.filter(earlier))
        seen += part.filter(earlier).height
    assert seen > 100


def test_every_dress_of_a_file_gives_the_same_table(tmp_path: Path) -> None:
    messages = session(200, 1)
    plain = scan_itch(write(tmp_path, framed(messages)), date="2012-06-21").frame.collect()
    dresses = {
        "06212012.NASDAQ_ITCH50": framed(messages) + b"\0\0",
        "x20120621.ITCH.gz": gzip.compress(framed(messages)[:999]) + gzip.compress(framed(messages)[999:]),
        "2012-06-21_itch": framed(messages, zeros=True),
    }
    for name, data in dresses.items():
        source = scan_itch(write(tmp_path, data, name))
        assert source.frame.collect().equals(plain)
        assert any("taken to be 2012-06-21, from the name" in note for note in source.report.notes)
        assert any("has its length before it" in note for note in source.report.notes) == (name == "2012-06-21_itch")
    path = write(tmp_path, framed(messages))
    for size in (1, 7, 64):
        pieces = [*read_pieces(path, size)]
        assert b"".join(piece.data.tobytes() for piece in pieces) == framed(messages)
    one = scan_itch(path, date="2012-06-21", stocks=["BB.C"])
    other = plain.filter(pl.col("entity") == "BB.C")
    assert one.frame.collect().drop("seq").equals(other.drop("seq"))
    assert any("were left out" in note for note in one.report.notes)


def test_sessions_follow_each_other_and_share_nothing(tmp_path: Path) -> None:
    halt = message("H", 1, 10**12, stock("AAA") + b"H     ")
    days = {"20120621.itch": [*session(60, 4), halt], "20120622.itch": session(60, 5)[:2] + session(60, 5)[3:]}
    alone = []
    for name, messages in days.items():
        alone.append(scan_itch(write(tmp_path, framed(messages), name)))
    both = scan_itch(tmp_path)
    frame = check(both.frame.collect(), BookEvents)
    parts = pl.concat([source.frame.collect().drop("seq") for source in alone])
    assert frame.drop("seq").equals(parts.sort("entity", maintain_order=True))
    assert frame["seq"].n_unique() == frame.height == both.report.rows_read
    own = frame.filter(pl.col("entity") == "AAA")
    last = own["event_time"].search_sorted(MIDNIGHT + 86_400 * 10**9) - 1
    assert own["halted"][last]
    assert not own["halted"][last + 1]
    assert {code: table.height for code, table in both.tables.items()} == {
        code: sum(source.tables[code].height for source in alone) for code in both.tables
    }
    write(tmp_path, framed(days["20120621.itch"]), "06212012.itch")
    with pytest.raises(ValueError, match=r"both hold 2012-06-21; expected one file a session"):
        scan_itch(tmp_path)


def test_sessions_that_memory_does_not_hold_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for day in range(3):
        write(tmp_path, framed(session(300, day)), f"2012062{day + 1}.itch")
    whole = scan_itch(tmp_path, 3)
    monkeypatch.setattr(itch_rows, "read_pieces", partial(read_pieces, piece=500))
    for kept, rows in ((3_000, 37), (20_000, 1_000)):
        monkeypatch.setattr(runs, "KEPT", kept)
        monkeypatch.setattr(runs, "TABLE", kept)
        monkeypatch.setattr(runs, "ROWS", rows)
        scratch = tmp_path / f"scratch {kept}"
        scratch.mkdir()
        other = scan_itch(tmp_path, 3, scratch=scratch)
        assert [*scratch.glob("*/*.arrow")]
        for _ in range(2):
            assert other.frame.collect().equals(whole.frame.collect())
        one = scan_itch(tmp_path, 3, scratch=scratch, stocks=["BB.C"])
        own = pl.col("entity") == "BB.C"
        assert one.frame.drop("seq").collect().equals(whole.frame.filter(own).drop("seq").collect())
        assert other.frame.filter(own).select("seq").collect().equals(whole.frame.filter(own).select("seq").collect())
        assert (other.tally, other.report, other.instruments) == (whole.tally, whole.report, whole.instruments)
        assert all(other.tables[code].equals(table) for code, table in whole.tables.items())


def test_what_is_damaged_is_named_with_its_byte(tmp_path: Path) -> None:
    head = [message("R", 1, 5, stock("AAA") + bytes(20))]
    start = len(framed(head))
    good = add(1, 6, 1, "B", 10, "AAA", 100)
    whole = framed([*head, good])
    assert f"ends at byte {len(whole) - 1}, inside the message that begins at {start}" in one_error(
        whole[:-1], tmp_path
    )
    assert f"byte {start + 2}: found 0x5a as the type" in one_error(framed([*head, b"Z" + good[1:]]), tmp_path)
    assert f"byte {start}: found length 35 before a message of type A, expected 36" in one_error(
        framed(head) + b"\0\x23" + good, tmp_path
    )
    assert "found length 0 before" in one_error(framed(head) + b"\0\0" + good, tmp_path)
    where = f"message at byte {start + 2}"
    for broken, words in {
        add(1, 4, 1, "B", 10, "AAA", 100): "times that never fall",
        add(1, 86_400 * 10**9, 1, "B", 10, "AAA", 100): "a time below 86,400 s",
        add(1, 6, 1, "X", 10, "AAA", 100): "expected B or S",
        add(1, 6, 2**63, "B", 10, "AAA", 100): "below 2^63",
        add(1, 6, 1, "B", 10, "AAB", 100): "belongs to another stock",
        add(2, 6, 1, "B", 10, "A\1B", 100): "name of a stock in ASCII",
        message("D", 3, 6, bytes(8)): "was given no stock",
        message("H", 1, 6, stock("AAA") + b"Z     "): "expected H, P, Q or T",
    }.items():
        said = one_error(framed([*head, broken]), tmp_path)
        assert where in said
        assert words in said
    for nothing in (b"", b"\0\0"):
        assert "holds no message" in one_error(nothing, tmp_path)
    packed = gzip.compress(whole)
    assert "breaks off" in one_error(packed[:-5], tmp_path)


def test_of_two_faults_the_first_is_named_though_messages_are_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = session(100, 2)
    monkeypatch.setattr(itch_rows, "read_pieces", partial(read_pieces, piece=64))
    falls = add(1, 4, 10**6, "B", 10, "AAA", 100)
    start = len(framed(messages[:60])) + 2
    for later in (b"\0\7Zzzzzzz", framed([add(2, 10**12, 1, "B", 1, "A\1B", 1)])):
        data = framed([*messages[:60], falls, *messages[60:]]) + later
        assert f"message at byte {start}: its time is before" in one_error(data, tmp_path)
        assert "its time is before" not in one_error(framed(messages) + later, tmp_path)


def test_the_hash_in_the_report_is_that_of_the_bytes_on_disk(tmp_path: Path) -> None:
    plain = framed(session(300, 3))
    members = gzip.compress(plain[:1000]) + gzip.compress(plain[1000:])
    for name, data in {"a.itch": plain + b"\0\0", "b.itch.gz": members, "c.itch.gz": members + bytes(300)}.items():
        source = scan_itch(write(tmp_path, data, name), date="2012-06-21")
        assert source.report.files == {name: hashlib.sha256(data).hexdigest()}


def test_days_files_and_stocks_that_are_not_there(tmp_path: Path) -> None:
    path = write(tmp_path, framed(session(20, 0)), "some.itch")
    for arguments, words in (
        ({}, "give date=YYYY-MM-DD"),
        ({"date": "2012-06-21", "stocks": ["ZZZ"]}, "no message names ZZZ"),
        ({"date": "2012-06-21", "stocks": "AAA"}, "stocks must be a list"),
        ({"date": "2012-06-21", "levels": 0}, "levels must be at least 1"),
    ):
        with pytest.raises(ValueError, match=words):
            scan_itch(path, **arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="does not exist"):
        scan_itch(tmp_path / "nowhere")
    write(tmp_path, path.read_bytes(), "other.itch")
    with pytest.raises(ValueError, match=r"date=.* was given for 2 files"):
        scan_itch(tmp_path, date="2012-06-21")


def test_whatever_was_damaged_one_sentence_or_a_table_comes_out(tmp_path: Path) -> None:
    rng, whole = random.Random(7), framed(session(25, 3))
    refused = 0
    for _ in range(MUTANTS):
        data = bytearray(whole)
        for _ in range(rng.choice([1, 1, 2, 5])):
            at = rng.randrange(len(data))
            data[at : at + rng.choice([0, 1, 1, 1, 30])] = rng.randbytes(rng.choice([0, 1, 1, 2]))
        path = write(tmp_path, bytes(data))
        try:
            source = scan_itch(path, date="2012-06-21")
        except ValueError as error:
            refused += 1
            assert str(error).startswith(NAME)  # noqa: PT017
            assert "\n" not in str(error)  # noqa: PT017
            continue
        frame = check(source.frame.collect(), BookEvents)
        # Nothing is lost silently: the messages fill the file, and each is a row, two of them, or in a table.
        pieces = [*read_pieces(path)]
        assert sum(len(piece.data) for piece in pieces) in (len(data), len(data) - 2)
        codes = Counter(chr(code) for piece in pieces for code in piece.codes)
        others = sum(table.height for table in source.tables.values())
        assert frame.height == source.report.rows_read == codes.total() + codes["U"] - others
    assert refused > MUTANTS // 4


def test_the_real_file_by_type_and_its_books(realdata: Path) -> None:
    source = scan_itch(realdata / "lob" / "itch" / "ex20101224.TEST_ITCH_50.gz", 5)
    frame = check(source.frame.collect(), BookEvents)
    (counts,) = (note for note in source.report.notes if "messages:" in note)
    assert counts == "12,012 messages: S 6, R 3, H 3, A 4,997, F 3, E 198, X 45, D 1,745, U 12, P 5,000"
    assert frame.height == 12_012 - 6 - 3 + 12
    assert frame.select(pl.col("^.*_size_.*$").min()).row(0) == (0,) * 10
    assert sorted(frame["entity"].unique()) == ["ALC", "BOB", "CHAR"]
    # Its messages were made up: removals of orders that never came, and books that cross.
    assert (source.tally.unknown_ids, source.tally.unplaced, source.tally.crossed) == (117, 119, 11_510)
    assert frame.filter(pl.col("bid_price_1") > pl.col("ask_price_1")).height == source.tally.crossed
