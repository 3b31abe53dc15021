"""Vectors that few tokens carry: packing moves each with its row, whatever is cut, copied or mapped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quantattn.data.carried import TokenVectors
from quantattn.data.mapped import write_sequences
from quantattn.data.pack import Decisions, SequenceSet, TokenTable, unpack
from quantattn.data.value_edges import vector_scales

SIZE = 3


def table(lengths: list[int], carrying: list[bool]) -> TokenTable:
    """A table whose field `row` numbers its rows; a carrying row r has the vector (r, r + ¼, r + ½)."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    rows = np.flatnonzero(np.resize(carrying, offsets[-1])) if offsets[-1] else np.zeros(0, np.int64)
    values = (rows[:, None] + np.arange(SIZE) / 4).astype(np.float32)
    return TokenTable(
        {"row": np.arange(offsets[-1])},
        np.arange(offsets[-1]),
        offsets,
        tuple(map(str, range(len(lengths)))),
        {"filing": TokenVectors(rows, values)},
    )


lengths = st.lists(st.integers(0, 7), min_size=1, max_size=5)
carrying = st.lists(st.booleans(), min_size=1, max_size=9)


@given(lengths=lengths, carrying=carrying, size=st.integers(1, 6), data=st.data())
def test_every_vector_stays_with_its_row(
    lengths: list[int], carrying: list[bool], size: int, data: st.DataObject
) -> None:
    made = table(lengths, carrying)
    rows = np.flatnonzero(np.resize([True, False, True], len(made)))
    layout = data.draw(st.sampled_from(["each", "windows"]))
    cut = SequenceSet(made, Decisions(rows), size, layout)
    chosen = data.draw(st.lists(st.integers(0, len(cut) - 1), max_size=6)) if len(cut) else []
    batch = cut.pack(np.asarray(chosen, np.int64)).check()
    carried = batch.vectors["filing"]
    assert carried.values.dtype == torch.float32
    own = batch.fields["row"][carried.rows]
    assert carried.values[:, 0].tolist() == own.tolist()
    has_one = np.isin(batch.fields["row"].numpy(), made.vectors["filing"].rows)
    assert carried.rows.tolist() == np.flatnonzero(has_one).tolist()
    for number, alone in zip(chosen, unpack(batch), strict=True):
        again = cut.pack([number]).vectors["filing"]
        assert torch.equal(alone.vectors["filing"].rows, again.rows)
        assert torch.equal(alone.vectors["filing"].values, again.values)


@given(lengths=lengths, carrying=carrying, first=st.integers(0, 20), last=st.integers(0, 20))
def test_a_part_of_the_table_keeps_its_vectors(lengths: list[int], carrying: list[bool], first: int, last: int) -> None:
    made = table(lengths, carrying)
    part, _ = made.between(first, last, np.zeros(0, np.int64))
    assert part.vectors["filing"].values[:, 0].tolist() == part.fields["row"][part.vectors["filing"].rows].tolist()
    inside = (made.vectors["filing"].rows >= first) & (made.vectors["filing"].rows <= last)
    assert len(part.vectors["filing"].rows) == inside.sum()


def test_mapped_files_give_the_same_batches(tmp_path: Path) -> None:
    made = table([5, 0, 8], [False, True, False, False])
    cut = SequenceSet(made, Decisions(np.arange(1, 13, 3)), 4, "each")
    mapped = write_sequences(cut, tmp_path / "set")
    for numbers in ([0], [3, 1], []):
        one, other = (each.pack(np.asarray(numbers, np.int64)).vectors["filing"] for each in (cut, mapped))
        assert torch.equal(one.rows, other.rows)
        assert torch.equal(one.values, other.values)


def test_scales_come_from_rows_of_training_sequences_alone() -> None:
    made = table([4, 4], [True, False])  # rows 0, 2, 4, 6 carry
    cut = SequenceSet(made, Decisions(np.array([2])), 3, "each")  # its only sequence is rows 0 … 2
    assert vector_scales(cut)["filing"] == ((1.0, 1.0), (1.25, 1.0), (1.5, 1.0))
    one = SequenceSet(made, Decisions(np.array([1])), 2, "each")
    assert vector_scales(one)["filing"] == ((0.0, 1.0), (0.25, 1.0), (0.5, 1.0))
    none = SequenceSet(made, Decisions(np.array([3])), 1, "each")
    assert vector_scales(none)["filing"] == ((0.0, 1.0),) * 3


def test_rows_that_do_not_rise_or_lie_outside_are_refused() -> None:
    values = np.zeros((2, SIZE), np.float32)
    with pytest.raises(ValueError, match=r"got \(2, 3\) of 2 rows"):
        TokenVectors(np.array([1, 1]), values)
    with pytest.raises(ValueError, match=r"rows of vectors 'filing' must lie in \[0, 2\)"):
        TokenTable({}, np.arange(2), np.array([0, 2]), ("a",), {"filing": TokenVectors(np.array([1, 2]), values)})
