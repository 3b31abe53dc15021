"""Before the backward on sm_90, in plain Triton: the numbers of rows, by tiles of one sequence each."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

pytest.importorskip("triton")

from quantattn.attention.kernels.hopper.ends import _attention_bwd_prepare
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
