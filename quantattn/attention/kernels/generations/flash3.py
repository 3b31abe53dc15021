"""FlashAttention-3's ideas as far as plain Triton goes: copies, products and exponentials that overlap.

Shah et al. 2024, "FlashAttention-3: Fast and Accurate Attention with Asynchrony and Low-precision". What it adds to
FlashAttention-2 is written for Hopper's asynchronous units:

- §3.1, a producer warp brings tiles with the copy engine while others compute. Here tiles come through descriptors,
  and the compiler keeps `num_stages` of them under way; no warp is set apart for it.
- §3.1 and §3.2, while one group of warps makes exponentials, the matrix units work for another, and within a group one
  product runs under the exponentials of the next block. Here a program holds two halves of queries: the product P V of
  the first is under way while the exponentials of the second are made. More cannot be said in plain Triton, which waits
  at once for a product Q Kᵀ, whose result is read; the tests read both off the machine code.
- §3.3, eight-bit operands: `float8.py`. It is another precision, outside the error budget of the inputs' own dtype.

A Hopper kernel of this library's own does not exist yet; what plain Triton leaves on the table is what it would be for.
"""

from __future__ import annotations

import triton
import triton.language as tl

from quantattn.attention.kernels.generations.call import Call, Shape, Traffic
from quantattn.attention.kernels.generations.flash2 import traffic as _traffic_of_flash2
from quantattn.attention.kernels.generations.step import (
    absorb,
    finish,
    hide,
    keys_of_tile,
    load_box,
    store_result,
)
from quantattn.attention.kernels.launch import describe


@triton.jit(do_not_specialize=["heads", "n_q", "n_k"])
def _flash3_fwd(
    q_src, k_src, v_src, out_ptr, lse_ptr, unit, heads, n_q, n_k,
    CAUSAL: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program a block of queries, in two halves a and b that never wait for each other."""
    HALF: tl.constexpr = BLOCK_M // 2
    batch = tl.program_id(1) // heads
    head = tl.program_id(1) % heads
    first = tl.program_id(0) * BLOCK_M
    second = first + HALF
    q_a = load_box(q_src, batch, head, first, D, HALF)
    q_b = load_box(q_src, batch, head, second, D, HALF)
    m_a = tl.full([HALF], float("-inf"), tl.float32)
    l_a = tl.zeros([HALF], tl.float32)
    u_a = tl.zeros([HALF, D], tl.float32)
    m_b, l_b, u_b = m_a, l_a, u_a
    full, seen = keys_of_tile(first, n_q, n_k, CAUSAL, BLOCK_M, BLOCK_N)
    for block in tl.range(0, seen, BLOCK_N):
        k = load_box(k_src, batch, head, block, D, BLOCK_N)
        s_a = tl.dot(q_a, k.T, input_precision=PRECISION)
        s_b = tl.dot(q_b, k.T, input_precision=PRECISION)
        if block >= full:
            s_a = hide(s_a, first, block, n_q, n_k, CAUSAL, HALF, BLOCK_N)
            s_b = hide(s_b, second, block, n_q, n_k, CAUSAL, HALF, BLOCK_N)
        v = load_box(v_src, batch, head, block, D, BLOCK_N)
        m_a, l_a, u_a = absorb(m_a, l_a, u_a, s_a, unit, v, PRECISION)
        m_b, l_b, u_b = absorb(m_b, l_b, u_b, s_b, unit, v, PRECISION)
    out, lse = finish(m_a, l_a, u_a)
    store_result(out_ptr, lse_ptr, out, lse, batch, head, first, n_q, heads, D, HALF)
    out, lse = finish(m_b, l_b, u_b)
    store_result(out_ptr, lse_ptr, out, lse, batch, head, second, n_q, heads, D, HALF)


def launch(call: Call) -> None:
    """Write out and lse; nothing else is allocated.

    Raises:
        ValueError: a block of queries that has no two halves of 16 rows.
    """
    d, blocks = call.q.shape[3], call.blocks
    if blocks.block_m % 32:
        raise ValueError(f"expected block_m a multiple of 32, got {blocks}")
    sizes = ((call.q, blocks.block_m // 2), (call.k, blocks.block_n), (call.v, blocks.block_n))
    _flash3_fwd[(call.tiles, call.pairs)](
        *(describe(x, rows, d) for x, rows in sizes), call.out, call.lse, call.unit, *call.sizes(),
        CAUSAL=call.causal, **call.constants(),
    )  # fmt: skip


def traffic(shape: Shape, block_m: int, block_n: int) -> Traffic:
    """As FlashAttention-2's."""
    return _traffic_of_flash2(shape, block_m, block_n)


def workspace(shape: Shape) -> int:
    """Bytes allocated beyond inputs and outputs: none."""
    return 0
