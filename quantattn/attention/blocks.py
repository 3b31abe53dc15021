"""One sequence cut into blocks: the scores of any block of its queries and keys, and where they stand.

Dimensions: H query heads, Hkv key/value heads, G = H/Hkv, D head size; Bq and Bk the rows and columns of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from quantattn.attention.dropout import kept_weights, threshold
from quantattn.attention.extras import Extras
from quantattn.attention.seen import bias_of_sequence, visible_block
from quantattn.attention.state import lse_dtype
from quantattn.attention.tiling import Tiling


@dataclass(frozen=True)
class SequenceInBlocks:
    """One sequence with its heads in front and in the dtype of the accumulators.

    Attributes:
        q: (Hkv, G, Nq, D), multiplied by the scales; filled up to whole blocks before and after, if ordered.
        k: (Hkv, Nk, D); filled up after, if ordered.
        v: as k.
        n_q: Nq.
        n_k: Nk.
        bias: (1 or Hkv, 1 or G, 1 or Nq, 1 or Nk), or None.
        extras: of this sequence.
        tiling: of the whole computation.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    n_q: int
    n_k: int
    bias: Tensor | None
    extras: Extras
    tiling: Tiling

    @classmethod
    def of(
        cls, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, n: int, tiling: Tiling, extras: Extras
    ) -> SequenceInBlocks:
        """Sequence n, whose rows q (Nq, H, D), k and v (Nk, Hkv, D) are; the bias is of all sequences."""
        dtype = lse_dtype(q.dtype)
        q = q.to(dtype) * tiling.scale
        if extras.scales is not None:
            q = q * extras.scales.to(dtype)[:, None]
        q, k, v = heads_first(q, k.shape[1]), k.to(dtype).transpose(0, 1), v.to(dtype).transpose(0, 1)
        n_q, n_k = q.shape[2], k.shape[1]
        if tiling.ordered:  # copies, so that every block begins at an address that a product takes in the same way
            lead = tiling.lead(n_q, n_k)
            q = functional.pad(q, (0, 0, lead, -(lead + n_q) % tiling.block_q))
            k, v = (functional.pad(x, (0, 0, 0, -n_k % tiling.block_k)) for x in (k, v))
        return cls(
            q=q,
            k=k.contiguous(),
            v=v.contiguous(),
            n_q=n_q,
            n_k=n_k,
            bias=None if bias is None else bias_in_heads(bias, n, q.shape[:2], n_q, n_k),
            extras=extras,
            tiling=tiling,
        )

    def rows(self, queries: tuple[int, int]) -> slice:
        """Where a block computes these queries, as rows of q."""
        if not self.tiling.ordered:
            return slice(*queries)
        size = self.tiling.block_q
        first = (queries[0] + self.tiling.lead(self.n_q, self.n_k)) // size * size
        return slice(first, first + size)

    def columns(self, keys: tuple[int, int]) -> slice:
        """Where a block computes these keys, as rows of k and v."""
        return slice(keys[0], keys[0] + self.tiling.block_k) if self.tiling.ordered else slice(*keys)

    def scores(self, queries: tuple[int, int], keys: tuple[int, int]) -> Block:
        """The block of these queries and keys."""
        q, k = self.q[:, :, self.rows(queries)], self.k[:, self.columns(keys)]
        heads_k, group = q.shape[:2]
        scores = self.extras.bent((rows_of(q) @ k.mT).view(heads_k * group, q.shape[2], k.shape[1]))
        before, n_q, n_k = self._before(queries), queries[1] - queries[0], keys[1] - keys[0]
        scores = scores[:, before : before + n_q, :n_k]
        bend = 1 - (scores / self.extras.softcap).square() if self.extras.softcap else None
        scores = self.extras.slanted(scores, queries, keys, self.n_k - self.n_q).view(heads_k, group, n_q, n_k)
        seen = visible_block(self.tiling.mask, queries, keys, self.n_q, self.n_k, q.device)
        same = self.extras.visible(slice(*queries), slice(*keys))
        if same is not None:
            seen = same if seen is None else seen & same
        if self.bias is not None:
            bias = block_of(self.bias, queries, keys)
            shown = bias if bias.dtype == torch.bool else bias != -torch.inf
            scores = scores if bias.dtype == torch.bool else scores + bias.to(scores.dtype)
            seen = shown if seen is None else seen & shown
        flat = (heads_k, group * n_q, n_k)
        bend = None if bend is None else bend.reshape(flat)
        kept = self._kept(queries, keys)
        if self.tiling.ordered:
            return self._filled_up(scores if seen is None else scores.masked_fill(~seen, -torch.inf), before, kept)
        if seen is None:
            return Block(scores.view(flat), None, bend, kept)
        seen = seen.expand(scores.shape).reshape(flat)
        return Block(scores.view(flat).masked_fill(~seen, -torch.inf), seen, bend, kept)

    def _before(self, queries: tuple[int, int]) -> int:
        """Rows of a block before the first of these queries."""
        if not self.tiling.ordered:
            return 0
        return (queries[0] + self.tiling.lead(self.n_q, self.n_k)) % self.tiling.block_q

    def _filled_up(self, scores: Tensor, before: int, kept: Tensor | None) -> Block:
        """Scores (Hkv, G, queries, keys) as a block of the full size, whose other rows and columns see nothing."""
        n_q, n_k = scores.shape[2:]
        margins = (0, self.tiling.block_k - n_k, before, self.tiling.block_q - before - n_q)
        if kept is not None:
            kept = rows_of(functional.pad(kept.view(scores.shape), margins))
        scores = rows_of(functional.pad(scores, margins, value=-torch.inf))
        return Block(scores, scores != -torch.inf, None, kept)

    def packed(self, rows: Tensor, queries: tuple[int, int]) -> Tensor:
        """Of a block's rows (Hkv, G·rows, D) those of these queries, (queries, Hkv, G, D)."""
        tile = rows.reshape(rows.shape[0], self.q.shape[1], -1, rows.shape[2]).permute(2, 0, 1, 3)
        return tile[self._before(queries) :][: queries[1] - queries[0]]

    def _kept(self, queries: tuple[int, int], keys: tuple[int, int]) -> Tensor | None:
        """Factors 0 or 1/(1 − p) of the weights, (Hkv, G·Bq, Bk); None without dropout."""
        extras, (heads_k, group) = self.extras, self.q.shape[:2]
        if not extras.dropout or extras.seed is None:
            return None
        sequence, head = extras.origin
        kept = kept_weights(extras.seed, extras.dropout, sequence, (head, head + heads_k * group), queries, keys)
        return kept.view(heads_k, -1, kept.shape[-1]).to(self.q.dtype) * (2**32 / threshold(extras.dropout))


