"""From tensors to launches: layouts, descriptors, grids. Shapes: q (B, N, H, D), k and v (B, Nk, Hkv, D)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources
from triton.tools.tensor_descriptor import TensorDescriptor

from quantattn.attention.kernels import configs, split
from quantattn.attention.kernels.arguments import Bounds, Strides, Terms
from quantattn.attention.kernels.backward import _attention_bwd_dkdv, _attention_bwd_dq
from quantattn.attention.kernels.dbias import _attention_bwd_dbias
from quantattn.attention.kernels.forward import _attention_fwd
from quantattn.attention.kernels.primitives import INTERPRETED

TooLarge = OutOfResources
"""Raised by a launch whose blocks need more shared memory or registers than the device has."""


@dataclass(frozen=True)
class Problem:
    """What every kernel of one call shares.

    A dense call has `cu_q is None`: B sequences of N queries and Nk keys. A packed call has B = 1 and int32
    offsets `cu_q`, `cu_k` (sequences + 1,) into N = T rows. `bias` is (sequences or 1, H or 1, Nq or 1, Nk or 1);
    `left`, `right` are the bounds of the mask, None for none; keys before `prefix` are seen by all. `scales`, `slopes`
    and `sinks` are (H,) float32; `segments_q` and `segments_k` int32, one number a row of q and of k, contiguous;
    `seed` is (1,) int64, and `keep` the probability that dropout keeps a weight. `ordered`: every query of the forward
    visits its blocks of keys from the first to the last, so that its bits do not depend on its tile. `rule` is a jit
    function that hides more (`rules.py`).
    """

    scale: float
    left: int | None
    right: int | None
    cu_q: Tensor | None = None
    cu_k: Tensor | None = None
    bias: Tensor | None = None
    prefix: int = 0
    scales: Tensor | None = None
    softcap: float = 0.0
    slopes: Tensor | None = None
    sinks: Tensor | None = None
    segments_q: Tensor | None = None
    segments_k: Tensor | None = None
    seed: Tensor | None = None
    keep: float = 1.0
    ordered: bool = False
    rule: Any = None

    def bounds(self) -> Bounds:
        """The mask's bounds; a prefix where everything is visible anyway is none."""
        bounded = self.left is not None or self.right is not None
        return Bounds(self.left, self.right, self.prefix if self.prefix and bounded else None)

    def terms(self) -> Terms:
        """Everything else that acts on a score or a weight."""
        bias = self.bias
        axes: list[Any] = [None] * 4
        if bias is not None:
            bias = bias.view(torch.uint8) if bias.dtype == torch.bool else bias
            axes = [0 if size == 1 else stride for size, stride in zip(bias.shape, bias.stride(), strict=True)]
        s, h, i, j = axes
        threshold = None if self.seed is None else round(self.keep * 2**32)
        return Terms(
            self.scales, self.softcap or None, self.slopes, bias, s, h, i, j,
            self.segments_q, self.segments_k, self.rule, self.sinks, self.seed, threshold,
        )  # fmt: skip

    def constants(self, q: Tensor, k: Tensor, config: configs.Config) -> dict[str, Any]:
        """The compile-time arguments that the kernels have in common."""
        return {
            "D": q.shape[-1],
            "GROUP": q.shape[2] // k.shape[2],
            "BLOCK_D": configs.padded_head(q.shape[-1]),
            "BLOCK_M": config.block_m,
            "BLOCK_N": config.block_n,
            # float32 is multiplied as torch's own matrix products do.
            "PRECISION": "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32",
            "num_warps": config.num_warps,
            "num_stages": config.num_stages,
            "enable_fp_fusion": True,
        }

    def sequences(self, q: Tensor) -> int:
        """How many sequences there are."""
        return q.shape[0] if self.cu_q is None else self.cu_q.shape[0] - 1

    def tiles(self, rows: Tensor, block: int) -> int:
        """Programs along the tiles of `rows` (B, N, …); a pack gets the bound that `find_sequence` needs."""
        if self.cu_q is None:
            return rows.shape[0] * -(-rows.shape[1] // block)
        return rows.shape[1] // block + self.cu_q.shape[0] - 1


def strides(x: Tensor) -> Strides:
    """Of (B, N, H, D), or of (B, H, N) as lse is stored."""
    if x.dim() == 3:
        return Strides(x.stride(0), x.stride(2), x.stride(1), 0)
    return Strides(*x.stride())


@cache
def capability(device: torch.device) -> int:
    """Compute capability as one number, 90 for sm_90; 0 under the interpreter."""
    if device.type != "cuda":
        return 0
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * int(major) + int(minor)


def can_describe(x: Tensor) -> bool:
    """Whether the tensor memory accelerator can read x (B, N, H, D): unit last stride, 16-byte base and strides."""
    return x.data_ptr() % 16 == 0 and _describable(x.shape, x.stride(), x.element_size())


@lru_cache(maxsize=4096)
def _describable(sizes: tuple[int, ...], steps: tuple[int, ...], size: int) -> bool:
    aligned = all(
        step * size % 16 == 0 and step > 0 for length, step in zip(sizes[:3], steps[:3], strict=True) if length > 1
    )
    return 0 not in sizes and steps[-1] == 1 and aligned


def describe(x: Tensor, block: int, block_d: int) -> TensorDescriptor:
    """Descriptor over (B, H, N, D), so that a tile of one head is the innermost box."""
    order = (0, 2, 1, 3)
    # The stride of an axis of length 1 is never used but must be well-formed.
    strides = [x.stride(i) if x.shape[i] > 1 else x.shape[-1] * 16 for i in order[:3]] + [1]
    return TensorDescriptor(x, [x.shape[i] for i in order], strides, [1, 1, block, block_d])


def choose_config(which: configs.Pass, q: Tensor, terms: Terms) -> configs.Config:
    """The table's entry for these tensors."""
    if INTERPRETED:
        return configs.INTERPRETED
    bits = 16 if q.element_size() == 2 else 32
    roomy = not terms.plain or terms.hides or terms.seed is not None
    return configs.configuration(which, bits, q.shape[-1], capability(q.device), terms=roomy)


def use_descriptors(*tensors: Tensor) -> bool:
    """Decided by facts of device and layout: sm_90 or later (or the interpreter), 16-bit operands, aligned views."""
    able = INTERPRETED or capability(tensors[0].device) >= 90
    return able and all(x.element_size() == 2 and can_describe(x) for x in tensors)


def launch_forward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, problem: Problem,
    config: configs.Config | None = None, descriptors: bool | None = None,
) -> None:  # fmt: skip
    """Write out (B, N, H, D) and lse (B, H, N) float32, both contiguous and owned by the caller."""
    terms = problem.terms()
    dense = problem.cu_q is None and not problem.ordered
    parts = split.count_parts(q.shape[1], k.shape[1]) if dense else 1
    if parts > 1 and _rows_are_alike(q, k, problem, terms):
        # One tile holds the queries of all heads that share keys, which are then read once.
        rows = split.heads_to_rows(q, k.shape[2])
        outs, lses = torch.empty_like(rows), lse.new_empty(q.shape[0], k.shape[2], rows.shape[1])
        launch_forward(rows, k, v, outs, lses, problem, config, descriptors)
        for to, found in zip((out, lse), split.rows_to_heads(outs, lses, q.shape[1]), strict=True):
            to.copy_(found)
        return
    if config is None:
        config = choose_config("fwd", q, terms)
        config = split.config_of(q.shape[1], config) if parts > 1 else config
    tma = use_descriptors(q, k, v) if descriptors is None else descriptors
    constants = problem.constants(q, k, config)
    tiles = problem.tiles(q, config.block_m)
    if not (tiles and q.shape[2]):
        return
    sources = (q, k, v)
    if tma:
        sizes = (config.block_m, config.block_n, config.block_n)
        sources = tuple(describe(x, n, constants["BLOCK_D"]) for x, n in zip(sources, sizes, strict=True))
    outs, lses = out, lse
    if parts > 1:
        outs, lses = (x.new_empty(parts, *x.shape, dtype=torch.float32) for x in (out, lse))
    _attention_fwd[(tiles, q.shape[2], parts)](
        *sources, outs, lses, problem.cu_q, problem.cu_k, problem.scale, problem.sequences(q), q.shape[1], k.shape[1],
        strides(q), strides(k), strides(v), strides(out), strides(lse),
        Strides(outs.stride(0), lses.stride(0), 0, 0) if parts > 1 else None, problem.bounds(), terms,
        # With HIDES no block counts as full, and none is put off until the cut ones are done.
        TMA=tma, PLAIN=terms.plain, HIDES=terms.hides or problem.ordered, PART=split.PART if parts > 1 else 0,
        **constants,
    )  # fmt: skip
    if parts > 1:
        split.merge_parts(outs, lses, out, lse)


