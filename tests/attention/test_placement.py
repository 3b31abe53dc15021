"""Who holds which rows, and that the blocks of a ring are the visible pairs, each once."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quantattn import Mask
from quantattn.attention.placement import Placement, Plan, visible_keys

bounds = st.one_of(st.none(), st.integers(0, 9))
masks = st.builds(Mask, causal=st.booleans(), window=st.one_of(st.none(), st.tuples(bounds, bounds)))
packs = st.lists(st.integers(0, 14), min_size=1, max_size=5).filter(lambda lengths: sum(lengths) >= 8)


def offsets(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)


@st.composite
def placements(draw: st.DrawFn, tokens: int) -> Placement:
    """Any partition of the rows into intervals, dealt to any ranks."""
    cuts = sorted(draw(st.sets(st.integers(1, tokens - 1), max_size=7)))
    pieces = list(zip([0, *cuts], [*cuts, tokens], strict=True))
    world = draw(st.integers(1, min(4, len(pieces))))
    owners = [*range(world), *(draw(st.integers(0, world - 1)) for _ in pieces[world:])]
    order = draw(st.permutations(pieces))
    return Placement(tuple(tuple(p for p, o in zip(order, owners, strict=True) if o == r) for r in range(world)))


def visible(cu: Tensor, mask: Mask) -> Tensor:
    """(T, T) int64, 1 where a row of the pack sees another."""
    return torch.block_diag(*(mask.visible(n, n).long() for n in cu.diff().tolist()))


def counted(plan: Plan) -> Tensor:
    """(T, T) int64, how often the blocks of all ranks and rounds compute each pair."""
    placement = plan.placement
    count = torch.zeros(placement.tokens, placement.tokens, dtype=torch.int64)
    for rank in range(placement.world):
        for distance in plan.rounds():
            source = (rank - distance) % placement.world
            for block in plan.blocks(rank, source):
                rows = placement.rows(rank)[slice(*block.rows)]
                columns = placement.rows(source)[slice(*block.columns)]
                mask = Mask(window=(block.left, block.right))
                n_q, n_k = torch.tensor(block.cu_q).diff().tolist(), torch.tensor(block.cu_k).diff().tolist()
                seen = torch.block_diag(*(mask.visible(a, b).long() for a, b in zip(n_q, n_k, strict=True)))
                assert seen.any(dim=1).all(), "a query of a block sees nothing in it"
                assert distance == 0 or len(n_q) == 1
                count[rows[:, None], columns] += seen
    return count


@settings(max_examples=150, deadline=None)
@given(st.data(), packs, masks)
def test_the_blocks_of_a_ring_are_the_visible_pairs_each_once(
    data: st.DataObject, lengths: list[int], mask: Mask
) -> None:
    placement = data.draw(placements(sum(lengths)))
    cu = offsets(lengths)
    plan = Plan(placement, tuple(cu.tolist()), mask.left, mask.right)
    expected = visible(cu, mask)
    assert torch.equal(counted(plan), expected)
    for seen in (mask, replace(mask, prefix=data.draw(st.integers(1, 9)))):  # of which a ring takes the first
        assert torch.equal(visible_keys(cu, seen), visible(cu, seen).sum(1))


@settings(max_examples=60, deadline=None)
@given(st.data(), packs)
def test_sharding_is_undone_and_keeps_the_places(data: st.DataObject, lengths: list[int]) -> None:
    tokens = sum(lengths)
    placement = data.draw(placements(tokens))
    x = torch.randn(tokens, 2, 3, generator=torch.Generator().manual_seed(0))
    shards = [placement.shard(x, rank) for rank in range(placement.world)]
    assert torch.equal(placement.join(shards), x)
    assert Placement.of_table(placement.table) == placement
    for rank, shard in enumerate(shards):
        rows = placement.rows(rank)
        assert torch.equal(x[rows], shard)
        assert rows.shape == (placement.size(rank),)
        assert bool((rows.diff() > 0).all())


def pairs(placement: Placement, cu: Tensor, mask: Mask) -> list[int]:
    """Pairs of rows that each rank computes."""
    keys = visible_keys(cu, mask)
    return [int(placement.shard(keys, rank).sum()) for rank in range(placement.world)]


@pytest.mark.parametrize("world", [2, 3, 4, 8])
def test_zigzag_balances_a_causal_sequence_and_contiguous_does_not(world: int) -> None:
    tokens = 2 * world * 5
    cu, mask = offsets([tokens]), Mask(causal=True)
    assert len(set(pairs(Placement.zigzag(tokens, world), cu, mask))) == 1
    shares = pairs(Placement.contiguous(tokens, world), cu, mask)
    assert shares[-1] - shares[0] > (world - 1) * shares[0]
    uneven = pairs(Placement.zigzag(tokens + 3, world), offsets([tokens + 3]), mask)
    assert max(uneven) - min(uneven) < 3 * (tokens + 3)  # each chunk may have a row more, and start a row later


@settings(max_examples=80, deadline=None)
@given(packs, masks, st.integers(1, 4), st.integers(1, 2))
def test_the_deal_differs_by_less_than_its_heaviest_chunk(
    lengths: list[int], mask: Mask, world: int, chunks: int
) -> None:
    cu = offsets(lengths)
    placement = Placement.balanced(cu, world, mask, chunks)
    shares = pairs(placement, cu, mask)
    tokens, count = sum(lengths), world * chunks
    keys = visible_keys(cu, mask)
    heaviest = max(int(keys[i * tokens // count : (i + 1) * tokens // count].sum()) for i in range(count))
    assert max(shares) - min(shares) < heaviest


def test_zigzag_of_a_mixed_pack_is_not_balanced_and_the_deal_is() -> None:
    cu, mask = offsets([512] + [16] * 32), Mask(causal=True)
    zigzag, dealt = (pairs(p, cu, mask) for p in (Placement.zigzag(1024, 4), Placement.balanced(cu, 4, mask)))
    assert max(zigzag) > 1.7 * sum(zigzag) / 4
    assert max(dealt) < 1.1 * sum(dealt) / 4
    assert Placement.balanced(offsets([64]), 4, mask, chunks=2) == Placement.zigzag(64, 4)


def test_rounds_that_nobody_needs_are_left_out() -> None:
    def rounds(placement: Placement, cu: tuple[int, ...], mask: Mask) -> tuple[int, ...]:
        return Plan(placement, cu, mask.left, mask.right).rounds()

    zigzag, contiguous = Placement.zigzag(64, 8), Placement.contiguous(64, 8)
    assert rounds(zigzag, (0, 64), Mask(causal=True)) == tuple(range(8))
    assert rounds(zigzag, (0, 64), Mask(window=(3, 3))) == (0, 1, 7)
    assert rounds(contiguous, (0, 64), Mask(causal=True, window=(3, 0))) == (0, 1)
    assert rounds(contiguous, (0, 16, 32, 64), Mask()) == (0, 1, 2, 3, 5, 6, 7)
    assert rounds(contiguous, tuple(range(0, 65, 8)), Mask()) == (0,)


def test_one_rank_computes_one_ordinary_call() -> None:
    (block,) = Plan(Placement.zigzag(20, 1), (0, 7, 20), 3, 0).blocks(0, 0)
    assert (block.rows, block.left, block.right, block.cu_q) == ((0, 20), 3, 0, (0, 7, 20))


def test_what_lies_side_by_side_is_one_block() -> None:
    placement = Placement.zigzag(32, 4)
    full, causal = (Plan(placement, (0, 32), None, right) for right in (None, 0))
    for rank in range(4):
        for source in range(4):
            assert len(full.blocks(rank, source)) == 1
            assert len(causal.blocks(rank, source)) == 1


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: Placement((((0, 3),), ((4, 6),))),
            r"every row from 0 on once, got the intervals \[\(0, 3\), \(4, 6\)\]",
        ),
        (lambda: Placement((((0, 4),), ((3, 6),))), "every row from 0 on once"),
        (lambda: Placement((((1, 4),),)), "every row from 0 on once"),
        (lambda: Placement((((0, 4),), ())), r"every rank needs rows, got \[1, 0\] intervals a rank"),
        (lambda: Placement.zigzag(5, 3), "each of 6 chunks needs a row, got 5 rows"),
        (lambda: Placement.contiguous(6, 2).shard(torch.zeros(5, 1), 0), r"is of 6 rows, got x \(5, 1\)"),
        (lambda: Placement.contiguous(6, 2).join([torch.zeros(2)]), r"must have \[3, 3\] rows, got \[2\]"),
    ],
)
def test_what_is_no_placement(make, sentence) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=sentence):
        make()
