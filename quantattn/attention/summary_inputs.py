"""The arguments of a summary, checked once: the same rules as those of `attention`, whose weights it is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quantattn.attention import ops
from quantattn.attention.choose import choose_backend, require_backend
from quantattn.attention.extras import Extras
from quantattn.attention.inputs import check_bias, check_offsets
from quantattn.attention.mask import Mask
from quantattn.attention.options import check_options, check_per_head, check_scale, check_segments
from quantattn.attention.state import lse_dtype
from quantattn.attention.summary_tiles import Pack


@dataclass(frozen=True)
class Asked:
    """Checked arguments, without gradients: tensors as given, offsets for a pack, bias 4-D, the scale a number."""

    q: Tensor
    k: Tensor
    lse: Tensor
    cu_q: Tensor | None
    cu_k: Tensor | None
    mask: Mask
    bias: Tensor | None
    scale: float
    extras: Extras

    def choose(self, backend: str) -> str:
        """The implementation that an argument `backend` means here, "triton", "tiled" or "exact"; raises why not."""
        if backend == "auto":
            choice = choose_backend(self.q, self.k, self.k, mask=self.mask, bias=self.bias, extras=self.extras)
            return "triton" if choice.backend in ("triton", "hopper") else "tiled"
        if backend not in ("triton", "tiled", "exact"):
            raise ValueError(f"backend must be one of auto, triton, tiled, exact; got {backend!r}")
        require_backend(backend, self.q, mask=self.mask, bias=self.bias, extras=self.extras)
        return backend

    def pack(self) -> Pack:
        """The same as sequences end to end; reads the offsets."""
        q, k, lse = self.q, self.k, self.lse
        if self.cu_q is not None and self.cu_k is not None:
            ops.check_values(q.shape[0], k.shape[0], self.cu_q, self.cu_k, self.bias)
            rows, columns = (tuple(cu.tolist()) for cu in (self.cu_q, self.cu_k))
        else:
            batch = q.shape[0] if q.dim() == 4 else 1
            rows, columns = (tuple(x.shape[-3] * n for n in range(batch + 1)) for x in (q, k))
        if q.dim() == 4:
            q, k, lse = q.flatten(0, 1), k.flatten(0, 1), lse.flatten(0, 1)
        return Pack(q, k, lse, rows, columns, self.mask, self.bias, self.scale, self.extras)


def ask(
    q: Tensor, k: Tensor, lse: Tensor, cu_q: Tensor | None, cu_k: Tensor | None,
    mask: Mask, bias: Tensor | None, scale: float | Tensor | None, softcap: float | None, alibi: Tensor | None,
    segments: Tensor | None, segments_k: Tensor | None,
) -> Asked:  # fmt: skip
    """Raise unless the arguments are those of one attention; the same rules as `attention`."""
    check_options(mask, 0.0, softcap, True)
    if mask.rule is not None:
        raise ValueError(f"summaries take masks without a rule, got {mask}")
    for name, value in {"q": q, "k": k, "lse": lse, "cu_seqlens": cu_q, "cu_seqlens_k": cu_k, "bias": bias}.items():
        if not isinstance(value, Tensor) and (value is not None or name in ("q", "k", "lse")):
            raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
    q, k, lse = q.detach(), k.detach(), lse.detach()
    bias = None if bias is None else bias.detach()
    if torch.is_autocast_enabled(q.device.type):  # `attention` lowered its inputs, and lse is of those
        lower = torch.get_autocast_dtype(q.device.type)
        q, k = (x.to(lower) if x.dtype == torch.float32 else x for x in (q, k))
    _check_tensors(q, k, lse)
    cu_q, cu_k = check_offsets(q, k, cu_q, cu_k)
    if bias is not None:
        bias = check_bias(bias, q, k, cu_q, cu_k)
    (factor, scales), slopes = check_scale(scale, q), check_per_head("alibi", alibi, q)
    extras = Extras(
        softcap=softcap,
        scales=None if scales is None else scales.detach(),
        alibi=None if slopes is None else slopes.detach(),
        **check_segments(segments, segments_k, q, k),
    )
    return Asked(q, k, lse, cu_q, cu_k, mask, bias, factor, extras)


def _check_tensors(q: Tensor, k: Tensor, lse: Tensor) -> None:
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, lse {tuple(lse.shape)}"
    if q.dim() not in (3, 4) or k.dim() != q.dim():
        raise ValueError(f"q and k must both be (T, H, D) or both (B, N, H, D), got {shapes}")
    if q.dim() == 4 and q.shape[0] != k.shape[0]:
        raise ValueError(f"q and k must have the same batch size, got {shapes}")
    if q.shape[-1] != k.shape[-1] or q.shape[-1] == 0:
        raise ValueError(f"q and k must have one head size of at least 1, got {shapes}")
    if k.shape[-2] == 0 or q.shape[-2] % k.shape[-2]:
        raise ValueError(f"the query heads must be a multiple of the key heads, got {shapes}")
    if q.dtype != k.dtype or q.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise TypeError(f"q and k must have one dtype of float16, bfloat16, float32, float64, got {q.dtype}, {k.dtype}")
    if lse.shape != q.shape[:-1]:
        raise ValueError(f"lse must be as attention returns it, {tuple(q.shape[:-1])} for this q, got {shapes}")
    if lse.dtype != lse_dtype(q.dtype):
        raise TypeError(f"lse must be {lse_dtype(q.dtype)} for {q.dtype}, as attention returns it, got {lse.dtype}")
    if not q.device == k.device == lse.device:
        raise ValueError(f"q, k and lse must be on one device, got {q.device}, {k.device}, {lse.device}")


def rows_of(queries: Tensor | Sequence[int], n: int) -> list[int]:
    """The chosen queries as integers, each one of n rows."""
    chosen = torch.as_tensor(queries)
    whole = chosen.numel() == 0 or chosen.dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
    if chosen.dim() != 1 or not whole:
        raise ValueError(f"queries must be (Q,) integers, got {tuple(chosen.shape)} {chosen.dtype}")
    rows = [int(row) for row in chosen.tolist()]
    for row in rows:
        if not 0 <= row < n:
            raise ValueError(f"queries must be rows 0 to {n - 1} of q, got {row}")
    return rows


def count(name: str, value: int) -> int:
    """The value, which must be an integer of at least 1."""
    if type(value) is not int or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
    return value
