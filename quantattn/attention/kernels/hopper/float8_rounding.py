"""From 16-bit tensors to float8 e4m3 as `float8.quantise` has it, in the layouts that the forward for sm_90 reads.

All of it is memory's work: each tensor is read once, values twice, for their scale is that of a whole head. A rotation
is a product with diag(±1) · Hadamard's matrix in the tensor cores, whose sums are float32; the matrix, all ±1, is kept.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from quantattn.attention.float8 import PART, ROWS_K, ROWS_Q, hadamard, signs
from quantattn.attention.kernels.launch import strides

_TINY = tl.constexpr(torch.finfo(torch.float32).tiny)
_PART = tl.constexpr(PART)
_SIGN = tl.constexpr(0x7FFFFFFF)
_KEYS = 128
"""Values are written in pieces of so many keys; the last one is filled up with zeros."""
_MANY = 512
"""Values whose largest one program finds."""
_OPTIONS = {"num_warps": 8, "num_stages": 2}
_STEPS = 4
"""Blocks of rows that one program rounds, with one look at the matrix."""


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
def _bits(x):
    """|x| as the bits of a float32, which have the order of the numbers; those of a NaN are larger than all."""
    return x.to(tl.float32).to(tl.int32, bitcast=True) & _SIGN


@triton.jit
def _scale_of(bits):
    """The scale of what is at most so large, and its reciprocal."""
    largest = bits.to(tl.float32, bitcast=True)
    part = tl.maximum(largest * _PART, _TINY, propagate_nan=tl.PropagateNan.ALL)
    scale = tl.where(bits == 0, 1.0, part)
    return scale, tl.math.div_rn(1.0, scale)


@triton.jit
def _tile(x_ptr, row, column, n, x_strides, D: tl.constexpr):
    """Rows of one head, zeros beyond its ends."""
    inside = (row < n)[:, None] & (column < D)[None, :]
    place = row[:, None].to(tl.int64) * x_strides[1] + column[None, :] * x_strides[3]
    return tl.load(x_ptr + place, mask=inside, other=0.0)


@triton.jit
def _head(x_ptr, strip, heads, x_strides):
    """Where the rows of a head begin."""
    return x_ptr + (strip // heads).to(tl.int64) * x_strides[0] + (strip % heads) * x_strides[2]


@triton.jit(do_not_specialize=["n", "heads", "blocks"])
def _round_rows(
    x_ptr, matrix_ptr, to_ptr, scale_ptr, n, heads, blocks, x_strides,
    ROWS: tl.constexpr, STEPS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, ROTATE: tl.constexpr,
):  # fmt: skip
    """STEPS times ROWS rows of one head: rotated, and rounded with one scale each."""
    strip = tl.program_id(1)
    source = _head(x_ptr, strip, heads, x_strides)
    column = tl.arange(0, BLOCK_D)
    first = tl.program_id(0) * STEPS
    to = to_ptr + ((strip // heads).to(tl.int64) * n * heads + strip % heads) * BLOCK_D + column[None, :]
    if ROTATE:
        matrix = tl.load(matrix_ptr + column[:, None] * BLOCK_D + column[None, :])
    for block in range(first, min(first + STEPS, blocks)):
        row = block * ROWS + tl.arange(0, ROWS)
        x = _tile(source, row, column, n, x_strides, D)
        if ROTATE:
            x = tl.dot(x, matrix) * (1.0 / tl.sqrt(tl.cast(BLOCK_D, tl.float32)))
        x = x.to(tl.float32)
        scale, factor = _scale_of(tl.max(_bits(x)))
        step = row[:, None].to(tl.int64) * heads * BLOCK_D
        tl.store(to + step, (x * factor).to(tl.float8e4nv), mask=(row < n)[:, None])
        tl.store(scale_ptr + strip * blocks + block, scale)


@triton.jit(do_not_specialize=["n", "heads"])
def _round_largest(
    v_ptr, bits_ptr, n, heads, v_strides,
    MANY: tl.constexpr, KEYS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The largest of MANY rows of one head, as bits."""
    strip = tl.program_id(1)
    source = _head(v_ptr, strip, heads, v_strides)
    column = tl.arange(0, BLOCK_D)
    found = tl.zeros([KEYS, BLOCK_D], tl.int32)
    for part in tl.static_range(MANY // KEYS):
        row = tl.program_id(0) * MANY + part * KEYS + tl.arange(0, KEYS)
        found = tl.maximum(found, _bits(_tile(source, row, column, n, v_strides, D)))
    tl.store(bits_ptr + strip * tl.num_programs(0) + tl.program_id(0), tl.max(found))


@triton.jit(do_not_specialize=["n", "heads", "parts"])
def _round_values(
    v_ptr, bits_ptr, scale_ptr, to_ptr, n, heads, parts, v_strides,
    PARTS: tl.constexpr, KEYS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """KEYS rows of one head, rounded with the head's scale, transposed, and in the order that the kernel wants."""
    strip = tl.program_id(1)
    part = tl.arange(0, PARTS)
    bits = tl.load(bits_ptr + strip * parts + part, mask=part < parts, other=0)
    scale, factor = _scale_of(tl.max(bits, 0))
    place = tl.arange(0, KEYS)
    key = (place & ~15) | ((place & 2) << 2) | ((place & 12) >> 1) | (place & 1)
    column = tl.arange(0, BLOCK_D)
    v = _tile(_head(v_ptr, strip, heads, v_strides), tl.program_id(0) * KEYS + key, column, n, v_strides, D)
    length = tl.num_programs(0).to(tl.int64) * KEYS
    to = to_ptr + (strip * BLOCK_D + column[:, None]) * length + tl.program_id(0) * KEYS + place[None, :]
    tl.store(to, tl.trans((v.to(tl.float32) * factor).to(tl.float8e4nv)))
    tl.store(scale_ptr + strip, scale, mask=tl.program_id(0) == 0)


@lru_cache(maxsize=64)
def rotation(d: int, seed: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """(D, D) of ±1: diag(signs) · Hadamard, which times 1/√D is the matrix of `float8.rotated`.

    Kept, because a copy to a GPU waits until that has nothing to do.
    """
    with torch.inference_mode(False):
        matrix: Tensor = signs(d, seed)[:, None] * hadamard(torch.eye(d)).sign()
        return matrix.to(device, dtype)


def round_inputs(q: Tensor, k: Tensor, v: Tensor, *, incoherent: bool, seed: int) -> Rounded:
    """Round q (B, N, H, D), k and v (B, Nk, Hkv, D), 16 bits, D ≤ 128, no axis empty, as `float8.quantise` does."""
    d, device = q.shape[-1], q.device
    width = 64 if d <= 64 else 128
    matrix = rotation(width, seed, device, q.dtype) if incoherent else None
    eights = []
    for x, rows in ((q, ROWS_Q), (k, ROWS_K)):
        batch, n, heads, _ = x.shape
        blocks = triton.cdiv(n, rows)
        to = torch.empty(batch, n, heads, width, dtype=torch.float8_e4m3fn, device=device)
        scale = torch.empty(batch, heads, blocks, dtype=torch.float32, device=device)
        _round_rows[(triton.cdiv(blocks, _STEPS), batch * heads)](
            x, matrix, to, scale, n, heads, blocks, strides(x),
            ROWS=rows, STEPS=_STEPS, D=d, BLOCK_D=width, ROTATE=incoherent, **_OPTIONS,
        )  # fmt: skip
        eights.append((to, scale))
    batch, n, heads, _ = v.shape
    pieces, parts = triton.cdiv(n, _KEYS), triton.cdiv(n, _MANY)
    bits = torch.empty(batch, heads, parts, dtype=torch.int32, device=device)
    v_scale = torch.empty(batch, heads, dtype=torch.float32, device=device)
    values = torch.empty(batch, heads, width, pieces * _KEYS, dtype=torch.float8_e4m3fn, device=device)
    _round_largest[(parts, batch * heads)](
        v, bits, n, heads, strides(v), MANY=_MANY, KEYS=_KEYS // 2, D=d, BLOCK_D=width, **_OPTIONS
    )
    _round_values[(pieces, batch * heads)](
        v, bits, v_scale, values, n, heads, parts, strides(v),
        PARTS=triton.next_power_of_2(parts), KEYS=_KEYS, D=d, BLOCK_D=width, **_OPTIONS,
    )  # fmt: skip
    (q8, q_scale), (k8, k_scale) = eights
    return Rounded(q8, k8, values, q_scale, k_scale, v_scale)
