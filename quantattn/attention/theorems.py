"""What must hold of attention whoever computes it, checked of one backend in one dtype.

Each theorem is a function of a `Subject` and a seed that yields gaps: how far apart two sides are, and how far they may
be. Where the two sides are the same computation they may not differ by a bit; elsewhere each side has the error budget
of its own problem. Inputs that have to be added exactly are drawn from a grid of sixteenths, which bfloat16 holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from quantattn.attention.certificate import Finding, verdict
from quantattn.attention.checks import refused
from quantattn.attention.machine import dtype_name
from quantattn.attention.mask import Mask
from quantattn.attention.problems import Problem, random_problem
from quantattn.attention.state import Attended, merge_attention
from quantattn.attention.testing import Backend, error_budget, errors, run

FULL, CAUSAL = Mask(), Mask(causal=True)


class Gap(NamedTuple):
    """How far two sides are apart and how far they may be; `quantity` is "bits" where they may not differ."""

    worst: float
    allowed: float
    quantity: str = "bits"


@dataclass(frozen=True)
class Subject:
    """What a theorem is asked of.

    Attributes:
        backend: the implementation.
        masks: those that it offers, among full, causal and a window.
        dtype: of the inputs.
        device: where they stand.
        lengths: queries of the sequences.
        lengths_k: keys of the sequences.
        d: head size.
    """

    backend: Backend
    masks: tuple[Mask, ...]
    dtype: torch.dtype
    device: torch.device
    lengths: tuple[int, ...] = (70, 0, 130, 9)
    lengths_k: tuple[int, ...] = (90, 4, 130, 0)
    d: int = 64

    def problem(
        self, seed: int, mask: Mask = FULL, lengths: Sequence[int] = (), lengths_k: Sequence[int] = ()
    ) -> Problem:
        """Four query heads on two; a gradient through lse as well."""
        return random_problem(
            seed, lengths or self.lengths, lengths_k or self.lengths_k, heads=4, heads_k=2, d=self.d, mask=mask,
            dlse=True, dtype=self.dtype, device=self.device,
        )  # fmt: skip

    def run(self, problem: Problem, *, backward: bool = True) -> dict[str, Tensor]:
        """Results by name."""
        return run(self.backend, problem, backward=backward)


Theorem = Callable[[Subject, int], Iterator[Gap]]


def keys_in_any_order(subject: Subject, seed: int) -> Iterator[Gap]:
    """Keys and values permuted together inside each sequence: out and gradients stay within the budget."""
    p = subject.problem(seed)
    budget = error_budget(p)
    order = torch.cat([c.start + _permuted(c.stop - c.start, seed, p.q.device) for c in _columns(p)])
    found = subject.run(replace(p, k=p.k[order], v=p.v[order]))
    for name, value in found.items():
        truth = budget.truth[name]
        yield Gap(errors(value, truth[order] if name in ("dk", "dv") else truth)[0], budget.allowed[name][0], _of(name))


def sequences_in_any_order(subject: Subject, seed: int) -> Iterator[Gap]:
    """Sequences permuted in the pack: their results are permuted, bit for bit."""
    for mask in subject.masks:
        p = subject.problem(seed, mask)
        order = _permuted(len(_rows(p)), seed, torch.device("cpu")).tolist()
        moved, i, j = _picked(p, order)
        yield _bits(_of_rows(subject.run(p), i, j), subject.run(moved))


def neighbours_do_not_matter(subject: Subject, seed: int) -> Iterator[Gap]:
    """A sequence alone, and beside neighbours of other values: the same bits as in its pack."""
    for mask in subject.masks:
        p, n = subject.problem(seed, mask), seed % len(subject.lengths)
        alone, i, j = _picked(p, [n])
        there = _of_rows(subject.run(p), i, j)
        yield _bits(there, subject.run(alone))
        other = subject.problem(seed + 1000, mask)
        for name, x in (("q", i), ("do", i), ("k", j), ("v", j)):
            getattr(other, name)[x] = getattr(p, name)[x]
        if p.dlse is not None and other.dlse is not None:
            other.dlse[i] = p.dlse[i]
        yield _bits(there, _of_rows(subject.run(other), i, j))


def a_constant_in_a_row_of_scores(subject: Subject, seed: int) -> Iterator[Gap]:
    """One vector added to every key adds one number to all scores of a query: out stays, lse moves by that number."""
    for mask in subject.masks:
        p = subject.problem(seed, mask)
        keys = _grid(p.k, seed)
        shift = _grid(p.k[:1], seed + 1)
        base, moved = replace(p, k=keys), replace(p, k=keys + shift)
        budget, truth = error_budget(moved, backward=False), error_budget(base, backward=False).truth
        found = subject.run(moved, backward=False)
        by = (p.q.double() * shift.double().repeat_interleave(2, dim=1)).sum(-1) * p.scale
        for name, expected in (("out", truth["out"]), ("lse", truth["lse"] + by)):
            yield Gap(errors(found[name], expected)[0], budget.allowed[name][0], _of(name))


def hidden_is_removed(subject: Subject, seed: int) -> Iterator[Gap]:
    """Each query alone, with the keys that it sees and no others: the same as under the mask, within the budget."""
    n_q, n_k = subject.lengths[0] // 2, subject.lengths_k[0] // 2
    for mask in subject.masks:
        p = subject.problem(seed, mask, lengths=(n_q,), lengths_k=(n_k,))
        seen = mask.visible(n_q, n_k, device=p.q.device)
        columns = seen.nonzero()[:, 1]
        counts = [0, *accumulate(seen.sum(-1).tolist())]
        alone = replace(
            p,
            k=p.k[columns],
            v=p.v[columns],
            cu_seqlens=torch.arange(n_q + 1, dtype=torch.int32, device=p.q.device),
            cu_seqlens_k=torch.tensor(counts, dtype=torch.int32, device=p.q.device),
            mask=FULL,
        )
        budget, found = error_budget(p), subject.run(alone)
        for name in ("out", "lse", "dq"):
            yield Gap(errors(found[name], budget.truth[name])[0], budget.allowed[name][0], _of(name))


def padding_reaches_nothing(subject: Subject, seed: int) -> Iterator[Gap]:
    """NaN in keys that no query sees and in queries that see no key: no result notices, the gradients there are 0."""
    n_q, n_k = (4, 3, 0, 5), (60, 1, 7, 0)
    for mask in subject.masks:
        p = subject.problem(seed, mask, lengths=n_q, lengths_k=n_k)
        seen = [mask.visible(i, j, device=p.q.device) for i, j in zip(n_q, n_k, strict=True)]
        unseen, blind = ~torch.cat([s.any(0) for s in seen]), ~torch.cat([s.any(1) for s in seen])
        budget = error_budget(p)
        q, k, v, do = p.q.clone(), p.k.clone(), p.v.clone(), p.do.clone()
        k[unseen], v[unseen], q[blind], do[blind] = torch.nan, torch.nan, torch.nan, torch.nan
        found = subject.run(replace(p, q=q, k=k, v=v, do=do))
        for name, value in found.items():
            yield Gap(errors(value, budget.truth[name])[0], budget.allowed[name][0], _of(name))
        for there, names in ((unseen, ("dk", "dv")), (blind, ("out", "dq"))):
            for name in names:
                yield Gap(errors(found[name][there], torch.zeros_like(found[name][there]).double())[0], 0.0)


def the_future_changes_nothing(subject: Subject, seed: int) -> Iterator[Gap]:
    """Causal: other keys and values from a place on leave every earlier result as it was, bit for bit."""
    n = max(subject.lengths)
    p, t = subject.problem(seed, CAUSAL, lengths=(n,), lengths_k=(n,)), n // 2 + seed % 7
    other = subject.problem(seed + 1000, CAUSAL, lengths=(n,), lengths_k=(n,))
    k, v = p.k.clone(), p.v.clone()
    k[t:], v[t:] = other.k[t:], -3 * other.v[t:]
    before, after = (
        {name: x[:t] for name, x in subject.run(each).items() if name in ("out", "lse", "dq")}
        for each in (p, replace(p, k=k, v=v))
    )
    yield _bits(before, after)


def values_have_no_part_in_lse(subject: Subject, seed: int) -> Iterator[Gap]:
    """A loss of lse alone: dV is 0 to the bit, and dQ and dK are not."""
    for mask in subject.masks:
        p = subject.problem(seed, mask)
        found = subject.run(replace(p, do=torch.zeros_like(p.do)))
        yield Gap(errors(found["dv"], torch.zeros_like(found["dv"]).double())[0], 0.0)
        # Nothing at all would pass the line above as well.
        yield Gap(0.0 if bool(found["dq"].any() and found["dk"].any()) else math.inf, 0.0)


def linear_in_the_values(subject: Subject, seed: int) -> Iterator[Gap]:
    """out(2v − 3v′) = 2·out(v) − 3·out(v′), within the sum of the three budgets."""
    for mask in subject.masks:
        p = subject.problem(seed, mask)
        v, w = _grid(p.v, seed, 1), _grid(p.v, seed + 1, 1)
        problems = [replace(p, v=x) for x in (v, w, 2 * v - 3 * w)]
        a, b, both = (subject.run(each, backward=False)["out"].double() for each in problems)
        allowed = [error_budget(each, backward=False).allowed["out"][0] for each in problems]
        yield Gap(errors(2 * a - 3 * b, both)[0], 2 * allowed[0] + 3 * allowed[1] + allowed[2], "forward")


def inside_the_hull_of_the_values(subject: Subject, seed: int) -> Iterator[Gap]:
    """No number of out is above the largest or below the smallest value that its query sees by more than rounding."""
    n = max(subject.lengths)
    for mask in subject.masks:
        p = subject.problem(seed, mask, lengths=(n,), lengths_k=(n,))
        out = subject.run(p, backward=False)["out"].double()
        seen = mask.visible(n, n, device=p.q.device)[:, :, None]
        beyond = 0.0
        for h in range(p.q.shape[1]):
            v = p.v[:, h // 2].double()[None]  # (1, Nk, D)
            above = out[:, h] - v.where(seen, -torch.inf).amax(1)
            below = v.where(seen, torch.inf).amin(1) - out[:, h]
            beyond = max(beyond, float(torch.maximum(above, below).nan_to_num(nan=torch.inf).max()))
        yield Gap(max(0.0, beyond), error_budget(p, backward=False).allowed["out"][0], "forward")


def parts_merge_to_the_whole(subject: Subject, seed: int) -> Iterator[Gap]:
    """Keys cut in two, attended apart and merged by their logsumexps: all keys at once, within the summed budgets."""
    n = subject.lengths_k[0]
    p = subject.problem(seed, FULL, lengths=subject.lengths[:1], lengths_k=(n,))
    cut, parts, budget = 1 + seed % (n - 1), [], error_budget(p, backward=False)
    allowed = {name: [worst] for name, (worst, _) in budget.allowed.items()}
    for part in (slice(cut), slice(cut, n)):
        size = p.cu_seqlens.new_tensor([0, len(range(n)[part])])
        half = replace(p, k=p.k[part], v=p.v[part], cu_seqlens_k=size)
        found = subject.run(half, backward=False)
        parts.append(Attended(found["out"], found["lse"]))
        for name, (worst, _) in error_budget(half, backward=False).allowed.items():
            allowed[name].append(worst)
    merged = merge_attention(parts)
    for name, value in (("out", merged.out), ("lse", merged.lse)):
        yield Gap(errors(value, budget.truth[name])[0], sum(allowed[name]), _of(name))


THEOREMS: dict[str, Theorem] = {
    "permuting the keys changes nothing": keys_in_any_order,
    "permuting the sequences permutes the results": sequences_in_any_order,
    "a sequence does not depend on its neighbours": neighbours_do_not_matter,
    "a constant added to a row's scores changes nothing but lse": a_constant_in_a_row_of_scores,
    "masked is removed": hidden_is_removed,
    "NaN in padding goes nowhere": padding_reaches_nothing,
    "causal: changing the future changes no earlier bit": the_future_changes_nothing,
    "dV is 0 when only lse has a gradient": values_have_no_part_in_lse,
    "linear in V": linear_in_the_values,
    "inside the convex hull of V": inside_the_hull_of_the_values,
    "two parts merged are the whole": parts_merge_to_the_whole,
}
"""What it says → how it is checked."""


def subject_of(name: str, backend: Backend, dtype: torch.dtype, device: torch.device, *, small: bool) -> Subject:
    """The subject of a backend with the masks that it offers; small sequences for an interpreter."""
    q = torch.empty(1, 1, 64, dtype=dtype, device=device)
    masks = (FULL, CAUSAL, Mask(window=(9, 2)))
    offered = tuple(mask for mask in masks if refused(name, q, mask, None) is None)
    subject = Subject(backend, offered, dtype, device)
    return replace(subject, lengths=(18, 0, 23, 3), lengths_k=(20, 4, 23, 0), d=16) if small else subject


def check_theorem(name: str, said: str, subject: Subject, seeds: Sequence[int]) -> Iterator[Finding]:
    """One finding for each quantity that the theorem compares: the gap that is the largest share of what is allowed."""
    gaps: dict[str, list[Gap]] = {}
    for seed in seeds:
        for gap in THEOREMS[said](subject, seed):
            gaps.setdefault(gap.quantity, []).append(gap)
    for quantity, found in gaps.items():
        failed = [gap for gap in found if not gap.worst <= gap.allowed]
        told = max(failed or found, key=lambda gap: gap.worst / gap.allowed if gap.allowed else gap.worst)
        note = f"{len(failed)} of {len(found)} comparisons" if failed else ""
        yield Finding(
            name, f"theorem: {said}", dtype_name(subject.dtype), quantity, told.worst, 0.0, told.allowed,
            verdict(not failed), note, len(found), (seeds[0], seeds[-1]),
        )  # fmt: skip


def _rows(p: Problem) -> list[slice]:
    cu = p.cu_seqlens.tolist()
    return [slice(a, b) for a, b in pairwise(cu)]


def _columns(p: Problem) -> list[slice]:
    cu = p.cu_seqlens_k.tolist()
    return [slice(a, b) for a, b in pairwise(cu)]


def _picked(p: Problem, order: Sequence[int]) -> tuple[Problem, Tensor, Tensor]:
    """The problem of some sequences in an order, and their rows in q and in k."""
    device = p.q.device
    rows, columns = _rows(p), _columns(p)
    i, j = (torch.cat([torch.arange(s[n].start, s[n].stop, device=device) for n in order]) for s in (rows, columns))
    cu, cu_k = (
        torch.tensor([0, *accumulate(s[n].stop - s[n].start for n in order)], dtype=torch.int32, device=device)
        for s in (rows, columns)
    )
    dlse = None if p.dlse is None else p.dlse[i]
    picked = replace(p, q=p.q[i], k=p.k[j], v=p.v[j], do=p.do[i], dlse=dlse, cu_seqlens=cu, cu_seqlens_k=cu_k)
    return picked, i, j


def _of_rows(results: dict[str, Tensor], i: Tensor, j: Tensor) -> dict[str, Tensor]:
    return {name: x[j if name in ("dk", "dv") else i] for name, x in results.items()}


def _bits(a: dict[str, Tensor], b: dict[str, Tensor]) -> Gap:
    return Gap(max(errors(a[name], b[name].double())[0] for name in a), 0.0)


def _grid(x: Tensor, seed: int, largest: int = 2) -> Tensor:
    """Like x, sixteenths between −largest and largest."""
    rng = torch.Generator().manual_seed(seed)
    return (torch.randint(-16 * largest, 16 * largest + 1, x.shape, generator=rng) / 16).to(x.device, x.dtype)


def _permuted(n: int, seed: int, device: torch.device) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed)).to(device)


def _of(name: str) -> str:
    return {"out": "forward", "lse": "lse"}.get(name, "gradients")
