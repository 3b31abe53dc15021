"""Packing: unpacking undoes it, neighbours do not matter, every decision comes once, no budget is exceeded."""

from __future__ import annotations

import pickle
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantattn.batch import PackedBatch
from quantattn.data.pack import Decisions, Layout, SequenceSet, TokenTable, plan, shard, unpack

quick = settings(max_examples=40, deadline=None)


@st.composite
def sequence_sets(draw: st.DrawFn, layouts: tuple[str, ...] = get_args(Layout)) -> SequenceSet:
    sizes = draw(st.lists(st.integers(0, 40), min_size=1, max_size=5))
    rows = sum(sizes)
    table = TokenTable(
        fields={
            "kind_code": np.arange(rows, dtype=np.uint16) % 7,
            "size_value": np.linspace(-1, 1, rows).astype(np.float32),
            "side_code": np.arange(rows, dtype=np.uint16) % 3,
        },
        time=np.arange(rows, dtype=np.int64) * 10,
        offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        entities=tuple(f"E{i}" for i in range(len(sizes))),
    )
    row = np.asarray(sorted(draw(st.sets(st.integers(0, rows - 1)))) if rows else [], np.int64)
    targets = {"label": row % 3, "weight": row / 7}
    layout = draw(st.sampled_from(layouts))
    longest = 40 if layout == "document" else draw(st.integers(1, 50))
    return SequenceSet(table, Decisions(row, targets), longest, layout, draw(st.integers(1, longest)))  # type: ignore[arg-type]


def equal(one: PackedBatch, other: PackedBatch) -> bool:
    def tensors(batch: PackedBatch) -> dict[str, torch.Tensor]:
        named = {f"field {k}": v for k, v in batch.fields.items()} | {
            f"target {k}": v for k, v in batch.targets.items()
        }
        return named | {k: getattr(batch, k) for k in ("time", "cu_seqlens", "positions", "keys")}

    a, b = tensors(one), tensors(other)
    return (
        one.max_seqlen == other.max_seqlen
        and a.keys() == b.keys()
        and all(torch.equal(a[k], b[k]) and a[k].dtype == b[k].dtype for k in a)
    )


@given(sequence_sets(), st.randoms())
@quick
def test_packed_is_the_same_as_alone(cut: SequenceSet, random: Any) -> None:
    chosen = list(range(len(cut)))
    random.shuffle(chosen)
    batch = cut.pack(chosen).check()
    apart = unpack(batch)
    assert len(apart) == len(chosen) == batch.n_sequences
    assert all(equal(one, cut.pack([i]).check()) for one, i in zip(apart, chosen, strict=True))


@given(sequence_sets())
@quick
def test_a_packed_sequence_is_the_rows_of_the_table(cut: SequenceSet) -> None:
    for i in range(len(cut)):
        batch = cut.pack([i])
        rows = slice(int(cut.start[i]), int(cut.stop[i]))
        assert batch.fields["kind_code"].tolist() == cut.table.fields["kind_code"][rows].tolist()
        assert batch.fields["size_value"].tolist() == cut.table.fields["size_value"][rows].tolist()
        assert batch.time.tolist() == cut.table.time[rows].tolist()
        assert (cut.start[i] + batch.positions.numpy()).tolist() == cut.decisions.row[batch.keys.numpy()].tolist()
        assert batch.targets["label"].tolist() == cut.decisions.targets["label"][batch.keys.numpy()].tolist()
        assert len(set(cut.table.entity_of(np.arange(rows.start, rows.stop)))) == 1
        assert (batch.fields["kind_code"].dtype, batch.fields["size_value"].dtype) == (torch.int64, torch.float32)
        assert (batch.targets["label"].dtype, batch.targets["weight"].dtype) == (torch.int64, torch.float32)


@given(sequence_sets(), st.integers(0, 3), st.booleans())
@quick
def test_every_decision_once_and_no_budget_exceeded(cut: SequenceSet, epoch: int, shuffle: bool) -> None:
    budget = max(int(cut.lengths.max(initial=1)), 60)
    batches = [cut.pack(chosen).check() for chosen in plan(cut.lengths, budget, seed=1, epoch=epoch, shuffle=shuffle)]
    assert all(0 < batch.n_tokens <= budget for batch in batches)
    keys = [key for batch in batches for key in batch.keys.tolist()]
    assert sorted(keys) == list(range(len(cut.decisions)))
    assert shuffle or keys == sorted(keys)


@given(sequence_sets(("chunks", "each")))
@quick
def test_context_is_as_promised(cut: SequenceSet) -> None:
    existing = cut.decisions.row + 1 - cut.table.offsets[cut.table.entity_of(cut.decisions.row)]
    promised = cut.max_seq_len if cut.layout == "each" else cut.context
    assert (cut.contexts >= np.minimum(promised, existing)).all()
    assert (cut.contexts <= existing).all()
    assert (cut.lengths <= cut.max_seq_len).all()
    if cut.layout == "each":
        assert (cut.contexts == np.minimum(promised, existing)).all()
        assert len(cut) == len(cut.decisions)


@given(sequence_sets(("windows", "document")))
@quick
def test_windows_and_documents_hold_every_token_once(cut: SequenceSet) -> None:
    rows = [row for a, b in zip(cut.start, cut.stop, strict=True) for row in range(a, b)]
    assert rows == list(range(len(cut.table)))


lengths_strategy = st.lists(st.integers(1, 30), max_size=60).map(lambda x: np.asarray(x, np.int64))


