"""FlashAttention-4's ideas as far as they are portable: rescale rarely, exponentials on two units, long tiles first.

Zadouri et al. 2026, "FlashAttention-4: Algorithm and Kernel Pipelining Co-Design for Asymmetric Hardware Scaling"
(arXiv 2603.05451). On Blackwell the matrix units outgrew the unit that makes exponentials, so:

- **Conditional rescaling.** A state's reference is free: (m, l, u) and (m', l·2^(m − m'), u·2^(m − m')) describe the
  same keys. So m need not be the maximum; it is raised, and l and u are multiplied, only when a maximum has outgrown it
  by more than `THRESHOLD` (8: weights stay under 2⁸ = 256). The division at the end takes the factor out again: exact.
  The decision is one a tile here, so the last bits of a row may depend on the rows beside it in its sequence.
- **Exponentials on the multipliers.** A quarter of the weights is computed as 2^⌊x⌉ times a polynomial, on the
  units that multiply and add, while the special unit does the others. On Hopper this is no gain: issue slots are the
  limit there.
- **Longest tiles first.** Under a causal mask the last queries see the most keys; begun first, they do not finish last.

Forward only, as FlashAttention-4 was at launch: for serving. Its five-stage pipeline over tensor memory, its two-CTA
products and its 2 × 128 rows a program exist on Blackwell alone and are not here. This kernel compiles for sm_100 and
has never run there; on Hopper it runs the portable part.
"""

from __future__ import annotations

import triton
import triton.language as tl

from quantattn.attention.kernels.generations.call import Call, Shape, Traffic
from quantattn.attention.kernels.generations.flash2 import traffic as _traffic_of_flash2
from quantattn.attention.kernels.generations.step import (
    finish,
    hide,
    keys_of_tile,
    load_box,
    pivot_of,
    store_result,
)
from quantattn.attention.kernels.launch import describe
from quantattn.attention.kernels.primitives import exp2

THRESHOLD = 8.0
"""How far, in powers of two, a maximum may outgrow the reference before l and u are rescaled."""

C31, C32, C33 = tl.constexpr(0.69328293), tl.constexpr(0.24221096), tl.constexpr(0.05500894)
C51, C52, C53 = tl.constexpr(0.69314698), tl.constexpr(0.24022242), tl.constexpr(0.05550734)
C54, C55 = tl.constexpr(0.00967151), tl.constexpr(0.00132647)
RELATIVE_ERROR = {3: 1.02e-4, 5: 2.5e-7}
"""Degree of the polynomial → bound of |p(x) / 2^x − 1| in float32, which a test holds against the floats of [−1, 0]."""


@triton.jit
def exp2_polynomial(x, DEGREE: tl.constexpr):
    """2^x by multiplications and additions alone, for x < 127; results below 2⁻¹²⁶ are 0.

    x = n + f with n the nearest integer: adding 1.5 · 2²³ leaves n in the last bits of the sum, and shifting those into
    the place of the exponent is a multiplication by 2^n. On f in [−½, ½] the polynomial has the least relative error of
    its degree among those with p(0) = 1, so that the weight of the maximum itself is exactly 1.
    """
    x = tl.maximum(x, -127.0)
    shifted = x + 12582912.0
    f = x - (shifted - 12582912.0)
    if DEGREE == 3:
        p = C33 * f + C32
        p = p * f + C31
    else:
        p = C55 * f + C54
        p = p * f + C53
        p = p * f + C52
        p = p * f + C51
    p = p * f + 1.0
    power = (shifted.to(tl.int32, bitcast=True) + 127) << 23  # 0.0 where n = −127
    return p * power.to(tl.float32, bitcast=True)


