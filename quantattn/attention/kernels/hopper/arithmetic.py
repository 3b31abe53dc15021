"""Instructions that Gluon has no word for."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def exp2(x):
    """2^x as the portable kernels compute it; results below 2⁻¹²⁶ become 0."""
    return gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def to_16_bits(x, dtype: gl.constexpr):
    """Float32 to float16 or bfloat16, two at a time; a conversion of Triton's into an operand takes one at a time."""
    if dtype == gl.bfloat16:
        return gl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [x], dtype=gl.bfloat16, is_pure=True, pack=2
        )
    else:
        return gl.inline_asm_elementwise(
            "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", [x], dtype=gl.float16, is_pure=True, pack=2
        )


@gluon.jit
def to_8_bits(x):
    """Float32 to float8 e4m3, four at a time; what is larger than 448 becomes 448."""
    return gl.inline_asm_elementwise(
        "{ .reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, $2, $1; cvt.rn.satfinite.e4m3x2.f32 high, $4, $3; "
        "mov.b32 $0, {low, high}; }",
        "=r,f,f,f,f", [x], dtype=gl.float8e4nv, is_pure=True, pack=4,
    )  # fmt: skip


@gluon.jit
def draw(counter_ptr):
    """One warp: what the counter stands at, which goes up by one.

    Triton's own atomic hands the number round through shared memory, where it takes the place of what is not used any
    more. That was a barrier which one sort of mask makes and never waits at; written over, it came back at times.
    """
    return gl.inline_asm_elementwise(
        "{ .reg .pred p; .reg .b32 t; mov.u32 t, %laneid; setp.eq.u32 p, t, 0; mov.u32 t, 0;"
        " @p atom.relaxed.gpu.global.add.s32 t, [$1], 1; shfl.sync.idx.b32 $0, t, 0, 31, 0xffffffff; }",
        "=r,l", [counter_ptr.to(gl.int64)], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def meet(barrier, THREADS: gl.constexpr):
    """Wait at a named barrier (8 … 15) until THREADS threads have come or announced themselves."""
    gl.inline_asm_elementwise(
        "bar.sync $1, $2; mov.u32 $0, 0;", "=r,r,r", [barrier, THREADS], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def announce(barrier, THREADS: gl.constexpr):
    """Come to a named barrier without waiting there."""
    gl.inline_asm_elementwise(
        "bar.arrive $1, $2; mov.u32 $0, 0;", "=r,r,r", [barrier, THREADS], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def pin(x):
    """An ordered instruction that needs x, so that the assembler does not move the next wait above what makes x."""
    gl.inline_asm_elementwise(
        "{ .reg .pred p; setp.lt.f32 p, $1, 0f00000000; @p bar.arrive 15, 128; mov.u32 $0, 0; }", "=r,f", [x],
        dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def hidden_zero(x):
    """0 of an int32 x ≥ 0, which no compiler knows: addresses made with it are made anew and not kept in registers."""
    return gl.inline_asm_elementwise("shr.s32 $0, $1, 31;", "=r,r", [x], dtype=gl.int32, is_pure=False, pack=1)
