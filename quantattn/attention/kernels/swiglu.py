"""SwiGLU between two projections, silu of a row's first half times the second: one pass over memory each way."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from quantattn.attention.kernels.primitives import INTERPRETED, LOG2E, exp2

_LN2_HIGH = tl.constexpr(0.693359375)  # of ten bits, so that its product with a whole number of eight is exact
_LN2_LOW = tl.constexpr(-2.12194440054690583e-4)


@dataclass(frozen=True)
class Blocks:
    """Rows × columns a program, and its warps."""

    rows: int
    columns: int
    num_warps: int


FORWARD = Blocks(8, 128, 4)
BACKWARD = Blocks(8, 128, 4)
SMALL = Blocks(2, 16, 1)
"""Under the interpreter, where small blocks cross more edges."""

if INTERPRETED:  # inline assembly has no interpreter

    @triton.jit
    def _reciprocal(x):
        """1 / x."""
        return 1.0 / x
else:

    @triton.jit
    def _reciprocal(x):
        """1 / x to one unit of float32; above 2¹²⁶ it is 0, which spares the scaling that a division makes."""
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def _silu(x, EXACT: tl.constexpr):
    """(x · σ, σ) with σ = 1 / (1 + e⁻ˣ): to some units of float32 if EXACT, else to |x| of them, which 16 bits hide."""
    if EXACT:
        # A finite number of the same result stands for what is far out; then e⁻ˣ = 2ⁿ · eʳ with |r| at most ln(2) / 2.
        y = -tl.minimum(tl.maximum(x, -100.0), 100.0)
        n = tl.floor(y * LOG2E + 0.5)
        r = (y - n * _LN2_HIGH) - n * _LN2_LOW
        below = 1.0 + tl.exp2(r * LOG2E) * tl.exp2(n)
        return tl.div_rn(x, below), tl.div_rn(1.0, below)
    share = _reciprocal(1.0 + exp2(x * -LOG2E))
    return x * share, share


@triton.jit
def _places(rows, F: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """(row, column, mask) of a program's entries; the columns of a row come first."""
    across = tl.cdiv(F, COLUMNS)
    program = tl.program_id(0)
    row = (tl.cast(program // across, tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    column = (program % across * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    return row, column, (row < rows) & (column < F)


@triton.jit(do_not_specialize=["rows"])
def _swiglu_fwd(
    x_ptr, out_ptr, rows, F: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, EXACT: tl.constexpr
):  # fmt: skip
    """One program a block of out (rows, F) from x (rows, 2 F)."""
    row, column, inside = _places(rows, F, ROWS, COLUMNS)
    gate = tl.load(x_ptr + row * (2 * F) + column, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(x_ptr + row * (2 * F) + F + column, mask=inside, other=0.0).to(tl.float32)
    silu, _ = _silu(gate, EXACT)
    tl.store(out_ptr + row * F + column, (silu * value).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _swiglu_bwd(
    dout_ptr, x_ptr, dx_ptr, out_ptr, rows,
    F: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """One program a block: both halves of dx (rows, 2 F), and out again."""
    row, column, inside = _places(rows, F, ROWS, COLUMNS)
    of_gate, of_out = row * (2 * F) + column, row * F + column
    dout = tl.load(dout_ptr + of_out, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(x_ptr + of_gate, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(x_ptr + of_gate + F, mask=inside, other=0.0).to(tl.float32)
    silu, share = _silu(gate, EXACT)
    dgate = dout * value * (share + silu * (1.0 - share))
    dtype = dx_ptr.dtype.element_ty
    tl.store(dx_ptr + of_gate, dgate.to(dtype), mask=inside)
    tl.store(dx_ptr + of_gate + F, (dout * silu).to(dtype), mask=inside)
    if out_ptr is not None:
        tl.store(out_ptr + of_out, (silu * value).to(out_ptr.dtype.element_ty), mask=inside)


def launch_swiglu(x: Tensor, out: Tensor, blocks: Blocks | None = None) -> None:
    """Write out (rows, F) = silu(a) · b with (a, b) the halves of x (rows, 2 F); contiguous, of one dtype."""
    rows, f = out.shape
    if out.numel():
        blocks = blocks or (SMALL if INTERPRETED else FORWARD)
        _swiglu_fwd[_grid(rows, f, blocks)](
            x, out, rows, F=f, ROWS=blocks.rows, COLUMNS=blocks.columns, EXACT=_exact(x), num_warps=blocks.num_warps
        )


def launch_swiglu_backward(
    dout: Tensor, x: Tensor, dx: Tensor, out: Tensor | None, blocks: Blocks | None = None
) -> None:
    """Write dx (rows, 2 F) from dout (rows, F) and x (rows, 2 F), and out (rows, F) again if it is there."""
    rows, f = dout.shape
    if dout.numel():
        blocks = blocks or (SMALL if INTERPRETED else BACKWARD)
        _swiglu_bwd[_grid(rows, f, blocks)](
            dout, x, dx, out, rows,
            F=f, ROWS=blocks.rows, COLUMNS=blocks.columns, EXACT=_exact(x), num_warps=blocks.num_warps,
        )  # fmt: skip


def _grid(rows: int, f: int, blocks: Blocks) -> tuple[int]:
    return (triton.cdiv(rows, blocks.rows) * triton.cdiv(f, blocks.columns),)


def _exact(x: Tensor) -> bool:
    return x.dtype == torch.float32