@triton.jit
def exp2_on_two_units(x, DEGREE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """2^x for x [BLOCK_M, BLOCK_N]: columns 0 … 7 of every 32 by the polynomial, the others by the special unit."""
    groups = tl.permute(tl.reshape(x, [BLOCK_M, BLOCK_N // 32, 2, 2, 8]), [0, 1, 4, 2, 3])
    even, odd = tl.split(groups)
    first, third = tl.split(even)
    even = tl.join(exp2_polynomial(first, DEGREE), exp2(third))
    return tl.reshape(tl.permute(tl.join(even, exp2(odd)), [0, 1, 3, 4, 2]), [BLOCK_M, BLOCK_N])


@triton.jit
def absorb_past(
    m, l, u, scores, unit, v,
    THRESHOLD: tl.constexpr, DEGREE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """`absorb`, where the reference stays as long as no row of the tile has outgrown it by more than THRESHOLD."""
    raised = tl.maximum(m, tl.max(scores, 1) * unit)
    if tl.max((raised - m > THRESHOLD).to(tl.int32), 0) > 0:  # −inf − (−inf) compares as no growth
        shrink = exp2(m - pivot_of(raised))
        l = l * shrink
        u = u * shrink[:, None]
        m = raised
    x = scores * unit - pivot_of(m)[:, None]
    if DEGREE == 0:
        p = exp2(x)
    else:
        p = exp2_on_two_units(x, DEGREE, BLOCK_M, BLOCK_N)
    l += tl.sum(p, 1)
    u = tl.dot(p.to(v.dtype), v, u, input_precision=PRECISION)
    return m, l, u


@triton.jit(do_not_specialize=["heads", "n_q", "n_k"])
def _flash4_fwd(
    q_src, k_src, v_src, out_ptr, lse_ptr, unit, heads, n_q, n_k,
    CAUSAL: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
    THRESHOLD: tl.constexpr, DEGREE: tl.constexpr,
):  # fmt: skip
    """One program a block of queries, the one that sees most first."""
    batch = tl.program_id(1) // heads
    head = tl.program_id(1) % heads
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M
    q = load_box(q_src, batch, head, first, D, BLOCK_M)
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    u = tl.zeros([BLOCK_M, D], tl.float32)
    full, seen = keys_of_tile(first, n_q, n_k, CAUSAL, BLOCK_M, BLOCK_N)
    for block in tl.range(0, seen, BLOCK_N):
        k = load_box(k_src, batch, head, block, D, BLOCK_N)
        scores = tl.dot(q, k.T, input_precision=PRECISION)
        if block >= full:
            scores = hide(scores, first, block, n_q, n_k, CAUSAL, BLOCK_M, BLOCK_N)
        v = load_box(v_src, batch, head, block, D, BLOCK_N)
        m, l, u = absorb_past(m, l, u, scores, unit, v, THRESHOLD, DEGREE, BLOCK_M, BLOCK_N, PRECISION)
    out, lse = finish(m, l, u)
    store_result(out_ptr, lse_ptr, out, lse, batch, head, first, n_q, heads, D, BLOCK_M)


def launch(call: Call, threshold: float = THRESHOLD, degree: int | None = None) -> None:
    """Write out and lse; nothing else is allocated.

    Args:
        call: the problem.
        threshold: see `THRESHOLD`; 0 rescales whenever a maximum grows.
        degree: of the polynomial, 3 or 5; 0 leaves every exponential to the special unit. None takes 3 where weights
            are rounded to 16 bits, whose own error is 4 times as large at least, and 5 for float32.

    Raises:
        ValueError: blocks of keys that are no multiple of 32 with a polynomial, or a threshold outside 0 … 15.
    """
    if degree is None:
        degree = 3 if call.q.element_size() == 2 else 5
    if degree not in (0, 3, 5) or (degree and call.blocks.block_n % 32):
        raise ValueError(f"expected degree 0, or 3 or 5 with block_n a multiple of 32, got {degree} and {call.blocks}")
    if not 0 <= threshold <= 15:  # float16 holds weights up to 2^15
        raise ValueError(f"threshold must be from 0 to 15 powers of two, got {threshold}")
    d, blocks = call.q.shape[3], call.blocks
    sizes = ((call.q, blocks.block_m), (call.k, blocks.block_n), (call.v, blocks.block_n))
    _flash4_fwd[(call.tiles, call.pairs)](
        *(describe(x, rows, d) for x, rows in sizes), call.out, call.lse, call.unit, *call.sizes(),
        CAUSAL=call.causal, THRESHOLD=threshold, DEGREE=degree, **call.constants(),
    )  # fmt: skip


def traffic(shape: Shape, block_m: int, block_n: int) -> Traffic:
    """As FlashAttention-2's."""
    return _traffic_of_flash2(shape, block_m, block_n)


def workspace(shape: Shape) -> int:
    """Bytes allocated beyond inputs and outputs: none."""
    return 0
