"""What an implementation can lose at most, computed before it runs: an a-priori bound on the rounding of attention.

With the unit roundoffs u of the inputs' dtype and w = 2⁻²⁴ of float32, γ_n = n·w / (1 − n·w), D the head size, n the
visible keys, T = ⌈n / 16⌉ tiles at most, and the true scores s, weights p and out of the same inputs in float64:

    score      |ŝ_j − s_j| ≤ e_j = γ_{D+2} · scale · Σ_d |q_d k_jd| + 8w · (|s_j| + max_j |s_j|)
    weight     relative error ≤ φ_j = exp(e_j) · (1 + x)(1 + γ_{n + 8T}) − 1, x that of the exponential
    rounded    θ_j = φ_j + u(1 + φ_j) for 16-bit inputs, whose weights are rounded once more; θ_j = φ_j for float32
    out        |ôut − out| ≤ (Σ_j p_j (θ_j |v_j| + φ_j |out|) + η Σ_j |v_j|) / (1 − Σ_j p_j φ_j) + u |out| + η
    lse        |l̂se − lse| ≤ −ln(1 − Σ_j p_j φ_j) + 8w · (1 + |lse| + max_j |s_j|)

The sum of products and the sums over keys may be taken in any order (Higham 2002, "Accuracy and Stability of Numerical
Algorithms", §§3.1, 4.2); x is 40w, a vectorised exponential that is off by twenty units in the last place, except that
torch's operator for CPUs takes a fast one for 16-bit inputs that was seen to be off by 0.0052 (x = 2⁻⁷); 8T are the
rescalings of the running sums, whose exponents add up to no more than the largest score; η is half the smallest
subnormal number of the dtype. The maximum may be anything: it divides out. It holds for every order of every tiling and
is therefore far above what is seen; standard attention, which rounds scores to 16 bits, need not obey it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quantattn.attention.problems import Problem
from quantattn.attention.testing import Budget

_SINGLE = 2.0**-24
_LEAST_TILE = 16
_USUAL_EXPONENTIAL = 40 * _SINGLE


def exponential(name: str, dtype: torch.dtype) -> float:
    """Relative error of the exponential that a backend takes for inputs of a dtype: x above."""
    return 2.0**-7 if name == "sdpa" and dtype != torch.float32 else _USUAL_EXPONENTIAL


def bounds(problem: Problem, budget: Budget, x: float = _USUAL_EXPONENTIAL) -> dict[str, Tensor]:
    """The bound of each number of out (T, H, D) and lse (T, H), float64.

    Args:
        problem: below float64, without bias and extras.
        budget: of the problem; its truth is used.
        x: relative error of the implementation's exponential.

    Raises:
        ValueError: a problem with a bias or extras, for which no bound is stated.
    """
    if problem.bias is not None or problem.extras.names():
        raise ValueError(f"the bound is for scores of q·k alone, got {problem.label}")
    p = problem.to(torch.float64)
    group = p.q.shape[1] // p.k.shape[1]
    out, lse = torch.zeros_like(p.q), torch.zeros_like(budget.truth["lse"])
    rows, columns = p.cu_seqlens.tolist(), p.cu_seqlens_k.tolist()
    for n in range(len(rows) - 1):
        r, c = slice(rows[n], rows[n + 1]), slice(columns[n], columns[n + 1])
        seen = p.mask.visible(r.stop - r.start, c.stop - c.start, device=p.q.device)
        truth = budget.truth["out"][r].transpose(0, 1), budget.truth["lse"][r].T
        k, v = (x[c].transpose(0, 1).repeat_interleave(group, dim=0) for x in (p.k, p.v))
        found = _of_sequence(p.q[r].transpose(0, 1), k, v, seen, p.scale, truth, problem.q.dtype, x)
        out[r], lse[r] = found[0].transpose(0, 1), found[1].T
    return {"out": out, "lse": lse}


def _of_sequence(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float, truth: tuple[Tensor, Tensor], dtype: torch.dtype,
    x: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Of q (H, Nq, D), k, v (H, Nk, D), seen (Nq, Nk), truth out (H, Nq, D) and lse (H, Nq) → their bounds."""
    out, lse = truth
    u = torch.finfo(dtype).eps / 2
    eta = torch.finfo(dtype).smallest_normal * u
    n = seen.sum(-1).double()
    sees = seen.any(-1)
    scores = scale * (q @ k.mT)
    weights = torch.exp(scores - lse.where(lse.isfinite(), 0)[..., None]).where(seen, 0)
    largest = scores.abs().where(seen, 0).amax(-1, keepdim=True) if k.shape[1] else scores.new_zeros(*lse.shape, 1)
    e = _gamma(q.shape[-1] + 2, _product_unit(q, dtype)) * abs(scale) * (q.abs() @ k.abs().mT)
    e = e + 8 * _SINGLE * (scores.abs() + largest)
    sums = _gamma(n + 8 * (n / _LEAST_TILE).ceil(), _SINGLE)[:, None]
    phi = torch.exp(e) * ((1 + x) * (1 + sums)) - 1
    theta = phi if dtype == torch.float32 else phi + u * (1 + phi)
    off = (weights * phi).sum(-1, keepdim=True)
    size = (weights * theta) @ v.abs() + out.abs() * off + eta * (seen.to(v.dtype) @ v.abs())
    of_out = (size / (1 - off) + u * out.abs() + eta).where(sees[:, None], 0)
    of_lse = -torch.log1p(-off[..., 0]) + 8 * _SINGLE * (1 + lse.abs() + largest[..., 0])
    # A row whose errors could add up to its whole mass is bounded by nothing.
    lost = off >= 1
    return of_out.masked_fill(lost, torch.inf), of_lse.masked_fill(lost[..., 0], torch.inf).where(sees, 0)


def exponential_in_gradients(problem: Problem, x: float) -> dict[str, float]:
    """What an exponential that is off by 1 ± x moves the gradients of one sequence by at most, to first order.

    Budgets count exponentials that are off by a unit or two; a backward that takes a vectorised one, off by twenty, may
    leave them by this.
    """
    p = problem.to(torch.float64)
    group = p.q.shape[1] // p.k.shape[1]
    q, k, v, do = (y.transpose(0, 1) for y in (p.q, p.k, p.v, p.do))
    k, v = (y.repeat_interleave(group, dim=0) for y in (k, v))
    seen = p.mask.visible(q.shape[1], k.shape[1], device=q.device)
    weights = torch.softmax((p.scale * (q @ k.mT)).masked_fill(~seen, -torch.inf), -1).nan_to_num(0)
    dw = do @ v.mT
    ds = (weights * (dw - (weights * dw).sum(-1, keepdim=True))).abs()
    dk, dv = ((y.mT @ z.abs()).unflatten(0, (-1, group)).sum(1) for y, z in ((ds, q), (weights, do)))  # type: ignore[no-untyped-call]
    sizes = {"dq": p.scale * (ds @ k.abs()), "dk": p.scale * dk, "dv": dv}
    return {name: x * float(size.max()) for name, size in sizes.items()}


def _gamma(n: float | Tensor, unit: float) -> Tensor:
    n = torch.as_tensor(n, dtype=torch.float64)
    return n * unit / (1 - n * unit)


def _product_unit(q: Tensor, dtype: torch.dtype) -> float:
    """Of the sums of products; float32 factors are rounded to TF32 when torch is told to do so."""
    rounded = dtype == torch.float32 and q.is_cuda and torch.get_float32_matmul_precision() != "highest"
    return 2.0**-10 if rounded else _SINGLE
