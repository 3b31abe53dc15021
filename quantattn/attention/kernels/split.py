"""Few queries over many keys: the keys are cut into parts that run side by side, and their results are merged.

The length of a part is fixed, and whether a sequence is cut depends on its own lengths alone, so that the bits of its
result do not depend on the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

PART = 2048
"""Keys of a part; a multiple of every block of keys."""
FEW_QUERIES = 128
"""At most as many queries: one tile of them, so that the parts are what there is to share out."""


def count_parts(n_q: int, n_k: int) -> int:
    """Into how many parts the keys of sequences of these lengths are cut; 1 is not at all."""
    return -(-n_k // PART) if n_q <= FEW_QUERIES and n_k >= 2 * PART else 1


def merge_parts(outs: Tensor, lses: Tensor, out: Tensor, lse: Tensor) -> None:
    """Write the results over all keys: (P, B, N, H, D) and (P, B, H, N) float32 → out (B, N, H, D), lse (B, H, N).

    A part weighs exp(its lse − the lse of all); one that saw nothing weighs 0 (Milakov and Gimelshein 2018).
    """
    torch.logsumexp(lses, dim=0, out=lse)
    seen = (lses > -torch.inf) | lses.isnan()
    weights = torch.exp(lses - lse).where(seen, 0).transpose(2, 3)[..., None]  # (P, B, N, H, 1)
    seen_by_row = seen.transpose(2, 3)[..., None]
    out.copy_((outs.where(seen_by_row, 0) * weights).sum(0))
