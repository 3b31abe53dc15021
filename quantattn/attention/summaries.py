"""What attended to what, without the N × N matrix: sums, entropies, the largest weights, and pictures of any length.

All of it is computed from q, k and the lse that `attention` returned, with the weights of the definition,

    p_ij = exp(s_ij − lse_i)        s_ij = scale · q_i·k_j + bias_ij        over the keys j that query i sees,

tile by tile, in memory that grows with the number of tokens. Nothing is sampled or approximated. No gradient flows.
With an lse over more keys than k holds (`merge_attention`, shards of keys) p is a share of the whole: entropies and
distances of the shards add up to those of the whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from quantattn.attention import api, ops, summary_exact, summary_ops, summary_tiles
from quantattn.attention.choose import choose_backend, require_backend
from quantattn.attention.mask import Mask
from quantattn.attention.state import lse_dtype

_TILES = {"cpu": (128, 256)}
_LARGE_TILES = (1024, 1024)
"""Queries and keys of a tile: what a CPU's cache holds, and what keeps an accelerator busy for a launch."""


class AttentionSummary(NamedTuple):
    """Sums over the weights p of a finished attention, float32 (float64 for float64), in the layout of lse.

    Attributes:
        received: (Tk, H) or (B, Nk, H), Σ_i p_ij: the attention that a key gets from all queries. The sum over keys
            is the number of queries that see a key.
        entropy: (T, H) or (B, N, H), −Σ_j p_ij ln p_ij in nats: exp(entropy) is the number of keys a query uses.
        distance: (T, H) or (B, N, H), Σ_j p_ij |j − i| in places, with query i beside key i + Nk − Nq as in `Mask`.
    """

    received: Tensor
    entropy: Tensor
    distance: Tensor


class TopKeys(NamedTuple):
    """The largest weights of chosen queries, the largest first and the earlier key first among equal ones.

    Attributes:
        weights: (Q, H, top) or (B, Q, H, top), p_ij; 0 where a query sees fewer keys.
        keys: the same shape, int64, rows of k, or places of the sequence in a dense batch; −1 where there is none.
    """

    weights: Tensor
    keys: Tensor


@dataclass(frozen=True)
class AttentionMap:
    """One sequence's attention between blocks of queries and blocks of keys.

    Attributes:
        sums: (H, blocks of queries, blocks of keys), Σ p_ij over both blocks.
        query_edges: first query of each block, and Nq.
        key_edges: first key of each block, and Nk.
    """

    sums: Tensor
    query_edges: tuple[int, ...]
    key_edges: tuple[int, ...]

    @property
    def shares(self) -> Tensor:
        """`sums` over the queries of a block: a row adds up to 1 where all of its queries see a key."""
        edges = torch.tensor(self.query_edges, device=self.sums.device)
        return self.sums / edges.diff()[:, None]


