"""Compile the kernels of the summaries as `compiling.py` does those of attention, and print what the assembler says."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

import triton
from compiling import NEEDS, SHARED_LIMIT, TYPES, Signature, assemble
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from quantattn.attention.kernels import summaries
from quantattn.attention.kernels.arguments import Bounds, Strides, Terms
from quantattn.attention.kernels.configs import Config, configuration, padded_head

KERNELS = {
    "received": summaries._attention_received,
    "rows": summaries._attention_rows,
    "map": summaries._attention_map,
}


@dataclass(frozen=True)
class Variant:
    """One specialisation of a kernel."""

    kernel: summaries.Which
    dtype: str
    d: int
    capability: int
    prefix: bool = False
    terms: tuple[str, ...] = ()


TERMS = ("scales", "softcap", "slopes", "bias", "segments")


def variants() -> list[Variant]:
    """Causal and packed, the larger program, on every architecture; and those that need most: with a bias, with all."""
    usual = [Variant(kernel, "bf16", 128, capability) for capability in (80, 90, 100) for kernel in ("rows", "map")]
    most = [Variant(kernel, "bf16", 64, 80, prefix=True, terms=TERMS) for kernel in KERNELS]
    return [*usual, Variant("received", "bf16", 128, 90), Variant("map", "bf16", 64, 80, terms=("bias",)), *most]


def signature_of(variant: Variant, terms: Terms, config: Config) -> Signature:
    """What a launch on contiguous aligned tensors makes of the arguments."""
    wide, hides = padded_head(variant.d), terms.hides
    tma = variant.capability >= 90 and variant.dtype != "fp32"
    constants = {
        "D": variant.d, "GROUP": 2, "BLOCK_D": wide, "BLOCK_M": config.block_m, "BLOCK_N": config.block_n,
        "TMA": tma, "PRECISION": "ieee", "HIDES": hides,
    }  # fmt: skip
    nested = {
        "lse_strides": Strides("stride", 1, "stride", 0), "received_strides": Strides("stride", 1, "stride", 0),
        "bounds": Bounds(None, "i32", "i32" if variant.prefix else None), "terms": terms,
    }  # fmt: skip
    signature = Signature()
    for i, name in enumerate(KERNELS[variant.kernel].arg_names):
        kind: object = "i32"
        if name in constants or name in nested:
            kind = constants.get(name, nested.get(name))
        elif name.endswith("_src"):
            rows = config.block_m if name == "q_src" else config.block_n
            kind = f"tensordesc<{variant.dtype}[1, 1, {rows}, {wide}]>" if tma else f"*{variant.dtype}"
        elif name.endswith("_ptr"):
            kind = "*i32" if name.startswith("cu_") else "*fp32"
        elif name.endswith("_strides"):
            kind = Strides("stride", "stride", "stride", 1)
        elif name == "scale":
            kind = "fp32"
        if isinstance(kind, str) and name in constants:
            signature.types[name], signature.values[(i,)] = "constexpr", kind
        else:
            signature.add(i, name, kind)
    return signature


def row_of(variant: Variant) -> dict[str, object]:
    """Compile and assemble."""
    given = {field for term in variant.terms for field in NEEDS.get(term, (term,))}
    terms = Terms(**{field: TYPES[field] for field in given})
    bits = 32 if variant.dtype == "fp32" else 16
    forward = configuration("fwd", bits, variant.d, variant.capability, terms=bool(variant.terms))
    config = summaries.adapt(variant.kernel, forward, terms)
    signature = signature_of(variant, terms, config)
    source = ASTSource(KERNELS[variant.kernel], signature.types, signature.values, signature.facts)
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages, "enable_fp_fusion": True}
    built = triton.compile(source, target=GPUTarget("cuda", variant.capability, 32), options=options)
    done = assemble(built, variant.capability)
    return {
        **vars(variant), "registers": done.registers, "spills": done.spills, "shared": done.shared,
        "shared_limit": SHARED_LIMIT[variant.capability], "wgmma": "wgmma" in done.ptx,
    }  # fmt: skip


if __name__ == "__main__":
    json.dump([row_of(variant) for variant in variants()], sys.stdout)