@dataclass(frozen=True)
class Block:
    """A block of scores, rows the queries of all heads that share a key head.

    Attributes:
        scores: (Hkv, G·Bq, Bk), −∞ where invisible.
        seen: the same shape, bool; None when all see all.
        bend: derivative of the soft cap; None without one.
        kept: factors that dropout gives the weights; None without dropout.
    """

    scores: Tensor
    seen: Tensor | None
    bend: Tensor | None
    kept: Tensor | None


def heads_first(x: Tensor, heads_k: int) -> Tensor:
    """(N, H, D) → (Hkv, G, N, D), a view."""
    return x.reshape(x.shape[0], heads_k, x.shape[1] // heads_k, x.shape[2]).permute(1, 2, 0, 3)


def rows_of(x: Tensor) -> Tensor:
    """(Hkv, G, Bq, D) → (Hkv, G·Bq, D): the queries that share keys, one under the other."""
    return x.reshape(x.shape[0], -1, x.shape[3])


def bias_in_heads(bias: Tensor, n: int, groups: Sequence[int], n_q: int, n_k: int) -> Tensor:
    """A view of sequence n's bias as (1 or Hkv, 1 or G, 1 or Nq, 1 or Nk), groups (Hkv, G)."""
    bias = bias_of_sequence(bias, n, n_q, n_k)
    heads = (1, 1) if bias.shape[0] == 1 else groups
    return bias.reshape(*heads, *bias.shape[1:])


def block_of(bias: Tensor, queries: tuple[int, int], keys: tuple[int, int]) -> Tensor:
    """The view of a sequence's bias that a block reads; broadcast axes stay."""
    bias = bias[:, :, slice(*queries)] if bias.shape[2] > 1 else bias
    return bias[..., slice(*keys)] if bias.shape[3] > 1 else bias
