"""Few queries over many keys: the keys are cut into parts that run side by side, and their results are merged.

The length of a part is fixed, and whether a sequence is cut depends on its own lengths alone, so that the bits of its
result do not depend on the batch.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from quantattn.attention.kernels.configs import padded_head
from quantattn.attention.kernels.primitives import LN2, LOG2E, exp2

PART = 2048
"""Keys of a part; a multiple of every block of keys."""
FEW_QUERIES = 128
"""At most as many queries: one tile of them, so that the parts are what there is to share out."""


def count_parts(n_q: int, n_k: int) -> int:
    """Into how many parts the keys of sequences of these lengths are cut; 1 is not at all."""
    return -(-n_k // PART) if n_q <= FEW_QUERIES and n_k >= 2 * PART else 1


@triton.jit
def _merge_parts(
    outs_ptr, lses_ptr, out_ptr, lse_ptr, parts, n_q, heads, out_step, lse_step, D: tl.constexpr, BLOCK_D: tl.constexpr
):
    """One program a row and head: what its parts found, in their order. Steps are those from part to part."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    batch = row // n_q
    of_lse = (tl.cast(batch, tl.int64) * heads + head) * n_q + (row - batch * n_q)
    column = tl.arange(0, BLOCK_D)
    of_out = (tl.cast(row, tl.int64) * heads + head) * D + column
    largest = float("-inf")
    for part in range(parts):
        largest = tl.maximum(largest, tl.load(lses_ptr + tl.cast(part, tl.int64) * lse_step + of_lse))
    pivot = tl.where(largest == float("-inf"), 0.0, largest)
    mass = 0.0
    total = tl.zeros([BLOCK_D], tl.float32)
    for part in range(parts):
        lse = tl.load(lses_ptr + tl.cast(part, tl.int64) * lse_step + of_lse)
        weight = exp2((lse - pivot) * LOG2E)  # 0 for a part that saw nothing, whose output is 0
        mass += weight
        out = tl.load(outs_ptr + tl.cast(part, tl.int64) * out_step + of_out, mask=column < D, other=0.0)
        total += weight * out
    empty = mass == 0.0
    safe = tl.where(empty, 1.0, mass)
    tl.store(lse_ptr + of_lse, tl.where(empty, float("-inf"), pivot + tl.log2(safe) * LN2))
    tl.store(out_ptr + of_out, (total / safe).to(out_ptr.dtype.element_ty), mask=column < D)


def merge_parts(outs: Tensor, lses: Tensor, out: Tensor, lse: Tensor) -> None:
    """Write the results over all keys: (P, B, N, H, D) and (P, B, H, N) float32 → out (B, N, H, D), lse (B, H, N).

    All contiguous. A part weighs exp(its lse − the lse of all); parts are added in their order, one after the other, so
    that the bits of a row do not depend on how many rows there are (Milakov and Gimelshein 2018).
    """
    parts, batch, n_q, heads, d = outs.shape
    _merge_parts[(batch * n_q, heads)](
        outs, lses, out, lse, parts, n_q, heads, outs.stride(0), lses.stride(0), D=d, BLOCK_D=padded_head(d)
    )
