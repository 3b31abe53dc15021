"""Rows of a table by their codes, with a gradient that is as fast when it repeats to the bit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from quantattn.attention import operators


def look_up(codes: Tensor, table: Tensor) -> Tensor:
    """(T,) integer codes and a table (K, C) → (T, C), its rows.

    A compiler makes an `index_put` of the gradient. Under deterministic algorithms a GPU then adds all rows of a code
    one after the other: with 65,536 rows of a few codes that took 20 ms a field on an H200, a third of a training step
    in all. Torch's own gradient sorts the codes instead; no compiler looks into these two operators.
    """
    if table.is_cuda and torch.is_grad_enabled():
        return _look_up(codes, table)  # type: ignore[no-any-return]
    return functional.embedding(codes, table)


def _shape_of_rows(codes: Tensor, table: Tensor) -> Tensor:
    return table.new_empty(codes.shape[0], table.shape[1])


@operators.operator("look_up", "(Tensor codes, Tensor table) -> Tensor", _shape_of_rows)
def _look_up(codes: Tensor, table: Tensor) -> Tensor:
    return torch.ops.aten.embedding(table, codes)  # type: ignore[no-any-return]


def _shape_of_sums(rows: Tensor, codes: Tensor, count: int) -> Tensor:
    return rows.new_empty(count, rows.shape[1])


@operators.operator("sums_of_rows", "(Tensor rows, Tensor codes, int count) -> Tensor", _shape_of_sums)
def _sums_of_rows(rows: Tensor, codes: Tensor, count: int) -> Tensor:
    """(T, C) rows → (count, C), the sum of those of each code."""
    return torch.ops.aten.embedding_dense_backward(rows, codes, count, -1, False)  # type: ignore[no-any-return]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    codes, table = inputs
    ctx.save_for_backward(codes)
    ctx.count = table.shape[0]


def _backward(ctx: Any, rows: Tensor) -> tuple[None, Tensor]:
    return None, _sums_of_rows(rows, *ctx.saved_tensors, ctx.count)


operators.differentiate(_sums_of_rows)
operators.differentiate(_look_up, _backward, _save)
