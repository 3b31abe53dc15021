"""Before and after the backward on sm_90, in plain Triton: the numbers of rows, and dq from its sums."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
import torch

pytest.importorskip("triton")

from quantattn.attention.kernels.hopper.ends import _attention_bwd_finish, _attention_bwd_prepare
from quantattn.attention.kernels.launch import strides

CU, HEADS, D, WIDTH, BLOCK = [0, 5, 5, 75], 2, 40, 64, 64
TILES = CU[-1] // BLOCK + len(CU) - 1
# Tile and row of the tile at which each row of the pack stands: sequence n begins at tile ⌊cu[n] / BLOCK⌋ + n.
PLACES = torch.tensor([(a // BLOCK + n) * BLOCK + i for n, (a, b) in enumerate(pairwise(CU)) for i in range(b - a)])


@pytest.fixture
def drawn(device: str) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    q, do, out = (torch.randn(1, CU[-1], HEADS, D, generator=rng).half().to(device) for _ in range(3))
    lse, dlse = (torch.randn(1, HEADS, CU[-1], generator=rng).to(device) for _ in range(2))
    lse[0, 0, 7], lse[0, 1, 3] = -torch.inf, torch.nan
    return {"q": q, "do": do, "out": out, "lse": lse, "dlse": dlse}


def test_rows_stand_in_tiles_of_their_sequence_and_ends_weigh_nothing(device, drawn):
    cu, slots = torch.tensor(CU, dtype=torch.int32, device=device), HEADS * TILES
    rows = torch.full((2, slots * BLOCK), 7.0, device=device)
    counts = torch.full((1 + 2 * slots,), 7, dtype=torch.int32, device=device)
    q, do, out, lse, dlse = drawn.values()
    _attention_bwd_prepare[(TILES, HEADS)](
        q, do, out, lse, dlse, rows[0], rows[1], counts[1:], counts, cu, len(CU) - 1, CU[-1], TILES, slots,
        strides(q), strides(do), strides(out), strides(lse), strides(dlse),
        D=D, BLOCK_D=WIDTH, BLOCK_M=BLOCK, COUNTERS=2,
    )  # fmt: skip
    lse2, delta = torch.full((HEADS, TILES * BLOCK), torch.inf), torch.zeros(HEADS, TILES * BLOCK)
    lse2[:, PLACES] = lse[0].cpu().double().mul(1.4426950408889634).float()
    delta[:, PLACES] = (do.double() * out.double()).sum(-1)[0].T.cpu().float() - dlse[0].cpu()
    empty, odd = lse[0].cpu() == -torch.inf, lse[0].cpu().isnan()
    lse2[:, PLACES] = lse2[:, PLACES].where(~empty, torch.inf)  # a weight of 0, not of −∞ − (−∞)
    delta[:, PLACES] = delta[:, PLACES].where(~(empty | odd), 0)
    torch.testing.assert_close(rows[0].cpu().view(HEADS, -1), lse2, equal_nan=True)
    torch.testing.assert_close(rows[1].cpu().view(HEADS, -1), delta, atol=1e-5, rtol=1e-5)
    assert not counts.any()


def as_held(tile: torch.Tensor) -> torch.Tensor:
    """(64, 64) → (4096,): eight columns, a thread, its four numbers of them (PTX ISA, wgmma, fragment D)."""
    held = torch.empty(4096)
    for row, column in product(range(64), range(64)):
        thread = row // 16 * 32 + row % 8 * 4 + column % 8 // 2
        held[column // 8 * 512 + thread * 4 + row % 16 // 8 * 2 + column % 2] = tile[row, column]
    return held


@pytest.mark.parametrize(("width", "block"), [(128, 64), (64, 128)])
@pytest.mark.parametrize("counters", [0, 1, 2])
def test_sums_that_lie_as_a_warpgroup_held_them_end_in_rows(device, width, block, counters):
    rng, d, scale = torch.Generator().manual_seed(1), width - 8, 0.25
    tiles = CU[-1] // block + len(CU) - 1
    slots = HEADS * tiles
    sums = torch.randn(max(counters, 1), slots, block, width, generator=rng)
    halves = sums.view(-1, block // 64, 64, width // 64, 64).transpose(2, 3).reshape(-1, 64, 64)
    held = torch.stack([as_held(tile) for tile in halves]).to(device)
    begun = torch.ones(max(counters, 1), slots, dtype=torch.int32)
    begun[-1, 1] = 0 if counters else 1  # a sum that nobody began counts as 0, whatever the memory holds
    dq = torch.full((1, CU[-1], HEADS, d), torch.nan, dtype=torch.float16, device=device)
    cu = torch.tensor(CU, dtype=torch.int32, device=device)
    _attention_bwd_finish[(tiles, HEADS)](
        held, begun.to(device), dq, cu, scale, len(CU) - 1, CU[-1], tiles, slots, strides(dq),
        D=d, BLOCK_D=width, BLOCK_M=block, COUNTERS=counters,
    )  # fmt: skip
    total = (sums * begun[..., None, None]).sum(0).view(HEADS, tiles * block, width)
    places = [(a // block + n) * block + i for n, (a, b) in enumerate(pairwise(CU)) for i in range(b - a)]
    expected = (total[:, places, :d].transpose(0, 1) * scale).half()
    assert torch.equal(dq[0].cpu(), expected)
