"""Attention by blocks is the specification, and it costs what the mask shows."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from quantattn.attention.exact import exact_attention
from quantattn.attention.mask import Mask
from quantattn.attention.problems import random_problem
from quantattn.attention.testing import Backend, check, error_budget, run
from quantattn.attention.tiled import Tiling, tiled_attention

bounds = st.one_of(st.none(), st.integers(0, 9))


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 1000),
    lengths=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=4),
    heads=st.sampled_from([(1, 1), (3, 1), (4, 4), (6, 2)]),
    causal=st.booleans(),
    window=st.one_of(st.none(), st.tuples(bounds, bounds)),
    bias=st.sampled_from(["none", "key", "full"]),
    blocks=st.tuples(st.integers(1, 7), st.integers(1, 7)),
)
def test_it_is_the_specification(
    seed: int,
    lengths: list[tuple[int, int]],
    heads: tuple[int, int],
    causal: bool,
    window: tuple[int | None, int | None] | None,
    bias: Any,
    blocks: tuple[int, int],
) -> None:
    n_q, n_k = zip(*lengths, strict=True)
    mask = Mask(causal=causal, window=window)
    p = random_problem(
        seed, n_q, n_k, heads=heads[0], heads_k=heads[1], d=3, mask=mask, bias=bias, dlse=True, dtype=torch.float64
    )
    tiles = run(partial(tiled_attention, block_q=blocks[0], block_k=blocks[1]), p)
    for name, expected in run(exact_attention, p).items():
        torch.testing.assert_close(
            tiles[name], expected, rtol=1e-9, atol=1e-10, msg=lambda text, name=name: name + text
        )


def test_its_gradients_are_its_slopes() -> None:
    p = random_problem(1, (3, 0, 4), (5, 0, 2), heads=4, heads_k=2, d=3, mask=Mask(causal=True), dtype=torch.float64)
    rng = torch.Generator().manual_seed(2)
    bias = torch.randn(1, 4, 1, 5, dtype=torch.float64, generator=rng)
    leaves = [x.clone().requires_grad_() for x in (p.q, p.k, p.v, bias)]

    def attend(q: Tensor, k: Tensor, v: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = tiled_attention(
            q, k, v, p.cu_seqlens, p.cu_seqlens_k, mask=p.mask, bias=b, scale=0.3, block_q=2, block_k=2
        )
        return out, lse.where(lse.isfinite(), 0)

    assert torch.autograd.gradcheck(attend, leaves)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("blocks", [(128, 128), (32, 7), (1, 64)])
@pytest.mark.parametrize("mask", [Mask(), Mask(causal=True), Mask(window=(17, 5))], ids=str)
def test_it_stays_within_the_budget(dtype: torch.dtype, blocks: tuple[int, int], mask: Mask) -> None:
    p = random_problem(4, (67, 0, 31), (80, 3, 31), heads=4, heads_k=2, mask=mask, bias="full", dlse=True, dtype=dtype)
    rows = check(run(partial(tiled_attention, block_q=blocks[0], block_k=blocks[1]), p), error_budget(p))
    assert all(row.ok for row in rows), rows


@pytest.mark.parametrize("shape", [(), (1,), (7, 1), (4, 1, 1), (1, 4, 7, 1), (2, 1, 1, 9), (2, 4, 7, 9)])
def test_the_gradient_of_a_bias_is_summed_over_its_broadcast_axes(shape: tuple[int, ...]) -> None:
    p = random_problem(5, (5, 7), (9, 2), heads=4, heads_k=2, d=3, dtype=torch.float64)
    rng = torch.Generator().manual_seed(6)
    small = torch.randn(shape, dtype=torch.float64, generator=rng).requires_grad_()

    def gradient(bias: Tensor) -> Tensor:
        out, _ = tiled_attention(
            p.q, p.k, p.v, p.cu_seqlens, p.cu_seqlens_k, mask=p.mask, bias=bias, scale=1.0, block_q=2, block_k=4
        )
        return torch.autograd.grad(out, small, p.do)[0]

    torch.testing.assert_close(gradient(small), gradient(small.expand(2, 4, 7, 9)))


class _Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operator makes (an expanded scalar takes no memory and is left out)."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        made = [x.numel() for x in tree_leaves(result) if isinstance(x, Tensor) and x.untyped_storage().nbytes() > 8]
        self.elements = max(self.elements, *made, 0)
        return result


def largest(backend: Backend, n: int) -> int:
    p = random_problem(7, (n,), heads=2, heads_k=1, d=4, mask=Mask(causal=True))
    with _Largest() as seen:
        run(backend, p)
    return seen.elements


def test_no_tensor_grows_with_the_square_of_the_length() -> None:
    tiles = partial(tiled_attention, block_q=16, block_k=16)
    assert largest(tiles, 512) == 2 * largest(tiles, 256) == 2 * 512 * 4
    assert largest(exact_attention, 512) == 2 * 512 * 512  # the control


def test_a_window_costs_its_width_and_a_triangle_half() -> None:
    def visited(mask: Mask, n: int) -> int:
        tiling = Tiling((0, n), (0, n), mask, 1.0, 16, 16)
        return sum(
            (stop - start) * (last - first)
            for first, last in tiling.query_blocks(n, n)
            for start, stop in tiling.key_blocks((first, last), n, n)
        )

    assert visited(Mask(), 1024) == 1024**2
    assert visited(Mask(causal=True), 1024) == 1024 * (1024 + 16) // 2
    assert visited(Mask(window=(32, 0)), 1024) < 1024 * (32 + 16)
    assert visited(Mask(window=(32, 0)), 2048) < 2.1 * visited(Mask(window=(32, 0)), 1024)


@pytest.mark.parametrize("blocks", [(0, 4), (4, 0)])
def test_empty_blocks_are_refused(blocks: tuple[int, int]) -> None:
    p = random_problem(8, (3,))
    with pytest.raises(ValueError, match="at least one row"):
        run(partial(tiled_attention, block_q=blocks[0], block_k=blocks[1]), p)
