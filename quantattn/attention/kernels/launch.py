"""From tensors to launches: layouts, descriptors, grids. Shapes: q (B, N, H, D), k and v (B, Nk, Hkv, D)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources
from triton.tools.tensor_descriptor import TensorDescriptor

from quantattn.attention.kernels import configs
from quantattn.attention.kernels.backward import _attention_bwd_dkdv, _attention_bwd_dq
from quantattn.attention.kernels.forward import _attention_fwd
from quantattn.attention.kernels.primitives import INTERPRETED

TooLarge = OutOfResources
"""Raised by a launch whose blocks need more shared memory or registers than the device has."""


@dataclass(frozen=True)
class Problem:
    """What every kernel of one call shares.

    A dense call has `cu_q is None`: B sequences of N queries and Nk keys. A packed call has B = 1 and int32
    offsets `cu_q`, `cu_k` (sequences + 1,) into N = T rows. `bias` is (sequences or 1, H or 1, Nq or 1, Nk or 1);
    `left`, `right` are the bounds of the mask, None for none.
    """

    scale: float
    left: int | None
    right: int | None
    cu_q: Tensor | None = None
    cu_k: Tensor | None = None
    bias: Tensor | None = None

    @property
    def packed(self) -> bool:
        """Whether the sequences are laid end to end."""
        return self.cu_q is not None

    def constants(self, q: Tensor, k: Tensor, config: configs.Config) -> dict[str, Any]:
        """The compile-time arguments that the kernels have in common."""
        return {
            "D": q.shape[-1],
            "GROUP": q.shape[2] // k.shape[2],
            "BLOCK_D": configs.padded_head(q.shape[-1]),
            "BLOCK_M": config.block_m,
            "BLOCK_N": config.block_n,
            "HAS_LEFT": self.left is not None,
            "HAS_RIGHT": self.right is not None,
            "HAS_BIAS": self.bias is not None,
            "PACKED": self.packed,
            # float32 is multiplied as torch's own matrix products do.
            "PRECISION": "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32",
            "num_warps": config.num_warps,
            "num_stages": config.num_stages,
            "enable_fp_fusion": True,
        }

    def offsets(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """Offsets of queries and of keys; any tensor stands in where a dense call reads none."""
        return (q, q) if self.cu_q is None or self.cu_k is None else (self.cu_q, self.cu_k)

    def lengths(self, q: Tensor, k: Tensor) -> tuple[int, int, int, int, int]:
        """Runtime integers: sequences, Nq, Nk, left, right (Nq and Nk are read from the offsets when packed)."""
        sequences = q.shape[0] if self.cu_q is None else self.cu_q.shape[0] - 1
        return sequences, q.shape[1], k.shape[1], self.left or 0, self.right or 0

    def tiles(self, rows: Tensor, block: int) -> int:
        """Programs along the tiles of `rows` (B, N, …); a pack gets the bound that `find_sequence` needs."""
        if self.cu_q is None:
            return rows.shape[0] * -(-rows.shape[1] // block)
        return rows.shape[1] // block + self.cu_q.shape[0] - 1

    def bias_arguments(self, q: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        """Pointer and the four strides of the additive mask."""
        if self.bias is None:
            return q, (0, 0, 0, 0)
        both = zip(self.bias.shape, self.bias.stride(), strict=True)
        return self.bias, tuple(0 if size == 1 else stride for size, stride in both)


@cache
def capability(device: torch.device) -> int:
    """Compute capability as one number, 90 for sm_90; 0 under the interpreter."""
    if device.type != "cuda":
        return 0
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * int(major) + int(minor)


def can_describe(x: Tensor) -> bool:
    """Whether the tensor memory accelerator can read x (B, N, H, D): unit last stride, 16-byte base and strides."""
    step = x.element_size()
    return (
        x.numel() > 0
        and x.stride(-1) == 1
        and x.data_ptr() % 16 == 0
        and all(x.stride(i) * step % 16 == 0 and x.stride(i) > 0 for i in range(3) if x.shape[i] > 1)
    )


def describe(x: Tensor, block: int, block_d: int) -> TensorDescriptor:
    """Descriptor over (B, H, N, D), so that a tile of one head is the innermost box."""
    order = (0, 2, 1, 3)
    # The stride of an axis of length 1 is never used but must be well-formed.
    strides = [x.stride(i) if x.shape[i] > 1 else x.shape[-1] * 16 for i in order[:3]] + [1]
    return TensorDescriptor(x, [x.shape[i] for i in order], strides, [1, 1, block, block_d])


def choose_config(which: configs.Pass, q: Tensor, problem: Problem) -> configs.Config:
    """The table's entry for these tensors."""
    if INTERPRETED:
        return configs.INTERPRETED
    bits = 16 if q.element_size() == 2 else 32
    bias = problem.bias is not None
    return configs.configuration(which, bits, q.shape[-1], capability(q.device), bias=bias)


