"""Standard attention: the N×N matrix goes through memory, three kernels, three round trips.

Dao et al. 2022, "FlashAttention", §2.2, algorithm 0: (1) S = Q Kᵀ is written, (2) S is read and P = softmax(S) written,
(3) P is read and O = P V written. S and P have the dtype of the inputs, as when the three lines are written in torch.
A causal mask saves nothing: hidden scores are computed, written and read as −inf.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from quantattn.attention.kernels.generations.call import Call, Moved, Shape, Traffic
from quantattn.attention.kernels.generations.step import hide, load_rows, pivot_of, rows
from quantattn.attention.kernels.primitives import LN2, LOG2E, exp2

LONGEST_ROW = 65_536
"""Keys of a row of scores that the softmax holds on chip at a time."""


@triton.jit
def matrix(ptr, pair, first, block, n_q, n_k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Pointers to a tile of a (B·H, Nq, Nk), and which of it exists."""
    query = first + tl.arange(0, BLOCK_M)[:, None]
    key = block + tl.arange(0, BLOCK_N)[None, :]
    return ptr + (tl.cast(pair, tl.int64) * n_q + query) * n_k + key, (query < n_q) & (key < n_k)


@triton.jit(do_not_specialize=["heads", "n_q", "n_k"])
def _standard_scores(
    q_ptr, k_ptr, s_ptr, scale, heads, n_q, n_k,
    CAUSAL: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """S = Q Kᵀ · scale, −inf where a key is hidden; one program a tile of S."""
    pair = tl.program_id(1)
    across = tl.cdiv(n_k, BLOCK_N)
    first = tl.program_id(0) // across * BLOCK_M
    block = tl.program_id(0) % across * BLOCK_N
    q = load_rows(q_ptr, pair // heads, pair % heads, first, n_q, heads, D, BLOCK_M)
    k = load_rows(k_ptr, pair // heads, pair % heads, block, n_k, heads, D, BLOCK_N)
    scores = tl.dot(q, k.T, input_precision=PRECISION) * scale
    scores = hide(scores, first, block, n_q, n_k, CAUSAL, BLOCK_M, BLOCK_N)
    where, inside = matrix(s_ptr, pair, first, block, n_q, n_k, BLOCK_M, BLOCK_N)
    tl.store(where, scores.to(s_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["n_q", "n_k"])
def _standard_softmax(s_ptr, p_ptr, lse_ptr, n_q, n_k, BLOCK: tl.constexpr):
    """P = softmax(S) and lse, one program a row; natural units in memory, base 2 on chip."""
    row = tl.cast(tl.program_id(1), tl.int64) * n_q + tl.program_id(0)
    key = tl.arange(0, BLOCK)
    s = tl.load(s_ptr + row * n_k + key, mask=key < n_k, other=float("-inf")).to(tl.float32) * LOG2E
    m = tl.max(s, 0)
    p = exp2(s - pivot_of(m))
    l = tl.sum(p, 0)
    mass = tl.where(l == 0.0, 1.0, l)
    tl.store(p_ptr + row * n_k + key, (p / mass).to(p_ptr.dtype.element_ty), mask=key < n_k)
    tl.store(lse_ptr + row, tl.where(l == 0.0, float("-inf"), (m + tl.log2(mass)) * LN2))


@triton.jit(do_not_specialize=["heads", "n_q", "n_k"])
def _standard_product(
    p_ptr, v_ptr, out_ptr, heads, n_q, n_k,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """O = P V, one program a tile of queries."""
    pair = tl.program_id(1)
    first = tl.program_id(0) * BLOCK_M
    o = tl.zeros([BLOCK_M, D], tl.float32)
    for block in tl.range(0, n_k, BLOCK_N):
        where, inside = matrix(p_ptr, pair, first, block, n_q, n_k, BLOCK_M, BLOCK_N)
        p = tl.load(where, mask=inside, other=0.0)
        v = load_rows(v_ptr, pair // heads, pair % heads, block, n_k, heads, D, BLOCK_N)
        o = tl.dot(p, v, o, input_precision=PRECISION)
    where, inside = rows(out_ptr, pair // heads, pair % heads, first, n_q, heads, D, BLOCK_M)
    tl.store(where, o.to(out_ptr.dtype.element_ty), mask=inside)


def launch(call: Call) -> None:
    """Write out and lse through S and P in memory.

    Raises:
        ValueError: a row of scores is longer than what the softmax holds on chip.
    """
    heads, n_q, n_k = call.sizes()
    if n_k > LONGEST_ROW:
        raise ValueError(f"standard attention holds rows of up to {LONGEST_ROW} scores here, got {n_k} keys")
    s, p = (torch.empty(call.pairs, n_q, n_k, dtype=call.q.dtype, device=call.q.device) for _ in range(2))
    constants, across = call.constants(), -(-n_k // call.blocks.block_n)
    _standard_scores[(call.tiles * across, call.pairs)](
        call.q, call.k, s, call.unit / LOG2E.value, heads, n_q, n_k, CAUSAL=call.causal, **constants
    )
    _standard_softmax[(n_q, call.pairs)](
        s, p, call.lse, n_q, n_k, BLOCK=triton.next_power_of_2(n_k), num_warps=8 if n_k > 2048 else 4
    )
    _standard_product[(call.tiles, call.pairs)](p, call.v, call.out, heads, n_q, n_k, **constants)


def traffic(shape: Shape, block_m: int, block_n: int) -> Traffic:
    """Each N×N matrix is written once and read once; q and k are read by every tile of S that they meet."""
    down, across = -(-shape.n_q // block_m), -(-shape.n_k // block_n)
    return {
        "q": Moved(across * shape.rows_of_queries(), 0),
        "k": Moved(down * shape.rows_of_keys(), 0),
        "v": Moved(down * shape.rows_of_keys(), 0),
        "s": Moved(shape.matrix(), shape.matrix()),
        "p": Moved(shape.matrix(), shape.matrix()),
        "out": Moved(0, shape.rows_of_queries()),
        "lse": Moved(0, shape.vector()),
    }


def workspace(shape: Shape) -> int:
    """Bytes allocated beyond inputs and outputs: S and P."""
    return 2 * shape.matrix()
