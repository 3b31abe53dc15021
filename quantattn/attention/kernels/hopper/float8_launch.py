"""From 16-bit tensors to float8 e4m3, and the launch of the forward that multiplies those.

One program rounds the rows that share a scale, and rotates them before: a product with Hadamard's matrix of ±1 in the
tensor cores, whose sums are float32.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from quantattn.attention.float8 import PART, ROWS_K, ROWS_Q, signs
from quantattn.attention.kernels.hopper import tasks
from quantattn.attention.kernels.hopper.compat import descriptor_of
from quantattn.attention.kernels.hopper.configs import FLOAT8, ForwardConfig
from quantattn.attention.kernels.hopper.float8 import _float8_fwd
from quantattn.attention.kernels.hopper.launch import multiprocessors
from quantattn.attention.kernels.hopper.tiles import describe, swizzled
from quantattn.attention.kernels.launch import strides
from quantattn.attention.state import Attended

_TINY = tl.constexpr(torch.finfo(torch.float32).tiny)
_PART = tl.constexpr(PART)
_KEYS = 128
"""Values are written in pieces of so many keys; the last one is filled up with zeros."""


class Rounded(NamedTuple):
    """What the kernel reads.

    Attributes:
        q: (B, N, H, D) e4m3.
        k: (B, Nk, Hkv, D) e4m3.
        v: (B, Hkv, D, keys) e4m3, keys a multiple of 128: 8g + 2t + e of each sixteen stands at 4t + 2g + e.
        q_scale: (B, H, ⌈N / 128⌉) float32.
        k_scale: (B, Hkv, ⌈Nk / 64⌉) float32.
        v_scale: (B, Hkv) float32.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    q_scale: Tensor
    k_scale: Tensor
    v_scale: Tensor


@triton.jit
def _hadamard(D: tl.constexpr):
    """[D, D] of ±1: (−1)^(number of ones in i & j)."""
    row = tl.arange(0, D)
    both = row[:, None] & row[None, :]
    both ^= both >> 4
    both ^= both >> 2
    both ^= both >> 1
    return 1 - 2 * (both & 1)


@triton.jit(do_not_specialize=["n", "heads"])
def _round_rows(
    x_ptr, signs_ptr, to_ptr, scale_ptr, n, heads, x_strides,
    ROWS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, ROTATE: tl.constexpr,
):  # fmt: skip
    """ROWS rows of one head: rotated, and rounded with one scale."""
    head = tl.program_id(1) % heads
    batch = tl.program_id(1) // heads
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK_D)
    place = batch.to(tl.int64) * x_strides[0] + row[:, None].to(tl.int64) * x_strides[1] + head * x_strides[2]
    inside = (row < n)[:, None]
    x = tl.load(x_ptr + place + column[None, :] * x_strides[3], mask=inside & (column < D)[None, :], other=0.0)
    if ROTATE:
        x = x * tl.load(signs_ptr + column)[None, :].to(x.dtype)
        x = tl.dot(x, _hadamard(BLOCK_D).to(x.dtype)) * (1.0 / tl.sqrt(tl.cast(BLOCK_D, tl.float32)))
    x = x.to(tl.float32)
    largest = tl.max(tl.max(tl.abs(x), 1), 0)
    scale = tl.where(largest == 0.0, 1.0, tl.maximum(largest * _PART, _TINY))
    rounded = tl.math.div_rn(x, tl.zeros_like(x) + scale).to(tl.float8e4nv)
    to = to_ptr + ((batch.to(tl.int64) * n + row) * heads + head)[:, None] * BLOCK_D + column[None, :]
    tl.store(to, rounded, mask=inside)
    tl.store(scale_ptr + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0), scale)


