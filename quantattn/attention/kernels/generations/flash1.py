"""FlashAttention-1: the N×N matrix stays on chip; keys in the outer loop, outputs go back to memory at every step.

Dao et al. 2022, "FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness", §3.1, algorithm 1. One
program does one sequence and head. It takes a block of K and V on chip (line 6) and passes all blocks of queries by it
(line 7): each brings its O_i, ℓ_i, m_i from memory (line 8), takes up the block (lines 9–11) and goes back normalised
(lines 12–13). In the letters used here line 12 is

    u = O_i · l        (m, l, u) ⊕ block        O_i = u / l

so O_i is rescaled, divided and written Nk / BLOCK_N times. It is kept in float32 until the last block; rounding it to
16 bits at every step would add up. As in algorithm 1, every pair of blocks is visited, also those above the diagonal
of a causal mask, and only sequences and heads run in parallel.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from quantattn.attention.kernels.generations.call import Call, Moved, Shape, Traffic
from quantattn.attention.kernels.generations.step import (
    absorb,
    finish,
    hide,
    load_rows,
    rows,
    store_result,
    vector,
)


@triton.jit(do_not_specialize=["heads", "n_q", "n_k"])
def _flash1_fwd(
    q_ptr, k_ptr, v_ptr, o_ptr, m_ptr, l_ptr, out_ptr, lse_ptr, unit, heads, n_q, n_k,
    CAUSAL: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program a sequence and head; o_ptr (B, N, H, D), m_ptr and l_ptr (B, H, N) float32 hold the state."""
    batch = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    for block in tl.range(0, n_k, BLOCK_N, num_stages=1):
        k = load_rows(k_ptr, batch, head, block, n_k, heads, D, BLOCK_N)
        v = load_rows(v_ptr, batch, head, block, n_k, heads, D, BLOCK_N)
        begun = block > 0  # before that the state is (−inf, 0, 0) and nothing is read
        last = block + BLOCK_N >= n_k
        for first in tl.range(0, n_q, BLOCK_M, num_stages=1):
            q = load_rows(q_ptr, batch, head, first, n_q, heads, D, BLOCK_M)
            o_at, inside = rows(o_ptr, batch, head, first, n_q, heads, D, BLOCK_M)
            m_at, exists = vector(m_ptr, batch, head, first, n_q, heads, BLOCK_M)
            l_at, exists = vector(l_ptr, batch, head, first, n_q, heads, BLOCK_M)
            o = tl.load(o_at, mask=inside & begun, other=0.0)
            m = tl.load(m_at, mask=exists & begun, other=float("-inf"))
            l = tl.load(l_at, mask=exists & begun, other=0.0)

            scores = tl.dot(q, k.T, input_precision=PRECISION)
            scores = hide(scores, first, block, n_q, n_k, CAUSAL, BLOCK_M, BLOCK_N)
            m, l, u = absorb(m, l, o * l[:, None], scores, unit, v, PRECISION)
            o, lse = finish(m, l, u)

            if last:
                store_result(out_ptr, lse_ptr, o, lse, batch, head, first, n_q, heads, D, BLOCK_M)
            else:
                tl.store(o_at, o, mask=inside)
                tl.store(m_at, m, mask=exists)
                tl.store(l_at, l, mask=exists)
        tl.debug_barrier()  # the next block of keys reads what other threads of this program wrote


def launch(call: Call) -> None:
    """Write out and lse; the state of every query lives in memory between blocks of keys."""
    o = torch.empty(call.q.shape, dtype=torch.float32, device=call.q.device)
    m, l = torch.empty_like(call.lse), torch.empty_like(call.lse)
    _flash1_fwd[(call.pairs,)](
        call.q, call.k, call.v, o, m, l, call.out, call.lse, call.unit, *call.sizes(),
        CAUSAL=call.causal, **call.constants() | {"num_stages": 1},
    )  # fmt: skip


def traffic(shape: Shape, block_m: int, block_n: int) -> Traffic:
    """Keys and values are read once, q at every step, and the state goes out and comes back between steps."""
    steps = -(-shape.n_k // block_n)
    state, line = (steps - 1) * shape.rows_of_queries(4), (steps - 1) * shape.vector()
    return {
        "q": Moved(steps * shape.rows_of_queries(), 0),
        "k": Moved(shape.rows_of_keys(), 0),
        "v": Moved(shape.rows_of_keys(), 0),
        "o": Moved(state, state),
        "m": Moved(line, line),
        "l": Moved(line, line),
        "out": Moved(0, shape.rows_of_queries()),
        "lse": Moved(0, shape.vector()),
    }


def workspace(shape: Shape) -> int:
    """Bytes allocated beyond inputs and outputs: O in float32, m and l."""
    return shape.rows_of_queries(4) + 2 * shape.vector()
