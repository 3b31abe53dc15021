"""RMS normalisation of a residual stream to which a branch is added: one pass over its rows each way."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from quantattn.attention.kernels.primitives import INTERPRETED


@dataclass(frozen=True)
class Blocks:
    """Rows that a program holds at a time, how often it does so, and its warps."""

    rows: int
    steps: int
    num_warps: int


FORWARD = Blocks(1, 1, 4)
BACKWARD = Blocks(2, 32, 2)
"""A program sums the weight's gradient over rows · steps rows, so its bits depend on these and on no GPU's size. On an
H200 with triton 3.6.0, 65,536 rows of 768 take 245 µs; with Blocks(1, 32, 4) 268."""

SMALL = Blocks(2, 3, 1)
"""Under the interpreter, where small blocks cross more edges."""


@triton.jit
def _added(x, branch):
    """Their sum, rounded to the dtype of x."""
    return (x.to(tl.float32) + branch.to(tl.float32)).to(x.dtype)


@triton.jit(do_not_specialize=["rows"])
def _add_norm_fwd(
    x_ptr, branch_ptr, weight_ptr, sum_ptr, out_ptr, scale_ptr, rows, eps,
    C: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One program ROWS rows of sum = x + branch, scale = 1 / √(mean(sum²) + ε), out = sum · scale · weight."""
    row = tl.cast(tl.program_id(0), tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < C)[None, :]
    at = tl.max_contiguous(row[:, None] * C + column[None, :], [1, 4])
    x = tl.load(x_ptr + at, mask=inside, other=0.0)
    if branch_ptr is not None:
        x = _added(x, tl.load(branch_ptr + at, mask=inside, other=0.0))
        tl.store(sum_ptr + at, x, mask=inside)
    x = x.to(tl.float32)
    scale = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(x * x, 1) / C + eps))
    tl.store(scale_ptr + row, scale, mask=row < rows)
    weight = tl.load(weight_ptr + column, mask=column < C, other=0.0).to(tl.float32)
    out = x * scale[:, None] * weight[None, :]
    tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _add_norm_bwd(
    dout_ptr, dsum_ptr, x_ptr, branch_ptr, weight_ptr, scale_ptr, dx_ptr, dbranch_ptr, out_ptr, dweight_ptr, rows,
    C: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """One program ROWS · STEPS rows: their gradients, out again, and their part of the weight's gradient.

    With n = (x + branch) · scale and g = dout · weight, dx = (g − n · mean(g · n)) · scale + dsum, and
    dweight = Σ dout · n.
    """
    program = tl.cast(tl.program_id(0), tl.int64)
    column = tl.arange(0, BLOCK)
    weight = tl.load(weight_ptr + column, mask=column < C, other=0.0).to(tl.float32)[None, :]
    part = tl.zeros([ROWS, BLOCK], tl.float32)
    for step in range(STEPS):
        row = (program * STEPS + step) * ROWS + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (column < C)[None, :]
        at = tl.max_contiguous(row[:, None] * C + column[None, :], [1, 4])
        scale = tl.load(scale_ptr + row, mask=row < rows, other=0.0)[:, None]
        dout = tl.load(dout_ptr + at, mask=inside, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + at, mask=inside, other=0.0)
        if branch_ptr is not None:
            x = _added(x, tl.load(branch_ptr + at, mask=inside, other=0.0))
        n = x.to(tl.float32) * scale
        part += dout * n
        g = dout * weight
        dx = (g - n * (tl.sum(g * n, 1) / C)[:, None]) * scale
        if dsum_ptr is not None:
            dx += tl.load(dsum_ptr + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=inside)
        if dbranch_ptr is not None:
            tl.store(dbranch_ptr + at, dx.to(dbranch_ptr.dtype.element_ty), mask=inside)
        if out_ptr is not None:
            tl.store(out_ptr + at, (n * weight).to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(dweight_ptr + program * C + column, tl.sum(part, 0), mask=column < C)


def blocks_for(c: int, blocks: Blocks) -> Blocks:
    """Those of rows of C entries: one row and more warps for the longer ones, which would not fit into registers."""
    rows = blocks.rows if c <= 1024 else 1
    return replace(blocks, rows=rows, num_warps=min(16, max(blocks.num_warps, triton.next_power_of_2(c) // 512)))


def launch_add_norm(
    x: Tensor, branch: Tensor | None, weight: Tensor, total: Tensor | None, out: Tensor, scale: Tensor, eps: float,
    blocks: Blocks | None = None,
) -> None:  # fmt: skip
    """Write total = x + branch, its rows' scale (rows,) float32 and out, normalised; all (rows, C) contiguous.

    Without a branch x is the total, and none is written. Sums are rounded to the dtype of x, which total has.
    """
    if not out.numel():
        return
    rows, c = out.shape
    blocks = blocks or (SMALL if INTERPRETED else blocks_for(c, FORWARD))
    x, branch = _aligned(x), None if branch is None else _aligned(branch)
    _add_norm_fwd[(triton.cdiv(rows, blocks.rows),)](
        x, branch, weight, total, out, scale, rows, eps,
        C=c, BLOCK=triton.next_power_of_2(c), ROWS=blocks.rows, num_warps=blocks.num_warps,
    )  # fmt: skip


def launch_add_norm_backward(
    dout: Tensor, dtotal: Tensor | None, x: Tensor, branch: Tensor | None, weight: Tensor, scale: Tensor,
    dx: Tensor, dbranch: Tensor | None, out: Tensor | None, blocks: Blocks | None = None,
) -> Tensor:  # fmt: skip
    """Write dx, the same in the branch's dtype, and the normalised rows again, each if it is there; all contiguous.

    Without a branch x is the total. The gradient of the weight comes back, (C,) float32.
    """
    rows, c = dout.shape
    blocks = blocks or (SMALL if INTERPRETED else blocks_for(c, BACKWARD))
    programs = triton.cdiv(rows, blocks.rows * blocks.steps)
    parts = dout.new_empty(programs, c, dtype=torch.float32)
    given = [None if t is None else _aligned(t) for t in (dout, dtotal, x, branch)]
    if dout.numel():
        _add_norm_bwd[(programs,)](
            *given, weight, scale, dx, dbranch, out, parts, rows,
            C=c, BLOCK=triton.next_power_of_2(c), ROWS=blocks.rows, STEPS=blocks.steps, num_warps=blocks.num_warps,
        )  # fmt: skip
    return parts.sum(0)


def _aligned(x: Tensor) -> Tensor:
    """Contiguous and at an address divisible by 16: for others Triton makes a program with sums of another order."""
    x = x.contiguous()
    return x if x.data_ptr() % 16 == 0 else x.clone()
