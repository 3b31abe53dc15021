"""What the generations share: where rows lie, who sees whom, one step of the online softmax, the division at the end.

Tensors are contiguous: q, k, v, out (B, N, H, D), and vectors (B, H, N) float32. A mask is causal or absent; query i
stands beside key i + Nk − Nq. Scores inside are q·k; `unit` = scale · log₂ e turns them into base 2.
"""

from __future__ import annotations

import triton
import triton.language as tl

from quantattn.attention.kernels.primitives import INTERPRETED, LN2, exp2


@triton.jit
def rows(ptr, batch, head, first, n, heads, D: tl.constexpr, BLOCK: tl.constexpr):
    """Pointers [BLOCK, D] to rows first … of one head of a (B, N, H, D), and which of them exist [BLOCK, 1]."""
    row = first + tl.arange(0, BLOCK)
    place = (tl.cast(batch, tl.int64) * n + row) * heads + head
    return ptr + place[:, None] * D + tl.arange(0, D)[None, :], (row < n)[:, None]


@triton.jit
def load_rows(ptr, batch, head, first, n, heads, D: tl.constexpr, BLOCK: tl.constexpr):
    """The rows themselves, 0 beyond the end."""
    where, inside = rows(ptr, batch, head, first, n, heads, D, BLOCK)
    return tl.load(where, mask=inside, other=0.0)


@triton.jit
def load_box(source, batch, head, first, D: tl.constexpr, BLOCK: tl.constexpr):
    """The same through a descriptor over (B, H, N, D): on Hopper and later the copy engine brings the tile."""
    return source.load([batch, head, first, 0]).reshape([BLOCK, D])


@triton.jit
def vector(ptr, batch, head, first, n, heads, BLOCK: tl.constexpr):
    """Pointers [BLOCK] into a (B, H, N), and which of them exist."""
    row = first + tl.arange(0, BLOCK)
    return ptr + (tl.cast(batch, tl.int64) * heads + head) * n + row, row < n


@triton.jit
def hide(scores, first, block, n_q, n_k, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Scores [BLOCK_M, BLOCK_N] with −inf where query first + i does not see key block + j."""
    key = block + tl.arange(0, BLOCK_N)
    seen = (key < n_k)[None, :]
    if CAUSAL:
        query = first + tl.arange(0, BLOCK_M)
        seen = seen & (key[None, :] <= query[:, None] + (n_k - n_q))
    return tl.where(seen, scores, float("-inf"))


@triton.jit
def keys_of_tile(first, n_q, n_k, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """(full, seen): every query of the tile sees the keys below `full`, none sees a key from `seen` on.

    `full` is a multiple of BLOCK_N, so the blocks below it need no mask, and those from `seen` on need no visit.
    """
    full = n_k
    seen = n_k
    if CAUSAL:
        last = tl.minimum(first + BLOCK_M, n_q) - 1
        full = tl.minimum(tl.maximum(first + (n_k - n_q) + 1, 0), n_k)
        seen = tl.minimum(tl.maximum(last + (n_k - n_q) + 1, 0), n_k)
    return full // BLOCK_N * BLOCK_N, seen


@triton.jit
def pivot_of(m):
    """The reference, with 0 where nothing was seen: −inf − (−inf) is not a number."""
    return tl.where(m == float("-inf"), 0.0, m)


if INTERPRETED:  # whose own conversion to float8 rounds wrongly below 2⁻⁶ and just under a power of two

    @triton.jit
    def narrow(p, dtype: tl.constexpr):
        """Weights ≥ 0 to the nearest `dtype`; for float8 the bits are rounded here, ties to even."""
        if dtype == tl.float8e4nv:
            bits = p.to(tl.int32, bitcast=True)
            rounded = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000).to(tl.float32, bitcast=True)
            # Under 2⁻⁶ a unit is 2⁻⁹, that of a float32 at 2¹⁴.
            p = tl.where(p < 0.015625, (p + 16384.0) - 16384.0, rounded)
        return p.to(dtype)
else:

    @triton.jit
    def narrow(p, dtype: tl.constexpr):
        """Weights to the nearest `dtype`."""
        return p.to(dtype)


@triton.jit
def absorb(m, l, u, scores, unit, v, PRECISION: tl.constexpr, BELOW: tl.constexpr = 0, SUMMED: tl.constexpr = None):
    """(m, l, u) ⊕ a block: raise the reference to the maximum of both, bring l and u to it, add.

    m, l [BLOCK_M], u [BLOCK_M, D], scores [BLOCK_M, BLOCK_N], v [BLOCK_N, D]; m in base 2. A reference is free: with
    BELOW it stands so many powers of two under the maximum, and weights go up to 2^BELOW. SUMMED: after how many keys
    a product of float8 goes from the matrix unit, which keeps fewer bits, to sums in float32.
    """
    raised = tl.maximum(m, tl.max(scores, 1) * unit - BELOW)
    pivot = pivot_of(raised)
    p = exp2(scores * unit - pivot[:, None])
    shrink = exp2(m - pivot)
    l = l * shrink + tl.sum(p, 1)
    u = tl.dot(narrow(p, v.dtype), v, u * shrink[:, None], input_precision=PRECISION, max_num_imprecise_acc=SUMMED)
    return raised, l, u


@triton.jit
def finish(m, l, u):
    """Out = u / l and lse = m + ln l in natural units; 0 and −inf for a row that saw nothing."""
    empty = l == 0.0
    mass = tl.where(empty, 1.0, l)
    return u / mass[:, None], tl.where(empty, float("-inf"), (m + tl.log2(mass)) * LN2)


@triton.jit
def store_result(
    out_ptr, lse_ptr, out, lse, batch, head, first, n_q, heads, D: tl.constexpr, BLOCK_M: tl.constexpr
):  # fmt: skip
    """Write a tile of out, rounded once, and its lse."""
    where, inside = rows(out_ptr, batch, head, first, n_q, heads, D, BLOCK_M)
    tl.store(where, out.to(out_ptr.dtype.element_ty), mask=inside)
    where, inside = vector(lse_ptr, batch, head, first, n_q, heads, BLOCK_M)
    tl.store(where, lse, mask=inside)
