"""The jit twin of the mask and the blocks that a tile visits, against `Mask` itself, on every small case."""

from __future__ import annotations

from itertools import product

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


@triton.jit
def _write_seen(out_ptr, n_q, n_k, bounds, SIZE: tl.constexpr):
    row = tl.arange(0, SIZE)
    seen = sees(row[:, None], row[None, :], n_q, n_k, bounds)
    tl.store(out_ptr + row[:, None] * SIZE + row[None, :], seen.to(tl.int32))


@triton.jit
def _write_visits(
    out_ptr, n_q, n_k, bounds,
    WIDTH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, OF_KEYS: tl.constexpr,
):  # fmt: skip
    """Row t of out: for tile t, 1 at each block visited as cut, 2 at each visited as full."""
    tile = tl.program_id(0)
    if OF_KEYS:
        BLOCK: tl.constexpr = BLOCK_N
        visit = key_blocks(tile * BLOCK_M, n_q, n_k, bounds, BLOCK_M, BLOCK_N, False)
    else:
        BLOCK: tl.constexpr = BLOCK_M
        visit = query_blocks(tile * BLOCK_N, n_q, n_k, bounds, BLOCK_M, BLOCK_N, False)
    for step in range(count_blocks(visit, BLOCK, True)):
        where = out_ptr + tile * WIDTH + block_start(step, visit, BLOCK, True) // BLOCK
        tl.store(where, tl.load(where) + 1)
    for step in range(count_blocks(visit, BLOCK, False)):
        where = out_ptr + tile * WIDTH + block_start(step, visit, BLOCK, False) // BLOCK
        tl.store(where, tl.load(where) + 2)


@triton.jit
def _write_owner(out_ptr, cu_ptr, n_sequences, BLOCK: tl.constexpr):
    tile = tl.program_id(0)
    tl.store(out_ptr + tile, find_sequence(tile, cu_ptr, n_sequences, BLOCK))


def cases():
    for n_q, n_k, left, right, prefix in product(LENGTHS, LENGTHS, BOUNDS, BOUNDS, PREFIXES):
        if prefix and left is None and right is None:
            continue  # everything is visible anyway, and a launch leaves the prefix out
        yield n_q, n_k, Mask(window=(left, right), prefix=prefix), Bounds(left, right, prefix or None)


def test_the_twin_sees_what_the_mask_sees(device):
    for n_q, n_k, mask, bounds in cases():
        out = torch.full((16, 16), -1, dtype=torch.int32, device=device)
        _write_seen[(1,)](out, n_q, n_k, bounds, SIZE=16)
        expected = torch.zeros(16, 16, dtype=torch.bool)
        expected[:n_q, :n_k] = mask.visible(n_q, n_k)
        assert torch.equal(out.cpu().bool(), expected), (n_q, n_k, mask)


@pytest.mark.parametrize("of_keys", [True, False])
def test_a_tile_visits_each_block_that_it_sees_once_and_no_other(of_keys, device):
    """So a causal mask costs half, and a window costs its width; and a full block is one that needs no mask."""
    for n_q, n_k, mask, bounds in cases():
        tiles = -(-n_q // BLOCK_M) if of_keys else -(-n_k // BLOCK_N)
        out = torch.zeros(tiles, 16, dtype=torch.int32, device=device)
        blocks = {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N}
        _write_visits[(tiles,)](out, n_q, n_k, bounds, WIDTH=16, OF_KEYS=of_keys, **blocks)
        visible = mask.visible(n_q, n_k)
        expected = torch.zeros(tiles, 16, dtype=torch.int32)
        for i, rows in enumerate(visible.split(BLOCK_M)):
            for j, block in enumerate(rows.split(BLOCK_N, dim=1)):
                # The last block of the side that is walked over is cut by the end itself when it is not whole.
                whole = block.shape[1] == BLOCK_N if of_keys else block.shape[0] == BLOCK_M
                kind = 2 if block.all() and whole else 1 if block.any() else 0
                expected[(i, j) if of_keys else (j, i)] = kind
        visited = out.cpu()
        assert torch.equal(visited > 0, expected > 0), (n_q, n_k, mask, visited, expected)
        assert bool((visited <= expected.clamp(min=0)).all()), "a block that needs its mask was taken for full"
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
