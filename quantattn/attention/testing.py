"""Error budgets: how far from the truth an implementation of attention may be, in the unit of what its dtype loses.

The truth is the specification in float64 on the same (already rounded) inputs. Standard attention in the inputs' own
dtype is measured against it, and an implementation passes when, for the outputs,

    max |x − truth|  ≤  2 · max |standard − truth|  +  floor        floor = 2 · max |(truth + 0.3 − 0.3) − truth|

with the sum evaluated in the dtype of x (the floor is the noise of two additions), the same with means in place of
maxima, and 3 in place of 2 for gradients. For gradients, in float32, and for few numbers, the loss is the larger of
standard attention's and of what `rounding.py` says cannot be avoided: standard attention keeps its weights and loses
exactly nothing where an implementation that rebuilds them cannot, and in a few numbers it may lose nothing by luck.
Nothing here is tuned: a wrong kernel is far outside, a right one inside.

Dimensions: N sequences, T packed queries, Tk packed keys, H query heads, Hkv key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from quantattn.attention.exact import exact_attention, standard_attention
from quantattn.attention.extras import Extras
from quantattn.attention.mask import Mask
from quantattn.attention.problems import Problem
from quantattn.attention.rounding import RoundedAttention
from quantattn.attention.seen import bias_of_sequence
from quantattn.attention.state import Attended, lse_dtype

GRADIENTS = ("dq", "dk", "dv", "dbias", "dscales", "dsinks")
"""Names of the results that are gradients; the others are out and lse."""

_FEW = 4096
"""Results of fewer numbers may show no rounding of standard attention by luck."""

_MANY = 1 << 20
"""Queries of so many numbers are held to standard attention alone."""

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
        extras: Extras = Extras(),  # noqa: B008  a frozen value
    ) -> Attended:
        """Attention of packed sequences."""


@dataclass(frozen=True)
class Budget:
    """The truth of one problem and how far from it a result may be.

    Attributes:
        truth: name → float64 tensor, names out, lse, dq, dk, dv and, for what there is, dbias, dscales, dsinks.
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
        name: out, lse or one of the gradients.
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


def run(backend: Backend, problem: Problem, *, backward: bool = True) -> dict[str, Tensor]:
    """Results of `backend` by name: out, lse and, with `backward`, dq, dk, dv, dbias, dscales and dsinks.

    The last three are there when the problem has a floating bias, scales of the heads, sinks.
    """
    p = problem
    leaves = {"dq": p.q, "dk": p.k, "dv": p.v}
    if p.bias is not None and p.bias.is_floating_point():
        leaves["dbias"] = p.bias
    leaves |= {f"d{name}": x for name in ("scales", "sinks") if (x := getattr(p.extras, name)) is not None}
    leaves = {name: x.detach().requires_grad_(backward) for name, x in leaves.items()}
    extras = replace(p.extras, scales=leaves.get("dscales"), sinks=leaves.get("dsinks"))
    out, lse = backend(
        leaves["dq"],
        leaves["dk"],
        leaves["dv"],
        p.cu_seqlens,
        p.cu_seqlens_k,
        mask=p.mask,
        bias=leaves.get("dbias", p.bias),
        scale=p.scale,
        extras=extras,
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
    device = problem.q.device
    if device.type != "cpu" and _is_small(problem):
        problem = problem.to(device="cpu")  # where its thousands of small steps take a tenth of the time
    bias = problem.bias.double() if problem.bias is not None and problem.bias.is_floating_point() else problem.bias
    lifted = replace(problem.to(torch.float64), bias=bias, extras=problem.extras.to(torch.float64))
    truth = _by_pieces(exact_attention, lifted, torch.float64, backward)
    standard = _by_pieces(standard_attention, problem, problem.q.dtype, backward)
    losses, allowed = {name: errors(standard[name], value) for name, value in truth.items()}, {}
    unit, single = dict(losses), problem.q.dtype == torch.float32
    fewest = min((value.numel() for value in truth.values() if value.numel()), default=0)
    for seed in range(_draws(problem.q.numel(), fewest)):
        rounded = _by_pieces(RoundedAttention(problem.q.dtype, seed), lifted, torch.float64, backward)
        for name, value in truth.items():
            if single or name in GRADIENTS or value.numel() < _FEW:
                worst, mean = errors(rounded[name], value)
                unit[name] = max(worst, unit[name][0]), max(mean, unit[name][1])
    for name, (worst, mean) in unit.items():
        noise = _floor(truth[name], standard[name].dtype)
        factor = 3 if name in GRADIENTS else 2
        allowed[name] = (factor * worst + noise[0], factor * mean + noise[1])
    return Budget(truth={name: x.to(device) for name, x in truth.items()}, standard=losses, allowed=allowed)


def _is_small(problem: Problem) -> bool:
    """Whether the scores are few, and multiplied alike on every device."""
    scores = problem.q.shape[0] * problem.k.shape[0] * problem.q.shape[1]
    alike = problem.q.dtype != torch.float32 or torch.get_float32_matmul_precision() == "highest"
    return alike and scores <= 1 << 22


def _draws(numbers: int, fewest: int) -> int:
    """How often the signs of unavoidable errors are drawn for q of so many numbers and a smallest result of `fewest`:
    one draw of a few numbers can be a lucky one, and among millions standard attention has lost what there is to lose.
    """
    return 0 if numbers >= _MANY else min(8, max(2, 8192 // max(1, numbers), 16 // max(1, fewest)))


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


def _by_pieces(backend: Backend, problem: Problem, dtype: torch.dtype, backward: bool) -> dict[str, Tensor]:
    """`run` over a few heads of one sequence at a time, so that only their N×N matrices live at once."""
    p = problem
    group = p.q.shape[1] // p.k.shape[1]
    bias = None if p.bias is None else p.bias.reshape((1,) * (4 - p.bias.dim()) + tuple(p.bias.shape))
    results = {"out": torch.zeros_like(p.q), "lse": p.q.new_zeros(p.q.shape[:2], dtype=lse_dtype(dtype))}
    if backward:
        results |= {"dq": torch.zeros_like(p.q), "dk": torch.zeros_like(p.k), "dv": torch.zeros_like(p.v)}
        results |= {} if bias is None or bias.dtype == torch.bool else {"dbias": torch.zeros_like(bias)}
        per_head = {"dscales": p.extras.scales, "dsinks": p.extras.sinks}
        results |= {name: torch.zeros_like(x) for name, x in per_head.items() if x is not None}
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
                extras=p.extras.of_sequence(n, r, c, h),
            )
            part = run(backend, piece, backward=backward)
            results["out"][r, h], results["lse"][r, h] = part["out"], part["lse"]
            if backward:
                results["dq"][r, h], results["dk"][c, kv], results["dv"][c, kv] = part["dq"], part["dk"], part["dv"]
                if "dbias" in part:
                    bias_of_sequence(results["dbias"], n, n_q, n_k)[pick] += part["dbias"]
                for name in part.keys() & {"dscales", "dsinks"}:
                    results[name][h] += part[name]
    if p.bias is not None and "dbias" in results:
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
