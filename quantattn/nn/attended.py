"""What the decisions of a batch attend to in one layer: the largest weights and how far back their keys are.

Dimensions: Q decisions, T packed tokens, H heads, D head size.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from quantattn.attention import Mask, attention, top_keys
from quantattn.batch import PackedBatch
from quantattn.nn.encoder import Encoder
from quantattn.nn.invariant import batch_invariant

_WEIGHTS_AT_ONCE = 1 << 24


class _Looking:
    """In the place of a share of a pack: attention of a layer over its own rows, of which q, k and lse are kept."""

    def __init__(self, cu_seqlens: Tensor, by_batch: bool) -> None:
        self.cu_seqlens, self.by_batch = cu_seqlens, by_batch
        self.seen: tuple[Tensor, Tensor, Tensor, Mask] | None = None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, backend: str) -> Tensor:
        """(T, H, D)."""
        order = {"deterministic": "batch" if self.by_batch else True}
        out, lse = attention(q, k, v, self.cu_seqlens, mask=mask, backend=backend, **order)  # type: ignore[arg-type]
        self.seen = (q, k, lse, mask)
        return out


@torch.no_grad()
def attended(
    encoder: Encoder,
    batch: PackedBatch,
    *,
    layer: int = -1,
    head: int | None = None,
    top: int = 8,
    by_batch: bool = True,
) -> tuple[Tensor, Tensor]:
    """Weights (Q, top) float32 of the keys that each decision attends to most, and how many tokens back these are.

    The weights are those of the definition, exp(s − lse), of one head or their mean over all heads, which adds up to 1
    over all keys; the largest come first, and the nearer key first among equal ones. Where a decision sees fewer keys,
    0 and −1. A sequence's results have the same bits whatever else is in the batch, with `by_batch`. Dropout must be
    off.

    Args:
        encoder: of `n_layers` layers and `n_heads` heads.
        batch: decisions with nothing of their sequence after them where the encoder is bidirectional.
        layer: from 0, or from −1 for the last.
        head: from 0; None is the mean over heads.
        top: how many keys, at least 1.
        by_batch: see above.

    Raises:
        ValueError: a layer or head that is not there.
    """
    config = encoder.config
    check_place(encoder, layer, head, top)
    with batch_invariant(encoder, by_batch):
        wide, local = encoder.rotations(batch.time, batch.cu_seqlens)
        x, branch = encoder.embedding(batch.fields, batch.vectors), None
        looking = _Looking(batch.cu_seqlens, by_batch)
        for block in list(encoder.blocks)[: layer % config.n_layers + 1]:
            x, branch = block(x, batch.cu_seqlens, local if block.local else wide, None, looking, branch=branch)
    assert looking.seen is not None
    q, k, lse, mask = looking.seen
    weights = torch.zeros(len(batch.positions), top, dtype=torch.float32, device=q.device)
    back = torch.full(weights.shape, -1, dtype=torch.int64, device=q.device)
    edges = torch.searchsorted(batch.positions, batch.cu_seqlens.long()).tolist()
    # Sequence by sequence, so that no shape, and so no rounding, depends on the others.
    for (begin, end), (first, last) in zip(pairwise(batch.cu_seqlens.tolist()), pairwise(edges), strict=True):
        step = max(1, _WEIGHTS_AT_ONCE // max(1, (end - begin) * config.n_heads))
        for at in range(first, last, step):
            own = slice(at, min(at + step, last))
            rows = batch.positions[own] - begin
            whole = _weights(q[begin:end], k[begin:end], lse[begin:end], rows, mask, head)
            found = whole.flip(1).sort(dim=1, descending=True, stable=True)  # the nearer of equal ones comes first
            kept = min(top, end - begin)
            weights[own, :kept] = found.values[:, :kept]
            distance = rows[:, None] - (end - begin - 1 - found.indices[:, :kept])
            back[own, :kept] = distance.where(found.values[:, :kept] > 0, -1)
    return weights, back


def check_place(encoder: Encoder, layer: int, head: int | None, top: int) -> None:
    """Raise ValueError unless the encoder has this layer and head, and `top` is a number of keys."""
    config = encoder.config
    if not -config.n_layers <= layer < config.n_layers:
        raise ValueError(f"layer must lie in {-config.n_layers} … {config.n_layers - 1}, got {layer}")
    if head is not None and not 0 <= head < config.n_heads:
        raise ValueError(f"head must lie in 0 … {config.n_heads - 1}, or be none for the mean over heads, got {head}")
    if top < 1:
        raise ValueError(f"top must be at least 1 key, got {top}")


def _weights(q: Tensor, k: Tensor, lse: Tensor, rows: Tensor, mask: Mask, head: int | None) -> Tensor:
    """(R, N) float32, all weights of these rows of one sequence; 0 for what they do not see."""
    n = q.shape[0]
    found, keys = top_keys(q, k, lse, rows, top=n, mask=mask)  # (R, H, N), ordered by weight
    whole = found.new_zeros(*found.shape[:2], n + 1)  # the last place takes those that are none
    whole.scatter_(2, keys.where(keys >= 0, n), found)
    heads = range(q.shape[1]) if head is None else (head,)
    total = whole[:, heads[0], :n]
    for other in heads[1:]:
        total = total + whole[:, other, :n]
    return total.float() / len(heads)
