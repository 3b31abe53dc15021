"""Error budgets: how far from the truth an implementation of attention may be, in the unit of what its dtype loses.

The truth is the specification in float64 on the same (already rounded) inputs. Standard attention in the inputs' own
dtype is measured against it, and an implementation passes when, for the outputs,

    max |x − truth|  ≤  2 · max |standard − truth|  +  floor        floor = 2 · max |(truth + 0.3 − 0.3) − truth|

with the sum evaluated in the dtype of x (the floor is the noise of two additions), the same with means in place of
maxima, and 3 in place of 2 for gradients. Float32 gradients count the larger loss of two writings, with the weights of
the softmax and with weights exp(s − lse): what an implementation loses by keeping no weights, the rounding of lse and
the cancellation do·v − do·out, is hidden in 16 bits and the largest loss in 32.
Nothing here is tuned: a wrong kernel is far outside, a right one inside.

Dimensions: N sequences, T packed queries, Tk packed keys, H query heads, Hkv key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Literal, Protocol

import torch
from torch import Tensor

from quantattn.attention.exact import exact_attention, standard_attention
from quantattn.attention.mask import Mask
from quantattn.attention.seen import bias_of_sequence
from quantattn.attention.state import Attended, lse_dtype

GRADIENTS = ("dq", "dk", "dv", "dbias")
"""Names of the results that are gradients; the others are out and lse."""

_ELEMENTS_AT_ONCE = 1 << 25
"""Score entries (heads × Nq × Nk) that the float64 truth forms at a time; about eight float64 copies of them live."""


class Backend(Protocol):
    """The one signature of every implementation inside the package; see `exact_attention` for the arguments."""

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens: Tensor,
        cu_seqlens_k: Tensor,
        *,
        mask: Mask,
        bias: Tensor | None,
        scale: float,
    ) -> Attended:
        """Attention of packed sequences."""


@dataclass(frozen=True)
class Problem:
    """One input of attention with the gradients that come back from its results.

    Attributes:
        q: (T, H, D).
        k: (Tk, Hkv, D).
        v: (Tk, Hkv, D).
        cu_seqlens: (N + 1,) int32.
        cu_seqlens_k: (N + 1,) int32.
        mask: who sees whom.
        bias: broadcastable to (N, H, longest Nq, longest Nk), or None.
        scale: factor of q·k.
        do: (T, H, D), gradient of the loss by out.
        dlse: (T, H), gradient of the loss by lse, or None when the loss does not use it.
        label: what the problem is about.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    cu_seqlens: Tensor
    cu_seqlens_k: Tensor
    mask: Mask
    bias: Tensor | None
    scale: float
    do: Tensor
    dlse: Tensor | None = None
    label: str = ""

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Problem:
        """The same problem rounded to `dtype` and moved to `device`; bias and dlse keep their dtype."""

        return replace(
            self,
            q=self.q.to(device=device, dtype=dtype),
            k=self.k.to(device=device, dtype=dtype),
            v=self.v.to(device=device, dtype=dtype),
            do=self.do.to(device=device, dtype=dtype),
            bias=None if self.bias is None else self.bias.to(device=device),
            dlse=None if self.dlse is None else self.dlse.to(device=device),
            cu_seqlens=self.cu_seqlens.to(device=device),
            cu_seqlens_k=self.cu_seqlens_k.to(device=device),
        )


@dataclass(frozen=True)
class Budget:
    """The truth of one problem and how far from it a result may be.

    Attributes:
        truth: name → float64 tensor, names out, lse, dq, dk, dv and, when there is a bias, dbias.
        standard: name → (worst, mean) error of standard attention in the problem's dtype.
        allowed: name → (worst, mean) error within the budget.
    """

    truth: Mapping[str, Tensor]
    standard: Mapping[str, tuple[float, float]]
    allowed: Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Row:
    """One result held against its budget.

    Attributes:
        name: out, lse, dq, dk, dv or dbias.
        worst: largest absolute error against float64, infinite when the result has a NaN or an infinity of its own.
        mean: mean absolute error.
        allowed: the largest error within the budget.
        ratio: worst over the worst error of standard attention in the same dtype; 0 when both are 0.
        ok: whether worst and mean are within the budget.
    """

    name: str
    worst: float
    mean: float
    allowed: float
    ratio: float
    ok: bool


