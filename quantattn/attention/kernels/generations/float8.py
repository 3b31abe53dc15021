"""FlashAttention-3's eight-bit path: float8 e4m3 operands and a scale a block, around the same step.

Shah et al. 2024, §3.3. What is rounded and how, and the rotation before it, stand in `quantattn/attention/float8.py`,
whose kernel this is. Here scales come back in: those of a block of q and of k as factors of the scores' unit, that of v
at the end. Weights are rounded too, on a reference 2⁸ below the running maximum, so that few of them fall under e4m3's
smallest number. The state algebra does not care: the step is `absorb`.

Hopper's matrix units add products of float8 in fewer bits than float32 has. Over a whole row of keys that would be
seen; each block's product is therefore added to u in float32.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from quantattn.attention.float8 import BELOW, ROWS_K, ROWS_Q
from quantattn.attention.kernels.configs import Config
from quantattn.attention.kernels.generations.call import Call
from quantattn.attention.kernels.generations.step import absorb, finish, hide, keys_of_tile, load_box, store_result
from quantattn.attention.kernels.launch import describe
from quantattn.attention.state import Attended

BLOCKS = Config(ROWS_Q, ROWS_K, 8, 2)
"""Its tiles are the blocks that share a scale."""


@triton.jit(do_not_specialize=["heads", "n_q", "n_k"])
def _float8_fwd(
    q_src, k_src, v_src, q_scale_ptr, k_scale_ptr, v_scale_ptr, out_ptr, lse_ptr, unit, heads, n_q, n_k,
    CAUSAL: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
    BELOW: tl.constexpr,
):  # fmt: skip
    """One program a block of queries; scales are (B, H, blocks) of q and k and (B, H) of v."""
    pair = tl.program_id(1)
    first = tl.program_id(0) * BLOCK_M
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    u = tl.zeros([BLOCK_M, D], tl.float32)
    full, seen = keys_of_tile(first, n_q, n_k, CAUSAL, BLOCK_M, BLOCK_N)
    q = load_box(q_src, pair // heads, pair % heads, first, D, BLOCK_M)
    unit *= tl.load(q_scale_ptr + pair * tl.num_programs(0) + tl.program_id(0))
    for block in tl.range(0, seen, BLOCK_N):
        k = load_box(k_src, pair // heads, pair % heads, block, D, BLOCK_N)
        scores = tl.dot(q, k.T, input_precision=PRECISION)
        if block >= full:
            scores = hide(scores, first, block, n_q, n_k, CAUSAL, BLOCK_M, BLOCK_N)
        v = load_box(v_src, pair // heads, pair % heads, block, D, BLOCK_N)
        k_scale = tl.load(k_scale_ptr + pair * tl.cdiv(n_k, BLOCK_N) + block // BLOCK_N)
        m, l, u = absorb(m, l, u, scores, unit * k_scale, v, PRECISION, BELOW, BLOCK_N)
    out, lse = finish(m, l, u * tl.load(v_scale_ptr + pair))
    store_result(out_ptr, lse_ptr, out, lse, pair // heads, pair % heads, first, n_q, heads, D, BLOCK_M)


def launch(
    q: Tensor, q_scale: Tensor, k: Tensor, k_scale: Tensor, v: Tensor, v_scale: Tensor, *,
    scale: float, causal: bool, dtype: torch.dtype,
) -> Attended:  # fmt: skip
    """Attention of quantised tensors.

    Args:
        q: (B, Nq, H, D) e4m3, contiguous, D 32, 64 or 128.
        q_scale: (B, H, ⌈Nq / 128⌉) float32.
        k: (B, Nk, H, D).
        k_scale: (B, H, ⌈Nk / 64⌉).
        v: (B, Nk, H, D).
        v_scale: (B, H, 1).
        scale: factor of q·k, above 0.
        causal: whether query i sees the keys up to i + Nk − Nq only.
        dtype: of out.
    """
    batch, n_q, heads, _ = q.shape
    call = Call(
        q, k, v,
        out=torch.empty(q.shape, dtype=dtype, device=q.device),
        lse=torch.empty(batch, heads, n_q, dtype=torch.float32, device=q.device),
        unit=scale / math.log(2), causal=causal, blocks=BLOCKS,
    )  # fmt: skip
    sizes = ((q, BLOCKS.block_m), (k, BLOCKS.block_n), (v, BLOCKS.block_n))
    _float8_fwd[(call.tiles, call.pairs)](
        *(describe(x, rows, x.shape[3]) for x, rows in sizes), q_scale, k_scale, v_scale,
        call.out, call.lse, call.unit, *call.sizes(), CAUSAL=causal, BELOW=BELOW, **call.constants(),
    )  # fmt: skip
    return Attended(call.out, call.lse.transpose(1, 2))
