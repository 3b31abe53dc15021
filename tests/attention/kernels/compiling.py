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
from quantattn.attention.kernels.arguments import Bounds, Strides, Terms
from quantattn.attention.kernels.backward import _attention_bwd_dkdv, _attention_bwd_dq
from quantattn.attention.kernels.dbias import _attention_bwd_dbias
from quantattn.attention.kernels.forward import _attention_fwd

KERNELS = {
    "fwd": _attention_fwd, "dq": _attention_bwd_dq, "dkdv": _attention_bwd_dkdv, "dbias": _attention_bwd_dbias,
}  # fmt: skip
BINARIES = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
SHARED_LIMIT = {80: 166_912, 90: 232_448, 100: 232_448}  # bytes a block may use: A100, H100 and H200, B200


@dataclass(frozen=True)
class Compiled:
    """Registers a thread, bytes of stack and of spills a thread, bytes of shared memory a block, the PTX, and whether
    the assembler makes asynchronous products wait for each other.
    """

    registers: int
    stack: int
    spills: int
    shared: int
    ptx: str
    serialized: bool


@dataclass(frozen=True)
class Variant:
    """One specialisation of a kernel."""

    kernel: configs.Pass
    dtype: str
    d: int
    capability: int
    left: bool = False
    right: bool = False
    prefix: bool = False
    packed: bool = False
    terms: tuple[str, ...] = ()
    part: int = 0
    group: int = 1
    precision: str = "ieee"
    config: configs.Config | None = None
    descriptors: bool | None = None


@triton.jit
def every_third(query, key, n_q, n_k):
    return key % 3 == 0


TYPES = {
    "scales": "*fp32", "softcap": "fp32", "slopes": "*fp32", "sinks": "*fp32",
    "bias": "*fp32", "bias_s": "stride", "bias_h": "stride", "bias_i": "stride", "bias_j": 1,
    "segments_q": "*i32", "segments_k": "*i32", "rule": every_third, "seed": "*i64", "threshold": "i64",
}  # fmt: skip
NEEDS = {
    "bias": ("bias", "bias_s", "bias_h", "bias_i", "bias_j"),
    "segments": ("segments_q", "segments_k"),
    "dropout": ("seed", "threshold"),
}


class Signature:
    """Types, compile-time values and divisibility facts of a launch, leaf by leaf of nested arguments."""

    def __init__(self) -> None:
        self.types: dict[str, object] = {}
        self.values: dict[object, object] = {}
        self.facts: dict[object, object] = {}

    def leaf(self, path: tuple[int, ...], kind: object) -> object:
        """A type as it is, None as a compile-time None, and a number as a compile-time number."""
        if not isinstance(kind, str):
            self.values[path] = kind
            return "constexpr"
        if kind.startswith("*") or kind == "stride":
            self.facts[path] = [["tt.divisibility", 16]]
        return "i32" if kind == "stride" else kind

    def add(self, i: int, name: str, kind: object) -> None:
        """An argument: a leaf, or a named tuple of leaves."""
        self.types[name] = self.nested((i,), kind)

    def nested(self, path: tuple[int, ...], kind: object) -> object:
        if isinstance(kind, tuple):
            return type(kind)(*(self.nested((*path, j), x) for j, x in enumerate(kind)))
        return self.leaf(path, kind)