@triton.jit(do_not_specialize=["n", "heads"])
def _round_values(
    v_ptr, largest_ptr, scale_ptr, to_ptr, n, heads, v_strides,
    KEYS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """KEYS rows of one head, rounded with the head's scale, transposed, and in the order that the kernel wants."""
    head = tl.program_id(1) % heads
    batch = tl.program_id(1) // heads
    place = tl.arange(0, KEYS)
    key = (place & ~15) | ((place & 2) << 2) | ((place & 12) >> 1) | (place & 1)
    row = tl.program_id(0) * KEYS + key
    column = tl.arange(0, BLOCK_D)
    at = batch.to(tl.int64) * v_strides[0] + row[:, None].to(tl.int64) * v_strides[1] + head * v_strides[2]
    inside = (row < n)[:, None] & (column < D)[None, :]
    v = tl.load(v_ptr + at + column[None, :] * v_strides[3], mask=inside, other=0.0).to(tl.float32)
    largest = tl.load(largest_ptr + tl.program_id(1))
    part = tl.maximum(largest * _PART, _TINY, propagate_nan=tl.PropagateNan.ALL)
    scale = tl.where(largest == 0.0, 1.0, part)
    rounded = tl.math.div_rn(v, tl.zeros_like(v) + scale).to(tl.float8e4nv)
    length = tl.num_programs(0).to(tl.int64) * KEYS
    to = to_ptr + (tl.program_id(1) * BLOCK_D + column[:, None]) * length + tl.program_id(0) * KEYS + place[None, :]
    tl.store(to, tl.trans(rounded))
    tl.store(scale_ptr + tl.program_id(1), scale, mask=tl.program_id(0) == 0)


def round_inputs(q: Tensor, k: Tensor, v: Tensor, *, incoherent: bool, seed: int) -> Rounded:
    """Round q (B, N, H, D), k and v (B, Nk, Hkv, D), 16 bits, D ≤ 128, no axis empty, as `float8.quantise` does."""
    d, device = q.shape[-1], q.device
    width = 64 if d <= 64 else 128
    turned = signs(width, seed, device) if incoherent else None
    eights = []
    for x, rows in ((q, ROWS_Q), (k, ROWS_K)):
        batch, n, heads, _ = x.shape
        blocks = triton.cdiv(n, rows)
        to = torch.empty(batch, n, heads, width, dtype=torch.float8_e4m3fn, device=device)
        scale = torch.empty(batch, heads, blocks, dtype=torch.float32, device=device)
        _round_rows[(blocks, batch * heads)](
            x, turned, to, scale, n, heads, strides(x), ROWS=rows, D=d, BLOCK_D=width, ROTATE=incoherent
        )
        eights.append((to, scale))
    batch, n, heads, _ = v.shape
    largest = torch.linalg.vector_norm(v, math.inf, dim=(1, 3), dtype=torch.float32)
    v_scale = torch.empty_like(largest)
    pieces = triton.cdiv(n, _KEYS)
    values = torch.empty(batch, heads, width, pieces * _KEYS, dtype=torch.float8_e4m3fn, device=device)
    _round_values[(pieces, batch * heads)](
        v, largest, v_scale, values, n, heads, strides(v), KEYS=_KEYS, D=d, BLOCK_D=width
    )
    (q8, q_scale), (k8, k_scale) = eights
    return Rounded(q8, k8, values, q_scale, k_scale, v_scale)


def launch_float8(
    x: Rounded, scale: float, causal: bool, dtype: torch.dtype, config: ForwardConfig | None = None
) -> Attended:
    """Attention of rounded tensors: out (B, N, H, D padded to 64 or 128) of a 16-bit dtype, lse (B, N, H) float32."""
    batch, n_q, heads, width = x.q.shape
    n_k, heads_k = x.k.shape[1:3]
    c = config or FLOAT8[width]
    out = torch.empty(x.q.shape, dtype=dtype, device=x.q.device)
    lse = torch.empty(batch, heads, n_q, dtype=torch.float32, device=x.q.device)
    per_head = triton.cdiv(n_q, 64 * c.groups)
    tiles = per_head * heads * batch
    sizes = tasks.Sizes(
        width, c.block_n, c.stages, c.groups, False, c.overlap, c.turns, c.two_loops, c.shares, causal, False, causal,
        causal, q_bytes=c.groups * 64 * width, kv_bytes=c.block_n * width,
    )  # fmt: skip
    box, layout = [1, 1, width, c.block_n], swizzled(min(128, c.block_n), 8, 4)
    values = descriptor_of(x.v, (list(x.v.shape), list(x.v.stride()), box, layout))
    counter = torch.zeros(1, dtype=torch.int32, device=x.q.device) if causal else None
    _float8_fwd[(min(multiprocessors(x.q.device), tiles),)](
        describe(x.q, 64, width, packed=False), describe(x.k, c.block_n, width, packed=False), values,
        describe(out, 64, width, packed=False), lse, x.q_scale, x.k_scale, x.v_scale, counter, scale,
        batch, n_q, n_k, heads, heads // heads_k, per_head, tiles, SIZES=sizes, **c.warps(False), num_warps=4,
    )  # fmt: skip
    return Attended(out, lse.transpose(1, 2))
