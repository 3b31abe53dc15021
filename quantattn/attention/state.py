"""The algebra of the online softmax: what a block of keys must remember so that blocks can be added up.

For one query, a set A of keys with scores s_j and values v_j is summarised by

    m = a reference, normally max_j s_j          l = Σ_j exp(s_j − m)          u = Σ_j exp(s_j − m) · v_j

and nothing else about A is ever needed again: A's own answer is u / l, its log-mass is m + ln l. The reference is free:
(m, l, u) and (m', l·exp(m − m'), u·exp(m − m')) describe the same set. Two disjoint sets are joined by taking both to
the common reference max(m_A, m_B) and adding,

    m = max(m_A, m_B)     l = l_A·exp(m_A − m) + l_B·exp(m_B − m)     u = u_A·exp(m_A − m) + u_B·exp(m_B − m),

a commutative and associative operation whose identity is the empty set (−∞, 0, 0). Tiles, split keys, context
parallelism and streams are all this one merge in different orders, and the softmax over all keys is its result: nothing
was approximated. Sums with different references must not be added, and outputs u / l must not be averaged: an output
alone has lost the mass that it should be weighted with.

Sources: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax", §3; Rabe and Staats 2021,
"Self-attention does not need O(n²) memory", §2; Dao et al. 2022, "FlashAttention", §3.1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from quantattn.attention.seen import seen_sum


class Attended(NamedTuple):
    """Result of attention: out in the layout and dtype of q, lse (natural log) in float32 (float64 for float64)."""

    out: Tensor
    lse: Tensor


def lse_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of lse and of the sums behind a result, for inputs of `dtype`: float64 for float64, else float32."""
    return torch.promote_types(dtype, torch.float32)


@dataclass(frozen=True)
class AttentionState:
    """The summary (m, l, u) of a set of keys, one a row; rows are queries and may have leading batch dimensions.

    Every operation is differentiable and free of NaN, also where a row has seen no key (m = −∞). Gradients do not flow
    through the choice of a reference (a maximum), because no result depends on it; they do flow through `m` where a
    state was given one that needs them, as `of_attended` does.

    Attributes:
        m: (…, R) reference of each row, −∞ for a row that has seen nothing.
        l: (…, R) sum of exp(score − m).
        u: (…, R, D) sum of exp(score − m) · value.
    """

    m: Tensor
    l: Tensor
    u: Tensor

    def __post_init__(self) -> None:
        if self.m.shape != self.l.shape or self.u.shape[:-1] != self.m.shape:
            raise ValueError(
                f"a state needs m and l (…, R) and u (…, R, D), "
                f"got m {tuple(self.m.shape)}, l {tuple(self.l.shape)}, u {tuple(self.u.shape)}"
            )

    @classmethod
    def empty(
        cls,
        rows: int | tuple[int, ...],
        d: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> AttentionState:
        """The identity (−∞, 0, 0): `rows` queries (an int, or a shape) that have seen no key yet."""
        shape = (rows,) if isinstance(rows, int) else tuple(rows)
        return cls(
            m=torch.full(shape, -torch.inf, dtype=dtype, device=device),
            l=torch.zeros(shape, dtype=dtype, device=device),
            u=torch.zeros(*shape, d, dtype=dtype, device=device),
        )

    @classmethod
    def of_block(cls, scores: Tensor, values: Tensor) -> AttentionState:
        """The state of one block of B keys.

        Args:
            scores: (…, R, B), −∞ where the row does not see the key; such a pair adds nothing, whatever its value.
            values: (…, B, D) shared by the rows, or (…, R, B, D) one set a row.

        Raises:
            ValueError: the shapes do not belong together.
        """
        per_row = values.dim() == scores.dim() + 1
        expected = scores.shape if per_row else (*scores.shape[:-2], scores.shape[-1])
        if values.shape[:-1] != expected or scores.dim() < 2:
            raise ValueError(
                f"scores (…, R, B) go with values (…, B, D) or (…, R, B, D), "
                f"got scores {tuple(scores.shape)} and values {tuple(values.shape)}"
            )
        if scores.shape[-1] == 0:
            rows = tuple(scores.shape[:-1])
            return cls.empty(rows, values.shape[-1], dtype=values.dtype, device=values.device)
        seen = scores != -torch.inf
        m = scores.detach().amax(dim=-1)
        p = torch.exp(scores - _finite(m)[..., None])
        if per_row:
            u = seen_sum(p[..., None, :], values, seen[..., None, :]).squeeze(-2)
        else:
            u = seen_sum(p, values, seen)
        return cls(m=m, l=p.sum(dim=-1), u=u)

    @classmethod
    def of_attended(cls, attended: Attended) -> AttentionState:
        """The state (lse, 1, out) that a finished result stands for, so that results over disjoint keys can be merged.

        Args:
            attended: out (…, R, D) and lse (…, R), as attention returns them; rows with lse −∞ become the identity.
        """
        out, lse = attended
        seen = lse != -torch.inf
        return cls(m=lse, l=seen.to(lse.dtype), u=out.to(lse.dtype).where(seen[..., None], 0))

    def merge(self, other: AttentionState) -> AttentionState:
        """The state of the union of two disjoint sets of keys: both brought to the larger reference, then added.

        Raises:
            ValueError: the states are of different rows or widths.
        """
        if self.u.shape != other.u.shape:
            raise ValueError(f"states of one shape merge, got u {tuple(self.u.shape)} and {tuple(other.u.shape)}")
        m = torch.maximum(self.m, other.m).detach()
        mine, theirs = torch.exp(self.m - _finite(m)), torch.exp(other.m - _finite(m))
        return AttentionState(
            m=m,
            l=self.l * mine + other.l * theirs,
            u=self.u * mine[..., None] + other.u * theirs[..., None],
        )

    def finish(self) -> Attended:
        """Out = u / l (…, R, D) and lse = m + ln l (…, R); out 0 and lse −∞ for a row that has seen nothing."""
        seen = self.l != 0
        mass = self.l.where(seen, 1)
        lse = (_finite(self.m) + torch.log(mass)).where(seen, -torch.inf)
        return Attended(out=self.u / mass[..., None], lse=lse)


def merge_attention(parts: Iterable[Attended]) -> Attended:
    """Attention over the union of disjoint sets of keys, from the results of the same queries over each set.

    Averaging outputs would be wrong: each must weigh what its keys weigh, which is what lse remembers. Exact up to
    rounding, in any order, and differentiable through the out and the lse of every part.

    Args:
        parts: results as `attention` returns them, all of one shape.

    Returns:
        out in the dtype of the first part's, added up in the dtype of lse and rounded once; lse of all keys.

    Raises:
        ValueError: no parts, or parts of different shapes.
    """
    parts = list(parts)
    if not parts:
        raise ValueError("merge_attention needs at least one part, got none")
    states = (AttentionState.of_attended(part) for part in parts)
    out, lse = reduce(AttentionState.merge, states).finish()
    return Attended(out.to(parts[0].out.dtype), lse)


def _finite(m: Tensor) -> Tensor:
    """The reference with 0 in place of −∞: exp(−∞ − 0) is 0 where exp(−∞ − (−∞)) would be NaN."""
    return m.where(m != -torch.inf, 0)
