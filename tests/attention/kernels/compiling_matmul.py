"""Compile the kernel of the batch-invariant linear map as `compiling.py` does those of attention."""

from __future__ import annotations

import json
import sys

import triton
from compiling import SHARED_LIMIT, Signature, assemble
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from quantattn.attention.kernels.matmul import BLOCKS, _linear_fwd


def row_of(dtype: str, capability: int, precision: str, biased: bool) -> dict[str, object]:
    """Compile for aligned tensors whose K and N are multiples of 16, and assemble."""
    blocks = BLOCKS[32 if dtype == "fp32" else 16]
    constants = {
        "BLOCK_M": blocks.block_m, "BLOCK_N": blocks.block_n, "BLOCK_K": blocks.block_k, "CHAIN": blocks.chain,
        "PRECISION": precision,
    }  # fmt: skip
    signature = Signature()
    for i, name in enumerate(_linear_fwd.arg_names):
        if name in constants or (name == "bias_ptr" and not biased):
            signature.types[name], signature.values[(i,)] = "constexpr", constants.get(name)
        elif name in ("n", "k"):
            signature.add(i, name, "stride")
        else:
            signature.add(i, name, f"*{dtype}" if name.endswith("_ptr") else "i32")
    source = ASTSource(_linear_fwd, signature.types, signature.values, signature.facts)
    options = {"num_warps": blocks.num_warps, "num_stages": blocks.num_stages, "enable_fp_fusion": True}
    done = assemble(triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options), capability)
    return {
        "dtype": dtype, "capability": capability, "precision": precision, "spills": done.spills,
        "registers": done.registers, "shared": done.shared, "shared_limit": SHARED_LIMIT[capability],
        "wgmma": "wgmma" in done.ptx,
    }  # fmt: skip


if __name__ == "__main__":
    cases = [("bf16", c, "ieee", True) for c in (80, 90, 100)]
    cases += [("fp32", 80, "ieee", True), ("fp32", 90, "tf32", False)]
    json.dump([row_of(*case) for case in cases], sys.stdout)
