"""What the backward on sm_90 does before and after: numbers of the rows, and dq from its sums."""

from __future__ import annotations

import triton
import triton.language as tl

from quantattn.attention.kernels.backward import base2_lse
from quantattn.attention.kernels.primitives import locate


@triton.jit(do_not_specialize=["n_sequences", "n_q", "tiles_q", "slots"])
def _attention_bwd_prepare(
    q_ptr, do_ptr, out_ptr, lse_ptr, dlse_ptr, lse2_ptr, delta_ptr, counters_ptr, tickets_ptr, cu_q_ptr,
    n_sequences, n_q, tiles_q, slots, q_strides, do_strides, out_strides, lse_strides, dlse_strides,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, COUNTERS: tl.constexpr,
):  # fmt: skip
    """Numbers of the rows of a tile, in a workspace whose tiles belong to one sequence each: lse in base 2 and delta =
    rowsum(do ∘ out) − dlse. Rows without weights, and beyond the end, have lse +inf and delta 0; rows whose q, do or
    results are not finite have lse NaN and delta 0. Counters and tickets begin at 0.
    """
    tile = tl.program_id(0)
    head = tl.program_id(1)
    slot = head * tiles_q + tile
    for i in tl.static_range(COUNTERS):
        tl.store(counters_ptr + i * slots + slot, 0)
    if slot == 0:
        tl.store(tickets_ptr, 0)
    batch, _, first, start, n, _, _ = locate(tile, cu_q_ptr, cu_q_ptr, n_sequences, n_q, n_q, BLOCK_M)
    row = first + tl.arange(0, BLOCK_M)
    inside = row < n
    at = (start + row).to(tl.int64)
    column = tl.arange(0, BLOCK_D)
    entries = inside[:, None] & (column < D)[None, :]
    base = tl.cast(batch, tl.int64)
    of_lse = base * lse_strides.b + tl.cast(head, tl.int64) * lse_strides.h + at
    lse = tl.load(lse_ptr + of_lse, mask=inside, other=float("-inf"))
    of_do = base * do_strides.b + tl.cast(head, tl.int64) * do_strides.h + at * do_strides.n
    do = tl.load(do_ptr + of_do[:, None] + column[None, :], mask=entries, other=0.0).to(tl.float32)
    of_out = base * out_strides.b + tl.cast(head, tl.int64) * out_strides.h + at * out_strides.n
    out = tl.load(out_ptr + of_out[:, None] + column[None, :], mask=entries, other=0.0).to(tl.float32)
    delta = tl.sum(out * do, 1)
    if dlse_ptr is not None:
        of_dlse = base * dlse_strides.b + tl.cast(head, tl.int64) * dlse_strides.h + at * dlse_strides.n
        delta -= tl.load(dlse_ptr + of_dlse, mask=inside, other=0.0).to(tl.float32)
    empty = lse == float("-inf")
    # A row that sees nothing shows only here, by NaN or by 0, whether its q and do are finite.
    of_q = base * q_strides.b + tl.cast(head, tl.int64) * q_strides.h + at * q_strides.n
    q = tl.load(q_ptr + of_q[:, None] + column[None, :], mask=entries & empty[:, None], other=0.0).to(tl.float32)
    delta = tl.where(empty, (tl.sum(q, 1) + tl.sum(do, 1)) * 0.0, delta)
    sound = (lse < float("inf")) & (tl.abs(delta) < float("inf"))
    to = tl.cast(slot, tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    tl.store(lse2_ptr + to, tl.where(sound, base2_lse(lse), float("nan")))
    tl.store(delta_ptr + to, tl.where(sound & (lse > float("-inf")), delta, 0.0))


@triton.jit(do_not_specialize=["n_sequences", "n_q", "tiles_q", "slots"])
def _attention_bwd_finish(
    sums_ptr, counters_ptr, dq_ptr, cu_q_ptr, scale, n_sequences, n_q, tiles_q, slots, dq_strides,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, COUNTERS: tl.constexpr,
):  # fmt: skip
    """Dq of a tile of queries from its sums, those that anybody began (COUNTERS of them; 0: one that began at 0)."""
    tile = tl.program_id(0)
    head = tl.program_id(1)
    batch, _, first, start, n, _, _ = locate(tile, cu_q_ptr, cu_q_ptr, n_sequences, n_q, n_q, BLOCK_M)
    if first >= n:
        return
    slot = head * tiles_q + tile
    column = tl.arange(0, BLOCK_D)
    row = tl.arange(0, BLOCK_M)
    number = tl.arange(0, BLOCK_M * BLOCK_D)
    if COUNTERS == 0:
        held = tl.load(sums_ptr + tl.cast(slot, tl.int64) * (BLOCK_M * BLOCK_D) + number)
    else:
        held = tl.zeros([BLOCK_M * BLOCK_D], tl.float32)
        for i in tl.static_range(COUNTERS):
            there = tl.where(tl.load(counters_ptr + i * slots + slot) > 0, BLOCK_M * BLOCK_D, 0)
            where = tl.cast(slot + i * slots, tl.int64) * (BLOCK_M * BLOCK_D) + number
            held += tl.load(sums_ptr + where, mask=number < there, other=0.0)
    # Two tiles in the order of `AS_HELD`: of columns by eights, warps, rows, columns by pairs, rows by eights, columns.
    held = held.reshape(2, 8, 4, 8, 4, 2, 2)
    if BLOCK_M == 64:  # side by side
        dq = held.permute(2, 5, 3, 0, 1, 4, 6).reshape(BLOCK_M, BLOCK_D)
    else:  # one below the other
        dq = held.permute(0, 2, 5, 3, 1, 4, 6).reshape(BLOCK_M, BLOCK_D)
    of_dq = (
        tl.cast(batch, tl.int64) * dq_strides.b
        + tl.cast(head, tl.int64) * dq_strides.h
        + (start + first + row).to(tl.int64) * dq_strides.n
    )
    stored = (first + row < n)[:, None] & (column < D)[None, :]
    tl.store(dq_ptr + of_dq[:, None] + column[None, :], (dq * scale).to(dq_ptr.dtype.element_ty), mask=stored)
