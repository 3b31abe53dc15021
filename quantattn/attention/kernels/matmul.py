"""A matrix product whose every row is computed in one way, however many rows there are.

Libraries choose the tiling of a product by its shape, so a row's sum over K may be cut otherwise when other rows are
beside it. Here the blocks are fixed by the dtype alone, K is walked in one order, and nothing is split: an entry is a
function of its row of x, its row of the weight and its bias (He et al. 2025, "Defeating nondeterminism in LLM
inference").
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from quantattn.attention.kernels.primitives import INTERPRETED


@dataclass(frozen=True)
class Blocks:
    """BLOCK_M rows × BLOCK_N columns a program, BLOCK_K terms a step, warps, stages of the load pipeline, and how many
    steps are summed apart before they join the total, 0 for all: a chain of K additions loses √(K / 6) units.
    """

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    chain: int


BLOCKS = {16: Blocks(128, 128, 64, 8, 3, 0), 32: Blocks(64, 64, 32, 4, 2, 4)}
"""Bits of an operand → blocks, on every architecture; they assemble for sm_80, sm_90 and sm_100 without a spill."""

SMALL = Blocks(16, 16, 16, 1, 1, 2)
"""Blocks under the interpreter, where small ones cross more edges."""


# Specialised on the number of rows, one row alone would be another program.
@triton.jit(do_not_specialize=["rows"])
def _linear_fwd(
    x_ptr, weight_ptr, bias_ptr, out_ptr, rows, n, k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, CHAIN: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One program a block of out (rows, n) = x (rows, k) · weightᵀ (n, k) + bias (n,); all contiguous."""
    tile = tl.program_id(0)
    columns = tl.cdiv(n, BLOCK_N)
    row = tl.cast(tile // columns, tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.cast(tile % columns, tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    part = total
    for step in tl.range(0, tl.cdiv(k, BLOCK_K)):
        inner = step * BLOCK_K + tl.arange(0, BLOCK_K)
        x_at = row[:, None] * k + inner[None, :]
        weight_at = column[None, :] * k + inner[:, None]
        x = tl.load(x_ptr + x_at, mask=(row < rows)[:, None] & (inner < k)[None, :], other=0.0)
        weight = tl.load(weight_ptr + weight_at, mask=(column < n)[None, :] & (inner < k)[:, None], other=0.0)
        part = tl.dot(x, weight, part, input_precision=PRECISION)
        if CHAIN and step % CHAIN == CHAIN - 1:
            total += part
            part = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    total = total + part if CHAIN else part
    if bias_ptr is not None:
        total += tl.load(bias_ptr + column, mask=column < n, other=0.0).to(tl.float32)[None, :]
    inside = (row < rows)[:, None] & (column < n)[None, :]
    tl.store(out_ptr + row[:, None] * n + column[None, :], total.to(out_ptr.dtype.element_ty), mask=inside)


def launch_linear(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, blocks: Blocks | None = None) -> None:
    """Write out (rows, N) = x (rows, K) · weightᵀ (N, K) + bias (N,), of one dtype of 16 or 32 bits; out contiguous."""
    if not out.numel():
        return
    blocks = blocks or (SMALL if INTERPRETED else BLOCKS[8 * x.element_size()])
    x, weight = _aligned(x), _aligned(weight)
    tiles = triton.cdiv(x.shape[0], blocks.block_m) * triton.cdiv(weight.shape[0], blocks.block_n)
    _linear_fwd[(tiles,)](
        x, weight, None if bias is None else _aligned(bias), out, x.shape[0], *weight.shape,
        BLOCK_M=blocks.block_m, BLOCK_N=blocks.block_n, BLOCK_K=blocks.block_k, CHAIN=blocks.chain,
        # float32 is multiplied as torch's own matrix products do.
        PRECISION="ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32",
        num_warps=blocks.num_warps, num_stages=blocks.num_stages, enable_fp_fusion=True,
    )  # fmt: skip


def _aligned(x: Tensor) -> Tensor:
    """Contiguous and at an address divisible by 16, since Triton makes another program for other addresses."""
    x = x.contiguous()
    return x if x.data_ptr() % 16 == 0 else x.clone()
