"""Boxes of rows between global and shared memory.

A tensor x (B, N, H, D) of a dense batch is read through a descriptor over its four axes: rows ≥ N arrive as zeros and
are not written. A pack has one axis of rows for all sequences, and rows after the end of a sequence belong to its
neighbour; its descriptor is *ragged*, so that they arrive as zeros too. Two axes are put before the rows, of strides
2³⁴ − s and s elements, s the stride of a row. The corner (2³⁰, start + n, 2³⁰ − n + row) is then at

    2³⁰ (2³⁴ − s) + (start + n) s + (2³⁰ − n + row) s  =  2⁶⁴ + (start + row) s

and an address has 64 bits, while the axis of rows is declared 2³⁰ long: row ≥ n is beyond its end (the idea of
`triton.tools.ragged_tma`). Two bytes an element make the wrapped term 2⁶⁵, which vanishes as well.
"""

from __future__ import annotations

from functools import cache, lru_cache

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from quantattn.attention.kernels.hopper.compat import descriptor_of, reshaped, tma_load, tma_store
from quantattn.attention.kernels.launch import can_describe

_LONG = 1 << 30
_WRAP = 1 << 34
LONG = gl.constexpr(_LONG)


def describable(x: Tensor) -> Tensor:
    """X, or a copy of it where the tensor memory accelerator cannot read its layout."""
    return x if can_describe(x) else x.clone(memory_format=torch.contiguous_format)


@cache
def swizzled(width: int, bits: int, rank: int) -> gl.NVMMASharedLayout:
    """How matrix products read shared memory; made once, for it takes as long as a descriptor."""
    return gl.NVMMASharedLayout(swizzle_byte_width=width, element_bitwidth=bits, rank=rank)


def describe(x: Tensor, rows: int, columns: int, *, packed: bool) -> TensorDescriptor:
    """Descriptor of x (B, N, H, D), 16 or 8 bits, B = 1 when packed, for boxes of `rows` × `columns` ≥ D of one head.

    x is `describable`. Columns ≥ D arrive as zeros.
    """
    return descriptor_of(x, _layout(x.shape, x.stride(), x.element_size(), rows, columns, packed))


@lru_cache(maxsize=4096)
def _layout(
    sizes: tuple[int, ...], steps: tuple[int, ...], size: int, rows: int, columns: int, packed: bool
) -> tuple[list[int], list[int], list[int], gl.NVMMASharedLayout]:
    """Shape, strides, box and layout of a descriptor: made once, for in small problems they are what the host does."""
    batch, n, heads, d = sizes
    # The stride of an axis of length 1 is never used but must be well-formed.
    b, s, h = (step if length > 1 else d * 16 for length, step in zip(sizes[:3], steps[:3], strict=True))
    layout = swizzled(min(128, columns * size), 8 * size, 5 if packed else 4)
    if packed:
        return [2**31 - 1, 2**31 - 1, _LONG, heads, d], [_WRAP - s, s, s, h, 1], [1, 1, rows, 1, columns], layout
    return [batch, n, heads, d], [b, s, h, 1], [1, rows, 1, columns], layout


@gluon.jit
def load_rows(descriptor, place, start, n, row, head, barrier, buffer, PACKED: gl.constexpr):
    """Rows row … of one sequence and head into buffer [rows, columns], announced on the barrier.

    start and n are the sequence's first row in the pack and its number of rows; rows ≥ n arrive as zeros.
    """
    rows: gl.constexpr = buffer.shape[0]
    columns: gl.constexpr = buffer.shape[1]
    if PACKED:
        box = reshaped(buffer, [1, 1, rows, 1, columns], descriptor.layout)
        tma_load(descriptor, [LONG, start + n, LONG - n + row, head, 0], barrier, box)
    else:
        box = reshaped(buffer, [1, rows, 1, columns], descriptor.layout)
        tma_load(descriptor, [place.batch, row, head, 0], barrier, box)


@gluon.jit
def store_rows(descriptor, place, start, n, row, head, buffer, PACKED: gl.constexpr):
    """The way back; rows ≥ n are not written."""
    rows: gl.constexpr = buffer.shape[0]
    columns: gl.constexpr = buffer.shape[1]
    if PACKED:
        box = reshaped(buffer, [1, 1, rows, 1, columns], descriptor.layout)
        tma_store(descriptor, [LONG, start + n, LONG - n + row, head, 0], box)
    else:
        box = reshaped(buffer, [1, rows, 1, columns], descriptor.layout)
        tma_store(descriptor, [place.batch, row, head, 0], box)


@gluon.jit
def make_barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """COUNT barriers in shared memory, each of ARRIVALS arrivals a phase."""
    barriers = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(barriers.index(i), count=ARRIVALS)
    return barriers
