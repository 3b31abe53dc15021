"""The error budget before the clock: what a peer answers on exactly the problem that it is timed on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from quantattn.attention.problems import Problem
from quantattn.attention.testing import check, error_budget
from quantattn.cli.benchmarks.peers import Inputs

LONGEST = 16384
"""The scores of as many queries and keys, in float64 and about eight copies, fill 16 GiB."""
LAST = 4096
"""Queries of a longer problem that stand for all."""


class Gate:
    """The budget of the first key head and the query heads that share it, of one sequence or a whole pack.

    The truth forms scores in float64. Where both queries and keys are more than LONGEST, and the mask's future is
    bounded, the last queries stand for all, and of the keys those that only they see: in the whole problem, which is
    what runs, these see and are seen by exactly what they are among themselves.
    """

    def __init__(self, inputs: Inputs, backward: bool) -> None:
        self.group = inputs.q.shape[2] // inputs.k.shape[2]
        problem = piece_of(inputs, self.group)
        self.first_query = self.first_key = 0
        n_q, n_k, right = inputs.q.shape[1], inputs.k.shape[1], inputs.mask.right
        bounded = right is not None and inputs.mask.prefix == 0
        hidden = 0
        if bounded and not inputs.lengths and n_q == n_k and n_q > LONGEST:
            self.first_query = n_q - LAST
            left = inputs.mask.left
            hidden = 0 if left is None else max(0, self.first_query - left)
            self.first_key = min(n_k, self.first_query + (right or 0))
            offsets = [torch.tensor([0, n], dtype=torch.int32, device=inputs.q.device) for n in (LAST, n_k - hidden)]
            rows, seen = slice(self.first_query, None), slice(hidden, None)
            problem = replace(
                problem, q=problem.q[rows], do=problem.do[rows], k=problem.k[seen], v=problem.v[seen],
                cu_seqlens=offsets[0], cu_seqlens_k=offsets[1],
            )  # fmt: skip
        budget = error_budget(problem, backward=backward)
        whole = slice(self.first_key - hidden, None)
        truth = {name: x[whole] if name in ("dk", "dv") else x for name, x in budget.truth.items()}
        self.budget = replace(budget, truth=truth)

    def forward(self, out: Tensor) -> float:
        """Error over that of standard attention. Raises ValueError with the sentence when it is outside the budget."""
        return self._ratio({"out": out[0, self.first_query :, : self.group]})

    def backward(self, grads: Sequence[Tensor]) -> float:
        """The same of dq, dk and dv, the largest of the three."""
        keys = slice(self.first_key, None)
        dq, dk, dv = grads
        return self._ratio(
            {"dq": dq[0, self.first_query :, : self.group], "dk": dk[0, keys, :1], "dv": dv[0, keys, :1]}
        )

    def _ratio(self, results: Mapping[str, Tensor]) -> float:
        rows = check(results, self.budget)
        wrong = [row for row in rows if not row.ok]
        if wrong:
            worst = max(wrong, key=lambda row: row.ratio)
            raise ValueError(
                f"not timed, {worst.name} is off by {worst.worst:.3g} where {worst.allowed:.3g} is allowed"
            )
        return max(row.ratio for row in rows)


def piece_of(inputs: Inputs, heads: int) -> Problem:
    """The first key head and the query heads that share it, of the first sequence or of a whole pack."""
    q, k, v, do = (x[0, :, :h] for x, h in ((inputs.q, heads), (inputs.k, 1), (inputs.v, 1), (inputs.do, heads)))
    if inputs.lengths:
        rows = keys = inputs.offsets()
    else:
        rows, keys = (torch.tensor([0, x.shape[0]], dtype=torch.int32, device=q.device) for x in (q, k))
    return Problem(q, k, v, rows, keys, inputs.mask, None, 1.0 / math.sqrt(q.shape[-1]), do)