def use_descriptors(*tensors: Tensor) -> bool:
    """Decided by facts of device and layout: sm_90 or later (or the interpreter), 16-bit operands, aligned views."""
    able = INTERPRETED or capability(tensors[0].device) >= 90
    return able and all(x.element_size() == 2 and can_describe(x) for x in tensors)


def launch_forward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, problem: Problem,
    config: configs.Config | None = None, descriptors: bool | None = None,
) -> None:  # fmt: skip
    """Write out (B, N, H, D) and lse (B, H, N) float32, both contiguous and owned by the caller."""
    config = config or choose_config("fwd", q, problem)
    tma = use_descriptors(q, k, v) if descriptors is None else descriptors
    constants = problem.constants(q, k, config)
    tiles = problem.tiles(q, config.block_m)
    if not (tiles and q.shape[2]):
        return
    sources = (q, k, v)
    if tma:
        sizes = (config.block_m, config.block_n, config.block_n)
        sources = tuple(describe(x, n, constants["BLOCK_D"]) for x, n in zip(sources, sizes, strict=True))
    bias, bias_strides = problem.bias_arguments(q)
    _attention_fwd[(tiles, q.shape[2])](
        *sources, bias, out, lse, *problem.offsets(q), problem.scale * 1.4426950408889634, *problem.lengths(q, k),
        *q.stride(), *k.stride(), *v.stride(), *out.stride()[:3], *bias_strides, *lse.stride()[:2],
        TMA=tma, **constants,
    )  # fmt: skip


def launch_backward(
    do: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
    dq: Tensor, dk: Tensor, dv: Tensor, problem: Problem,
    config_dq: configs.Config | None = None, config_dkdv: configs.Config | None = None,
    descriptors: bool | None = None,
) -> None:  # fmt: skip
    """Write dq, dk, dv (contiguous, owned by the caller) from the saved out (contiguous) and lse (B, H, N)."""
    delta = torch.empty_like(lse)
    launch_dq(do, dlse, q, k, v, out, lse, delta, dq, problem, config_dq, descriptors)
    launch_dkdv(do, q, k, v, lse, delta, dk, dv, problem, config_dkdv, descriptors)


def launch_dq(
    do: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, delta: Tensor,
    dq: Tensor, problem: Problem, config: configs.Config | None = None, descriptors: bool | None = None,
) -> None:  # fmt: skip
    """The first half of the backward: write dq and delta (B, H, N), which the second half reads."""
    config = config or choose_config("dq", q, problem)
    constants = problem.constants(q, k, config)
    tiles = problem.tiles(q, config.block_m)
    if not (tiles and q.shape[2]):
        return
    tma, sources = _sources(q, k, v, do, config, constants["BLOCK_D"], descriptors)
    bias, bias_strides = problem.bias_arguments(q)
    _attention_bwd_dq[(tiles, q.shape[2])](
        *sources, out, bias, lse, lse if dlse is None else dlse, delta, dq, *problem.offsets(q),
        problem.scale, *problem.lengths(q, k), *q.stride(), *k.stride(), *v.stride(), *do.stride(),
        *out.stride()[:3], *bias_strides, *lse.stride()[:2], *((0, 0, 0) if dlse is None else dlse.stride()),
        HAS_DLSE=dlse is not None, TMA=tma, **constants,
    )  # fmt: skip


def launch_dkdv(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, lse: Tensor, delta: Tensor, dk: Tensor, dv: Tensor,
    problem: Problem, config: configs.Config | None = None, descriptors: bool | None = None,
) -> None:  # fmt: skip
    """The second half of the backward: write dk and dv."""
    config = config or choose_config("dkdv", q, problem)
    constants = problem.constants(q, k, config)
    tiles = problem.tiles(k, config.block_n)
    if not (tiles and k.shape[2]):
        return
    tma, sources = _sources(q, k, v, do, config, constants["BLOCK_D"], descriptors)
    bias, bias_strides = problem.bias_arguments(q)
    cu_q, cu_k = problem.offsets(q)
    _attention_bwd_dkdv[(tiles, k.shape[2])](
        *sources, q, do, bias, lse, delta, dk, dv, cu_k, cu_q,
        problem.scale, *problem.lengths(q, k), *q.stride(), *k.stride(), *v.stride(), *do.stride(),
        *dk.stride()[:3], *bias_strides, *lse.stride()[:2], TMA=tma, **constants,
    )  # fmt: skip


def _sources(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, config: configs.Config, block_d: int, descriptors: bool | None
) -> tuple[bool, tuple[Any, ...]]:
    """What the kernels of the backward read tiles from: descriptors, or the tensors themselves."""
    tma = use_descriptors(q, k, v, do) if descriptors is None else descriptors
    if not tma:
        return tma, (q, k, v, do)
    m, n = config.block_m, config.block_n
    return tma, tuple(describe(x, size, block_d) for x, size in ((q, m), (k, n), (v, n), (do, m)))
