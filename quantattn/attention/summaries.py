"""What attended to what, without the N × N matrix: sums, entropies, the largest weights, and pictures of any length.

All of it is computed from q, k and the lse that `attention` returned, with the weights of the definition,

    p_ij = exp(s_ij − lse_i)        s_ij as in `attention`        over the keys j that query i sees,

tile by tile, in memory that grows with the number of tokens. Nothing is sampled or approximated. No gradient flows.
Sinks are in lse already: with them a row's weights add up to less than 1. Dropout is in neither: the weights are those
before it.
With an lse over more keys than k holds (`merge_attention`, shards of keys) p is a share of the whole, and the entropies
of the shards add up to that of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from quantattn.attention import summary_exact, summary_ops, summary_tiles
from quantattn.attention.mask import Mask
from quantattn.attention.seen import bias_of_sequence
from quantattn.attention.summary_inputs import Asked, ask, count, rows_of

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
    scale: float | Tensor | None = None,
    softcap: float | None = None,
    alibi: Tensor | None = None,
    segments: Tensor | None = None,
    segments_k: Tensor | None = None,
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
        softcap: as `attention` was given it.
        alibi: as `attention` was given it.
        segments: as `attention` was given it.
        segments_k: as `attention` was given it.
        backend: "triton" (kernels), "tiled" (torch, any device and dtype), "exact" (dense, the specification), or
            "auto": the kernels wherever `attention` would choose them, else tiled.

    Raises:
        ValueError: inputs that do not fit together, or a backend that cannot take them.
        TypeError: mixed or unsupported dtypes, or arguments of another type.
    """
    asked = ask(q, k, lse, cu_seqlens, cu_seqlens_k, mask, bias, scale, softcap, alibi, segments, segments_k)
    backend = asked.choose(backend)
    if backend == "triton":
        return _through_kernels(asked)
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
    scale: float | Tensor | None = None,
    softcap: float | None = None,
    alibi: Tensor | None = None,
    segments: Tensor | None = None,
    segments_k: Tensor | None = None,
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
        softcap: as for `attention_summary`.
        alibi: as for `attention_summary`.
        segments: as for `attention_summary`.
        segments_k: as for `attention_summary`.

    Raises:
        ValueError: inputs that do not fit together, or a query that is not there.
        TypeError: mixed or unsupported dtypes, or arguments of another type.
    """
    asked = ask(q, k, lse, cu_seqlens, cu_seqlens_k, mask, bias, scale, softcap, alibi, segments, segments_k)
    top = count("top", top)
    rows = rows_of(queries, q.shape[-3])
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
    scale: float | Tensor | None = None,
    softcap: float | None = None,
    alibi: Tensor | None = None,
    segments: Tensor | None = None,
    segments_k: Tensor | None = None,
    backend: str = "auto",
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
        softcap: as for `attention_summary`.
        alibi: as for `attention_summary`.
        segments: as for `attention_summary`.
        segments_k: as for `attention_summary`.
        backend: as for `attention_summary`.

    Raises:
        ValueError: inputs that do not fit together, or no blocks.
        TypeError: mixed or unsupported dtypes, or arguments of another type.
    """
    asked = ask(q, k, lse, cu_seqlens, cu_seqlens_k, mask, bias, scale, softcap, alibi, segments, segments_k)
    pair = blocks if isinstance(blocks, tuple) and len(blocks) == 2 else (blocks, blocks)
    counts = count("blocks", pair[0]), count("blocks", pair[1])
    backend, pack, maps = asked.choose(backend), asked.pack(), []
    for n in range(len(pack)):
        lengths = pack.lengths(n)
        size_q, size_k = (max(1, -(-m // most)) for m, most in zip(lengths, counts, strict=True))
        edges = ((*range(0, m, size), m) for m, size in zip(lengths, (size_q, size_k), strict=True))
        if backend == "triton":
            sums = _map_through_kernels(pack, n, size_q, size_k)
        elif backend == "tiled":
            sums = summary_tiles.block_sums(pack.sequence(n), (size_q, size_k), min(_tile_sizes(q)))
        else:
            sums = summary_exact.exact_map(pack, n, (size_q, size_k))
        maps.append(AttentionMap(sums, *edges))
    return maps


def _through_kernels(asked: Asked) -> AttentionSummary:
    dense = asked.q.dim() == 4
    q, k, lse = (x if dense else x[None] for x in (asked.q, asked.k, asked.lse))
    more = summary_ops.arguments(asked.mask, asked.scale, asked.extras)
    results = summary_ops.attention_summary_op(q, k, lse.transpose(1, 2), asked.cu_q, asked.cu_k, asked.bias, *more)
    return AttentionSummary(*(x.transpose(1, 2) if dense else x[0].T for x in results))


def _map_through_kernels(pack: summary_tiles.Pack, n: int, size_q: int, size_k: int) -> Tensor:
    rows, columns = pack.ranges(n)
    bias = None if pack.bias is None else bias_of_sequence(pack.bias, n, *pack.lengths(n))
    more = summary_ops.arguments(pack.mask, pack.scale, pack.extras.of_sequence(n, rows, columns))
    sums: Tensor = summary_ops.attention_map_op(
        pack.q[rows], pack.k[columns], pack.lse[rows].T, size_q, size_k, bias, *more
    )
    return sums


def _tile_sizes(q: Tensor) -> tuple[int, int]:
    return _TILES.get(q.device.type, _LARGE_TILES)
