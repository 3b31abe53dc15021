"""What acts on scores and weights beside scale, mask and bias, carried in one piece through every implementation.

With Nq queries and Nk keys, H heads, distance d_ij = |j − (i + Nk − Nq)|:

    s_ij = c · tanh(scale · scale_h · q_i·k_j / c) − alibi_h · d_ij + bias_ij
    p_ij = exp(s_ij) / (exp(sink_h) + Σ_j exp(s_ij))          lse_i = ln(exp(sink_h) + Σ_j exp(s_ij))
    out_i = Σ_j p_ij · kept_ij / (1 − dropout) · v_j

over the keys of the query's own segment that the mask lets it see.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Extras:
    """The defaults change nothing.

    Attributes:
        softcap: c, or None.
        scales: (H,), a factor of each head's q·k beside the scale.
        alibi: (H,) slopes (Press et al. 2022, "Train short, test long").
        sinks: (H,), one more score in each row's sum, whose value is zero (Xiao et al. 2023).
        segments: (T,) int32 for the rows of q; a query sees the keys of its own segment.
        segments_k: (Tk,) int32 for the rows of k.
        dropout: probability in [0, 1) that a weight is dropped.
        seed: (1,) int64, of the dropout.
        origin: (sequence, head) at which the counters of the dropout start, where these are a part of a whole.
    """

    softcap: float | None = None
    scales: Tensor | None = None
    alibi: Tensor | None = None
    sinks: Tensor | None = None
    segments: Tensor | None = None
    segments_k: Tensor | None = None
    dropout: float = 0.0
    seed: Tensor | None = None
    origin: tuple[int, int] = (0, 0)

    def names(self) -> list[str]:
        """Which of them do something."""
        tensors = ("scales", "alibi", "sinks", "segments")
        given = [name for name in tensors if getattr(self, name) is not None]
        return given + (["softcap"] if self.softcap else []) + (["dropout"] if self.dropout else [])

    def of_sequence(self, n: int, rows: slice, columns: slice, heads: slice = slice(None)) -> Extras:
        """Those of sequence n, whose rows these are, and of some heads."""

        def by_head(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[heads]

        return replace(
            self,
            scales=by_head(self.scales),
            alibi=by_head(self.alibi),
            sinks=by_head(self.sinks),
            segments=None if self.segments is None else self.segments[rows],
            segments_k=None if self.segments_k is None else self.segments_k[columns],
            origin=(self.origin[0] + n, self.origin[1] + (heads.start or 0)),
        )

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Extras:
        """The same with its floating tensors in `dtype`, on `device`."""

        def moved(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.to(device=device, dtype=dtype if x.is_floating_point() else None)

        names = ("scales", "alibi", "sinks", "segments", "segments_k", "seed")
        tensors: dict[str, Any] = {name: moved(getattr(self, name)) for name in names}
        return replace(self, **tensors)

    def visible(self, rows: slice = slice(None), columns: slice = slice(None)) -> Tensor | None:
        """(rows, columns) bool, whether query and key share a segment; None when there are no segments."""
        if self.segments is None or self.segments_k is None:
            return None
        return self.segments[rows, None] == self.segments_k[None, columns]

    def bent(self, scores: Tensor) -> Tensor:
        """Scores under the soft cap."""
        return scores if not self.softcap else self.softcap * torch.tanh(scores / self.softcap)

    def slanted(self, scores: Tensor, rows: tuple[int, int], columns: tuple[int, int], shift: int) -> Tensor:
        """Scores (H, rows, columns) minus slope times distance."""
        if self.alibi is None:
            return scores
        beside = torch.arange(*rows, device=scores.device)[:, None] + shift
        distance = (torch.arange(*columns, device=scores.device)[None, :] - beside).abs()
        return scores - (self.alibi[:, None, None] * distance).to(scores.dtype)
