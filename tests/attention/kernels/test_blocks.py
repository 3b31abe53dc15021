"""The jit twin of the mask and the blocks that a tile visits, against `Mask` itself, on every small case."""

from __future__ import annotations

from collections import defaultdict
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch

from quantattn.attention import Mask

pytest.importorskip("triton")
import triton
import triton.language as tl

from quantattn.attention.kernels.arguments import Bounds
from quantattn.attention.kernels.primitives import (
    block_start,
    count_blocks,
    find_sequence,
    key_blocks,
    query_blocks,
    sees,
)

LENGTHS = (1, 4, 5, 11)
BOUNDS = (None, 0, 2, 6)
PREFIXES = (0, 1, 3, 20)
BLOCK_M, BLOCK_N = 4, 2
STEPS = 16
"""More than any tile visits."""


@triton.jit
def _write_seen(out_ptr, n_q_ptr, n_k_ptr, bounds, n, CASES: tl.constexpr, SIZE: tl.constexpr):
    """Of n cases, SIZE × SIZE numbers each, CASES a program."""
    case = (tl.program_id(0) * CASES + tl.arange(0, CASES))[:, None, None]
    here = case < n
    row = tl.arange(0, SIZE)
    query, key = row[None, :, None], row[None, None, :]
    n_q, n_k = tl.load(n_q_ptr + case, here), tl.load(n_k_ptr + case, here)
    # In the kernel itself: a function compiled by triton 3.6 cannot return None.
    left = None if bounds.left is None else tl.load(bounds.left + case, here)
    right = None if bounds.right is None else tl.load(bounds.right + case, here)
    prefix = None if bounds.prefix is None else tl.load(bounds.prefix + case, here)
    seen = sees(query, key, n_q, n_k, Bounds(left, right, prefix))
    tl.store(out_ptr + (case * SIZE + query) * SIZE + key, seen.to(tl.int32), here)


@triton.jit
def _write_visits(
    out_ptr, tiles, bounds, n, SIZE: tl.constexpr, STEPS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, OF_KEYS: tl.constexpr,
):  # fmt: skip
    """Row t of out (n, STEPS): for tile t, 1 at each block visited as cut, 2 at each visited as full."""
    tile = tl.arange(0, SIZE)
    here = tile < n
    first, n_q, n_k = (
        tl.load(tiles.first + tile, here),
        tl.load(tiles.n_q + tile, here),
        tl.load(tiles.n_k + tile, here),
    )
    left = None if bounds.left is None else tl.load(bounds.left + tile, here)
    right = None if bounds.right is None else tl.load(bounds.right + tile, here)
    prefix = None if bounds.prefix is None else tl.load(bounds.prefix + tile, here)
    given = Bounds(left, right, prefix)
    if OF_KEYS:
        BLOCK: tl.constexpr = BLOCK_N
        visit = key_blocks(first, n_q, n_k, given, BLOCK_M, BLOCK_N, False)
    else:
        BLOCK: tl.constexpr = BLOCK_M
        visit = query_blocks(first, n_q, n_k, given, BLOCK_M, BLOCK_N, False)
    cut = count_blocks(visit, BLOCK, True)
    full = count_blocks(visit, BLOCK, False)
    for step in range(STEPS):
        where = out_ptr + tile * STEPS + block_start(step, visit, BLOCK, True) // BLOCK
        tl.store(where, tl.load(where, here & (step < cut)) + 1, here & (step < cut))
        where = out_ptr + tile * STEPS + block_start(step, visit, BLOCK, False) // BLOCK
        tl.store(where, tl.load(where, here & (step < full)) + 2, here & (step < full))


@triton.jit
def _write_owner(out_ptr, cu_ptr, n_sequences, BLOCK: tl.constexpr):
    tile = tl.program_id(0)
    tl.store(out_ptr + tile, find_sequence(tile, cu_ptr, n_sequences, BLOCK))


def cases():
    for n_q, n_k, left, right, prefix in product(LENGTHS, LENGTHS, BOUNDS, BOUNDS, PREFIXES):
        if prefix and left is None and right is None:
            continue  # everything is visible anyway, and a launch leaves the prefix out
        yield n_q, n_k, Mask(window=(left, right), prefix=prefix), Bounds(left, right, prefix or None)


def by_bounds(rows):
    """Rows whose second entry is bounds, one list for all that have the same of them: what one launch can take."""
    found = defaultdict(list)
    for row in rows:
        found[tuple(bound is not None for bound in row[1])].append(row)
    assert len(found) == 7
    return found.values()


