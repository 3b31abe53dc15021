"""The CPU backend through torch's operator: the specification, or a refusal."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from quantattn.attention import attention, tiled
from quantattn.attention.mask import Mask
from quantattn.attention.problems import random_problem
from quantattn.attention.sdpa import sdpa_attention, supports
from quantattn.attention.testing import check, error_budget, run
from quantattn.attention.tiled import tiled_attention

MASKS = (Mask(), Mask(causal=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("d", [8, 59, 96])
@pytest.mark.parametrize("lengths_k", [(33, 4, 67, 0), (50, 1, 40, 3)])
def test_it_stays_within_the_budget(dtype: torch.dtype, mask: Mask, d: int, lengths_k: tuple[int, ...]) -> None:
    p = random_problem(0, (33, 0, 67, 3), lengths_k, heads=6, heads_k=2, d=d, mask=mask, dtype=dtype)
    rows = check(run(sdpa_attention, p), error_budget(p))
    assert all(row.ok for row in rows), rows


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("dlse", [False, True])
def test_float64_agrees_with_the_blocks(mask: Mask, dlse: bool) -> None:
    p = random_problem(1, (9, 5, 1), (4, 11, 6), heads=4, heads_k=2, d=8, mask=mask, dlse=dlse, dtype=torch.float64)
    expected = run(tiled_attention, p)
    for name, value in run(sdpa_attention, p).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("shape", [(9, 9), (5, 12), (12, 5)])
def test_a_run_of_equal_lengths_is_each_of_them_alone_to_the_bit(mask: Mask, shape: tuple[int, int]) -> None:
    """Such a run is one call of the operator."""
    n_q, n_k = shape
    p = random_problem(3, (n_q,) * 4, (n_k,) * 4, heads=4, heads_k=2, d=16, mask=mask)
    together = run(sdpa_attention, p)
    for n in range(4):
        rows, columns = slice(n * n_q, (n + 1) * n_q), slice(n * n_k, (n + 1) * n_k)
        cu, cu_k = p.cu_seqlens[:2], p.cu_seqlens_k[:2]
        alone = replace(p, q=p.q[rows], k=p.k[columns], v=p.v[columns], do=p.do[rows], cu_seqlens=cu, cu_seqlens_k=cu_k)
        for name, value in run(sdpa_attention, alone).items():
            assert torch.equal(value, together[name][columns if name in ("dk", "dv") else rows]), name


def test_torch_alone_leaks_the_future_and_stands_at_the_top_left() -> None:
    """The two controls: without what this backend mends, its tests would fail."""
    q, k, v = (torch.randn(1, 1, 4, 8, generator=torch.Generator().manual_seed(i)) for i in range(3))
    v[:, :, 3] = torch.nan
    operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    assert bool(operator(q, k, v, 0.0, True)[0][0, 0, 0].isnan().all())
    out, _ = operator(q[:, :, :2], k, v.nan_to_num(0), 0.0, True)
    torch.testing.assert_close(out[0, 0, 0], v[0, 0, 0])


@pytest.mark.parametrize(
    ("mask", "options", "reason"),
    [
        (Mask(window=(3, 0)), {}, "window"),
        (Mask(window=(None, 2)), {}, "window"),
        (Mask(), {"bias": "key"}, "bias"),
    ],
)
def test_what_it_cannot_do_is_refused_with_the_reason(mask: Mask, options: dict[str, str], reason: str) -> None:
    p = random_problem(2, (5,), mask=mask, **options)  # type: ignore[arg-type]
    said = supports(p.q, p.mask, p.bias)
    assert said is not None
    assert reason in said
    with pytest.raises(ValueError, match=reason):
        run(sdpa_attention, p)


def test_devices_and_dtypes_that_it_does_not_take_are_named() -> None:
    assert "meta" in (supports(torch.empty(2, 1, 8, device="meta"), Mask(), None) or "")
    assert "float8" in (supports(torch.empty(2, 1, 8, dtype=torch.float8_e4m3fn), Mask(), None) or "")
    assert supports(torch.empty(2, 1, 8), Mask(causal=True), None) is None


def test_only_a_gradient_of_lse_goes_by_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks in Python cost several times as much: a lse that nobody differentiates must not ask for them."""

    def blocks(*_: object) -> None:
        raise AssertionError("by blocks")

    monkeypatch.setattr(tiled, "backward", blocks)
    leaf = torch.randn(6, 2, 8, requires_grad=True)
    result = attention(leaf, leaf, leaf, mask=Mask(causal=True), backend="sdpa")
    assert torch.autograd.grad(result.out.sum(), leaf, retain_graph=True)[0].isfinite().all()
    with pytest.raises(AssertionError, match="by blocks"):
        torch.autograd.grad(result.lse.sum(), leaf)
