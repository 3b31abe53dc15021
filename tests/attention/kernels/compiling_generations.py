"""Compile the generations for architectures that are not here; `compiling.py` reads what the assembler says."""

from __future__ import annotations

import json
import sys

import triton
from compiling import SHARED_LIMIT, assemble
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from quantattn.attention.float8 import BELOW
from quantattn.attention.kernels.generations import flash1, flash2, flash3, flash4, float8, standard
from quantattn.attention.kernels.generations.registry import GENERATIONS, blocks_for

KERNELS = {
    "scores": standard._standard_scores,
    "softmax": standard._standard_softmax,
    "product": standard._standard_product,
    "flash1": flash1._flash1_fwd,
    "flash2": flash2._flash2_fwd,
    "flash3": flash3._flash3_fwd,
    "flash4": flash4._flash4_fwd,
    "float8": float8._float8_fwd,
}

FLOATS = ("lse_ptr", "o_ptr", "m_ptr", "l_ptr")


def compiled(kernel: str, dtype: str, d: int, capability: int, causal: bool = True) -> dict[str, object]:
    """What the tests ask about one kernel with the blocks of its launch."""
    bits = 32 if dtype == "fp32" else 16
    name = kernel if kernel in GENERATIONS else "standard"
    config = float8.BLOCKS if kernel == "float8" else blocks_for(name, bits, d, capability)
    constants = {
        "CAUSAL": causal, "D": d, "BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "PRECISION": "ieee",
        "THRESHOLD": flash4.THRESHOLD, "DEGREE": 3 if bits == 16 else 5, "BLOCK": 4096,
        "BELOW": BELOW,
    }  # fmt: skip
    fn = KERNELS[kernel]
    types: dict[str, str] = {}
    values: dict[str, object] = {}
    facts: dict = {}
    for i, name in enumerate(fn.arg_names):
        if name in constants:
            types[name], values[name] = "constexpr", constants[name]
        elif name.endswith("_src"):
            block = config.block_n if name != "q_src" else config.block_m // (2 if kernel == "flash3" else 1)
            held = "fp8e4nv" if kernel == "float8" else dtype
            types[name] = f"tensordesc<{held}[1, 1, {block}, {d}]>"
        elif name.endswith("_ptr"):
            types[name] = "*fp32" if name in FLOATS or name.endswith("scale_ptr") else f"*{dtype}"
            facts[(i,)] = [["tt.divisibility", 16]]
        else:
            types[name] = "fp32" if name in ("unit", "scale") else "i32"
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages, "enable_fp_fusion": True}
    target = GPUTarget("cuda", capability, 32)
    built = triton.compile(ASTSource(fn, types, values, facts), target=target, options=options)
    found = assemble(built, capability)
    return {
        "kernel": kernel, "dtype": dtype, "d": d, "capability": capability, "registers": found.registers,
        "spills": found.spills, "shared": found.shared, "shared_limit": SHARED_LIMIT[capability],
        "e4m3": "e4m3.e4m3" in found.ptx or "kind::f8f6f4" in found.ptx,
        "wgmma": "wgmma" in found.ptx, "tcgen05": "tcgen05.mma" in found.ptx,
        "bulk_copies": "cp.async.bulk.tensor" in found.ptx, "overlapped": overlapped(found.ptx),
        "fused": found.ptx.count("fma.rn.f32"), "exponentials": found.ptx.count("ex2.approx"),
        "weights": config.block_m * config.block_n // (32 * config.num_warps),
    }  # fmt: skip


def overlapped(ptx: str) -> int:
    """Most exponentials between the start of a product on Hopper's matrix units and the first wait for one."""
    most, since = 0, None
    for line in ptx.splitlines():
        if "wgmma.commit_group" in line:
            since = 0
        elif "wgmma.wait_group" in line or "bra" in line:
            since = None
        elif "ex2.approx" in line and since is not None:
            since += 1
            most = max(most, since)
    return most


def main() -> None:
    """Print a line of JSON for what the arguments name: kernel:dtype:d:capability …"""
    jobs = [argument.split(":") for argument in sys.argv[1:]]
    json.dump([compiled(kernel, dtype, int(d), int(c)) for kernel, dtype, d, c in jobs], sys.stdout)


if __name__ == "__main__":
    main()
