"""`deterministic="batch"`: the bits of a sequence, and of a query, whoever else is in the call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quantattn.attention import Attended, Mask, attention, choose_backend
from quantattn.attention.extras import Extras
from quantattn.attention.kernels import configs
from quantattn.attention.ops import packed_attention_op
from quantattn.attention.problems import Problem, any_problem, random_problem
from quantattn.attention.testing import check, error_budget, run
from quantattn.attention.tiling import ORDERED_K, ORDERED_Q

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

SHARED = ("dbias", "dscales", "dsinks")
"""Gradients that are sums over the batch."""


def in_batch_mode(backend: str) -> Callable[..., Attended]:
    def call(
        q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, *,
        mask: Mask, bias: Tensor | None, scale: float, extras: Extras = Extras(),  # noqa: B008
    ) -> Attended:  # fmt: skip
        return attention(
            q, k, v, cu_q, cu_k, mask=mask, bias=bias, scale=scale if extras.scales is None else extras.scales * scale,
            dropout=extras.dropout, dropout_seed=extras.seed, softcap=extras.softcap, alibi=extras.alibi,
            sinks=extras.sinks, segments=extras.segments, segments_k=extras.segments_k,
            deterministic="batch", backend=backend,
        )  # fmt: skip

    return call


def of_sequences(p: Problem, order: tuple[int, ...]) -> tuple[Problem, Tensor, Tensor]:
    """(the problem of these sequences, where its queries stood, where its keys stood); there is no bias."""
    rows, columns = (list(pairwise(cu.tolist())) for cu in (p.cu_seqlens, p.cu_seqlens_k))
    device = p.q.device
    i, j = (torch.cat([torch.arange(*at[n], device=device) for n in order]) for at in (rows, columns))
    cu_q, cu_k = (
        torch.tensor([0, *torch.tensor([b - a for a, b in (at[n] for n in order)]).cumsum(0)], dtype=torch.int32)
        for at in (rows, columns)
    )
    e = p.extras
    extras = replace(
        e,
        segments=None if e.segments is None else e.segments[i],
        segments_k=None if e.segments_k is None else e.segments_k[j],
    )
    dlse = None if p.dlse is None else p.dlse[i]
    part = replace(
        p, q=p.q[i], k=p.k[j], v=p.v[j], do=p.do[i], dlse=dlse, extras=extras,
        cu_seqlens=cu_q.to(device), cu_seqlens_k=cu_k.to(device),
    )  # fmt: skip
    return part, i, j


@pytest.mark.parametrize("terms", [(), ("softcap", "scales", "alibi", "sinks", "segments")], ids=["plain", "terms"])
@pytest.mark.parametrize("backend", ["tiled", "triton"])
def test_a_sequence_has_its_bits_in_any_company(backend: str, terms: tuple[str, ...], device: str) -> None:
    if backend == "triton":
        pytest.importorskip("triton")
    grow = 19 if device == "cuda" or backend == "tiled" else 1
    lengths = [tuple(grow * n for n in each) for each in ((5, 0, 33, 17), (9, 3, 40, 0))]
    p = random_problem(
        21, *lengths, heads=2, heads_k=1, mask=Mask(window=(9 * grow, 2)), extras=terms, dlse=True,
        device=device if backend == "triton" else "cpu",
    )  # fmt: skip
    together = run(in_batch_mode(backend), p)
    for order in ((0,), (2,), (3, 2, 1, 0), (2, 2, 0)) if grow > 1 else ((2,), (1, 0, 3)):
        part, i, j = of_sequences(p, order)
        for name, x in run(in_batch_mode(backend), part).items():
            if name not in SHARED:
                assert torch.equal(x, together[name][j if name in ("dk", "dv") else i]), (order, name)


def cut(p: Problem, a: int, b: int) -> Problem:
    """Queries a … b of the one sequence, with the keys up to the place beside the last one."""
    shift = p.k.shape[0] - p.q.shape[0]
    e, places = p.extras, slice(0, b + shift)
    segments = None if e.segments is None else e.segments[a:b]
    segments_k = None if e.segments_k is None else e.segments_k[places]
    bias = p.bias
    if bias is not None:
        bias = bias[:, :, a:b] if bias.shape[2] > 1 else bias
        bias = bias[..., places] if bias.shape[3] > 1 else bias
    return replace(
        p, q=p.q[a:b], k=p.k[places], v=p.v[places], do=p.do[a:b], bias=bias,
        cu_seqlens=p.cu_seqlens.new_tensor([0, b - a]), cu_seqlens_k=p.cu_seqlens.new_tensor([0, b + shift]),
        extras=replace(e, segments=segments, segments_k=segments_k),
    )  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(
    n_q=st.integers(1, 300),
    more=st.integers(-40, 300),
    window=st.sampled_from([(None, 0), (0, 0), (50, 0), (270, 0)]),
    prefix=st.sampled_from([0, 20, 290]),
    bias=st.sampled_from(["none", "key", "query", "full", "bool"]),
    terms=st.sets(st.sampled_from(["softcap", "scales", "alibi", "sinks", "segments"])),
    data=st.data(),
)
def test_a_query_has_its_bits_without_the_queries_before_and_after(
    n_q: int, more: int, window: Any, prefix: int, bias: Any, terms: set[str], data: st.DataObject
) -> None:
    n_k = max(1, n_q + more)
    b = data.draw(st.integers(max(1, n_q - n_k + 1), n_q))
    a = data.draw(st.integers(0, b - 1))
    mask = Mask(window=window, prefix=min(prefix, b + n_k - n_q))
    p = random_problem(
        n_q, (n_q,), (n_k,), heads=4, heads_k=2, d=8, mask=mask, bias=bias, extras=sorted(terms)
    )  # fmt: skip
    whole, part = (run(in_batch_mode("tiled"), x, backward=False) for x in (p, cut(p, a, b)))
    assert torch.equal(part["out"], whole["out"][a:b])
    assert torch.equal(part["lse"], whole["lse"][a:b])


@pytest.mark.parametrize("bias", ["none", "full"])
@pytest.mark.parametrize("window", [(None, 0), (30, 0)], ids=str)
def test_a_query_of_the_kernels_too(bias: Any, window: Any, device: str) -> None:
    """Under the interpreter the cut lies where its tiles of 16 begin: numpy sums a row by its place in a matrix."""
    pytest.importorskip("triton")
    n, cuts = (900, [(0, 1), (517, 640), (899, 900)]) if device == "cuda" else (90, [(48, 53), (80, 90)])
    terms = ("softcap", "scales", "alibi", "sinks", "segments")
    p = random_problem(3, (n,), heads=2, mask=Mask(window=window), bias=bias, extras=terms, device=device)
    whole = run(in_batch_mode("triton"), p, backward=False)
    for a, b in cuts:
        part = run(in_batch_mode("triton"), cut(p, a, b), backward=False)
        assert torch.equal(part["out"], whole["out"][a:b])
        assert torch.equal(part["lse"], whole["lse"][a:b])


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
@pytest.mark.parametrize("backend", ["tiled", "triton"])
def test_what_stands_in_the_filling_reaches_nothing(backend: str, poison: float, device: str) -> None:
    if backend == "triton":
        pytest.importorskip("triton")
    p = random_problem(4, (45,), heads=1, mask=Mask(causal=True), device=device if backend == "triton" else "cpu")
    clean = run(in_batch_mode(backend), p, backward=False)
    for name in ("q", "k", "v"):
        x = getattr(p, name).clone()
        x[30] = poison
        dirty = run(in_batch_mode(backend), replace(p, **{name: x}), backward=False)
        touched = torch.arange(45) == 30 if name == "q" else torch.arange(45) >= 30
        for result, value in dirty.items():
            assert torch.equal(value[~touched], clean[result][~touched]), (name, result)


@pytest.mark.parametrize("kind", range(12))
def test_it_stays_within_the_budget(kind: int) -> None:
    problem = any_problem(kind, 1, dtype=torch.float32)
    rows = check(run(in_batch_mode("tiled"), problem), error_budget(problem))
    assert all(row.ok for row in rows), rows


def test_every_block_of_the_kernels_divides_the_blocks_that_a_cache_lets_go() -> None:
    tables = (configs._DEFAULT, configs._HOPPER, configs._BLACKWELL)
    sizes = {config.block_n for table in tables for (which, _, _), config in table.items() if which == "fwd"}
    assert all(ORDERED_K % size == 0 for size in sizes | {configs.INTERPRETED.block_n, ORDERED_Q})


def test_other_backends_are_refused_and_auto_says_why() -> None:
    q = torch.zeros(4, 1, 8)
    assert choose_backend(q, q, q).backend == "sdpa"
    choice = choose_backend(q, q, q, deterministic="batch")
    assert choice.backend == "tiled"
    assert "which deterministic='batch' excludes" in choice.reason
    for backend in ("sdpa", "exact"):
        with pytest.raises(ValueError, match="how many queries there are"):
            attention(q, q, q, deterministic="batch", backend=backend)
    for wrong in ("Batch", 1, None):
        with pytest.raises(ValueError, match="True, False or 'batch'"):
            attention(q, q, q, deterministic=wrong)  # type: ignore[arg-type]


def test_the_operator_takes_it_and_compiles() -> None:
    q, k, v = (torch.randn(40, 2, 8, requires_grad=True) for _ in range(3))
    cu = torch.tensor([0, 40], dtype=torch.int32)
    problem = (q, k, v, cu, cu, None, 0.25, None, 0, "tiled", 8, 8)
    torch.library.opcheck(packed_attention_op, problem, {"ordered": True})

    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, mask=Mask(causal=True), deterministic="batch").out.square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    got, expected = (torch.autograd.grad(f(q, k, v), (q, k, v)) for f in (compiled, loss))
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
