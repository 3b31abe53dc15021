"""Compile the kernels for an architecture that is not here, and read what the assembler says of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from quantattn.attention.kernels import configs
from quantattn.attention.kernels.backward import _attention_bwd_dkdv, _attention_bwd_dq
from quantattn.attention.kernels.forward import _attention_fwd

KERNELS = {"fwd": _attention_fwd, "dq": _attention_bwd_dq, "dkdv": _attention_bwd_dkdv}
BINARIES = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
SHARED_LIMIT = {80: 166_912, 90: 232_448, 100: 232_448}  # bytes a block may use: A100, H100 and H200, B200


@dataclass(frozen=True)
class Compiled:
    """Registers a thread, bytes of stack and of spills a thread, bytes of shared memory a block, and the PTX."""

    registers: int
    stack: int
    spills: int
    shared: int
    ptx: str


@dataclass(frozen=True)
class Variant:
    """One specialisation of a kernel."""

    kernel: configs.Pass
    dtype: str
    d: int
    capability: int
    left: bool = False
    right: bool = False
    bias: bool = False
    packed: bool = False
    group: int = 1
    precision: str = "ieee"
    config: configs.Config | None = None
    descriptors: bool | None = None


def signature_of(variant: Variant, config: configs.Config) -> tuple[dict[str, str], dict[str, object], dict]:
    """Types, compile-time values and divisibility facts, as a launch on contiguous aligned tensors makes them."""
    fn = KERNELS[variant.kernel]
    wide = configs.padded_head(variant.d)
    tma = variant.descriptors
    if tma is None:
        tma = variant.capability >= 90 and variant.dtype != "fp32"
    constants = {
        "D": variant.d, "GROUP": variant.group, "BLOCK_D": wide, "BLOCK_M": config.block_m, "BLOCK_N": config.block_n,
        "HAS_LEFT": variant.left, "HAS_RIGHT": variant.right, "HAS_BIAS": variant.bias, "HAS_DLSE": False,
        "PACKED": variant.packed, "TMA": tma, "PRECISION": variant.precision,
    }  # fmt: skip
    rows = {"q_src": config.block_m, "do_src": config.block_m, "k_src": config.block_n, "v_src": config.block_n}
    types: dict[str, str] = {}
    values: dict[str, object] = {}
    facts: dict = {}
    for i, name in enumerate(fn.arg_names):
        if name in constants:
            types[name], values[name] = "constexpr", constants[name]
        elif name in rows and tma:
            types[name] = f"tensordesc<{variant.dtype}[1, 1, {rows[name]}, {wide}]>"
        elif name.endswith(("_src", "_ptr")):
            exact = name.removesuffix("_ptr")
            types[name] = "*i32" if exact.startswith("cu_") else "*fp32" if "lse" in exact or exact == "delta" else (
                f"*{variant.dtype}"
            )  # fmt: skip
            facts[(i,)] = [["tt.divisibility", 16]]
        elif name.startswith("scale"):
            types[name] = "fp32"
        elif re.fullmatch(r"stride_\w(d|j)", name):
            types[name], values[name] = "constexpr", 1
        else:
            types[name] = "i32"
            if name.startswith("stride_"):
                facts[(i,)] = [["tt.divisibility", 16]]
    return types, values, facts


@cache
def compile_variant(variant: Variant) -> Compiled:
    """Compile to PTX and assemble; raises what the compiler raises."""
    bits = 32 if variant.dtype == "fp32" else 16
    config = variant.config or configs.configuration(
        variant.kernel, bits, variant.d, variant.capability, bias=variant.bias
    )
    types, values, facts = signature_of(variant, config)
    source = ASTSource(KERNELS[variant.kernel], types, values, facts)
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages, "enable_fp_fusion": True}
    built = triton.compile(source, target=GPUTarget("cuda", variant.capability, 32), options=options)
    return assemble(built, variant.capability)


def assemble(built: object, capability: int) -> Compiled:
    """Ask ptxas for registers and spills."""
    ptx = built.asm["ptx"]
    arch = f"sm_{capability}a" if capability >= 90 else f"sm_{capability}"
    name = "ptxas-blackwell" if capability >= 100 or triton.__version__ >= "3.7" else "ptxas"
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "kernel.ptx"
        text.write_text(ptx)
        done = subprocess.run(
            [BINARIES / name, "-v", f"-arch={arch}", text, "-o", Path(folder) / "kernel.cubin"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    said = done.stdout + done.stderr
    if done.returncode:
        raise RuntimeError(f"ptxas failed: {said[-2000:]}")
    registers = int(re.search(r"Used (\d+) registers", said)[1])
    stack, stores, loads = map(
        int, re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+)", said).groups()
    )
    return Compiled(registers, stack, stores + loads, built.metadata.shared, ptx)


def defaults() -> list[Variant]:
    """The default configurations, causal and packed (the larger program): each pass, head size and architecture.

    float32 has one table for all architectures, so one of them stands for it.
    """
    return [
        Variant(kernel, dtype, d, capability, right=True, packed=True)
        for dtype, capability in (("bf16", 80), ("bf16", 90), ("bf16", 100), ("fp32", 90))
        for d in (64, 128, 256)
        for kernel in KERNELS
    ]


def row_of(variant: Variant) -> dict[str, object]:
    """What the tests ask about one configuration."""
    built = compile_variant(variant)
    return {
        "kernel": variant.kernel,
        "dtype": variant.dtype,
        "d": variant.d,
        "capability": variant.capability,
        "registers": built.registers,
        "spills": built.spills,
        "shared": built.shared,
        "shared_limit": SHARED_LIMIT[variant.capability],
        "wgmma": "wgmma" in built.ptx,
        "bulk_copies": "cp.async.bulk.tensor" in built.ptx,
    }


def main() -> None:
    """Print the table of the defaults as JSON."""
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        json.dump(list(pool.map(row_of, defaults())), sys.stdout)


if __name__ == "__main__":
    main()
