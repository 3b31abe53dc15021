"""The adapter with the signature of torch's function against torch's function itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.nn.functional import scaled_dot_product_attention as torchs

from quantattn.attention.adapters import scaled_dot_product_attention as ours


def draw(*shapes: tuple[int, ...]) -> list[Tensor]:
    rng = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=rng, dtype=torch.float64, requires_grad=True) for shape in shapes]


def compare(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> None:
    leaves = [query, key, value]
    if (mask := options.get("attn_mask")) is not None and mask.requires_grad:
        leaves.append(mask)
    with sdpa_kernel(SDPBackend.MATH):
        expected = torchs(query, key, value, **options)
    found = ours(query, key, value, **options)
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    seed = torch.linspace(-1, 1, expected.numel(), dtype=expected.dtype).view_as(expected)
    pairs = zip(torch.autograd.grad(found, leaves, seed), torch.autograd.grad(expected, leaves, seed), strict=True)
    for mine, theirs in pairs:
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("n_q", "n_k"), [(7, 7), (5, 9), (9, 5), (1, 6)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_causal_is_aligned_top_left_as_in_torch(n_q: int, n_k: int, is_causal: bool) -> None:
    compare(*draw((2, 3, n_q, 8), (2, 3, n_k, 8), (2, 3, n_k, 8)), is_causal=is_causal)


@pytest.mark.parametrize("triangle", [causal_upper_left, causal_lower_right])
@pytest.mark.parametrize(("n_q", "n_k"), [(7, 7), (5, 9), (1, 6)])
@pytest.mark.parametrize("lead", [(2, 3), (3,)])
def test_triangles_that_torch_names(triangle: Any, n_q: int, n_k: int, lead: tuple[int, ...]) -> None:
    q, k, v = draw((*lead, n_q, 8), (*lead, n_k, 8), (*lead, n_k, 8))
    written = triangle(n_q, n_k)._materialize()
    assert torch.equal(ours(q, k, v, triangle(n_q, n_k)), ours(q, k, v, is_causal=True)) == (
        triangle is causal_upper_left or n_q == n_k
    )
    torch.testing.assert_close(ours(q, k, v, triangle(n_q, n_k)), torchs(q, k, v, written), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("batch", "n_q", "n_k"), [(0, 4, 5), (2, 0, 5), (2, 4, 0), (0, 0, 0)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_nothing_to_attend_to(batch: int, n_q: int, n_k: int, is_causal: bool) -> None:
    q, k, v = draw((batch, 3, n_q, 8), (batch, 3, n_k, 8), (batch, 3, n_k, 8))
    assert torch.equal(ours(q, k, v, is_causal=is_causal), torch.zeros_like(q))


def test_heads_of_no_size_see_all_keys_alike() -> None:
    compare(*draw((2, 3, 5, 0), (2, 3, 6, 0), (2, 3, 6, 4)))


@pytest.mark.parametrize("shape", [(2, 3, 5, 6), (1, 3, 5, 6), (2, 1, 1, 6), (5, 6), (3, 5, 6), (5, 1)])
def test_additive_masks_of_any_shape_and_their_gradients(shape: tuple[int, ...]) -> None:
    (mask,) = draw(shape)
    compare(*draw((2, 3, 5, 8), (2, 3, 6, 8), (2, 3, 6, 8)), attn_mask=mask)


def test_boolean_masks_keep_what_is_true() -> None:
    seen = torch.rand(2, 1, 5, 6, generator=torch.Generator().manual_seed(1)) < 0.6
    seen[..., 0] = True  # every row sees something; where one does not, torch's own backends disagree
    compare(*draw((2, 3, 5, 8), (2, 3, 6, 8), (2, 3, 6, 8)), attn_mask=seen)
    q, k, v = draw((1, 1, 2, 4), (1, 1, 3, 4), (1, 1, 3, 4))
    nothing = torch.tensor([[True, True, True], [False, False, False]])
    assert torch.equal(ours(q, k, v, attn_mask=nothing)[0, 0, 1], torch.zeros(4, dtype=torch.float64))


@pytest.mark.parametrize(("width", "value_width"), [(8, 3), (3, 8)])
def test_values_may_have_another_width(width: int, value_width: int) -> None:
    compare(*draw((2, 2, 5, width), (2, 2, 6, width), (2, 2, 6, value_width)))


@pytest.mark.parametrize("lead", [(), (2,), (2, 3), (2, 3, 2)])
def test_any_leading_dimensions(lead: tuple[int, ...]) -> None:
    shape = (*lead, 4, 5, 8)
    compare(*draw(shape, shape, shape), is_causal=True)


def test_shared_key_heads_and_scale() -> None:
    compare(*draw((2, 6, 5, 8), (2, 2, 5, 8), (2, 2, 5, 8)), enable_gqa=True, scale=0.3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attn_mask": torch.zeros(5, 5), "is_causal": True}, "Explicit attn_mask should not be set"),
        ({"dropout_p": 1.5}, r"dropout must be in \[0, 1\), got 1.5"),
        ({"attn_mask": torch.zeros(4, 4)}, "does not broadcast"),
        ({"attn_mask": causal_lower_right(5, 6)}, r"LOWER_RIGHT was made for \(L, S\) = \(5, 6\), got \(5, 5\)"),
        ({"attn_mask": causal_lower_right(5, 5), "is_causal": True}, "should not be set"),
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    q, k, v = draw(*[(1, 2, 5, 4)] * 3)
    with pytest.raises(ValueError, match=message):
        ours(q, k, v, **options)


def test_different_heads_need_enable_gqa() -> None:
    with pytest.raises(ValueError, match="enable_gqa=True"):
        ours(*draw((1, 4, 5, 4), (1, 2, 5, 4), (1, 2, 5, 4)))
