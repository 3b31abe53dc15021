"""What PyTorch may do with a call of attention: export it for sizes that it has not seen, as part of a module."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

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
