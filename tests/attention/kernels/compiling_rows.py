"""Compile the kernels between an encoder's products as `compiling.py` does those of attention."""

from __future__ import annotations

import json
import sys

import triton
from compiling import Signature, assemble
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from quantattn.attention.kernels import norm, swiglu

KERNELS = {
    "norm": (norm._add_norm_fwd, norm.FORWARD), "norm back": (norm._add_norm_bwd, norm.BACKWARD),
    "swiglu": (swiglu._swiglu_fwd, swiglu.FORWARD), "swiglu back": (swiglu._swiglu_bwd, swiglu.BACKWARD),
}  # fmt: skip
STREAM = ("dsum_ptr", "sum_ptr", "dx_ptr", "weight_ptr", "scale_ptr", "dweight_ptr")
"""Pointers to float32 beside a branch of 16 bits, in the kernels of the norm."""


def row_of(kernel: str, dtype: str, size: int, capability: int) -> dict[str, object]:
    """Compile for aligned tensors with everything that there may be, and assemble; `size` is C or F."""
    fn, blocks = KERNELS[kernel]
    if kernel.startswith("norm"):
        blocks = norm.blocks_for(size, blocks)
        constants = {"C": size, "BLOCK": triton.next_power_of_2(size), "ROWS": blocks.rows}
        constants |= {"STEPS": blocks.steps} if kernel.endswith("back") else {}
        stream = (*STREAM, "x_ptr")
    else:
        constants = {"F": size, "ROWS": blocks.rows, "COLUMNS": blocks.columns, "EXACT": dtype == "fp32"}
        stream = ()
    signature = Signature()
    for i, name in enumerate(fn.arg_names):
        if name in constants:
            signature.types[name], signature.values[(i,)] = "constexpr", constants[name]
        elif name.endswith("_ptr"):
            signature.add(i, name, "*fp32" if name in stream else f"*{dtype}")
        else:
            signature.add(i, name, "fp32" if name == "eps" else "i32")
    source = ASTSource(fn, signature.types, signature.values, signature.facts)
    built = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": blocks.num_warps})
    done = assemble(built, capability)
    return {
        "kernel": kernel, "dtype": dtype, "size": size, "capability": capability, "registers": done.registers,
        "spills": done.spills, "shared": done.shared, "wide": "ld.global.v4" in done.ptx and "st.global.v4" in done.ptx,
    }  # fmt: skip


if __name__ == "__main__":
    cases = [(kernel, "bf16", 1152 if "swiglu" in kernel else 768, 90) for kernel in KERNELS]
    cases += [("norm back", "bf16", 768, c) for c in (80, 100)] + [("swiglu back", "bf16", 1152, c) for c in (80, 100)]
    cases += [("norm back", "fp32", 1024, 90), ("swiglu back", "fp32", 1152, 90), ("norm back", "fp16", 8192, 90)]
    json.dump([row_of(*case) for case in cases], sys.stdout)
