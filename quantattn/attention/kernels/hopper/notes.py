"""Numbers that one warp notes in shared memory for the others."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def write_field(notes, i, number):
    """One warp: a number into notes [n, 1] of int32."""
    notes.index(i).store(gl.full([1], number, gl.int32, layout=gl.BlockedLayout([1], [32], [1], [0])))


@gluon.jit
def write_fields(notes, first, fields, COUNT: gl.constexpr):
    """One warp: COUNT numbers, from `first` on."""
    for i in gl.static_range(COUNT):
        write_field(notes, first + i, fields[i])


@gluon.jit
def read_field(notes, i, WARPS: gl.constexpr):
    """One of the numbers."""
    return gl.max(notes.index(i).load(gl.BlockedLayout([1], [32], [WARPS], [0])), 0)