def attention_summary(
    q: Tensor,
    k: Tensor,
    lse: Tensor,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    *,
    mask: Mask = Mask(),  # noqa: B008  a frozen value
    bias: Tensor | None = None,
    scale: float | None = None,
    backend: str = "auto",
) -> AttentionSummary:
    """Attention received by each key, entropy and mean distance of each query, in memory O(T).

    A query that sees no key has entropy and distance 0 and gives nothing. What stands at an invisible place, NaN and
    inf included, reaches no result. The same input gives the same bits.

    Args:
        q: as `attention` was given it: (T, H, D) packed or one sequence, or (B, N, H, D) dense.
        k: as `attention` was given it.
        lse: as `attention` returned it for the same arguments, (T, H) or (B, N, H).
        cu_seqlens: as `attention` was given it.
        cu_seqlens_k: as `attention` was given it.
        mask: as `attention` was given it.
        bias: as `attention` was given it.
        scale: as `attention` was given it.
        backend: "triton" (kernels), "tiled" (torch, any device and dtype), "exact" (dense, the specification), or
            "auto": the kernels wherever `attention` would choose them, else tiled.

    Raises:
        ValueError: inputs that do not fit together, or a backend that cannot take them.
        TypeError: mixed or unsupported dtypes, or arguments of another type.
    """
    asked = _ask(q, k, lse, cu_seqlens, cu_seqlens_k, mask, bias, scale)
    if backend == "auto":
        choice = choose_backend(asked.q, asked.k, asked.k, mask=mask, bias=asked.bias)
        backend = "triton" if choice.backend == "triton" else "tiled"
    elif backend not in ("triton", "tiled", "exact"):
        raise ValueError(f"backend must be one of auto, triton, tiled, exact; got {backend!r}")
    else:
        require_backend(backend, asked.q, mask=mask, bias=asked.bias)
    if backend == "triton":
        return asked.through_kernels()
    pack = asked.pack()
    if backend == "tiled":
        received, entropy, distance = summary_tiles.summarize(pack, *_tile_sizes(q))
    else:
        received, entropy, distance = summary_exact.exact_summary(pack)
    by_key = (*k.shape[:-2], q.shape[-2])
    return AttentionSummary(received.view(by_key), entropy.view(lse.shape), distance.view(lse.shape))


def top_keys(
    q: Tensor,
    k: Tensor,
    lse: Tensor,
    queries: Tensor | Sequence[int],
    cu_seqlens: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    *,
    top: int = 8,
    mask: Mask = Mask(),  # noqa: B008  a frozen value
    bias: Tensor | None = None,
    scale: float | None = None,
) -> TopKeys:
    """The `top` keys that each chosen query attends to most, and their weights, in memory O(T + Q · H · top).

    Args:
        q: as for `attention_summary`.
        k: as for `attention_summary`.
        lse: as for `attention_summary`.
        queries: (Q,) integers, rows of q; of a dense batch, places of the sequence, the same for all.
        cu_seqlens: as for `attention_summary`.
        cu_seqlens_k: as for `attention_summary`.
        top: how many keys, at least 1.
        mask: as for `attention_summary`.
        bias: as for `attention_summary`.
        scale: as for `attention_summary`.

    Raises:
        ValueError: inputs that do not fit together, or a query that is not there.
        TypeError: mixed or unsupported dtypes, or arguments of another type.
    """
    asked = _ask(q, k, lse, cu_seqlens, cu_seqlens_k, mask, bias, scale)
    top = _count("top", top)
    rows = _rows(queries, q.shape[-3])
    pack = asked.pack()
    if q.dim() == 3:
        return TopKeys(*summary_tiles.largest_weights(pack, rows, top, *_tile_sizes(q)))
    everywhere = [start + row for start in pack.rows[:-1] for row in rows]
    weights, keys = (
        x.view(q.shape[0], len(rows), q.shape[2], top)
        for x in summary_tiles.largest_weights(pack, everywhere, top, *_tile_sizes(q))
    )
    start = torch.tensor(pack.columns[:-1], device=q.device)[:, None, None, None]
    return TopKeys(weights, (keys - start).where(keys >= 0, -1))


