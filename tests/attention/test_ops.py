"""The registered operators: schema, shapes without data, autograd, one graph under torch.compile, export."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

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


PACKS = [(5, 3, 7), (2, 9, 1, 4), (11,), (0, 4), (8, 8, 8, 8, 8)]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("options", [{}, {"window": (2, 2)}, {"bias": (9,)}, {"bias": (4, 1, 1)}], ids=str)
def test_one_graph_serves_packs_of_any_lengths(dynamic, options):
    """Also where head sizes are symbols, and where a bias would have to be compared with lengths that are values."""

    def call(q, k, v, cu):
        bias = q.new_zeros(options["bias"]) if "bias" in options else None
        return attention(q, k, v, cu, mask=Mask(window=options.get("window")), bias=bias)

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(call, backend=counter, fullgraph=True, dynamic=dynamic)
    for lengths in PACKS:
        lengths = (*lengths, 9)  # the longest of them has 9 or 11 rows, so that one of the biases is too short
        cu = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
        q, k, v = (torch.randn(sum(lengths), h, 8, requires_grad=True) for h in (4, 2, 2))
        if options.get("bias") == (9,) and max(lengths) > 9:
            with pytest.raises(ValueError, match="do not broadcast to the longest"):
                compiled(q, k, v, cu)
            continue
        got, expected = compiled(q, k, v, cu), call(q, k, v, cu)
        assert torch.equal(got.out, expected.out)
        got.out.sum().backward()
    assert counter.frame_count <= 3


def test_a_graph_still_checks_its_offsets():
    compiled = torch.compile(lambda x, cu: attention(x, x, x, cu).out, backend="aot_eager", fullgraph=True)
    with pytest.raises(ValueError, match="cu_seqlens must rise from 0 to the 6 rows"):
        compiled(torch.randn(6, 2, 8), torch.tensor([0, 5], dtype=torch.int32))


@pytest.mark.parametrize("bias", [None, (4, 1, 1)])
@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program_takes_packs_of_any_lengths(bias, strict):
    class Block(torch.nn.Module):
        def forward(self, q, k, v, cu):
            return attention(q, k, v, cu, mask=Mask(causal=True), bias=None if bias is None else q.new_ones(bias)).out

    def pack(lengths):
        cu = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
        return *(torch.randn(sum(lengths), h, 8) for h in (4, 2, 2)), cu

    rows, offsets = torch.export.Dim("rows", min=2, max=4096), torch.export.Dim("offsets", min=2, max=99)
    shapes = {"q": {0: rows}, "k": {0: rows}, "v": {0: rows}, "cu": {0: offsets}}
    program = torch.export.export(Block(), pack(PACKS[0]), dynamic_shapes=shapes, strict=strict)
    for lengths in PACKS[1:]:
        arguments = pack(lengths)
        assert torch.equal(program.module()(*arguments), Block()(*arguments))


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
    with pytest.raises(RuntimeError, match="attention_backward has no derivative"):
        dq.sum().backward()


def test_autocast_lowers_float32(device):
    q, k, v = (x[0].detach() for x in inputs(device, False)[:3])
    with torch.autocast(device, dtype=torch.float16 if device == "cpu" else torch.bfloat16):
        out = attention(q, k, v, backend="triton").out
    assert out.dtype == (torch.float16 if device == "cpu" else torch.bfloat16)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_run_on_the_device_of_their_tensors(dtype):
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs 2 GPUs, here are {torch.cuda.device_count()}")
    here = [torch.randn(140, 2, 64, device="cuda:0", dtype=dtype, requires_grad=True) for _ in range(3)]
    there = [x.detach().to("cuda:1").requires_grad_() for x in here]
    with torch.cuda.device(0):
        results = []
        for leaves in (here, there):
            out = attention(*leaves, mask=Mask(causal=True)).out
            results.append((out, *torch.autograd.grad(out.float().square().sum(), leaves)))
    assert all(b.device.index == 1 and torch.equal(a.cpu(), b.cpu()) for a, b in zip(*results, strict=True))
