"""What PyTorch may do with a call of attention: export it, trace it without data; and which transforms are refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, func, nn
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad

from quantattn import Mask, attention


class Layer(nn.Module):
    """Projections around attention, H = 4 and Hkv = 2 of size 8."""

    def __init__(self, mask: Mask, backend: str, bias: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.out = nn.Linear(32, 64), nn.Linear(32, 32)
        self.mask, self.backend = mask, backend
        self.bias = nn.Parameter(torch.linspace(-1, 1, 4).view(4, 1, 1)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).split([32, 16, 16], dim=-1)
        q, k, v = (t.unflatten(-1, (-1, 8)) for t in (q, k, v))
        return self.out(attention(q, k, v, mask=self.mask, bias=self.bias, backend=self.backend).out.flatten(-2))


@pytest.mark.parametrize(
    ("mask", "backend", "bias", "strict"),
    [
        (Mask(), "auto", False, False),
        (Mask(causal=True), "sdpa", False, True),
        (Mask(causal=True, window=(3, 0)), "auto", False, True),
        (Mask(window=(2, 1)), "tiled", True, False),
    ],
)
def test_a_layer_is_exported_once_for_every_batch_and_length(mask, backend, bias, strict) -> None:
    layer = Layer(mask, backend, bias)
    sizes = {0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("length", max=4096)}
    program = torch.export.export(layer, (torch.randn(2, 7, 32),), dynamic_shapes={"x": sizes}, strict=strict)
    assert "quantattn.packed_attention" in program.graph_module.code
    for shape in ((2, 7, 32), (3, 1, 32), (1, 40, 32)):
        x = torch.randn(*shape)
        assert torch.equal(program.module()(x), layer(x))


def causal(q: Tensor, backend: str) -> Tensor:
    return attention(q, q, q, mask=Mask(causal=True), backend=backend).out


SCRIPTED = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
"""What torch does the first time that it makes a tangent."""

TRANSFORMS = {
    "vmap": lambda f, x: func.vmap(f)(x),
    "grad": lambda f, x: func.grad(lambda x: f(x).sum())(x),
    "vjp": lambda f, x: func.vjp(f, x),
    "jvp": lambda f, x: func.jvp(f, (x,), (x,)),
    "jacrev": lambda f, x: func.jacrev(f)(x),
    "jacfwd": lambda f, x: func.jacfwd(f)(x),
}


@SCRIPTED
@pytest.mark.parametrize("backend", ["auto", "sdpa", "tiled", "exact"])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_of_functions_are_refused(transform, backend) -> None:
    """An operator with a backward alone would give a jvp of zeros, and torch's own words name neither."""
    with pytest.raises(ValueError, match=r"inside a transform of torch\.func .* expected batches as \(B, N, H, D\)"):
        TRANSFORMS[transform](lambda x: causal(x, backend), torch.randn(2, 5, 2, 8))


@SCRIPTED
@pytest.mark.parametrize("backend", ["sdpa", "tiled", "exact"])
def test_forward_mode_derivatives_are_refused(backend) -> None:
    x = torch.randn(2, 5, 2, 8)
    with forward_ad.dual_level():
        assert torch.equal(causal(x, backend), causal(x, backend))  # what has no tangent is left alone
        with pytest.raises(ValueError, match="q carries a forward-mode tangent"):
            causal(forward_ad.make_dual(x, x), backend)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("device", ["meta", "fake"])
def test_shapes_are_known_without_data(device, packed) -> None:
    def results(q: Tensor, k: Tensor, cu: Tensor | None) -> list[Tensor]:
        q, k = q.detach().requires_grad_(), k.detach().requires_grad_()
        out, lse = attention(q, k, k, cu, mask=Mask(causal=True))
        return [out, lse, *torch.autograd.grad(out.sum() + lse.sum(), (q, k))]

    shape = (7,) if packed else (2, 7)
    inputs = torch.randn(*shape, 4, 8), torch.randn(*shape, 2, 8)
    cu = torch.tensor([0, 3, 7], dtype=torch.int32) if packed else None
    expected = results(*inputs, cu)
    if device == "meta":
        found = results(*(x.to("meta") for x in inputs), None if cu is None else cu.to("meta"))
    else:
        with FakeTensorMode() as mode:
            found = results(*(mode.from_tensor(x) for x in inputs), None if cu is None else mode.from_tensor(cu))
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