def attention_map(
    q: Tensor,
    k: Tensor,
    lse: Tensor,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    *,
    blocks: int | tuple[int, int] = 64,
    mask: Mask = Mask(),  # noqa: B008  a frozen value
    bias: Tensor | None = None,
    scale: float | None = None,
) -> list[AttentionMap]:
    """For each sequence a picture of its weights, summed over blocks of queries and keys, in memory O(T + H · blocks²).

    Blocks of a side are of one length, the last one perhaps shorter; with Nq = Nk the diagonal is the diagonal.

    Args:
        q: as for `attention_summary`.
        k: as for `attention_summary`.
        lse: as for `attention_summary`.
        cu_seqlens: as for `attention_summary`.
        cu_seqlens_k: as for `attention_summary`.
        blocks: the most blocks of queries and of keys; as many as places draw every weight.
        mask: as for `attention_summary`.
        bias: as for `attention_summary`.
        scale: as for `attention_summary`.

    Raises:
        ValueError: inputs that do not fit together, or no blocks.
        TypeError: mixed or unsupported dtypes, or arguments of another type.
    """
    asked = _ask(q, k, lse, cu_seqlens, cu_seqlens_k, mask, bias, scale)
    pair = blocks if isinstance(blocks, tuple) and len(blocks) == 2 else (blocks, blocks)
    counts = _count("blocks", pair[0]), _count("blocks", pair[1])
    pack, maps = asked.pack(), []
    for n in range(len(pack)):
        sequence = pack.sequence(n)
        sums, *sizes = summary_tiles.block_sums(sequence, counts, min(_tile_sizes(q)))
        edges = ((*range(0, length, size), length) for length, size in zip(sequence.lengths, sizes, strict=True))
        maps.append(AttentionMap(sums, *edges))
    return maps


@dataclass(frozen=True)
class _Asked:
    """Checked arguments, without gradients: tensors as given, offsets for a pack, bias 4-D, the scale a number."""

    q: Tensor
    k: Tensor
    lse: Tensor
    cu_q: Tensor | None
    cu_k: Tensor | None
    mask: Mask
    bias: Tensor | None
    scale: float

    def through_kernels(self) -> AttentionSummary:
        dense = self.q.dim() == 4
        q, k, lse = (x if dense else x[None] for x in (self.q, self.k, self.lse))
        results = summary_ops.attention_summary_op(
            q, k, lse.transpose(1, 2), self.cu_q, self.cu_k, self.bias, self.scale, self.mask.left, self.mask.right
        )
        return AttentionSummary(*(x.transpose(1, 2) if dense else x[0].T for x in results))

    def pack(self) -> summary_tiles.Pack:
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
        return summary_tiles.Pack(q, k, lse, rows, columns, self.mask, self.bias, self.scale)


def _ask(
    q: Tensor, k: Tensor, lse: Tensor, cu_q: Tensor | None, cu_k: Tensor | None,
    mask: Mask, bias: Tensor | None, scale: float | None,
) -> _Asked:  # fmt: skip
    """Raise unless the arguments are those of one attention; the same rules as `attention`."""
    if not isinstance(mask, Mask):
        raise TypeError(f"mask must be a Mask, got {type(mask).__name__}")
    for name, value in {"q": q, "k": k, "lse": lse, "cu_seqlens": cu_q, "cu_seqlens_k": cu_k, "bias": bias}.items():
        if not isinstance(value, Tensor) and (value is not None or name in ("q", "k", "lse")):
            raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
    q, k, lse, bias = q.detach(), k.detach(), lse.detach(), None if bias is None else bias.detach()
    if torch.is_autocast_enabled(q.device.type):  # `attention` lowered its inputs, and lse is of those
        lower = torch.get_autocast_dtype(q.device.type)
        q, k = (x.to(lower) if x.dtype == torch.float32 else x for x in (q, k))
    _check_tensors(q, k, lse)
    cu_q, cu_k = api._check_offsets(q, k, cu_q, cu_k)
    if bias is not None:
        bias = api._check_bias(bias, q, k, cu_q, cu_k)
    if scale is None:
        scale = 1.0 / math.sqrt(q.shape[-1])
    elif not isinstance(scale, (int, float)) or not -math.inf < scale < math.inf:
        raise ValueError(f"scale must be a finite number, got {scale!r}")
    return _Asked(q, k, lse, cu_q, cu_k, mask, bias, scale)


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


def _rows(queries: Tensor | Sequence[int], n: int) -> list[int]:
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


def _count(name: str, value: int) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
    return value


def _tile_sizes(q: Tensor) -> tuple[int, int]:
    return _TILES.get(q.device.type, _LARGE_TILES)