def column(values, device):
    """A tensor of these numbers, or None when there are none."""
    return None if values[0] is None else torch.tensor(values, dtype=torch.int32, device=device)


def test_the_twin_sees_what_the_mask_sees(device):
    for rows in by_bounds((mask, bounds, n_q, n_k) for n_q, n_k, mask, bounds in cases()):
        masks, bounds, n_q, n_k = zip(*rows, strict=True)
        out = torch.full((len(rows), 16, 16), -1, dtype=torch.int32, device=device)
        given = Bounds(*(column(values, device) for values in zip(*bounds, strict=True)))
        grid, lengths = (triton.cdiv(len(rows), 32),), (column(n_q, device), column(n_k, device))
        _write_seen[grid](out, *lengths, given, len(rows), CASES=32, SIZE=16)
        for found, mask, m, n in zip(out.cpu().bool(), masks, n_q, n_k, strict=True):
            expected = torch.zeros(16, 16, dtype=torch.bool)
            expected[:m, :n] = mask.visible(m, n)
            assert torch.equal(found, expected), (m, n, mask)


class Tiles(NamedTuple):
    """First row of each tile, and how many queries and keys its sequence has."""

    first: Any
    n_q: Any
    n_k: Any


def kinds_of_blocks(visible, of_keys):
    """Of each tile of one sequence and each block of the other side: 0 nothing is seen, 1 it is cut, 2 it is full."""
    tiles = visible.split(BLOCK_M) if of_keys else visible.T.split(BLOCK_N)
    size = BLOCK_N if of_keys else BLOCK_M
    kinds = torch.zeros(len(tiles), STEPS, dtype=torch.int32)
    for i, tile in enumerate(tiles):
        for j, block in enumerate(tile.split(size, dim=1)):
            # The last block of the side that is walked over is cut by the end itself when it is not whole.
            kinds[i, j] = 2 if block.all() and block.shape[1] == size else 1 if block.any() else 0
    return kinds


@pytest.mark.parametrize("of_keys", [True, False])
def test_a_tile_visits_each_block_that_it_sees_once_and_no_other(of_keys, device):
    """So a causal mask costs half, and a window costs its width; and a full block is one that needs no mask."""
    rows = []
    for n_q, n_k, mask, bounds in cases():
        kinds, block = kinds_of_blocks(mask.visible(n_q, n_k), of_keys), BLOCK_M if of_keys else BLOCK_N
        rows += [((i * block, n_q, n_k), bounds, mask, kinds[i]) for i in range(len(kinds))]
    for tiles in by_bounds(rows):
        places, bounds, masks, kinds = zip(*tiles, strict=True)
        out = torch.zeros(len(tiles), STEPS, dtype=torch.int32, device=device)
        columns = Tiles(*(column(values, device) for values in zip(*places, strict=True)))
        given = Bounds(*(column(values, device) for values in zip(*bounds, strict=True)))
        sizes = {"SIZE": triton.next_power_of_2(len(tiles)), "BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N}
        _write_visits[(1,)](out, columns, given, len(tiles), STEPS=STEPS, OF_KEYS=of_keys, **sizes)
        visited, expected = out.cpu(), torch.stack(kinds)
        wrong = ((visited > 0) != (expected > 0)).any(1).nonzero().flatten().tolist()
        assert not wrong, [(places[i], masks[i], visited[i], expected[i]) for i in wrong[:3]]
        assert bool((visited <= expected).all()), "a block that needs its mask was taken for full"
        assert set(visited.unique().tolist()) <= {0, 1, 2}, "a block was visited twice"


@pytest.mark.parametrize("lengths", [(5, 0, 9, 4), (0, 0, 3), (8, 8), (1, 1, 1, 1), (0,), (17,)])
def test_every_tile_of_a_pack_has_one_owner(lengths, device):
    block = 4
    cu = torch.tensor([0, *lengths]).cumsum(0).to(device, torch.int32)
    tiles = int(cu[-1]) // block + len(lengths)
    owner = torch.full((tiles,), -1, dtype=torch.int32, device=device)
    _write_owner[(tiles,)](owner, cu, len(lengths), BLOCK=block)
    starts = [int(cu[n]) // block + n for n in range(len(lengths) + 1)]
    for n, length in enumerate(lengths):
        mine = (owner == n).nonzero().flatten().tolist()
        assert mine == list(range(starts[n], starts[n + 1]))
        assert len(mine) * block >= length
