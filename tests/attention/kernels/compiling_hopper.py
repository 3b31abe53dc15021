"""Compile the kernels for sm_90 with no such device, and print what the assembler says of them as JSON.

They are launched as on a device, on tensors of the CPU, with a driver that knows the architecture and nothing else;
what would run is compiled and not run.
"""

from __future__ import annotations

import json
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch
from compiling import SHARED_LIMIT, assemble
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from quantattn.attention.kernels.hopper import configs, float8_launch, float8_rounding, launch
from quantattn.attention.kernels.launch import Problem

WORKERS = 2
MASKS = {"full": (None, None), "causal": (None, 0), "window": (64, 9)}
WIDE = {256: configs.WIDE_BACKWARD}
TABLES = {"fwd": configs.FORWARD, "short": configs.SHORT, "bwd": configs.BACKWARD, "keys": WIDE, "queries": WIDE}
TABLES["float8"] = configs.FLOAT8
VARIANTS = [
    (kernel, d, mask, packed)
    for kernel, table in TABLES.items()
    for d in table
    for mask, packed in (("full", False), ("causal", kernel != "float8"), ("window", True))
    if (kernel, mask) != ("float8", "window")
]


class NoDevice:
    """A driver for a device that is not here."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def map_python_to_cpp_type(self, kind: str) -> str:
        return kind


class Compiled:
    """A kernel that is compiled where it would be launched."""

    def __init__(self, kernel: object) -> None:
        self.kernel, self.built = kernel, []

    def __getitem__(self, grid: object) -> object:
        return lambda *a, **k: self.built.append(self.kernel.warmup(*a, grid=(1,), **k))


def prepare() -> None:
    """Have launches compile, in this process."""
    driver.set_active(NoDevice())
    warnings.simplefilter("ignore")  # 3.9 announces what 3.10 will do by default
    for module in (launch, float8_launch, float8_rounding):
        module.multiprocessors = lambda device: 132
        for name in [name for name in vars(module) if name.startswith(("_attention_", "_float8_", "_round_"))]:
            setattr(module, name, Compiled(getattr(module, name)))


def row_of(variant: tuple[str, int, str, bool]) -> dict[str, object]:
    """What the tests ask about one program."""
    kernel, d, mask, packed = variant
    q, k = torch.empty(1, 600, 4, d, dtype=torch.bfloat16), torch.empty(1, 600, 2, d, dtype=torch.bfloat16)
    cu = torch.tensor([0, 250, 600], dtype=torch.int32) if packed else None
    problem, lse = Problem(0.1, *MASKS[mask], cu, cu), torch.empty(1, 4, 600)
    config = TABLES[kernel][d]
    if kernel == "float8":
        rounded = float8_rounding.round_inputs(q, k, k, incoherent=True, seed=0)
        float8_launch.launch_float8(rounded, 0.1, mask == "causal", q.dtype, config)
    elif kernel in ("bwd", "keys", "queries"):
        config = config if kernel == "bwd" else None
        launch.launch_backward(q, None, q, k, k, q, lse, q.clone(), k.clone(), k.clone(), problem, config)
    else:
        launch.launch_forward(q, k, k, q.clone(), lse, problem, config)
    kernels = {"bwd": launch._attention_bwd, "float8": float8_launch._float8_fwd}
    kernels |= {"keys": launch._attention_bwd_keys, "queries": launch._attention_bwd_queries}
    built = kernels.get(kernel, launch._attention_fwd).built.pop()
    assembled = assemble(built, 90)
    return {
        "kernel": kernel,
        "d": d,
        "mask": mask,
        "packed": packed,
        "registers": assembled.registers,
        "spills": assembled.spills,
        "shared": assembled.shared * getattr(config, "programs", 1),
        "shared_limit": SHARED_LIMIT[90],
        "wgmma": "wgmma.mma_async" in assembled.ptx,
        "bulk_copies": "cp.async.bulk.tensor" in assembled.ptx,
        "threads": 32 * built.metadata.num_warps * getattr(config, "programs", 1),
        "serialized": assembled.serialized,
        "atomics": "atomic_rmw" in built.asm["ttgir"],
    }


if __name__ == "__main__":
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn"), initializer=prepare) as pool:
        json.dump(list(pool.map(row_of, VARIANTS)), sys.stdout)
