"""Few queries over many keys: the keys are cut into parts that run side by side, and their results are merged.

The length of a part is fixed, and whether a sequence is cut depends on its own lengths alone, so that the bits of its
result do not depend on the batch.
"""

from __future__ import annotations

from dataclasses import replace

import triton
import triton.language as tl
from torch import Tensor

from quantattn.attention.kernels.configs import Config, padded_head
from quantattn.attention.kernels.primitives import LN2, LOG2E, exp2

PART = 2048
"""Keys of a part; a multiple of every block of keys."""
_AT_ONCE = 16
FEW_QUERIES = 128
"""At most as many queries: one tile of them, so that the parts are what there is to share out."""


def count_parts(n_q: int, n_k: int) -> int:
    """Into how many parts the keys of sequences of these lengths are cut; 1 is not at all."""
    return -(-n_k // PART) if n_q <= FEW_QUERIES and n_k >= 2 * PART else 1


def config_of(n_q: int, config: Config) -> Config:
    """The forward's configuration where keys are cut: rows of a tile beyond the queries would be multiplied for
    nothing, half of its threads hold half of the rows, and there is room for another stage.
    """
    if n_q <= 64 < config.block_m:
        return replace(config, block_m=64, num_warps=max(4, config.num_warps // 2), num_stages=config.num_stages + 1)
    return config


def heads_to_rows(q: Tensor, heads_k: int) -> Tensor:
    """(B, N, H, D) → (B, N · H / Hkv, Hkv, D): the queries of all heads that share keys, side by side."""
    return q.unflatten(2, (heads_k, -1)).transpose(2, 3).flatten(1, 2)  # type: ignore[no-any-return]


def rows_to_heads(out: Tensor, lse: Tensor, n_q: int) -> tuple[Tensor, Tensor]:
    """The way back of out (B, N · H / Hkv, Hkv, D) and lse (B, Hkv, N · H / Hkv): (B, N, H, D) and (B, H, N)."""
    rows = out.unflatten(1, (n_q, -1)).transpose(2, 3).flatten(2, 3)
    return rows, lse.unflatten(2, (n_q, -1)).transpose(2, 3).flatten(1, 2)


@triton.jit
def _merge_parts(
    outs_ptr, lses_ptr, out_ptr, lse_ptr, parts, n_q, heads, out_step, lse_step,
    D: tl.constexpr, BLOCK_D: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """One program a row and head: what its parts found, some at a time. Steps are those from part to part."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    batch = row // n_q
    of_lse = (tl.cast(batch, tl.int64) * heads + head) * n_q + (row - batch * n_q)
    column = tl.arange(0, BLOCK_D)
    of_out = (tl.cast(row, tl.int64) * heads + head) * D + column
    largest = tl.full([AT_ONCE], float("-inf"), tl.float32)
    for first in range(0, parts, AT_ONCE):
        part = first + tl.arange(0, AT_ONCE)
        where = part.to(tl.int64) * lse_step + of_lse
        largest = tl.maximum(largest, tl.load(lses_ptr + where, mask=part < parts, other=float("-inf")))
    pivot = tl.max(largest, 0)
    pivot = tl.where(pivot == float("-inf"), 0.0, pivot)
    mass = tl.zeros([AT_ONCE], tl.float32)
    total = tl.zeros([AT_ONCE, BLOCK_D], tl.float32)
    for first in range(0, parts, AT_ONCE):
        part = first + tl.arange(0, AT_ONCE)
        where = part.to(tl.int64) * lse_step + of_lse
        lse = tl.load(lses_ptr + where, mask=part < parts, other=float("-inf"))
        weight = exp2((lse - pivot) * LOG2E)  # 0 for a part that saw nothing, whose output is 0
        mass += weight
        inside = (part < parts)[:, None] & (column < D)[None, :]
        where = part.to(tl.int64)[:, None] * out_step + of_out[None, :]
        total += weight[:, None] * tl.load(outs_ptr + where, mask=inside, other=0.0)
    mass = tl.sum(mass, 0)
    empty = mass == 0.0
    safe = tl.where(empty, 1.0, mass)
    tl.store(lse_ptr + of_lse, tl.where(empty, float("-inf"), pivot + tl.log2(safe) * LN2))
    tl.store(out_ptr + of_out, (tl.sum(total, 0) / safe).to(out_ptr.dtype.element_ty), mask=column < D)


def merge_parts(outs: Tensor, lses: Tensor, out: Tensor, lse: Tensor) -> None:
    """Write the results over all keys: (P, B, N, H, D) and (P, B, H, N) float32 → out (B, N, H, D), lse (B, H, N).

    All contiguous. A part weighs exp(its lse − the lse of all); the order in which parts are added depends on their
    number alone, so that the bits of a row do not depend on how many rows there are (Milakov and Gimelshein 2018).
    """
    parts, batch, n_q, heads, d = outs.shape
    _merge_parts[(batch * n_q, heads)](
        outs, lses, out, lse, parts, n_q, heads, outs.stride(0), lses.stride(0),
        D=d, BLOCK_D=padded_head(d), AT_ONCE=_AT_ONCE,
    )  # fmt: skip
