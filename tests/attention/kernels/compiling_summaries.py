"""Compile the kernels of the summaries as `compiling.py` does those of attention, and print what the assembler says."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass

import triton
from compiling import SHARED_LIMIT, assemble
from torch import Tensor, empty, float16, float32
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from quantattn.attention.kernels import summaries
from quantattn.attention.kernels.configs import padded_head

KERNELS = {
    "received": summaries._attention_received,
    "rows": summaries._attention_rows,
    "map": summaries._attention_map,
}


@dataclass(frozen=True)
class Variant:
    """One specialisation of a kernel."""

    kernel: str
    dtype: str
    d: int
    capability: int
    bias: bool = False


def variants() -> list[Variant]:
    """Causal and packed, the larger program, on every architecture; and the one with a bias that needs most."""
    usual = [Variant(kernel, "bf16", 128, capability) for capability in (80, 90, 100) for kernel in ("rows", "map")]
    return [*usual, Variant("received", "bf16", 128, 90), Variant("map", "bf16", 64, 80, bias=True)]


def probe(variant: Variant) -> Tensor:
    """A tensor that the launcher would choose this variant's configuration for."""
    return empty(1, 1, 1, variant.d, dtype=float32 if variant.dtype == "fp32" else float16)


def row_of(variant: Variant) -> dict[str, object]:
    """Compile and assemble; types, compile-time values and divisibility as a launch on aligned tensors has them."""
    config = summaries.choose_config(variant.kernel, probe(variant), variant.bias, variant.capability)
    wide = padded_head(variant.d)
    tma = variant.capability >= 90 and variant.dtype != "fp32"
    constants = {
        "D": variant.d, "GROUP": 2, "BLOCK_D": wide, "BLOCK_M": config.block_m, "BLOCK_N": config.block_n,
        "HAS_LEFT": False, "HAS_RIGHT": True, "HAS_BIAS": variant.bias, "PACKED": True, "TMA": tma, "PRECISION": "ieee",
    }  # fmt: skip
    types: dict[str, str] = {}
    values: dict[str, object] = {}
    facts: dict[tuple[int], object] = {}
    for i, name in enumerate(KERNELS[variant.kernel].arg_names):
        if name in constants:
            types[name], values[name] = "constexpr", constants[name]
        elif name.endswith("_src") and tma:
            rows = config.block_m if name == "q_src" else config.block_n
            types[name] = f"tensordesc<{variant.dtype}[1, 1, {rows}, {wide}]>"
        elif name.endswith(("_src", "_ptr")):
            types[name] = "*i32" if name.startswith("cu_") else f"*{variant.dtype}" if "_src" in name else "*fp32"
            facts[(i,)] = [["tt.divisibility", 16]]
        elif name == "scale_log2":
            types[name] = "fp32"
        elif re.fullmatch(r"stride_\w(d|j)", name):
            types[name], values[name] = "constexpr", 1
        else:
            types[name] = "i32"
            if name.startswith("stride_"):
                facts[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(KERNELS[variant.kernel], types, values, facts)
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages, "enable_fp_fusion": True}
    built = triton.compile(source, target=GPUTarget("cuda", variant.capability, 32), options=options)
    done = assemble(built, variant.capability)
    return {
        **vars(variant), "registers": done.registers, "spills": done.spills, "shared": done.shared,
        "shared_limit": SHARED_LIMIT[variant.capability], "wgmma": "wgmma" in done.ptx,
    }  # fmt: skip


if __name__ == "__main__":
    json.dump([row_of(variant) for variant in variants()], sys.stdout)