@given(lengths_strategy, st.integers(30, 90), st.integers(0, 5), st.integers(0, 5))
@quick
def test_the_order_is_a_function_of_seed_and_epoch(lengths: np.ndarray, budget: int, seed: int, epoch: int) -> None:
    def flat(**changes: int) -> list[list[int]]:
        return [b.tolist() for b in plan(lengths, budget, **{"seed": seed, "epoch": epoch, **changes})]  # type: ignore[arg-type]

    assert flat() == flat()
    assert sorted(i for batch in flat() for i in batch) == list(range(len(lengths)))
    if len(lengths) > 20:
        assert flat() != flat(epoch=epoch + 1)
        assert flat() != flat(seed=seed + 6)


@given(lengths_strategy, st.integers(1, 5), st.integers(1, 3))
@quick
def test_ranks_have_equal_steps_and_share_one_order(lengths: np.ndarray, world: int, each: int) -> None:
    batches, together = plan(lengths, 40, seed=2), world * each
    if len(lengths) < -(-len(batches) // together) * together:
        with pytest.raises(ValueError, match="cannot make whole steps"):
            shard(batches, 0, world, together)
        return
    ranks = [shard(batches, rank, world, together) for rank in range(world)]
    assert {len(rank) % each for rank in ranks} == {0}
    assert len({len(rank) for rank in ranks}) == 1
    dealt = [batch for step in zip(*ranks, strict=True) for batch in step]
    assert sorted(np.concatenate([np.zeros(0, np.int64), *dealt]).tolist()) == list(range(len(lengths)))
    assert all(0 < lengths[batch].sum() <= 40 for batch in dealt)
    # Read step by step, rank by rank, the order is that of one process.
    assert [i for batch in dealt for i in batch.tolist()] == [i for batch in batches for i in batch.tolist()]
    # A step is the same batches, whoever shares them.
    assert [batch.tolist() for batch in dealt] == [batch.tolist() for batch in shard(batches, 0, 1, together)]


def test_ranks_that_cannot_share_a_step_are_refused() -> None:
    with pytest.raises(ValueError, match="3 batches a step cannot be shared by 2 ranks"):
        shard(plan(np.full(9, 5), 10), 0, 2, 3)


def test_the_step_of_a_sequence_does_not_depend_on_its_length() -> None:
    lengths = np.asarray([5] * 60 + [50] * 20, np.int64)
    place = np.zeros((300, len(lengths)))
    for epoch in range(300):
        batches = plan(lengths, 100, seed=0, epoch=epoch)
        for step, batch in enumerate(batches):
            place[epoch, batch] = (step + 0.5) / len(batches)
    short, long = place[:, :60].mean(axis=1), place[:, 60:].mean(axis=1)
    difference = short - long
    assert abs(difference.mean()) < 4 * difference.std() / np.sqrt(300)
    # Sorting by length, the usual way of bucketing, fails the same test: it is the negative control.
    by_length = np.argsort(lengths, kind="stable")
    assert abs(by_length[:60].mean() - by_length[60:].mean()) > 30


def test_batches_are_filled_well() -> None:
    lengths = np.random.default_rng(0).integers(200, 6_000, 2_000)
    fill = lengths.sum() / (8_192 * len(plan(lengths, 8_192, seed=0)))
    in_order = lengths.sum() / (8_192 * len(plan(lengths, 8_192, shuffle=False)))
    assert fill > 0.95 > in_order


def test_a_sequence_beyond_the_budget_names_the_setting() -> None:
    with pytest.raises(ValueError, match=r"sequence 1 has 9 tokens.*than max_tokens_per_batch = 8"):
        plan(np.asarray([3, 9]), 8)


def table(rows: int = 6) -> TokenTable:
    return TokenTable({"x_code": np.zeros(rows, np.uint16)}, np.arange(rows), np.asarray([0, 4, rows]), ("a", "b"))


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="offsets must rise from 0 to 6"):
        TokenTable({}, np.arange(6), np.asarray([0, 5]), ("a",))
    with pytest.raises(ValueError, match=r"field 'x' has shape \(5,\)"):
        TokenTable({"x": np.zeros(5)}, np.arange(6), np.asarray([0, 6]), ("a",))
    with pytest.raises(ValueError, match="strictly rising"):
        Decisions(np.asarray([2, 2]))
    with pytest.raises(ValueError, match="'label' has 1 rows for 2 decisions"):
        Decisions(np.asarray([1, 2]), {"label": np.zeros(1)})
    with pytest.raises(ValueError, match="the table has 6 rows"):
        SequenceSet(table(), Decisions(np.asarray([6])), 3)
    with pytest.raises(ValueError, match="document 'a' has 4 tokens"):
        SequenceSet(table(), Decisions(np.asarray([1])), 3, "document")
    with pytest.raises(ValueError, match="layout must be one of"):
        SequenceSet(table(), Decisions(np.asarray([1])), 3, "bags")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="min_context must lie in"):
        SequenceSet(table(), Decisions(np.asarray([1])), 3, "chunks", 4)


def test_between_keeps_the_tokens_of_a_time() -> None:
    part, rows = table().between(1, 4, np.asarray([1, 3, 4]))
    assert part.time.tolist() == [1, 2, 3, 4]
    assert part.offsets.tolist() == [0, 3, 4]
    assert part.time[rows].tolist() == [1, 3, 4]
    with pytest.raises(ValueError, match="1 of 2 rows lie outside"):
        table().between(1, 4, np.asarray([1, 5]))


def test_a_set_travels_to_a_spawned_worker() -> None:
    cut = SequenceSet(table(), Decisions(np.asarray([2, 5]), {"label": np.asarray([0, 1])}), 3, "each")
    again = pickle.loads(pickle.dumps(cut))
    assert equal(again.pack([1, 0]), cut.pack([1, 0]))
