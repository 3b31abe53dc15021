"""FlashAttention-3's eight-bit path: float8 e4m3 operands, a scale a block, and incoherent processing.

Shah et al. 2024, §3.3. A float8 e4m3 holds 4 significant bits and goes up to 448. Two devices keep the loss small:

- a scale for each block of rows of q and k, folded into that of the scores, and one a head for v, put back at the end;
- q and k multiplied by one random orthogonal matrix (signs, then Hadamard): q kᵀ stays what it was, and an outlier is
  spread over all columns before it is rounded.

It is another precision. Its error is that of eight bits, far outside the error budget of 16-bit inputs, and is measured
in the unit of what standard attention in float8 with one scale a tensor loses. The library does not use it; it shows
that the state algebra does not care: the step is `absorb`, unchanged.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from quantattn.attention.kernels.configs import Config
from quantattn.attention.kernels.generations.registry import prepare
from quantattn.attention.kernels.generations.step import absorb, finish, hide, keys_of_tile, load_box, store_result
from quantattn.attention.kernels.launch import describe
from quantattn.attention.kernels.primitives import INTERPRETED
from quantattn.attention.state import Attended

LARGEST = 448.0
"""Largest float8 e4m3."""
BLOCKS = Config(16, 32, 1, 1) if INTERPRETED else Config(128, 64, 8, 2)


@triton.jit(do_not_specialize=["heads", "n_q", "n_k"])
def _float8_fwd(
    q_src, k_src, v_src, q_scale_ptr, k_scale_ptr, v_scale_ptr, out_ptr, lse_ptr, unit, heads, n_q, n_k,
    CAUSAL: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
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
        m, l, u = absorb(m, l, u, scores, unit * k_scale, v, PRECISION)
    out, lse = finish(m, l, u * tl.load(v_scale_ptr + pair))
    store_result(out_ptr, lse_ptr, out, lse, pair // heads, pair % heads, first, n_q, heads, D, BLOCK_M)


def quantised(x: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """(B, N, H, D) → the same in float8 e4m3, and scales (B, H, ⌈N / block⌉) float32 that bring it back."""
    batch, n, heads, d = x.shape
    blocks = -(-n // block)
    padded = torch.nn.functional.pad(x.float(), (0, 0, 0, 0, 0, blocks * block - n)).view(
        batch, blocks, block, heads, d
    )
    largest = padded.abs().amax((2, 4), keepdim=True)  # (B, blocks, 1, H, 1)
    scale = torch.where(largest > 0, largest / LARGEST, 1.0)
    small = (padded / scale).to(torch.float8_e4m3fn).view(batch, blocks * block, heads, d)[:, :n].contiguous()
    return small, scale[:, :, 0, :, 0].transpose(1, 2).contiguous()


def incoherent(x: Tensor, seed: int = 0) -> Tensor:
    """Multiply the last axis, a power of two, by diag(±1) · Hadamard / √D: one orthogonal matrix a seed."""
    d = x.shape[-1]
    signs = torch.randint(0, 2, (d,), generator=torch.Generator().manual_seed(seed)).to(x.device) * 2.0 - 1.0
    hadamard = torch.ones(1, 1, device=x.device)
    for _ in range(d.bit_length() - 1):
        hadamard = torch.cat([torch.cat([hadamard, hadamard], 1), torch.cat([hadamard, -hadamard], 1)])
    return (x.float() * signs) @ hadamard / math.sqrt(d)


def attend_float8(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, scale: float | None = None, spread: bool = True,
    blocks: Config = BLOCKS,
) -> Attended:  # fmt: skip
    """Attention with float8 operands; arguments and result as `attend`'s, D and block_n 32 at least.

    Args:
        q: (B, Nq, H, D) in 16 or 32 bits; it is rounded here.
        k: (B, Nk, H, D).
        v: (B, Nk, H, D).
        causal: as in `attend`.
        scale: as in `attend`.
        spread: whether outliers of q and k are spread by incoherent processing.
        blocks: blocks of the kernel, each with its own scale.

    Raises:
        ValueError: inputs that the kernels do not take.
    """
    if min(q.shape[-1], blocks.block_n) < 32:
        raise ValueError(f"products of float8 are over 32 at least, got head size {q.shape[-1]} and {blocks}")
    call = prepare("flash3", q, k, v, causal=causal, scale=scale, blocks=blocks)
    q, k = (incoherent(x) if spread else x for x in (q, k))
    (q, q_scale), (k, k_scale) = quantised(q, blocks.block_m), quantised(k, blocks.block_n)
    v, v_scale = quantised(v, v.shape[1])
    sizes = ((q, blocks.block_m), (k, blocks.block_n), (v, blocks.block_n))
    _float8_fwd[(call.tiles, call.pairs)](
        *(describe(x, rows, x.shape[3]) for x, rows in sizes), q_scale, k_scale, v_scale,
        call.out, call.lse, call.unit, *call.sizes(), CAUSAL=causal, **call.constants(),
    )  # fmt: skip
    return Attended(call.out, call.lse.transpose(1, 2))
