"""FlashAttention-2: queries in parallel, keys in the inner loop, one division at the end, hidden blocks skipped.

Dao 2023, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", §3.1, algorithm 1, and
§3.2. With the loops exchanged a program owns a block of queries, its state (m, l, u) never leaves the chip, and the
output is written once. Line 10 keeps O unscaled (here: u), line 12 divides by ℓ once. Of a causal mask only the blocks
that the diagonal cuts are masked; those beyond it are not visited (§3.1, "causal masking").

`kernels/forward.py`, which the library uses, is this scheme with packs, windows, biases and grouped heads.
"""

from __future__ import annotations

import triton
import triton.language as tl

from quantattn.attention.kernels.generations.call import Call, Moved, Shape, Traffic
from quantattn.attention.kernels.generations.step import (
    absorb,
    finish,
    hide,
    keys_of_tile,
    load_rows,
    store_result,
)


@triton.jit
def absorb_keys(
    m, l, u, q, k_ptr, v_ptr, start, stop, first, batch, head, unit, heads, n_q, n_k,
    CAUSAL: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Take up the keys start … stop, block by block (lines 6–11)."""
    for block in tl.range(start, stop, BLOCK_N):
        k = load_rows(k_ptr, batch, head, block, n_k, heads, D, BLOCK_N)
        scores = tl.dot(q, k.T, input_precision=PRECISION)
        if MASKED:
            scores = hide(scores, first, block, n_q, n_k, CAUSAL, BLOCK_M, BLOCK_N)
        v = load_rows(v_ptr, batch, head, block, n_k, heads, D, BLOCK_N)
        m, l, u = absorb(m, l, u, scores, unit, v, PRECISION)
    return m, l, u


@triton.jit(do_not_specialize=["heads", "n_q", "n_k"])
def _flash2_fwd(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, unit, heads, n_q, n_k,
    CAUSAL: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program a block of queries of a sequence and head."""
    batch = tl.program_id(1) // heads
    head = tl.program_id(1) % heads
    first = tl.program_id(0) * BLOCK_M
    q = load_rows(q_ptr, batch, head, first, n_q, heads, D, BLOCK_M)
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    u = tl.zeros([BLOCK_M, D], tl.float32)
    full, seen = keys_of_tile(first, n_q, n_k, CAUSAL, BLOCK_M, BLOCK_N)
    m, l, u = absorb_keys(m, l, u, q, k_ptr, v_ptr, 0, full, first, batch, head, unit, heads, n_q, n_k,
                          CAUSAL, D, BLOCK_M, BLOCK_N, PRECISION, False)  # fmt: skip
    m, l, u = absorb_keys(m, l, u, q, k_ptr, v_ptr, full, seen, first, batch, head, unit, heads, n_q, n_k,
                          CAUSAL, D, BLOCK_M, BLOCK_N, PRECISION, True)  # fmt: skip
    out, lse = finish(m, l, u)
    store_result(out_ptr, lse_ptr, out, lse, batch, head, first, n_q, heads, D, BLOCK_M)


def launch(call: Call) -> None:
    """Write out and lse; nothing else is allocated."""
    _flash2_fwd[(call.tiles, call.pairs)](
        call.q, call.k, call.v, call.out, call.lse, call.unit, *call.sizes(), CAUSAL=call.causal, **call.constants()
    )


def traffic(shape: Shape, block_m: int, block_n: int) -> Traffic:
    """q, out and lse pass once; k and v are read by every block of queries that sees them."""
    keys = shape.key_rows_read(block_m, block_n)
    return {
        "q": Moved(shape.rows_of_queries(), 0),
        "k": Moved(keys, 0),
        "v": Moved(keys, 0),
        "out": Moved(0, shape.rows_of_queries()),
        "lse": Moved(0, shape.vector()),
    }


def workspace(shape: Shape) -> int:
    """Bytes allocated beyond inputs and outputs: none."""
    return 0
