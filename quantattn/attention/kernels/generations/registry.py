"""The generations by name, and one way to run any of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from quantattn.attention.kernels import configs
from quantattn.attention.kernels.configs import Config
from quantattn.attention.kernels.generations import flash1, flash2, flash3, flash4, standard
from quantattn.attention.kernels.generations.call import Call, Shape, Traffic
from quantattn.attention.kernels.launch import capability
from quantattn.attention.kernels.primitives import INTERPRETED
from quantattn.attention.state import Attended

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
HEAD_SIZES = (16, 32, 64, 128)
_LOG2E = 1.4426950408889634


@dataclass(frozen=True)
class Generation:
    """One of them.

    Attributes:
        year: of its paper.
        launch: writes out and lse of a call.
        traffic: (shape, block_m, block_n) → bytes that its kernels ask of memory, by tensor.
        workspace: shape → bytes allocated beyond inputs and outputs.
    """

    year: int
    launch: Callable[[Call], None]
    traffic: Callable[[Shape, int, int], Traffic]
    workspace: Callable[[Shape], int]


GENERATIONS = {
    "standard": Generation(2017, standard.launch, standard.traffic, standard.workspace),
    "flash1": Generation(2022, flash1.launch, flash1.traffic, flash1.workspace),
    "flash2": Generation(2023, flash2.launch, flash2.traffic, flash2.workspace),
    "flash3": Generation(2024, flash3.launch, flash3.traffic, flash3.workspace),
    "flash4": Generation(2026, flash4.launch, flash4.traffic, flash4.workspace),
}


def attend(
    name: str, q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, scale: float | None = None,
    blocks: Config | None = None,
) -> Attended:  # fmt: skip
    """Attention by one generation, forward only.

    Args:
        name: a key of `GENERATIONS`.
        q: (B, Nq, H, D), contiguous; float16, bfloat16 or float32, D 16, 32, 64 or 128.
        k: (B, Nk, H, D).
        v: (B, Nk, H, D).
        causal: whether query i sees the keys up to i + Nk − Nq only.
        scale: factor of q·k, above 0; 1/√D when None.
        blocks: block sizes, warps and stages; the table's when None.

    Returns:
        out (B, Nq, H, D) in the dtype of q and lse (B, Nq, H) float32, natural log; 0 and −inf where nothing is seen.

    Raises:
        ValueError: inputs that the kernels do not take.
    """
    if name not in GENERATIONS:
        raise ValueError(f"expected one of {', '.join(GENERATIONS)}, got {name!r}")
    call = prepare(name, q, k, v, causal=causal, scale=scale, blocks=blocks)
    GENERATIONS[name].launch(call)
    return Attended(call.out, call.lse.transpose(1, 2))


def prepare(
    name: str, q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, scale: float | None = None,
    blocks: Config | None = None,
) -> Call:  # fmt: skip
    """Check the inputs of `attend` and allocate its outputs."""
    _refuse(q, k, v)
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    if not scale > 0:
        raise ValueError(f"scale must be above 0, got {scale}")
    batch, n_q, heads, d = q.shape
    arch = 0 if INTERPRETED else capability(q.device)
    return Call(
        q, k, v,
        out=torch.empty_like(q),
        lse=torch.empty(batch, heads, n_q, dtype=torch.float32, device=q.device),
        unit=scale * _LOG2E,
        causal=causal,
        blocks=blocks or blocks_for(name, 8 * q.element_size(), d, arch),
    )  # fmt: skip


def blocks_for(name: str, bits: int, d: int, arch: int) -> Config:
    """Blocks of a generation: bits of an operand, head size, compute capability as one number (0 when interpreted).

    FlashAttention-2 and -4 take those of the library's own forward kernel. The others assemble without spills.
    """
    wide = d > 64
    if not arch:
        return {"flash3": Config(32, 16, 1, 1), "flash4": Config(16, 32, 1, 1)}.get(name, configs.INTERPRETED)
    if name == "standard":
        return Config(128, 64, 8, 2) if bits == 16 else Config(32, 32, 4, 1)
    if name == "flash1":  # the more keys a block has, the fewer trips its state makes
        return Config(128 if arch >= 90 else 64, 128, 8, 1) if bits == 16 else Config(32, 32, 4, 1)
    if name == "flash3" and bits == 32:
        return Config(64, 32, 8, 1)
    if name == "flash3" and arch < 90:
        return Config(64, 32, 4, 2)
    if name == "flash3":
        return Config(256, 64, 8, 2) if wide else Config(128, 64, 4, 3)
    found = configs.configuration("fwd", bits, d, arch)
    return replace(found, block_n=max(32, found.block_n)) if name == "flash4" else found


def _refuse(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Say in one sentence what the kernels do not take."""
    got = ", ".join(f"{name} {tuple(x.shape)} {x.dtype}" for name, x in (("q", q), ("k", k), ("v", v)))
    if any(x.dim() != 4 for x in (q, k, v)):
        raise ValueError(f"expected q (B, Nq, H, D), k and v (B, Nk, H, D), got {got}")
    same = k.shape == v.shape and (q.shape[0], *q.shape[2:]) == (k.shape[0], *k.shape[2:])
    if not same or not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"expected q (B, Nq, H, D), k and v (B, Nk, H, D) of one dtype, got {got}")
    if 0 in q.shape or 0 in k.shape or q.shape[0] * q.shape[2] > 65_535:
        raise ValueError(f"expected at least one row and at most 65,535 sequences × heads, got {got}")
    if q.dtype not in DTYPES or q.shape[3] not in HEAD_SIZES:
        raise ValueError(f"expected float16, bfloat16 or float32 and a head size of {HEAD_SIZES}, got {got}")
    if not all(x.is_contiguous() and x.device == q.device and x.data_ptr() % 16 == 0 for x in (q, k, v)):
        raise ValueError("expected contiguous, 16-byte aligned q, k and v on one device")
    if INTERPRETED and q.dtype == torch.bfloat16:
        raise ValueError("the Triton interpreter computes bfloat16 wrongly; use float16 or float32 there")
    if not INTERPRETED and q.device.type != "cuda":
        raise ValueError(f"the kernels need a CUDA device, or TRITON_INTERPRET=1; q is on {q.device.type}")
