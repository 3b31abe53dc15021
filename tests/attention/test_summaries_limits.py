"""What the summaries may not do: take memory of size N × N, carry gradients, take arguments of two attentions."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from quantattn.attention import Mask, attention, attention_map, attention_summary, top_keys

HEADS, D = 2, 4


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


CALLS: dict[str, Callable[..., Any]] = {
    "summary": attention_summary,
    "map": lambda q, k, lse, **rest: attention_map(q, k, lse, blocks=8, **rest),
    "top keys of a few": lambda q, k, lse, **rest: top_keys(q, k, lse, [5, 100, 1023], top=4, **rest),
    "top keys of all": lambda q, k, lse, **rest: top_keys(q, k, lse, range(len(q)), top=4, **rest),
}


def largest(call: Callable[..., Any], n: int, **rest: Any) -> int:
    rng = torch.Generator().manual_seed(n)
    q, k = torch.randn(n, HEADS, D, generator=rng), torch.randn(n, 1, D, generator=rng)
    lse = attention(q, k, k, mask=Mask(causal=True)).lse
    with _Largest() as seen:
        call(q, k, lse, mask=Mask(causal=True), **rest)
    return seen.elements


@pytest.mark.parametrize("name", CALLS)
def test_no_tensor_grows_with_the_square_of_the_length(name: str) -> None:
    few, many = largest(CALLS[name], 1024), largest(CALLS[name], 2048)
    assert many <= 2 * few
    assert many <= HEADS * 2048 * 32


def test_the_matrix_would_be_noticed() -> None:
    assert largest(attention_summary, 1024, backend="exact") == HEADS * 1024 * 1024


def inputs(n: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(1)
    q, k = torch.randn(n, 4, 8, generator=rng), torch.randn(n, 2, 8, generator=rng)
    return q, k, attention(q, k, k).lse


def test_no_gradient_flows() -> None:
    q, k, _ = (x.requires_grad_() for x in inputs())
    lse = attention(q, k, k).lse
    assert not any(x.requires_grad for x in attention_summary(q, k, lse))
    assert not top_keys(q, k, lse, [0]).weights.requires_grad
    assert not attention_map(q, k, lse)[0].sums.requires_grad


def test_they_follow_autocast_as_attention_does() -> None:
    q, k, _ = inputs(50)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        lse = attention(q, k, k).lse
        lowered = attention_summary(q, k, lse)
    for a, b in zip(lowered, attention_summary(q.bfloat16(), k.bfloat16(), lse), strict=True):
        assert torch.equal(a, b)


def test_they_repeat_to_the_bit() -> None:
    q, k, lse = inputs(300)
    for a, b in zip(attention_summary(q, k, lse), attention_summary(q, k, lse), strict=True):
        assert torch.equal(a, b)


Q, K, LSE = inputs()
OFFSETS = torch.tensor([0, 6], dtype=torch.int32)


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ((Q, K, None), TypeError, "lse must be a tensor, got NoneType"),
        ((Q, K[..., :4], LSE), ValueError, r"one head size of at least 1, got q \(6, 4, 8\), k \(6, 2, 4\)"),
        ((Q[:, :3], K, LSE[:, :3]), ValueError, "multiple of the key heads, got q"),
        ((Q[0], K[0], LSE[0]), ValueError, r"both be \(T, H, D\) or both \(B, N, H, D\), got q \(4, 8\)"),
        ((Q[None], K[None].expand(2, 6, 2, 8), LSE[None]), ValueError, "same batch size"),
        ((Q, K.half(), LSE), TypeError, "one dtype .* got torch.float32, torch.float16"),
        ((Q.long(), K.long(), LSE), TypeError, "one dtype .* got torch.int64, torch.int64"),
        ((Q, K, LSE.T), ValueError, r"lse must be as attention returns it, \(6, 4\) for this q, got .* lse \(4, 6\)"),
        ((Q, K, LSE.half()), TypeError, "lse must be torch.float32 for torch.float32, .* got torch.float16"),
        ((Q, K, LSE.to("meta")), ValueError, "on one device, got cpu, cpu, meta"),
        ((Q, K, LSE, None, OFFSETS), ValueError, "cu_seqlens_k was given without cu_seqlens"),
        ((Q, K, LSE, OFFSETS - 1), ValueError, "cu_seqlens must rise from 0 to the 6 rows"),
    ],
)
def test_arguments_that_are_not_of_one_attention(arguments: Any, error: type[Exception], sentence: str) -> None:
    for call in (attention_summary, attention_map):
        with pytest.raises(error, match=sentence):
            call(*arguments)
    q, k, lse, *offsets = arguments
    with pytest.raises(error, match=sentence):
        top_keys(q, k, lse, [0], *offsets)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: attention_summary(Q, K, LSE, mask="causal"), "mask must be a Mask .*, got str"),
        (lambda: attention_summary(Q, K, LSE, scale=float("nan")), "scale must be a finite number or .*, got nan"),
        (lambda: attention_summary(Q, K, LSE, softcap=0.0), "softcap must be a finite number > 0, .*, got 0.0"),
        (lambda: attention_summary(Q, K, LSE, alibi=torch.ones(2)), r"alibi must be \(4,\), one number a head"),
        (lambda: top_keys(Q, K, LSE, [0], segments_k=torch.zeros(6)), "segments_k was given without segments"),
        (lambda: attention_map(Q, K, LSE, segments=torch.zeros(6)), r"segments must be \(6,\) int32 on cpu"),
        (lambda: attention_summary(Q, K, LSE, bias=torch.zeros(3, 6)), r"\(1, 1, 3, 6\) does not broadcast"),
        (lambda: attention_summary(Q, K, LSE, backend="sdpa"), "one of auto, triton, tiled, exact; got 'sdpa'"),
        (lambda: attention_summary(Q.double(), K.double(), LSE.double(), backend="triton"), "cannot run this"),
        (lambda: top_keys(Q, K, LSE, [0, 6]), "queries must be rows 0 to 5 of q, got 6"),
        (lambda: top_keys(Q, K, LSE, [-1]), "queries must be rows 0 to 5 of q, got -1"),
        (lambda: top_keys(Q, K, LSE, [0.5]), r"queries must be \(Q,\) integers, got \(1,\) torch.float32"),
        (lambda: top_keys(Q, K, LSE, [[1]]), r"queries must be \(Q,\) integers, got \(1, 1\)"),
        (lambda: top_keys(Q, K, LSE, [1], top=0), "top must be an integer of at least 1, got 0"),
        (lambda: attention_map(Q, K, LSE, blocks=0), "blocks must be an integer of at least 1, got 0"),
        (lambda: attention_map(Q, K, LSE, blocks=(4, 2.5)), "blocks must be an integer of at least 1, got 2.5"),
    ],
)
def test_other_bad_arguments(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises((ValueError, TypeError), match=sentence):
        call()


def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    page = (Path(__file__).parents[2] / "docs" / "summaries.md").read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(code.replace("5000", "500").replace("4999", "499"), names)
    assert (tmp_path / "attention.png").stat().st_size > 1000
    assert names["picture"].sums.shape == (4, 100, 100)
    assert names["keys"].shape == (1, 4, 5)
