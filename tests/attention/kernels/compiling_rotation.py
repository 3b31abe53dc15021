"""Compile the kernel of rotary positions as `compiling.py` does those of attention."""

from __future__ import annotations

import json
import sys

import triton
from compiling import Signature, assemble
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from quantattn.attention.kernels.rotation import _ROWS, _rotate_heads


def row_of(dtype: str, d: int, back: bool, capability: int) -> dict[str, object]:
    """Compile for aligned tensors, and assemble."""
    constants = {"D": d, "HALF": triton.next_power_of_2(d // 2), "ROWS": _ROWS, "BACK": back}
    signature = Signature()
    for i, name in enumerate(_rotate_heads.arg_names):
        if name in constants:
            signature.types[name], signature.values[(i,)] = "constexpr", constants[name]
        elif name.endswith("_ptr"):
            signature.add(i, name, "*fp32" if name in ("cos_ptr", "sin_ptr") else f"*{dtype}")
        else:
            signature.add(i, name, "i32")
    source = ASTSource(_rotate_heads, signature.types, signature.values, signature.facts)
    done = assemble(
        triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4}), capability
    )
    return {
        "dtype": dtype, "d": d, "back": back, "capability": capability, "spills": done.spills,
        "wide": "ld.global.v4" in done.ptx,
    }  # fmt: skip


if __name__ == "__main__":
    cases = [("bf16", 64, back, c) for back in (False, True) for c in (80, 90, 100)]
    cases += [("fp32", 256, True, 80), ("bf16", 256, True, 90), ("fp16", 72, True, 90)]
    json.dump([row_of(*case) for case in cases], sys.stdout)
