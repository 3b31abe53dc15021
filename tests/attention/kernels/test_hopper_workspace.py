"""Which backward runs on sm_90 is a matter of shapes: whole blocks of every sequence must not be mostly empty."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from quantattn.attention.kernels.hopper.launch import has_backward
from quantattn.attention.kernels.launch import Problem


@pytest.mark.parametrize(
    ("shape", "sequences", "fills"),
    [
        ((1, 16384, 4, 64), None, True),
        ((16, 128, 4, 64), None, True),  # a block of 128 rows each
        ((16, 32, 4, 64), None, True),  # four times the rows
        ((16, 31, 4, 64), None, False),
        ((16, 16, 4, 128), None, True),  # blocks of 64 rows
        ((16, 15, 4, 128), None, False),
        ((1, 4096, 4, 64), 32, True),
        ((1, 4096, 4, 64), 96, True),
        ((1, 4096, 4, 64), 98, False),  # 32 + 97 tiles of 128 rows
    ],
)
def test_blocks_are_filled(shape: tuple[int, ...], sequences: int | None, fills: bool) -> None:
    q = torch.empty(shape, dtype=torch.bfloat16)
    cu = None if sequences is None else torch.zeros(sequences + 1, dtype=torch.int32)
    assert has_backward(q, Problem(1.0, None, None, cu, cu)) is fills
