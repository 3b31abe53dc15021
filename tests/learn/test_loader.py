"""The loader's order is one for all ranks, workers and resumptions, and no sequence is lost or comes twice."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from toy import sequences

from quantattn.batch import PackedBatch
from quantattn.data.mapped import write_sequences
from quantattn.data.pack import Decisions, SequenceSet, TokenTable, plan
from quantattn.learn.datamodule import PlannedLoader, PreparedData

BUDGET = 40
EPOCHS = 2


def ragged(n: int = 47) -> SequenceSet:
    """n sequences of 1 … 20 tokens; a token's code is its row, so a batch says which rows it holds."""
    lengths = np.random.default_rng(5).integers(1, 21, n)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    rows = np.arange(offsets[-1])
    tokens = TokenTable({"row": rows}, rows, offsets, tuple(map(str, range(n))))
    return SequenceSet(tokens, Decisions(offsets[1:] - 1), 20, "document")


def keys(batches: list[PackedBatch]) -> list[int]:
    return [key for batch in batches for key in batch.check().keys.tolist()]


def loaders(cut: SequenceSet, world: int, epochs: int = EPOCHS) -> list[PlannedLoader]:
    """One of each rank, over so many epochs."""
    made = []
    for rank in range(world):
        own = {"seed": 3, "shuffle": True, "rank": rank, "world": world}
        steps = -(-len(plan(cut.lengths, BUDGET, seed=3)) // world)
        assert len(PlannedLoader(cut, BUDGET, **own)) == steps  # type: ignore[arg-type]
        made.append(PlannedLoader(cut, BUDGET, total=10**6, **own))  # type: ignore[arg-type]
        made[-1].total = sum(len(made[-1]._plan_of(epoch)) for epoch in range(epochs))
    assert len({loader.total for loader in made}) == 1
    return made


@pytest.mark.parametrize("world", [1, 2, 3])
def test_the_order_is_one_for_any_number_of_ranks(world: int) -> None:
    cut = ragged()
    whole = [i for epoch in range(EPOCHS) for batch in plan(cut.lengths, BUDGET, seed=3, epoch=epoch) for i in batch]
    assert whole[:47] != whole[47:]
    dealt = [list(loader) for loader in loaders(cut, world)]
    steps = list(zip(*dealt, strict=True))  # every rank has as many
    assert keys([batch for step in steps for batch in step]) == whole
    rows = sorted(row for step in steps for batch in step for row in batch.fields["row"].tolist())
    assert rows == sorted([*range(len(cut.table))] * EPOCHS)
    assert all(batch.n_tokens <= BUDGET for step in steps for batch in step)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_resumed_at_every_step_the_rest_follows(world: int) -> None:
    for loader, again in zip(loaders(ragged(), world), loaders(ragged(), world), strict=True):
        batches, positions = [], []
        for batch in loader:
            batches.append(batch)
            positions.append(loader.state_dict())
        assert [b["position"] - a["position"] for a, b in pairwise(positions)] == [world] * (len(batches) - 1)
        for step, position in enumerate(positions):
            again.load_state_dict(position)
            rest = list(again) if step + 1 < len(batches) else []
            assert keys(rest) == keys(batches[step + 1 :])


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 6), (3, 2), (6, 1)])
def test_another_number_of_ranks_goes_on_with_the_same_steps(before: int, after: int) -> None:
    """Six batches a step, of which each of `world` ranks makes its share; an epoch is whole steps."""
    cut, step = ragged(), 6
    own = {"seed": 3, "shuffle": True, "step": step}
    per_epoch = len(PlannedLoader(cut, BUDGET, **own))  # type: ignore[arg-type]
    assert per_epoch % step == 0

    def steps(world: int, position: int = 0) -> tuple[list[list[int]], dict[str, int]]:
        """Keys of each step of three epochs, those after `position`, and where the first rank stands after two."""
        dealt, stands = [], {}
        for rank in range(world):
            total = 3 * per_epoch // world
            loader = PlannedLoader(cut, BUDGET, rank=rank, world=world, total=total, **own)  # type: ignore[arg-type]
            loader.load_state_dict({"position": position})
            batches = []
            for batch in loader:
                batches.append(batch)
                if len(batches) * world == 2 * step:
                    stands = loader.state_dict()
            dealt.append(batches)
        each = step // world
        rounds = range(0, len(dealt[0]), each)
        return [sorted(keys([b for own in dealt for b in own[at : at + each]])) for at in rounds], stands

    whole, stands = steps(before)
    assert steps(after) == (whole, stands)
    assert steps(after, stands["position"])[0] == whole[2:]
    for epoch in range(3):
        in_epoch = whole[epoch * per_epoch // step : (epoch + 1) * per_epoch // step]
        assert sorted(key for at in in_epoch for key in at) == list(range(47))


def test_workers_change_neither_order_nor_bits_nor_the_global_generator(tmp_path: Path) -> None:
    """Two spawned processes, begun in the middle of the first epoch; the position counts what was handed out."""
    mapped = write_sequences(ragged(), tmp_path / "set")
    own = {"seed": 3, "shuffle": True, "total": 20, "rank": 1, "world": 2}
    alone = PlannedLoader(ragged(), BUDGET, **own)  # type: ignore[arg-type]
    helped = PlannedLoader(mapped, BUDGET, workers=2, **own)  # type: ignore[arg-type]
    expected = list(alone)
    state = torch.get_rng_state()
    helped.load_state_dict({"position": 6})
    found = []
    for batch in helped:
        found.append(batch)
        assert helped.state_dict() == {"position": 6 + 2 * len(found)}
    assert torch.equal(torch.get_rng_state(), state)
    assert len(found) == len(expected) - 3
    for one, other in zip(expected[3:], found, strict=True):
        assert torch.equal(one.fields["row"], other.fields["row"])
        assert torch.equal(one.cu_seqlens, other.cu_seqlens)
        assert torch.equal(one.keys, other.keys)


def test_workers_want_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give them what write_sequences returns"):
        PlannedLoader(sequences(3), 20, seed=0, shuffle=True, workers=1)


def test_of_one_batch_every_epoch_is_the_first_batch() -> None:
    always, usual = (
        [batch.keys.tolist() for batch in PlannedLoader(sequences(20), 25, seed=3, shuffle=True, total=5, one=one)]
        for one in (True, False)
    )
    assert always == [usual[0]] * 5
    assert len({tuple(keys) for keys in usual}) == 5


@pytest.mark.parametrize(("train", "valid", "named"), [(0, 3, "training"), (3, 0, "validation")])
def test_a_part_without_sequences_is_named(train: int, valid: int, named: str) -> None:
    with pytest.raises(ValueError, match=f"no {named} sequences: use more data, or another split"):
        PreparedData(ragged(train), ragged(valid), max_tokens=BUDGET, seed=3, batches=1)
