"""Tables of events read in runs: the same tokens, decisions and sequences whatever the runs, in bounded memory."""

from __future__ import annotations

import hashlib
import pickle
import resource
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from quantattn.data import filed, grown_tokens
from quantattn.data.cuts import cut
from quantattn.data.digest import columns_sha256
from quantattn.data.filed import Filed, Room, Texts
from quantattn.data.filings.filed_market import FiledMarket
from quantattn.data.market.encode import Unlabelled, encode_market
from quantattn.data.market.merged import with_merges
from quantattn.data.schema import CANCEL, NEW
from quantattn.data.sources.source import Source
from quantattn.data.sources.table import scan_table
from quantattn.data.synthetic import SyntheticMarket
from quantattn.data.table import encode as table_encode
from quantattn.data.table.tokens import TableTokenizer
from quantattn.data.tokens import Tokenizer
from quantattn.data.units import every_event

MARKET = SyntheticMarket(3, 300, channels=2, marker_distance=24, events_per_session=64)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Sets how many events a run has, and how many rows a block."""

    def to(run: int, block: int) -> None:
        monkeypatch.setattr(grown_tokens, "RUN", run)
        monkeypatch.setattr(filed, "BLOCK", block)

    return to


def in_pieces(source: Source, rows: int) -> Source:
    """The same table, which comes in batches of at most so many rows."""
    whole = source.frame.collect()
    pieces = [whole[begin : begin + rows].lazy() for begin in range(0, whole.height, rows)]
    return replace(source, frame=pl.concat(pieces))


def vocabulary(source: Source, joint: bool = False) -> str:
    events = source.frame.collect()
    made = Tokenizer.fit(events.lazy(), source.instruments, fitted_until=2**62, n_bins=5)
    seen = np.ones(events.height, np.bool_)
    every = np.arange(0, events.height, 7)
    return with_merges(made, events, seen, every, ["kind", "side"] if joint else None, 12).to_json()


def columns(made: Unlabelled) -> dict[str, Any]:
    """Everything that scoring reads, as plain values."""
    table, cut_ = made.sequences.table, made.sequences
    arrays = {**table.fields, **made.events, "time": table.time, "offsets": table.offsets, "row": cut_.decisions.row}
    arrays |= {name: getattr(cut_, name) for name in ("start", "stop", "first")} | {"as_of": made.as_of}
    for name, each in table.vectors.items():
        arrays |= {f"{name} rows": each.rows, f"{name} values": each.values}
    found: dict[str, Any] = {name: (str(column.dtype), column.tolist()) for name, column in arrays.items()}
    return found | {"entity": list(made.entity), "entities": table.entities, "hashes": dict(made.hashes)}


CASES: dict[str, dict[str, Any]] = {
    "every event": {},
    "every fifth of two kinds": {"decision_every": 5, "decision_kinds": [NEW, CANCEL]},
    "a sequence each": {"layout": "each", "decision_every": 2},
    "windows": {"layout": "windows", "decision_every": 9},
    "documents": {"layout": "document", "max_seq_len": 400, "decision_every": 50},
    "merged": {"decision_every": 7},
    "filings among them": {"decision_every": 3},
}


@pytest.mark.parametrize("case", CASES)
def test_runs_and_blocks_change_nothing(case: str, tmp_path: Path, small: Callable[[int, int], None]) -> None:
    """Runs that end within an entity, a stretch of merges and a sequence, kept as files; against all at once."""
    source: Source = MARKET.source()
    if case == "filings among them":
        source = FiledMarket(2, 300, events_per_session=64).source()
    tokens = vocabulary(source, joint=case == "merged")
    given = {"max_seq_len": 16, **CASES[case]}
    whole = columns(encode_market(source, tokens, **given))
    assert len(whole["row"][1]) > 3
    small(50, 11)
    made = encode_market(in_pieces(source, 50), tokens, **given, room=Room(tmp_path))
    assert columns(made) == whole
    assert isinstance(made.as_of, Filed)
    assert made.merged == (case == "merged")


@pytest.mark.parametrize("causal", [True, False])
def test_every_event_is_the_same_in_blocks(causal: bool, tmp_path: Path, small: Callable[[int, int], None]) -> None:
    source = MARKET.source()
    tokens = vocabulary(source)
    one = every_event(encode_market(source, tokens, max_seq_len=16), causal)
    small(50, 7)
    other = every_event(encode_market(source, tokens, max_seq_len=16, room=Room(tmp_path)), causal)
    assert columns(other) == columns(one)
    for name, column in one.described.items():
        assert other.described[name].tolist() == column.tolist()


def test_a_table_is_the_same_in_runs(tmp_path: Path, small: Callable[[int, int], None]) -> None:
    rows = [f"c{i // 7:02d},{i},{i % 5}" for i in range(100)]
    (tmp_path / "t.csv").write_text("\n".join(["who,day,x", *rows]) + "\n")
    source = scan_table(tmp_path / "t.csv", id="who", time="day", time_format="day", columns={"x": "decimal0"})
    events = table_encode.collect_events(source)
    tokens = TableTokenizer.fit(events, source.columns).to_json()
    whole = columns(table_encode.encode_table(source, tokens, max_seq_len=4))
    small(10, 3)
    pieces = replace(source, frame=in_pieces(source, 10).frame)
    assert columns(table_encode.encode_table(pieces, tokens, max_seq_len=4, room=Room(tmp_path))) == whole


def test_sequences_are_cut_the_same_in_blocks_of_any_length(small: Callable[[int, int], None]) -> None:
    rng = np.random.default_rng(0)
    for turn in range(40):
        offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 30, 6))])
        row = np.flatnonzero(rng.random(offsets[-1]) < rng.random())
        length = int(rng.integers(1, 12))
        context = int(rng.integers(1, length + 1))
        for layout in ("each", "chunks"):
            found = []
            for block in (2**20, int(rng.integers(1, 20))):
                small(1, block)
                parts = list(cut(offsets, "abcdef", row, layout, length, context))  # type: ignore[arg-type]
                found.append([np.concatenate([[0], *(part[i] for part in parts)]).tolist() for i in (0, 1)])
            assert found[0] == found[1], turn


def test_a_bad_row_has_its_number_in_the_whole_table(small: Callable[[int, int], None]) -> None:
    source = MARKET.source()
    tokens, bad = vocabulary(source), source.frame.collect()
    for column, value, sentence in (
        ("size", -1, "row 444 breaks the rule 'min' of column 'size'"),
        ("available_time", 5, "row 444 breaks the rule 'available_not_before_event'"),
        ("entity", "SYN", "row 444 is out of order"),
    ):
        row = pl.int_range(pl.len()) == 444
        frame = bad.with_columns(
            pl.when(row).then(pl.lit(value)).otherwise(column).alias(column).cast(bad[column].dtype)
        )
        for run in (2**18, 200):
            small(run, 2**20)
            with pytest.raises(ValueError, match=sentence):
                encode_market(in_pieces(replace(source, frame=frame.lazy()), 200), tokens)


def peak(rows: int, tokens: str, folder: Path) -> int:
    """Bytes that python and numpy take at most while these events are encoded, hashed and cut into shards."""
    from quantattn.score import Work, make_plan

    folder.mkdir()
    market = replace(MARKET, entities=1, events_per_entity=rows)
    source = in_pieces(market.source(), 2000)
    tracemalloc.start()
    try:
        made = every_event(encode_market(source, tokens, max_seq_len=16, room=Room(folder)), True)
        work = Work(made.sequences, made.as_of, made.entity, made.hashes, {}, events=made.events)
        assert make_plan(work, "m", rows // 4).shards[-1].decisions > 0
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_events(tmp_path: Path, small: Callable[[int, int], None]) -> None:
    """Three times the events, the same memory; and as the control, without files it grows with them."""
    small(2000, 1000)
    tokens = vocabulary(MARKET.source())
    peak(1000, tokens, tmp_path / "first")  # what is loaded once
    one, many = (peak(rows, tokens, tmp_path / str(rows)) for rows in (4000, 12_000))
    assert many < 1.15 * one
    made = encode_market(replace(MARKET, events_per_entity=16_000).source(), tokens)
    assert many < sum(column.nbytes for column in made.sequences.table.fields.values())


def blocks_of(column: np.ndarray[Any, Any]) -> Iterator[np.ndarray[Any, Any]]:
    yield from np.array_split(column, 3)


@pytest.mark.parametrize("dtype", ["uint16", "int64", "float32", "bool"])
@pytest.mark.parametrize("shape", [(0,), (10,), (10, 3)])
def test_a_column_that_grows_is_its_blocks(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    column = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    for room in (Room(), Room(tmp_path)):
        made = room.column(dtype, blocks_of(column))
        assert (made.dtype, made.tolist()) == (column.dtype, column.tolist())
    again = pickle.loads(sent := pickle.dumps(made))
    assert len(sent) < 300
    assert again.tolist() == column.tolist()
    assert np.load(next(tmp_path.iterdir())).tolist() == column.tolist()
    next(tmp_path.iterdir()).unlink()
    with pytest.raises(ValueError, match="is not there: the files of a job lie below its TMPDIR"):
        pickle.loads(sent)


def test_memory_of_mapped_columns_is_given_back(tmp_path: Path) -> None:
    column = Room(tmp_path).column("int64", [np.arange(2**21)])

    def resident() -> int:
        return int(next(x for x in Path("/proc/self/status").read_text().splitlines() if "RssFile" in x).split()[1])

    before = resident()
    assert int(column.sum()) == 2**20 * (2**21 - 1)
    assert resident() - before > 12_000
    filed.release()
    assert resident() - before < 4_000
    assert int(column[-1]) == 2**21 - 1


def test_runs_of_texts_are_the_same_in_blocks(small: Callable[[int, int], None]) -> None:
    texts = ["a", "a", None, "b", "b", "b", "a"]
    for block in (2**20, 1, 2, 3):
        small(1, block)
        assert list(Texts.of(texts).runs()) == [("a", 2), (None, 1), ("b", 3), ("a", 1)]
    unused = Texts(["z", "a", None, "b"], np.asarray([1, 1, 2, 3, 3, 3, 1], np.int32))
    assert list(unused.runs()) == list(Texts.of(texts).runs())
    assert unused == Texts.of(texts) == tuple(texts) != tuple(texts[1:])


def test_a_hash_of_columns_is_the_same_in_blocks(small: Callable[[int, int], None]) -> None:
    """Sha256 of names, types, shapes and little-endian bytes, whatever the blocks; each row is in it."""
    columns = {"b": np.arange(20, dtype=">i4").reshape(10, 2), "a": np.arange(10, dtype=np.float32)[::-1]}
    plain = b"a <f4 (10,)\n" + np.arange(9, -1, -1, dtype="<f4").tobytes()
    plain += b"b <i4 (10, 2)\n" + np.arange(20, dtype="<i4").tobytes()
    for block in (2**20, 3):
        small(1, block)
        assert columns_sha256(columns) == hashlib.sha256(plain).hexdigest()


def test_a_full_disk_is_said_with_the_place(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, before[1]))
    try:
        with pytest.raises(OSError, match=f"{tmp_path}/grown-0001.npy"):
            Room(tmp_path).column("int64", [np.arange(2**10), np.arange(2**16)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
