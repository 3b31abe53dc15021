"""Error tables: how the errors of a backend are distributed over dtypes, head sizes, lengths and masks, beside a bound.

Each problem gives one row for each of its results and one finding: no number of out or lse is farther from the truth
than the a-priori bound that was computed from the inputs alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from quantattn.attention.bounds import bounds, exponential, exponential_in_gradients
from quantattn.attention.certificate import Errors, Finding, verdict
from quantattn.attention.checks import not_offered, refused
from quantattn.attention.exact import standard_attention
from quantattn.attention.machine import dtype_name
from quantattn.attention.mask import Mask
from quantattn.attention.problems import Problem, random_problem
from quantattn.attention.testing import Backend, Budget, Row, check, error_budget, run

_MASKS = {"full": Mask(), "causal": Mask(causal=True), "window": Mask(window=(64, 16))}
_MOST = 1 << 20
"""Of so many numbers, evenly spread, are quantiles taken."""


def table_problems(dtype: torch.dtype, device: torch.device, *, small: bool = False) -> list[Problem]:
    """One sequence each; on a GPU few head sizes, since each is another program to be compiled."""
    draw = partial(random_problem, heads=2, heads_k=1, dtype=dtype, device=device)
    if small:  # under an interpreter
        return [draw(100, (40,), d=16, mask=Mask(causal=True), label="causal")]
    on_gpu = device.type == "cuda"
    sizes, lengths = ((64, 128), (128, 512, 2048)) if on_gpu else ((16, 64, 128), (32, 256, 1024))
    problems = [
        draw(100 + i, (n,), d=d, mask=mask, label=name)
        for i, d in enumerate(sizes)
        for n in lengths
        for name, mask in _MASKS.items()
        if n < 1024 or d == 64
    ]
    odd = (80, 256) if on_gpu else (8, 40, 80, 111, 192, 256)
    return problems + [draw(200 + d, (300,), d=d, mask=_MASKS["causal"], label="causal") for d in odd]


def check_distribution(name: str, problem: Problem, budget: Budget, backend: Backend) -> Iterator[Finding | Errors]:
    """The rows of one problem, whether its budget and its bound held."""
    p, dtype = problem, dtype_name(problem.q.dtype)
    d, length = p.q.shape[-1], p.q.shape[0]
    case = f"{p.label}, D {d}, N {length}"
    refusal = refused(name, p.q, p.mask, p.bias)
    if refusal is not None:
        yield not_offered(name, f"bound: {case}", p.q.dtype, refusal)
        return
    results, standard, most = (
        run(backend, p),
        run(standard_attention, p),
        bounds(p, budget, exponential(name, p.q.dtype)),
    )
    rows = {row.name: row for row in check(results, budget)}
    for result in ("out", "lse", "dq", "dk", "dv"):
        value, truth = results[result].double(), budget.truth[result]
        gap = _gap(value, truth)
        sizes = _quantiles(gap, (0.999,)), _quantiles(_gap(standard[result].double(), truth), (0.999,))
        in_ulp = _quantiles(gap / unit_in_last_place(truth, results[result].dtype), (0.5, 0.999))
        worst_of_standard, mean_of_standard = budget.standard[result]
        used, bound = _used(gap, most[result]) if result in most else (0.0, 0.0)
        yield Errors(
            name, dtype, d, length, p.label, result, rows[result].worst, rows[result].mean, sizes[0][0],
            worst_of_standard, mean_of_standard, sizes[1][0], in_ulp[0], in_ulp[1], bound, used,
        )  # fmt: skip
        if result in most:
            note = f"at most {used:.1%} of the bound of a number"
            seen = "forward" if result == "out" else result
            yield Finding(
                name,
                f"bound: {case}",
                dtype,
                seen,
                rows[result].worst,
                worst_of_standard,
                bound,
                verdict(used <= 1),
                note,
            )
    outside = [row for row in rows.values() if not row.ok]
    if name == "sdpa" and outside:
        outside = [row for row in outside if not _by_its_exponential(row, p, budget)]
    told = max(outside, key=lambda row: row.worst / row.allowed) if outside else rows["out"]
    note = "" if told.ok else f"{told.name}, mean error {told.mean:.3g}"
    yield Finding(
        name, f"random: table, {case}", dtype, "forward" if told.name == "out" else told.name, told.worst,
        budget.standard[told.name][0], told.allowed, verdict(told.ok), note,
    )  # fmt: skip


def _by_its_exponential(row: Row, problem: Problem, budget: Budget) -> bool:
    """Whether a gradient of torch's operator leaves its budget by no more than what its exponential is off by."""
    x = exponential("sdpa", problem.q.dtype)
    beyond = exponential_in_gradients(problem, x).get(row.name, 0.0)
    return row.worst <= row.allowed + beyond and row.mean <= budget.allowed[row.name][1]


def check_distributions(backends: Mapping[str, Backend], problems: Iterable[Problem]) -> Iterator[Finding | Errors]:
    """All rows of several backends; the truth of a problem is computed once."""
    for problem in problems:
        budget = error_budget(problem)
        for name, backend in backends.items():
            yield from check_distribution(name, problem, budget, backend)


def unit_in_last_place(truth: Tensor, dtype: torch.dtype) -> Tensor:
    """Distance from the true numbers to the next ones of `dtype`, float64, no smaller than the smallest subnormal."""
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(truth.where(truth.isfinite(), 0))
    unit = torch.ldexp(torch.full_like(truth, info.eps), exponent - 1)
    return unit.where(truth != 0, 0).clamp_min(info.smallest_normal * info.eps)


def _gap(value: Tensor, truth: Tensor) -> Tensor:
    return (value - truth).abs().where(value != truth, 0).nan_to_num(nan=torch.inf)


def _quantiles(x: Tensor, at: tuple[float, ...]) -> list[float]:
    """Of |x|, the nearest of the sorted numbers from above."""
    x = x.flatten()
    x = x[:: -(-x.numel() // _MOST)].sort().values
    return [float(x[min(x.numel() - 1, int(q * x.numel()))]) for q in at]


def _used(gap: Tensor, bound: Tensor) -> tuple[float, float]:
    """(largest share of its own bound that an error takes, largest bound)."""
    share = torch.where(gap == 0, 0.0, gap / bound).nan_to_num(nan=torch.inf)
    return float(share.max()), float(bound.max())
