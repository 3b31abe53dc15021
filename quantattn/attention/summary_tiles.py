"""What attended to what, tile by tile in plain torch: on any device, in memory O(T), nothing of size Nq × Nk.

The weights of a tile are computed once more from q, k and the stored logsumexp, as the backward of attention does,

    p_ij = exp(s_ij − lse_i)        with s_ij as in `extras`        (Dao et al. 2022, §3.1)

and summed before the next tile is formed. They are added in one fixed order: the same input gives the same bits.

Dimensions: N sequences, T packed queries, Tk packed keys, H query heads, Hkv key heads, G = H/Hkv, D head size; a tile
has R queries and K keys.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quantattn.attention.extras import Extras
from quantattn.attention.mask import Mask
from quantattn.attention.seen import as_given, bias_of_sequence
from quantattn.attention.state import lse_dtype

_NOTHING = -1e4
"""A log weight whose weight is 0 in every dtype, and whose product with that weight is 0 and not 0 · ∞ = NaN."""


@dataclass(frozen=True)
class Pack:
    """A finished attention whose weights are asked for.

    Attributes:
        q: (T, H, D).
        k: (Tk, Hkv, D).
        lse: (T, H), natural logsumexp of each row's scores, −∞ for a row that sees nothing.
        rows: N + 1 offsets of the sequences in q.
        columns: N + 1 offsets of the sequences in k.
        mask: who sees whom.
        bias: broadcastable to (N, H, longest Nq, longest Nk), or None.
        scale: factor of q·k.
        extras: what else acts on scores; sinks are in lse, and dropout is not in the weights.
    """

    q: Tensor
    k: Tensor
    lse: Tensor
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    mask: Mask
    bias: Tensor | None
    scale: float
    extras: Extras = Extras()  # noqa: RUF009  a frozen value

    def __len__(self) -> int:
        """Number of sequences."""
        return len(self.rows) - 1

    def ranges(self, n: int) -> tuple[slice, slice]:
        """Rows of q and rows of k that are sequence n."""
        return slice(self.rows[n], self.rows[n + 1]), slice(self.columns[n], self.columns[n + 1])

    def lengths(self, n: int) -> tuple[int, int]:
        """(Nq, Nk) of sequence n."""
        return self.rows[n + 1] - self.rows[n], self.columns[n + 1] - self.columns[n]

    def sequence(self, n: int) -> _Sequence:
        """Sequence n, heads in front, in the dtype of the sums."""
        rows, columns = self.ranges(n)
        dtype, heads_k = lse_dtype(self.q.dtype), self.k.shape[1]
        scaled = self.q[rows].to(dtype) * self.scale
        if self.extras.scales is not None:
            scaled = scaled * self.extras.scales.to(dtype)[:, None]
        q, lse = (
            x.reshape(x.shape[0], heads_k, x.shape[1] // heads_k, x.shape[2]).permute(1, 2, 0, 3)
            for x in (scaled, self.lse[rows, :, None])
        )
        bias = self.bias
        if bias is not None:
            bias = bias_of_sequence(bias, n, *self.lengths(n))
            bias = bias.reshape(*((1, 1) if bias.shape[0] == 1 else q.shape[:2]), *bias.shape[1:])
        return _Sequence(
            q=q,
            k=self.k[columns].to(dtype).transpose(0, 1).contiguous(),
            lse=lse.masked_fill(lse == -torch.inf, torch.inf),
            bias=bias,
            mask=self.mask,
            extras=self.extras.of_sequence(n, rows, columns),
        )


@dataclass(frozen=True)
class _Sequence:
    """One sequence.

    Attributes:
        q: (Hkv, G, Nq, D), multiplied by the scales.
        k: (Hkv, Nk, D).
        lse: (Hkv, G, Nq, 1), +∞ for a row that sees nothing, so that its weights are 0.
        bias: (1 or Hkv, 1 or G, 1 or Nq, 1 or Nk), or None.
        mask: who sees whom.
        extras: of this sequence.
    """

    q: Tensor
    k: Tensor
    lse: Tensor
    bias: Tensor | None
    mask: Mask
    extras: Extras

    @property
    def lengths(self) -> tuple[int, int]:
        """(Nq, Nk)."""
        return self.q.shape[2], self.k.shape[1]

    def tile(self, places: Sequence[int]) -> _Tile:
        """The queries at these places."""
        starts, stops = zip(*(self.mask.key_range(i, i + 1, *self.lengths) for i in places), strict=True)
        at, start, stop = torch.tensor([list(places), starts, stops], device=self.q.device)
        return _Tile(
            of=self,
            q=self.q[:, :, at].flatten(1, 2),
            lse=self.lse[:, :, at],
            places=at,
            start=start[:, None],
            stop=stop[:, None],
            some=(min(starts), max(stops)),
            every=(max(starts), min(stops)),
            prefix=min(self.mask.prefix, self.lengths[1]),
        )


@dataclass(frozen=True)
class _Tile:
    """R queries of a sequence against any keys of it.

    Attributes:
        of: the sequence.
        q: (Hkv, G·R, D).
        lse: (Hkv, G, R, 1).
        places: (R,) of the queries.
        start: (R, 1), the first key that each may see beside the prefix.
        stop: (R, 1), the key after the last.
        some: half-open range of keys outside which none of the queries sees any beside the prefix.
        every: half-open range of keys that all of the queries see, unless a bias or a segment hides them.
        prefix: how many keys at the start all of the queries see, with the same exception.
    """

    of: _Sequence
    q: Tensor
    lse: Tensor
    places: Tensor
    start: Tensor
    stop: Tensor
    some: tuple[int, int]
    every: tuple[int, int]
    prefix: int

    @property
    def span(self) -> tuple[int, int]:
        """Half-open range of keys outside which none of the queries sees any."""
        return (0, max(self.prefix, self.some[1])) if self.prefix else self.some

    def sees(self, keys: tuple[int, int]) -> bool:
        """Whether these queries may see any of the keys."""
        return keys[0] < self.prefix or (keys[0] < self.some[1] and keys[1] > self.some[0])

    def key_tiles(self, step: int) -> Iterator[tuple[int, int]]:
        """Half-open ranges of keys that begin at multiples of `step` and hold all that these queries may see."""
        for first in range(self.span[0] // step * step, self.span[1], step):
            keys = first, min(first + step, self.of.k.shape[1])
            if self.sees(keys):
                yield keys

    def distances(self, keys: tuple[int, int]) -> Tensor:
        """|j − i| in places (R, K), with query i beside key i + Nk − Nq."""
        n_q, n_k = self.of.lengths
        return (torch.arange(*keys, device=self.places.device) - (self.places + (n_k - n_q))[:, None]).abs()

    def visible(self, keys: tuple[int, int]) -> Tensor | None:
        """(R, K) bool, who sees whom by mask and segments; None when all see all."""
        seen = None
        if keys[1] > self.prefix and (keys[0] < self.every[0] or keys[1] > self.every[1]):
            key = torch.arange(*keys, device=self.places.device)
            seen = ((key >= self.start) & (key < self.stop)) | (key < self.prefix)
        segments, segments_k = self.of.extras.segments, self.of.extras.segments_k
        if segments is not None and segments_k is not None:
            same = segments[self.places, None] == segments_k[slice(*keys)]
            seen = same if seen is None else seen & same
        return seen

    def log_weights(self, keys: tuple[int, int]) -> Tensor:
        """Ln p_ij (Hkv, G, R, K); −∞ where a query does not see a key, whatever stands there."""
        t = (self.q @ self.of.k[:, slice(*keys)].mT).view(*self.lse.shape[:3], keys[1] - keys[0])
        t = self.of.extras.bent(t)
        if self.of.extras.alibi is not None:
            slopes = self.of.extras.alibi.to(t.dtype).view(*t.shape[:2], 1, 1)
            t = t - slopes * self.distances(keys)
        seen = self.visible(keys)
        if self.of.bias is not None:
            bias = self.of.bias[..., slice(*keys)] if self.of.bias.shape[3] > 1 else self.of.bias
            bias = bias[:, :, self.places] if bias.shape[2] > 1 else bias
            shown = bias if bias.dtype == torch.bool else bias != -torch.inf
            t = t if bias.dtype == torch.bool else t.add_(bias)
            seen = shown if seen is None else seen & shown
        t -= self.lse
        return t if seen is None else t.masked_fill_(~seen, -torch.inf)


def summarize(pack: Pack, block_q: int, block_k: int) -> tuple[Tensor, Tensor, Tensor]:
    """(received (Tk, H), entropy (T, H), distance (T, H)) in the dtype of lse, all from one pass over the tiles."""
    received = pack.lse.new_zeros(pack.k.shape[0], pack.q.shape[1])
    entropy, distance = torch.zeros_like(pack.lse), torch.zeros_like(pack.lse)
    with as_given(pack.q.device):
        for n in range(len(pack)):
            sequence = pack.sequence(n)
            n_q, n_k = sequence.lengths
            gathered = sequence.q.new_zeros(*sequence.q.shape[:2], n_k)  # (Hkv, G, Nk)
            for first in range(0, n_q, block_q):
                last = min(first + block_q, n_q)
                h, d = _absorb(sequence.tile(range(first, last)), gathered, block_k)
                at = slice(pack.rows[n] + first, pack.rows[n] + last)
                entropy[at], distance[at] = h.flatten(0, 1).T, d.flatten(0, 1).T
            received[pack.ranges(n)[1]] = gathered.flatten(0, 1).T
    return received, entropy, distance


def _absorb(tile: _Tile, received: Tensor, block_k: int) -> tuple[Tensor, Tensor]:
    """(entropy, distance) of a tile of queries, (Hkv, G, R) each; adds to received (Hkv, G, Nk) what its keys get."""
    entropy = received.new_zeros(*received.shape[:2], len(tile.places))
    distance = torch.zeros_like(entropy)
    for keys in tile.key_tiles(block_k):
        t = tile.log_weights(keys).clamp_(min=_NOTHING)
        p = torch.exp(t)
        received[:, :, slice(*keys)] += p.sum(dim=2)
        entropy -= t.mul_(p).sum(dim=-1)
        distance += p.mul_(tile.distances(keys)).sum(dim=-1)
    return entropy.clamp_(min=0), distance  # a weight rounded above 1 has a negative one


def largest_weights(pack: Pack, queries: Sequence[int], top: int, block_q: int, block_k: int) -> tuple[Tensor, Tensor]:
    """(weights, keys) of the `top` largest weights of some rows of q, (Q, H, top) each; weight 0 and key −1 for none.

    Larger weights first, the earlier key first among equal ones; keys are rows of k. O(Q · H · (top + tile)) memory.
    """
    shape = (len(queries), pack.q.shape[1], top)
    weights = pack.lse.new_zeros(shape)
    places = torch.full(shape, -1, dtype=torch.int64, device=pack.q.device)
    by_sequence: dict[int, list[int]] = {}
    for i, row in enumerate(queries):
        by_sequence.setdefault(bisect_right(pack.rows, row) - 1, []).append(i)
    with as_given(pack.q.device):
        for n, mine in by_sequence.items():
            sequence = pack.sequence(n)
            for first in range(0, len(mine), block_q):
                chosen = mine[first : first + block_q]
                t, key = _largest(sequence.tile([queries[i] - pack.rows[n] for i in chosen]), top, block_k)
                at = torch.tensor(chosen, device=pack.q.device)
                places[at] = (key + pack.columns[n]).where(t != -torch.inf, -1)
                weights[at] = torch.exp(t)
    return weights, places


def _largest(tile: _Tile, top: int, block_k: int) -> tuple[Tensor, Tensor]:
    """(ln p, key) of the largest weights of a tile of queries, (R, H, top) each; ln p is −∞ where there is none."""
    heads = tile.of.q.shape[:2]
    best = tile.of.q.new_full((*heads, len(tile.places), top), -torch.inf)
    place = torch.full(best.shape, -1, dtype=torch.int64, device=best.device)
    for keys in tile.key_tiles(block_k):
        t = torch.cat([best, tile.log_weights(keys)], dim=-1)
        key = torch.arange(*keys, device=t.device).expand(*place.shape[:-1], -1)
        # Stable, so that the earlier key wins among equal ones however the keys are cut into tiles.
        best, order = (x[..., :top] for x in torch.sort(t, dim=-1, descending=True, stable=True))
        place = torch.cat([place, key], dim=-1).gather(-1, order)
    return best.flatten(0, 1).transpose(0, 1), place.flatten(0, 1).transpose(0, 1)


def block_sums(sequence: _Sequence, sizes: tuple[int, int], tile: int) -> Tensor:
    """Σ p_ij over blocks of `sizes` queries and keys, (H, ⌈Nq / size⌉, ⌈Nk / size⌉); the last blocks may be shorter."""
    (n_q, n_k), (size_q, size_k) = sequence.lengths, sizes
    sums = sequence.q.new_zeros(*sequence.q.shape[:2], -(-n_q // size_q), -(-n_k // size_k))
    with as_given(sums.device):
        for first, last in _pieces((0, n_q), n_q, size_q, tile):
            queries = sequence.tile(range(first, last))
            for keys in _pieces(queries.span, n_k, size_k, tile):
                if not queries.sees(keys):
                    continue
                p = torch.exp(queries.log_weights(keys))
                part = _sum_runs(_sum_runs(p, size_k).mT, size_q).mT
                i, j = first // size_q, keys[0] // size_k
                sums[:, :, i : i + part.shape[2], j : j + part.shape[3]] += part
    return sums.flatten(0, 1)


def _pieces(of: tuple[int, int], n: int, size: int, tile: int) -> Iterator[tuple[int, int]]:
    """Ranges that together hold `of`, each of them whole blocks of `size` or inside one block, at most `tile` long."""
    step = max(1, tile // size) * size
    first = of[0] // step * step
    first += (of[0] - first) // tile * tile
    while first < of[1]:
        last = min(first + tile, first // step * step + step, n)
        yield first, last
        first = last


def _sum_runs(x: Tensor, width: int) -> Tensor:
    """Sums of runs of `width` along the last axis, the last one perhaps shorter: (…, n) → (…, ⌈n / width⌉)."""
    width = min(width, x.shape[-1])
    missing = -x.shape[-1] % width
    x = torch.nn.functional.pad(x, (0, missing))
    return x.reshape(*x.shape[:-1], x.shape[-1] // width, width).sum(dim=-1)
