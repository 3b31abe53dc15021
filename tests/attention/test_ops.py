"""The registered operators: schema, shapes without data, autograd, one graph under torch.compile, export."""

from __future__ import annotations

import pytest
import torch

from quantattn.attention import Mask, attention
from quantattn.attention.ops import attention_backward_op, attention_op, packed_attention_op

pytest.importorskip("triton")


def inputs(device: str, packed: bool) -> tuple[object, ...]:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, n, h, 16, device=device, requires_grad=True) for n, h in ((24, 4), (30, 2), (30, 2)))
    offsets = [torch.tensor(o, dtype=torch.int32, device=device) for o in ([0, 10, 24], [0, 19, 30])]
    return q, k, v, *(offsets if packed else (None, None)), None, 0.25, 5, 0


@pytest.mark.parametrize("packed", [False, True])
def test_opcheck(packed, device):
    torch.library.opcheck(attention_op, inputs(device, packed))


def test_opcheck_of_the_backward(device):
    q, k, v, *rest = inputs(device, True)
    q, k, v = (x.detach() for x in (q, k, v))
    out, lse = attention_op(q, k, v, *rest)
    torch.library.opcheck(
        attention_backward_op, (torch.randn_like(out), torch.randn_like(lse), q, k, v, out, lse, *rest)
    )


@pytest.mark.parametrize("packed", [False, True])
def test_one_graph_under_compile(packed, device):
    """fullgraph=True raises on any graph break; aot_eager traces forward and backward without a C++ compiler."""
    q, k, v, cu_q, cu_k, *_ = inputs(device, packed)

    def loss(q, k, v):
        if packed:
            q, k, v = q[0], k[0], v[0]
        out, lse = attention(q, k, v, cu_q, cu_k, mask=Mask(causal=True), backend="triton")
        return out.square().sum() + lse.where(lse > -torch.inf, 0).sum()

    expected = torch.autograd.grad(loss(q, k, v), (q, k, v))
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    got = torch.autograd.grad(compiled(q, k, v), (q, k, v))
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))


@pytest.mark.parametrize("backend", ["sdpa", "tiled"])
def test_the_operators_without_kernels(backend):
    q, k, v, cu_q, cu_k, *_ = inputs("cpu", True)
    q, k, v = (x.detach()[0].requires_grad_() for x in (q, k, v))
    arguments = (q, k, v, cu_q, cu_k, None, 0.25, None, 0, backend, 8, 8)
    torch.library.opcheck(packed_attention_op, arguments)

    def loss(q, k, v):
        out, lse = attention(q, k, v, cu_q, cu_k, mask=Mask(causal=True), backend=backend)
        return out.square().sum() + lse.where(lse > -torch.inf, 0).sum()

    expected = torch.autograd.grad(loss(q, k, v), (q, k, v))
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    got = torch.autograd.grad(compiled(q, k, v), (q, k, v))
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))


def test_export_keeps_the_operator(device):
    class Block(torch.nn.Module):
        def forward(self, q, k, v):
            return attention(q, k, v, mask=Mask(causal=True), backend="triton").out

    q, k, v = (x.detach() for x in inputs(device, False)[:3])
    program = torch.export.export(Block(), (q, k, v))
    assert "quantattn.attention" in program.graph_module.code
    assert torch.equal(program.module()(q, k, v), Block()(q, k, v))


def test_second_derivatives_are_refused(device):
    q, k, v, *rest = inputs(device, False)
    (dq,) = torch.autograd.grad(attention_op(q, k, v, *rest)[0].sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="autograd"):
        dq.sum().backward()


def test_autocast_lowers_float32(device):
    q, k, v = (x[0].detach() for x in inputs(device, False)[:3])
    with torch.autocast(device, dtype=torch.float16 if device == "cpu" else torch.bfloat16):
        out = attention(q, k, v, backend="triton").out
    assert out.dtype == (torch.float16 if device == "cpu" else torch.bfloat16)