def run(backend: Backend, problem: Problem, *, backward: bool = True, bias_gradient: bool = True) -> dict[str, Tensor]:
    """Results of `backend` by name: out, lse and, with `backward`, dq, dk, dv and dbias.

    dbias is there when the problem has a bias, unless `bias_gradient` is False, which also leaves the bias a constant.
    """
    p = problem
    leaves = {"dq": p.q, "dk": p.k, "dv": p.v}
    if p.bias is not None and bias_gradient:
        leaves["dbias"] = p.bias
    leaves = {name: x.detach().requires_grad_(backward) for name, x in leaves.items()}
    out, lse = backend(
        leaves["dq"],
        leaves["dk"],
        leaves["dv"],
        p.cu_seqlens,
        p.cu_seqlens_k,
        mask=p.mask,
        bias=leaves.get("dbias", p.bias),
        scale=p.scale,
    )
    results = {"out": out.detach(), "lse": lse.detach()}
    if backward:
        outputs, seeds = ([out], [p.do]) if p.dlse is None else ([out, lse], [p.do, p.dlse.to(lse.dtype)])
        gradients = torch.autograd.grad(outputs, list(leaves.values()), seeds, materialize_grads=True)
        results |= dict(zip(leaves, gradients, strict=True))
    return results


def error_budget(problem: Problem, *, backward: bool = True) -> Budget:
    """Truth and budget of `problem`; forms at most a few heads of one sequence at a time, in float64.

    Standard attention obeys `torch.set_float32_matmul_precision`, so that on a GPU the budget of float32 inputs is that
    of TF32 products while those are switched on; the truth does not change.

    Raises:
        ValueError: the problem is in float64, for which this module has no truth above it.
    """
    if problem.q.dtype == torch.float64:
        raise ValueError("the budget needs inputs below float64, in which the truth is computed; got float64")
    lifted = replace(problem.to(torch.float64), bias=None if problem.bias is None else problem.bias.double())
    truth = _by_pieces(exact_attention, lifted, torch.float64, backward)
    standard = _by_pieces(standard_attention, problem, problem.q.dtype, backward)
    losses, allowed = {name: errors(standard[name], value) for name, value in truth.items()}, {}
    if backward and problem.q.dtype == torch.float32:
        other = _by_pieces(partial(standard_attention, from_lse=True), problem, problem.q.dtype, backward)
        for name in losses.keys() & set(GRADIENTS):
            worst, mean = errors(other[name], truth[name])
            losses[name] = max(worst, losses[name][0]), max(mean, losses[name][1])
    for name, loss in losses.items():
        noise = _floor(truth[name], standard[name].dtype)
        factor = 3 if name in GRADIENTS else 2
        allowed[name] = (factor * loss[0] + noise[0], factor * loss[1] + noise[1])
    return Budget(truth=truth, standard=losses, allowed=allowed)


def check(results: Mapping[str, Tensor], budget: Budget) -> list[Row]:
    """One row for each result that the budget knows; `all(row.ok for row in rows)` is the verdict."""
    rows = []
    for name, value in results.items():
        worst, mean = errors(value, budget.truth[name])
        allowed, allowed_mean = budget.allowed[name]
        loss = budget.standard[name][0]
        ratio = worst / loss if loss else (0.0 if worst == 0 else torch.inf)
        rows.append(Row(name, worst, mean, allowed, ratio, worst <= allowed and mean <= allowed_mean))
    return rows


def random_problem(
    seed: int,
    lengths: Sequence[int],
    lengths_k: Sequence[int] | None = None,
    *,
    heads: int = 2,
    heads_k: int | None = None,
    d: int = 16,
    mask: Mask | None = None,
    bias: Literal["none", "key", "full"] = "none",
    dlse: bool = False,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    label: str = "",
) -> Problem:
    """Standard-normal q, k, v, do of the given lengths, drawn on the CPU in float64 so that every device sees the same.

    Args:
        seed: of the draw.
        lengths: queries of each sequence; zeros are allowed.
        lengths_k: keys of each sequence; the same as the queries when None.
        heads: H.
        heads_k: Hkv, H when None.
        d: D.
        mask: everything visible when None.
        bias: none; one number a key, (1, 1, 1, longest Nk); or (N, H, longest Nq, longest Nk) with some −∞ in it.
        dlse: whether a gradient comes back through lse too.
        dtype: of q, k, v, do.
        device: where the problem stands.
        label: carried along.
    """
    wide = torch.promote_types(dtype, torch.float32)  # of bias and dlse
    lengths_k = lengths if lengths_k is None else lengths_k
    heads_k = heads if heads_k is None else heads_k
    rng = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    n_q, n_k = sum(lengths), sum(lengths_k)
    q, k, v, do = draw(n_q, heads, d), draw(n_k, heads_k, d), draw(n_k, heads_k, d), draw(n_q, heads, d)
    by_lse = draw(n_q, heads)
    added: Tensor | None = None
    if bias == "key":
        added = draw(1, 1, 1, max(lengths_k))
    elif bias == "full":
        shape = (len(lengths), heads, max(lengths), max(lengths_k))
        added = draw(*shape).masked_fill(torch.rand(*shape, generator=rng) < 0.1, -torch.inf)
    return Problem(
        q=q,
        k=k,
        v=v,
        cu_seqlens=_offsets(lengths),
        cu_seqlens_k=_offsets(lengths_k),
        mask=mask or Mask(),
        bias=None if added is None else added.to(wide),
        scale=d**-0.5,
        do=do,
        dlse=by_lse.to(wide) if dlse else None,
        label=label,
    ).to(dtype, device)


