"""What Gluon calls by other names from release to release: 3.6 (the GPU test machine's) to 3.9."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from triton.compiler.errors import CompilationError
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language import _core as core
from triton.experimental.gluon.language.nvidia.hopper import tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.runtime.errors import OutOfResources, PTXASError

REFUSALS = (CompilationError, OutOfResources, PTXASError)
"""What a launch raises whose program does not fit."""

tma_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
"""(descriptor, corner, barrier, buffer): a box of global memory into shared memory, announced on the barrier."""

tma_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
"""(descriptor, corner, buffer): the way back; rows and columns beyond the tensor stay away."""

_HAS_ADD = hasattr(tma, "async_atomic_add")
_REINTERPRETS = hasattr(core.shared_memory_descriptor, "reinterpret")


def descriptor_of(x: Tensor, parts: tuple[Any, Any, Any, Any]) -> TensorDescriptor:
    """Descriptor of x with a shape, strides, box and layout that are known to be right.

    Its constructor checks them again at every call, which takes ten times as long. What has a default keeps it.
    """
    descriptor = object.__new__(TensorDescriptor)
    descriptor.base = x
    descriptor.shape, descriptor.strides, descriptor.block_shape, descriptor.layout = parts
    return descriptor


@core.builtin
def tma_add(descriptor: Any, corner: Any, buffer: Any, _semantic: Any = None) -> None:
    """The same, added to what is there, element by element."""
    if _HAS_ADD:
        tma.async_atomic_add(descriptor, corner, buffer, _semantic=_semantic)
        return
    where = _semantic._convert_to_ir_values(corner, require_i64=False)
    _semantic.builder.create_async_tma_reduce(
        core.ir.DESCRIPTOR_REDUCE_KIND.ADD, descriptor.handle, where, buffer.handle
    )


@core.builtin
def reshaped(buffer: Any, shape: Any, layout: Any, dtype: Any = None, _semantic: Any = None) -> Any:
    """The same bytes of shared memory under another shape, layout and (if it is given) dtype."""
    view = buffer.reinterpret if _REINTERPRETS else buffer._reinterpret
    return view(buffer.dtype if dtype is None else dtype, shape, layout, _semantic=_semantic)


@gluon.jit
def tma_finish():
    """Wait until what this thread stored or added has arrived in global memory, not only left shared memory."""
    gl.inline_asm_elementwise(
        "cp.async.bulk.wait_group 0; mov.u32 $0, 0;", "=r,r", [0], dtype=gl.int32, is_pure=False, pack=1
    )
