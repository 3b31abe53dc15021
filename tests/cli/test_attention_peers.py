"""How the peers of `bench=attention` are called, as far as a CPU can tell."""

from __future__ import annotations

import math
import sys
import types
from dataclasses import replace
from importlib.machinery import ModuleSpec

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from quantattn.attention import Mask, attention
from quantattn.cli.benchmarks import attention as bench
from quantattn.cli.benchmarks import peers
from tests.cli.attention_cases import SHAPES, measure, visible


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("peer", ["quantattn", "standard"])
def test_a_peer_that_runs_here_is_timed_on_every_kind_of_shape(name: str, peer: str) -> None:
    shape = SHAPES[name]
    rows = measure(shape, [peer])
    assert [(row.stage, row.note) for row in rows] == [(stage, "") for stage in shape.passes]
    for row in rows:
        assert row.ms > 0
        assert row.tokens == shape.tokens
        assert math.isfinite(row.error_ratio)


@pytest.mark.parametrize("name", SHAPES)
def test_flex_is_told_who_sees_whom(name: str) -> None:
    shape = SHAPES[name]
    inputs = bench.draw(shape, torch.float32, 0)
    seen = peers._seen(inputs)
    expected = visible(shape)
    if seen is None:
        assert expected.all()
        return
    i, j = torch.arange(inputs.q.shape[1])[:, None], torch.arange(inputs.k.shape[1])[None]
    assert torch.equal(seen(torch.tensor(0), torch.tensor(0), i, j), expected)


@pytest.fixture
def cute(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """FlashAttention's module with the two functions that are called, answered by attention that is tested elsewhere.

    Gives whether determinism was asked for, call by call.
    """
    asked_for = []

    def of(causal: bool, window_size: tuple[int | None, int | None]) -> Mask:
        return Mask(causal=causal, window=window_size if window_size != (None, None) else None)

    def flash_attn_func(
        q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, deterministic: bool = False,
        window_size: tuple[int | None, int | None] = (None, None),
    ) -> tuple[Tensor, None]:  # fmt: skip
        asked_for.append(deterministic)
        return attention(q, k, v, mask=of(causal, window_size)).out, None

    def flash_attn_varlen_func(
        q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
        max_seqlen_k: int, causal: bool = False, window_size: tuple[int | None, int | None] = (None, None),
        deterministic: bool = False,
    ) -> tuple[Tensor, None]:  # fmt: skip
        asked_for.append(deterministic)
        assert max_seqlen_q == max_seqlen_k == int(cu_seqlens_q.diff().max())
        return attention(q, k, v, cu_seqlens_q, cu_seqlens_k, mask=of(causal, window_size)).out, None

    package, module = types.ModuleType("flash_attn"), types.ModuleType("flash_attn.cute")
    package.__spec__, package.cute = ModuleSpec("flash_attn", None), module  # type: ignore[attr-defined]
    module.flash_attn_func, module.flash_attn_varlen_func = flash_attn_func, flash_attn_varlen_func  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    monkeypatch.setitem(sys.modules, "flash_attn.cute", module)
    return asked_for


@pytest.mark.parametrize("name", SHAPES)
def test_flash_attention_is_asked_for_the_same_problem(name: str, cute: list[bool]) -> None:
    shape = SHAPES[name]
    rows = measure(shape, ["flash_cute", "flash_cute_deterministic"])
    assert not any(row.note for row in rows)
    # The forward of the second is that of the first, and is not timed again.
    expected = [("flash_cute", "forward")]
    if "backward" in shape.passes:
        expected += [("flash_cute", "backward"), ("flash_cute_deterministic", "backward")]
        assert True in cute
    assert [(row.impl, row.stage) for row in rows] == expected
    assert False in cute


@pytest.mark.parametrize("name", ["pack", "causal pack", "window", "causal window", "causal"])
def test_torch_varlen_takes_the_call(name: str) -> None:
    """On the meta device, which has shapes alone: its kernels need a GPU."""
    inputs = bench.draw(SHAPES[name], torch.bfloat16, 0)
    q, k, v, do = (x.to("meta") for x in (inputs.q, inputs.k, inputs.v, inputs.do))
    calls = peers.torch_varlen(replace(inputs, q=q, k=k, v=v, do=do))
    assert calls.forward().shape == inputs.q.shape


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_of_torch_are_the_pack() -> None:
    """By torch's plain implementation, which takes no causal mask there; the one that is timed needs a GPU."""
    inputs = bench.draw(replace(SHAPES["pack"], heads_k=4), torch.float32, 0)
    calls, expected = peers._sdpa(SDPBackend.MATH, inputs), peers.ours(inputs)
    torch.testing.assert_close(calls.forward(), expected.forward())
    for got, want in zip(calls.backward(), expected.backward(), strict=True):
        torch.testing.assert_close(got, want)


def test_ours_without_an_order_says_where_it_does_not_run() -> None:
    rows = measure(SHAPES["full"], ["quantattn_unordered"])
    assert [row.stage for row in rows] == ["backward"]
    assert "kernels for sm_90" in rows[0].note
