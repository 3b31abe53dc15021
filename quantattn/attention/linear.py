"""The linear map of the batch-invariant mode: registered operator, its path without kernels, its gradient.

It stands in this room because its kernel is written in Triton, which only `attention/kernels` may import.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from quantattn.attention.device import on_its_device
from quantattn.attention.operators import differentiate, operator
from quantattn.attention.seen import as_given

_TILE = 128
"""Rows of every product on a CPU. Measured, two cores: 3 % slower than one product of all rows (32 rows: 14 %)."""

_LINE = 64
"""Bytes of a cache line. Rows that begin at one are read by the same instructions wherever they stand in a tile."""

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_NAMES = "float16, bfloat16, float32, and float64 on a CPU"


def batch_invariant_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The linear map x Wᵀ + b, each row with the same bits alone, among any rows, at any place.

    Replaces `torch.nn.functional.linear`, whose library picks the order of a sum by the number of rows. The promise is
    for the forward on one device with one build of torch; gradients are ordinary matrix products.

    Args:
        x: (…, K), float16, bfloat16, float32, and float64 on a CPU. Under `torch.autocast` float32 tensors are taken in
            its dtype, as those of `linear` are.
        weight: (N, K).
        bias: (N,) or None.

    Returns:
        (…, N) in the dtype of x. On a GPU sums are kept in float32.

    Raises:
        TypeError: mixed or unsupported dtypes.
        ValueError: shapes or devices that do not fit together.
    """
    if x.device.type != "meta" and torch.is_autocast_enabled(x.device.type):
        lower = torch.get_autocast_dtype(x.device.type)
        x, weight = (t.to(lower) if t.dtype == torch.float32 else t for t in (x, weight))
        bias = bias.to(lower) if bias is not None and bias.dtype == torch.float32 else bias
    _check(x, weight, bias)
    y = batch_invariant_linear_op(x.flatten(0, -2) if x.dim() > 1 else x[None], weight, bias)
    return y.view(*x.shape[:-1], weight.shape[0])  # type: ignore[no-any-return]


def _shape(x: Tensor, weight: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


@operator("batch_invariant_linear", "(Tensor x, Tensor weight, Tensor? bias) -> Tensor", _shape)
@on_its_device
def batch_invariant_linear_op(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(rows, N) from x (rows, K), weight (N, K) and bias (N,)."""
    if x.device.type == "cpu":
        with as_given(x.device):
            return _by_tiles(x, weight, bias)
    from quantattn.attention.kernels import matmul

    out: Tensor = _shape(x, weight)
    matmul.launch_linear(x, weight, bias, out)
    return out


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])


def _differentiate(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    wants_x, wants_weight, wants_bias = ctx.needs_input_grad
    return dy @ weight if wants_x else None, dy.T @ x if wants_weight else None, dy.sum(0) if wants_bias else None


differentiate(batch_invariant_linear_op, _differentiate, _save)


def _by_tiles(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Products of one shape: the last tile is filled up with rows of zeros, and lines with columns of zeros.

    With tiles alone it would not do: where rows begin at any byte, or the columns are few, the library computes a row
    by its place (`tests/attention/test_linear.py` plants one row at every place).
    """
    rows, n = x.shape[0], weight.shape[0]
    line = _LINE // x.element_size()
    k_more, n_more = -x.shape[1] % line, -n % line
    x, weight = _filled(x, k_more, -rows % _TILE), _filled(weight, k_more, n_more).T
    bias = None if bias is None else functional.pad(bias, (0, n_more))
    out = x.new_empty(x.shape[0], n + n_more)
    for tile, into in zip(torch.split(x, _TILE), torch.split(out, _TILE), strict=True):
        if bias is None:
            torch.mm(tile, weight, out=into)
        else:
            torch.addmm(bias, tile, weight, out=into)
    return out[:rows, :n].contiguous()


def _filled(x: Tensor, columns: int, rows: int) -> Tensor:
    """`x` with so many columns and rows of zeros more, contiguous, at the beginning of a line."""
    x = functional.pad(x, (0, columns, 0, rows)) if columns or rows else x.contiguous()
    return x if x.data_ptr() % _LINE == 0 else x.clone()


def _check(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    given = [x, weight] if bias is None else [x, weight, bias]
    fits = x.dim() >= 1 and weight.dim() == 2 and x.shape[-1] == weight.shape[1]
    if not fits or (bias is not None and bias.shape != weight.shape[:1]):
        shapes = ", ".join(str(tuple(t.shape)) for t in given)
        raise ValueError(f"x, weight and bias must be (…, K), (N, K) and (N,), got {shapes}")
    if any(t.dtype != x.dtype for t in given):
        raise TypeError(f"x, weight and bias must have one dtype, got {', '.join(str(t.dtype) for t in given)}")
    if any(t.device != x.device for t in given):
        raise ValueError(f"x, weight and bias must be on one device, got {', '.join(str(t.device) for t in given)}")
    kind = x.device.type
    if kind not in ("cpu", "cuda", "meta"):
        raise ValueError(f"the batch-invariant linear map runs on cpu and cuda, got {kind}")
    if x.dtype not in _DTYPES or (kind == "cuda" and x.dtype == torch.float64):
        raise TypeError(f"the batch-invariant linear map takes {_NAMES}; got {x.dtype} on {kind}")
