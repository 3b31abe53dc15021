"""Shards: damage is found and mended, hostile names stay inside, tables that break their law are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shard_market import MARKET, changed, files, market, whole, written

from quantattn.data.schema import CANONICAL_ORDER, Instrument
from quantattn.data.shards import Piece, prepare_shards, scan_prepared
from quantattn.data.shards.layout import entity_folder, read_json
from quantattn.data.sources import Source, SourceReport


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


DAMAGE: list[tuple[Callable[[Path], object], str]] = [
    (flip, r"2024-01-02-\w+-0000\.parquet is damaged: its sha256 is"),
    (lambda path: path.write_bytes(path.read_bytes()[:-1]), r"\.parquet has \d+ bytes, the manifest says \d+"),
    (lambda path: path.unlink(), r"\.parquet is missing; prepare again into this folder, which mends it"),
]


@pytest.mark.parametrize(("damage", "sentence"), DAMAGE)
def test_a_damaged_shard_is_found_and_mended(tmp_path: Path, damage: Callable[[Path], object], sentence: str) -> None:
    prepare_shards(market(), tmp_path)
    before, times = files(tmp_path), written(tmp_path)
    victim = next(iter(sorted(tmp_path.rglob("*.parquet"))))
    damage(victim)
    with pytest.raises(ValueError, match=sentence):
        scan_prepared(tmp_path)
    tally = prepare_shards(market(), tmp_path).tally
    assert tally.written == 1
    assert files(tmp_path) == before
    assert len(times.items() - written(tmp_path).items()) == 1


@pytest.mark.parametrize("name", ["manifest.json", "plan.json", "sources/*.json", "events/*/*.json"])
@given(place=st.floats(0, 0.999), bit=st.integers(0, 7))
@settings(max_examples=6, deadline=None)
def test_a_damaged_account_is_found_or_mended(
    tmp_path_factory: pytest.TempPathFactory, name: str, place: float, bit: int
) -> None:
    folder = tmp_path_factory.mktemp("account")
    small = replace(MARKET, entities=("A",), events_per_entity=600)
    prepare_shards(market(small), folder)
    path = sorted(folder.glob(name))[0]
    before = read_json(path)
    data = bytearray(path.read_bytes())
    data[int(place * len(data))] ^= 1 << bit
    path.write_bytes(bytes(data))
    try:
        assert read_json(path) == before  # it was white space
    except ValueError as error:
        assert str(path) in str(error)  # noqa: PT017
        if name == "plan.json":  # which says whose folder it is
            with pytest.raises(ValueError, match=r"plan\.json"):
                prepare_shards(market(small), folder)
            return
    prepare_shards(market(small), folder)
    assert read_json(path) == before
    assert scan_prepared(folder).frame.collect().equals(small.source().frame.collect())


NAMES = [
    "a",
    "A",
    "a.b",
    "a/b",
    "a\\b",
    "..",
    "../../a",
    "/etc/passwd",
    "CON",
    "é",
    "é",
    "💶",
    "x" * 300,
    "a" * 40 + "1",
]


@given(st.lists(st.text(min_size=1), unique=True, max_size=20).map(lambda names: sorted({*names, *NAMES})))
def test_folders_of_entities_are_plain_and_differ(names: list[str]) -> None:
    folders = [entity_folder(name) for name in names]
    assert len({folder.lower() for folder in folders}) == len(names)
    for folder in folders:
        assert folder.isascii()
        assert folder.replace("_", "").replace("-", "").isalnum()
        assert len(folder) <= 57


def test_hostile_names_stay_inside(tmp_path: Path) -> None:
    names = sorted({*NAMES, "\n", " "})
    rows = [MARKET.source().frame.filter(entity="A").head(3).with_columns(entity=pl.lit(name)) for name in names]
    source = Source(pl.concat(rows), tuple(Instrument(name) for name in names), SourceReport(3 * len(names)))
    out = tmp_path / "deep" / "out"
    prepare_shards(whole(source), out)
    assert scan_prepared(out).frame.collect().equals(source.frame.collect())
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    assert len(list((out / "events").iterdir())) == len(names)


BAD = [
    (changed("available_time", pl.col("available_time") - 10**15), "breaks the rule 'available_not_before_event'"),
    (changed("available_time", pl.col("available_time") + 10**12), "row 401 is out of order"),
    (changed("seq", pl.lit(-5)), "row 400 breaks the rule .* of column 'seq'"),
    (changed("entity", pl.lit(None)), "'entity'"),
    (changed("available_time", pl.lit(None)), "'available_time'"),
    (changed("kind", pl.lit(77, pl.UInt8)), "of column 'kind'"),
    (replace(MARKET.source(), instruments=MARKET.source().instruments[:1]), "no instrument is given for B"),
    (
        replace(MARKET.source(), frame=MARKET.source().frame.sort("seq")),
        "events of 'A' come after those of 'B'|'B' come after those of 'C'",
    ),
]


@pytest.mark.parametrize(("source", "sentence"), BAD)
def test_a_table_that_breaks_its_law_is_refused(tmp_path: Path, source: Source, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        prepare_shards(whole(source), tmp_path)
    with pytest.raises(ValueError, match="has finished"):
        scan_prepared(tmp_path)


def test_order_is_checked_from_shard_to_shard(tmp_path: Path) -> None:
    """Each shard is in order here, and yet the second begins before the first has ended."""
    frame = MARKET.source().frame.filter(entity="A").collect()
    day = 86_400 * 10**9
    first = frame.head(10).with_columns(
        available_time=pl.col("available_time") + day, event_time=pl.col("event_time") + day
    )
    source = Source(pl.concat([first, frame[10:20]]).lazy(), (Instrument("A"),), SourceReport(20))
    with pytest.raises(ValueError, match="events of 'A' are out of order: available_time and seq"):
        prepare_shards(whole(source), tmp_path, rows=10)


def test_an_entity_without_events_is_whole(tmp_path: Path) -> None:
    source = replace(MARKET.source(), instruments=(*MARKET.source().instruments, Instrument("D")))
    prepare_shards(whole(source), tmp_path)
    assert prepare_shards(whole(source), tmp_path).tally.written == 0
    again = scan_prepared(tmp_path)
    assert again.frame.collect().equals(source.frame.collect())
    assert again.instruments == source.instruments


def test_a_folder_belongs_to_one_preparation(tmp_path: Path) -> None:
    prepare_shards(market(), tmp_path / "out", asked={"levels": 1})
    with pytest.raises(ValueError, match=r"another source\.levels \(1, now 2\); name another folder"):
        prepare_shards(market(), tmp_path / "out", asked={"levels": 2})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match="is no folder of shards and not empty"):
        prepare_shards(market(), tmp_path / "mine")
    assert files(tmp_path / "mine") == {"thesis.txt": b"years of work"}


def test_pieces_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    source = replace(MARKET.source(), frame=MARKET.source().frame.filter(entity="A"), instruments=(Instrument("A"),))
    late = replace(source, frame=source.frame.filter(pl.col("seq") > 600))
    early = replace(source, frame=source.frame.filter(pl.col("seq") <= 600))
    halves = [Piece("00000001", "early", "1", lambda: early), Piece("00000002", "late", "2", lambda: late)]
    prepare_shards(halves, tmp_path / "good")
    joined = scan_prepared(tmp_path / "good").frame.collect()
    assert joined.drop("seq").equals(source.frame.collect().drop("seq"))
    assert (joined["seq"].diff().drop_nulls() > 0).all()
    assert joined.sort(CANONICAL_ORDER).equals(joined)
    with pytest.raises(ValueError, match="early and the same overlap: 'A' has events up to"):
        prepare_shards([halves[0], Piece("00000003", "the same", "3", lambda: source)], tmp_path / "twice")
    other = replace(late, instruments=(Instrument("A", tick=5),))
    prepare_shards([halves[0], Piece("00000002", "late", "2", lambda: other)], tmp_path / "ticks")
    with pytest.raises(ValueError, match=r"'A' is in 10\^-4 with tick 100 .* in early and in 10\^-4 with tick 5"):
        scan_prepared(tmp_path / "ticks")
    wide = replace(late, frame=late.frame.with_columns(more=pl.lit(1)))
    with pytest.raises(ValueError, match="so that all files are read alike"):
        prepare_shards([halves[0], Piece("00000002", "late", "2", lambda: wide)], tmp_path / "wide")


def test_the_report_of_the_source_comes_along(tmp_path: Path) -> None:
    report = SourceReport(3_600, {"torn": 2}, {"a.csv": "0" * 64}, ("a note",))
    prepare_shards(whole(replace(MARKET.source(), report=report)), tmp_path)
    found = scan_prepared(tmp_path).report
    assert (found.rows_read, found.rows_set_aside, found.notes) == (3_600, {"torn": 2}, ("a note",))
    assert sorted(found.files) == ["a.csv", "manifest.json"]