def _offsets(lengths: Sequence[int]) -> Tensor:
    return torch.tensor(list(accumulate(lengths, initial=0)), dtype=torch.int32)


def _by_pieces(backend: Backend, problem: Problem, dtype: torch.dtype, backward: bool) -> dict[str, Tensor]:
    """`run` over a few heads of one sequence at a time, so that only their N×N matrices live at once."""
    p = problem
    group = p.q.shape[1] // p.k.shape[1]
    bias = None if p.bias is None else p.bias.reshape((1,) * (4 - p.bias.dim()) + tuple(p.bias.shape))
    results = {"out": torch.zeros_like(p.q), "lse": p.q.new_zeros(p.q.shape[:2], dtype=lse_dtype(dtype))}
    if backward:
        results |= {"dq": torch.zeros_like(p.q), "dk": torch.zeros_like(p.k), "dv": torch.zeros_like(p.v)}
        results |= {} if bias is None else {"dbias": torch.zeros_like(bias)}
    rows, columns = p.cu_seqlens.tolist(), p.cu_seqlens_k.tolist()
    for n in range(len(rows) - 1):
        r, c = slice(rows[n], rows[n + 1]), slice(columns[n], columns[n + 1])
        n_q, n_k = r.stop - r.start, c.stop - c.start
        step = max(1, _ELEMENTS_AT_ONCE // max(1, group * n_q * n_k))
        for first in range(0, p.k.shape[1], step):
            kv = slice(first, min(first + step, p.k.shape[1]))
            h = slice(kv.start * group, kv.stop * group)
            pick = slice(None) if bias is None or bias.shape[1] == 1 else h
            piece = replace(
                p,
                q=p.q[r, h],
                k=p.k[c, kv],
                v=p.v[c, kv],
                do=p.do[r, h],
                dlse=None if p.dlse is None else p.dlse[r, h],
                bias=None if bias is None else bias_of_sequence(bias, n, n_q, n_k)[pick],
                cu_seqlens=p.cu_seqlens.new_tensor([0, n_q]),
                cu_seqlens_k=p.cu_seqlens.new_tensor([0, n_k]),
            )
            part = run(backend, piece, backward=backward)
            results["out"][r, h], results["lse"][r, h] = part["out"], part["lse"]
            if backward:
                results["dq"][r, h], results["dk"][c, kv], results["dv"][c, kv] = part["dq"], part["dk"], part["dv"]
                if bias is not None:
                    bias_of_sequence(results["dbias"], n, n_q, n_k)[pick] += part["dbias"]
    if backward and p.bias is not None:
        results["dbias"] = results["dbias"].reshape(p.bias.shape)
    return results


def errors(value: Tensor, truth: Tensor) -> tuple[float, float]:
    """(max, mean) of |value − truth|; 0 where both are the same infinity, infinite where value alone is not finite."""
    if truth.numel() == 0:
        return 0.0, 0.0
    gap = (value.double() - truth).abs().where(value.double() != truth, 0).nan_to_num(nan=torch.inf)
    return float(gap.max()), float(gap.mean())


def _floor(truth: Tensor, dtype: torch.dtype) -> tuple[float, float]:
    """Twice the (max, mean) noise of adding 0.3 and taking it away again in `dtype`."""
    finite = truth[truth.isfinite()].to(dtype)
    if finite.numel() == 0:
        return 0.0, 0.0
    noise = ((finite + 0.3 - 0.3) - finite).abs().double()
    return 2 * float(noise.max()), 2 * float(noise.mean())
