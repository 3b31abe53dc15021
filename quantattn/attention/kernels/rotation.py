"""Rotary positions, between what a projection gives and what attention takes: one pass over memory each way."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from quantattn.attention.kernels.primitives import INTERPRETED

_ROWS = 4 if INTERPRETED else 32
"""Rows a program: a thread holds 128 bits of each half of a head, and 32 numbers of the table for all its heads."""


@triton.jit(do_not_specialize=["rows"])
def _rotate_heads(
    whole_ptr, q_ptr, k_ptr, v_ptr, cos_ptr, sin_ptr, rows, heads, kv_heads,
    D: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    """One program some rows of q, of k or of v: from `whole` (T, H + 2 Hkv, D) to them, or BACK, by the transpose."""
    kind = tl.program_id(1)
    if kind == 0:
        part_ptr, count, begin = q_ptr, heads, 0
    elif kind == 1:
        part_ptr, count, begin = k_ptr, kv_heads, heads
    else:
        part_ptr, count, begin = v_ptr, kv_heads, heads + kv_heads
    row = tl.cast(tl.program_id(0), tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, HALF)
    inside = (row < rows)[:, None] & (column < D // 2)[None, :]
    of_whole = ((row * (heads + 2 * kv_heads) + begin) * D)[:, None] + column[None, :]
    of_part = (row * count * D)[:, None] + column[None, :]
    from_ptr, to_ptr = (
        (part_ptr + of_part, whole_ptr + of_whole) if BACK else (whole_ptr + of_whole, part_ptr + of_part)
    )
    if kind == 2:
        for _ in range(count):
            x = tl.load(from_ptr, mask=inside)
            y = tl.load(from_ptr + D // 2, mask=inside)
            tl.store(to_ptr, x, mask=inside)
            tl.store(to_ptr + D // 2, y, mask=inside)
            from_ptr += D
            to_ptr += D
    else:
        of_table = (row * D)[:, None] + column[None, :]
        cos_x = tl.load(cos_ptr + of_table, mask=inside)
        cos_y = tl.load(cos_ptr + of_table + D // 2, mask=inside)
        sin_x = tl.load(sin_ptr + of_table, mask=inside)
        sin_y = tl.load(sin_ptr + of_table + D // 2, mask=inside)
        if BACK:
            sin_x, sin_y = sin_y, sin_x
        for _ in range(count):
            x = tl.load(from_ptr, mask=inside).to(tl.float32)
            y = tl.load(from_ptr + D // 2, mask=inside).to(tl.float32)
            tl.store(to_ptr, (x * cos_x + y * sin_x).to(to_ptr.dtype.element_ty), mask=inside)
            tl.store(to_ptr + D // 2, (y * cos_y + x * sin_y).to(to_ptr.dtype.element_ty), mask=inside)
            from_ptr += D
            to_ptr += D


def launch_rotation(
    whole: Tensor, q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, *, back: bool = False
) -> None:
    """Write q (T, H, D), k and v (T, Hkv, D) from `whole` (T, H + 2 Hkv, D); back, `whole` from their gradients.

    All contiguous and of one dtype of at most 32 bits; cos and sin (T, 1, D) float32, as `attention.rotation` has them.
    """
    rows, heads, d = q.shape
    if rows:
        _rotate_heads[(triton.cdiv(rows, _ROWS), 3)](
            whole, q, k, v, cos, sin, rows, heads, k.shape[1],
            D=d, HALF=triton.next_power_of_2(d // 2), ROWS=_ROWS, BACK=back, num_warps=4,
        )  # fmt: skip