def signature_of(variant: Variant, config: configs.Config) -> Signature:
    """What a launch on contiguous aligned tensors makes of the arguments."""
    fn = KERNELS[variant.kernel]
    wide = configs.padded_head(variant.d)
    tma = variant.descriptors
    if tma is None:
        tma = variant.capability >= 90 and variant.dtype != "fp32" and variant.kernel != "dbias"
    given = {field for term in variant.terms for field in NEEDS.get(term, (term,))}
    rows = Strides("stride", "stride", "stride", 1)
    terms = Terms(**{f: TYPES[f] if f in given else None for f in Terms._fields})
    plain = not given & {"scales", "softcap", "slopes", "bias"}
    hides = bool(given & {"bias", "segments_q", "rule"})
    constants = {
        "D": variant.d, "GROUP": variant.group, "BLOCK_D": wide, "BLOCK_M": config.block_m, "BLOCK_N": config.block_n,
        "TMA": tma, "PRECISION": variant.precision, "PLAIN": plain, "HIDES": hides,
        "ALL_SEQUENCES": False, "ALL_HEADS": False, "ALL_QUERIES": False, "ALL_KEYS": False,
        "PART": variant.part,
    }  # fmt: skip
    bounds = Bounds(*("i32" if on else None for on in (variant.left, variant.right, variant.prefix)))
    blocks = {"q_src": config.block_m, "do_src": config.block_m, "k_src": config.block_n, "v_src": config.block_n}
    signature = Signature()
    for i, name in enumerate(fn.arg_names):
        kind: object = "i32"
        if name in constants:
            kind = constants[name]
            signature.types[name], signature.values[(i,)] = "constexpr", kind
            continue
        if name in blocks:
            kind = f"tensordesc<{variant.dtype}[1, 1, {blocks[name]}, {wide}]>" if tma else f"*{variant.dtype}"
        elif name in ("dlse_ptr", "along_ptr", "dlse_strides") or (name == "part_strides" and not variant.part):
            kind = None
        elif name.startswith("cu_"):
            kind = "*i32" if variant.packed else None
        elif name.endswith("_ptr"):
            whole = name in ("lse_ptr", "delta_ptr", "dbias_ptr") or (name == "out_ptr" and variant.part)
            kind = "*fp32" if whole else f"*{variant.dtype}"
        elif name == "lse_strides":
            kind = Strides("stride", 1, "stride", 0)
        elif name.endswith("_strides"):
            kind = rows
        elif name in ("bounds", "terms"):
            kind = {"bounds": bounds, "terms": terms}[name]
        elif name == "scale":
            kind = "fp32"
        signature.add(i, name, kind)
    return signature


@cache
def compile_variant(variant: Variant) -> Compiled:
    """Compile to PTX and assemble; raises what the compiler raises."""
    bits = 32 if variant.dtype == "fp32" else 16
    config = variant.config or configs.configuration(
        variant.kernel, bits, variant.d, variant.capability, terms=bool(variant.terms)
    )
    signature = signature_of(variant, config)
    source = ASTSource(KERNELS[variant.kernel], signature.types, signature.values, signature.facts)
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
    return Compiled(registers, stack, stores + loads, built.metadata.shared, ptx, "C75" in said)


def defaults() -> list[Variant]:
    """The default configurations, causal and packed (the larger program): each pass, head size and architecture.

    float32 has one table for all architectures, so one of them stands for it.
    """
    return [
        Variant(kernel, dtype, d, capability, right=True, packed=True)
        for dtype, capability in (("bf16", 80), ("bf16", 90), ("bf16", 100), ("fp32", 90))
        for d in (64, 128, 256)
        for kernel in ("fwd", "dq", "dkdv")
    ]


EVERYTHING = ("scales", "softcap", "slopes", "bias", "segments", "rule", "sinks", "dropout")


def with_terms() -> list[Variant]:
    """Everything at once that may act on a score, in each pass; and each alone in the forward."""
    at_once = [
        Variant(kernel, "bf16", 64, capability, right=True, prefix=True, packed=True, terms=EVERYTHING)
        for capability in (80, 90, 100)
        for kernel in KERNELS
    ]
    alone = [Variant("fwd", "bf16", 64, 90, right=True, terms=(term,)) for term in EVERYTHING]
    return [*at_once, *alone, Variant("fwd", "bf16", 64, 90, right=True, part=2048)]


def row_of(variant: Variant) -> dict[str, object]:
    """What the tests ask about one configuration."""
    built = compile_variant(variant)
    return {
        "kernel": variant.kernel,
        "dtype": variant.dtype,
        "d": variant.d,
        "capability": variant.capability,
        "terms": variant.terms,
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
        json.dump(list(pool.map(row_of, [*defaults(), *with_terms()])), sys.stdout)


if __name__ == "__main__":
    main()
