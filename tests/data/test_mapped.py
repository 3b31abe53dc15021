"""Sequence sets in files: the same batches from them, in another process too; and both ways to copy tokens agree."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_pack import equal, sequence_sets, table

from quantattn.data import pack
from quantattn.data.mapped import MappedSequences, open_sequences, write_sequences
from quantattn.data.pack import Decisions, SequenceSet, plan


@given(sequence_sets(), st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_runs_and_rows_give_the_same_batch(cut: SequenceSet, seed: int) -> None:
    batches = plan(cut.lengths, 200, seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        for chosen in [*batches, np.asarray([], np.int64)]:
            patch.setattr(pack, "LONG", 1)
            runs = cut.pack(chosen).check()
            patch.setattr(pack, "LONG", 10**9)
            assert equal(runs, cut.pack(chosen))


@given(cut=sequence_sets())
@settings(max_examples=20, deadline=None)
def test_a_set_in_files_is_the_set_in_memory(tmp_path_factory: pytest.TempPathFactory, cut: SequenceSet) -> None:
    mapped = write_sequences(cut, tmp_path_factory.mktemp("cut") / "deep" / "set")
    sent = pickle.dumps(mapped)
    assert len(sent) < 400  # a name, whatever the size
    for again in (mapped, pickle.loads(sent)):
        assert isinstance(again, MappedSequences)
        assert (again.table.entities, again.max_seq_len, again.layout) == (
            cut.table.entities,
            cut.max_seq_len,
            cut.layout,
        )
        assert again.lengths.tolist() == cut.lengths.tolist()
        assert again.contexts.tolist() == cut.contexts.tolist()
        for chosen in plan(cut.lengths, 200):
            assert equal(again.pack(chosen), cut.pack(chosen))
            assert equal(again[chosen], cut.pack(chosen))


@given(cut=sequence_sets())
@settings(max_examples=20, deadline=None)
def test_fields_of_one_type_lie_together(tmp_path_factory: pytest.TempPathFactory, cut: SequenceSet) -> None:
    """In memory each stands alone and in files one type is one array: names, order and bits are those of the table."""
    mapped = write_sequences(cut, tmp_path_factory.mktemp("cut") / "set")
    assert len(mapped.blocks) == len({column.dtype for column in cut.table.fields.values()})
    for blocks in (cut.blocks, mapped.blocks):
        rows = {name: row for names, block in blocks.items() for name, row in zip(names, block, strict=True)}
        assert rows.keys() == cut.table.fields.keys()
        assert all(row.tobytes() == cut.table.fields[name].tobytes() for name, row in rows.items())
    assert list(mapped.table.fields) == list(cut.table.fields)
    assert list(mapped.pack([]).fields) == list(cut.table.fields)


def a_set(label: int = 0) -> SequenceSet:
    return SequenceSet(table(), Decisions(np.asarray([2, 5]), {"label": np.asarray([label, 1])}), 3, "each")


def test_files_are_mapped_and_nobody_writes_to_them(tmp_path: Path) -> None:
    mapped = write_sequences(a_set(), tmp_path / "set")
    for column in (*mapped.table.fields.values(), mapped.table.time):
        assert isinstance(column.base, np.memmap) or isinstance(column.base.base, np.memmap)
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 1
    files = sorted(path.suffix for path in (tmp_path / "set").iterdir())
    assert set(files) == {".npy", ".json"}


def test_a_second_set_takes_the_place_of_the_first(tmp_path: Path) -> None:
    write_sequences(a_set(0), tmp_path / "set")
    (tmp_path / ".set.writing").mkdir()  # what a process that was killed has left
    (tmp_path / ".set.writing" / "fields-000.npy").write_bytes(b"half")
    assert write_sequences(a_set(7), tmp_path / "set").pack([0]).targets["label"].tolist() == [7]
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_what_is_no_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no sequences\.json"):
        open_sequences(tmp_path)
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not empty and holds no"):
        write_sequences(a_set(), tmp_path)
    write_sequences(a_set(), tmp_path / "set")
    account = tmp_path / "set" / "sequences.json"
    account.write_text(account.read_text().replace('"format": 3', '"format": 1'))
    with pytest.raises(ValueError, match="has format 1, this version reads format 3"):
        open_sequences(tmp_path / "set")