def _rows_are_alike(q: Tensor, k: Tensor, problem: Problem, terms: Terms) -> bool:
    """Whether the rows of all heads that share keys may stand in one tile: they all see all keys, by q·k alone."""
    together = q.shape[1] * (q.shape[2] // max(k.shape[2], 1))
    full = problem.left is None and problem.right is None
    plain = terms.plain and not terms.hides and terms.seed is None and terms.sinks is None
    return full and plain and q.shape[1] < together <= split.FEW_QUERIES


def launch_dq(
    do: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, delta: Tensor,
    dq: Tensor, problem: Problem, config: configs.Config | None = None, descriptors: bool | None = None,
    along: Tensor | None = None,
) -> None:  # fmt: skip
    """The first half of the backward: write dq and delta (B, H, N), which the other kernels read.

    along (B, H, N) float32, where it is given, takes q·dq over the head's own scale: the gradient of that scale by row.
    """
    terms = problem.terms()
    config = config or choose_config("dq", q, terms)
    constants = problem.constants(q, k, config)
    tiles = problem.tiles(q, config.block_m)
    if not (tiles and q.shape[2]):
        return
    tma, sources = _sources(q, k, v, do, config, constants["BLOCK_D"], descriptors)
    _attention_bwd_dq[(tiles, q.shape[2])](
        *sources, out, lse, dlse, delta, dq, along, problem.cu_q, problem.cu_k,
        problem.scale, problem.sequences(q), q.shape[1], k.shape[1],
        strides(q), strides(k), strides(v), strides(do), strides(out), strides(lse),
        None if dlse is None else strides(dlse), problem.bounds(), terms,
        TMA=tma, HIDES=terms.hides, **constants,
    )  # fmt: skip


def launch_dkdv(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, lse: Tensor, delta: Tensor, dk: Tensor, dv: Tensor,
    problem: Problem, config: configs.Config | None = None, descriptors: bool | None = None,
) -> None:  # fmt: skip
    """The second half of the backward: write dk and dv."""
    terms = problem.terms()
    config = config or choose_config("dkdv", q, terms)
    constants = problem.constants(q, k, config)
    tiles = problem.tiles(k, config.block_n)
    if not (tiles and k.shape[2]):
        return
    tma, sources = _sources(q, k, v, do, config, constants["BLOCK_D"], descriptors)
    _attention_bwd_dkdv[(tiles, k.shape[2])](
        *sources, q, do, lse, delta, dk, dv, problem.cu_k, problem.cu_q,
        problem.scale, problem.sequences(q), q.shape[1], k.shape[1],
        strides(q), strides(k), strides(v), strides(do), strides(dk), strides(lse), problem.bounds(), terms,
        TMA=tma, HIDES=terms.hides, **constants,
    )  # fmt: skip


def launch_dbias(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, lse: Tensor, delta: Tensor, problem: Problem,
    longest: tuple[int, int], config: configs.Config | None = None,
) -> Tensor:  # fmt: skip
    """The gradient of the bias, float32 in its shape; `longest` are Nq and Nk of the longest sequences."""
    bias, terms = problem.bias, problem.terms()
    if bias is None:
        raise ValueError("a problem without bias has no gradient of it")
    config = config or choose_config("dbias", q, terms)
    constants = problem.constants(q, k, config)
    sequences, heads = problem.sequences(q), q.shape[2]
    every_i, every_j = (bias.shape[2] == 1, bias.shape[3] == 1)
    # A mask with both axes is as large as N², and so are its sums: one program adds up what shares an entry. One
    # without is small, and each sequence and head writes its own.
    at_once = not (every_i or every_j)
    shape = (
        bias.shape[0] if at_once else sequences, bias.shape[1] if at_once else heads, bias.shape[2], bias.shape[3],
    )  # fmt: skip
    dbias = torch.zeros(shape, dtype=torch.float32, device=q.device)
    tiles = (1 if every_i else -(-longest[0] // config.block_m)) * (1 if every_j else -(-longest[1] // config.block_n))
    if tiles * shape[0] * shape[1] == 0 or not sequences:
        return dbias.sum_to_size(bias.shape) if sequences else torch.zeros_like(bias, dtype=torch.float32)
    s, h, i, j = dbias.stride()
    _attention_bwd_dbias[(tiles * shape[0], shape[1])](
        q, k, v, do, lse, delta, dbias, problem.cu_q, problem.cu_k,
        problem.scale, sequences, heads, q.shape[1], k.shape[1], *longest,
        strides(q), strides(k), strides(v), strides(do), strides(lse), Strides(s, i, h, j), problem.bounds(), terms,
        ALL_SEQUENCES=at_once and bias.shape[0] == 1, ALL_HEADS=at_once and bias.shape[1] == 1,
        ALL_QUERIES=every_i, ALL_KEYS=every_j, **constants,
    )  # fmt: skip
    return dbias.sum_to_size(bias.shape)


def _sources(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, config: configs.Config, block_d: int, descriptors: bool | None
) -> tuple[bool, tuple[Any, ...]]:
    """What the kernels of the backward read tiles from: descriptors, or the tensors themselves."""
    tma = use_descriptors(q, k, v, do) if descriptors is None else descriptors
    if not tma:
        return tma, (q, k, v, do)
    m, n = config.block_m, config.block_n
    return tma, tuple(describe(x, size, block_d) for x, size in ((q, m), (k, n), (v, n), (do, m)))
