"""The operators with everything that acts on scores: schema, shapes without data, one graph under torch.compile."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quantattn.attention import Mask, attention, ops
from quantattn.attention.extras import Extras
from quantattn.attention.problems import EXTRAS, Problem, random_problem

pytest.importorskip("triton")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy under the interpreter, where −inf is


def everything(device: str, bias: str = "full") -> Problem:
    return random_problem(
        5,
        (9, 4),
        heads=2,
        heads_k=1,
        d=16,
        mask=Mask(causal=True, prefix=2),
        bias=bias,
        extras=EXTRAS,
        device=device,  # type: ignore[arg-type]
    )


def learnable(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.clone().requires_grad_(x.is_floating_point())


def arguments(p: Problem) -> tuple[object, ...]:
    e = p.extras
    extras = Extras(
        e.softcap, learnable(e.scales), e.alibi, learnable(e.sinks), e.segments, e.segments_k, e.dropout, e.seed
    )
    return ops.arguments(p.mask, extras)


@pytest.mark.parametrize("bias", ["full", "key", "bool"])
def test_opcheck_of_the_kernels(bias: str, device: str) -> None:
    p = everything(device, bias)
    q, k, v = (x[None].clone().requires_grad_() for x in (p.q, p.k, p.v))
    bounds = (p.mask.left, p.mask.right)
    torch.library.opcheck(
        ops.attention_op, (q, k, v, p.cu_seqlens, p.cu_seqlens_k, learnable(p.bias), p.scale, *bounds, *arguments(p))
    )


@pytest.mark.parametrize("bias", ["place", "bool"])
def test_opcheck_without_kernels(bias: str) -> None:
    p = everything("cpu", bias)
    q, k, v = (x.clone().requires_grad_() for x in (p.q, p.k, p.v))
    problem = (learnable(p.bias), p.scale, p.mask.left, p.mask.right, "tiled", 4, 4)
    torch.library.opcheck(ops.packed_attention_op, (q, k, v, p.cu_seqlens, p.cu_seqlens_k, *problem, *arguments(p)))


@pytest.mark.parametrize("backend", ["tiled", "triton"])
def test_one_graph_under_compile(backend: str, device: str) -> None:
    p = everything(device)
    e = p.extras

    def loss(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, sinks: Tensor, scale: Tensor) -> Tensor:
        out, lse = attention(
            q, k, v, p.cu_seqlens, mask=p.mask, bias=bias, scale=scale, softcap=e.softcap, alibi=e.alibi, sinks=sinks,
            segments=e.segments, dropout=0.25, dropout_seed=e.seed, backend=backend,
        )  # fmt: skip
        return out.square().sum() + lse.sum()

    leaves = [x.clone().requires_grad_() for x in (p.q, p.k, p.v, p.bias, e.sinks, e.scales)]
    expected = torch.autograd.grad(loss(*leaves), leaves)
    got = torch.autograd.grad(torch.compile(loss, fullgraph=True, backend="aot_eager")(*leaves), leaves)
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    assert all(bool(x.abs().sum() > 0) for x in got)


def test_a_drawn_seed_is_drawn_in_the_graph(device: str) -> None:
    """Each call of a compiled function has another dropout mask, and torch's generator decides which."""
    q = torch.randn(12, 2, 16, device=device)
    compiled = torch.compile(lambda x: attention(x, x, x, dropout=0.5).out, fullgraph=True, backend="aot_eager")
    torch.manual_seed(3)
    first, second = compiled(q), compiled(q)
    torch.manual_seed(3)
    assert torch.equal(compiled(q), first)
    assert not torch.equal(first, second)
