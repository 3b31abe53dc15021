"""Mask rules of one's own: two twins that are compared, and every backend that takes one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quantattn.attention import Mask, attention, choose_backend, register_mask_rule
from quantattn.attention.checks import backend_named
from quantattn.attention.problems import random_problem
from quantattn.attention.rules import rule_named
from quantattn.attention.testing import check, error_budget, run

pytest.importorskip("triton")
import triton
import triton.language as tl

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy under the interpreter, where −inf is


@triton.jit
def strided_jit(query, key, n_q, n_k):
    """The own place and every fourth key, counted from the end."""
    return ((n_k - 1 - key) % 4 == 0) | (tl.abs(key - query - (n_k - n_q)) == 0)


def strided(query: Tensor, key: Tensor, n_q: int, n_k: int) -> Tensor:
    return ((n_k - 1 - key) % 4 == 0) | (key == query + (n_k - n_q))


def one_off(query: Tensor, key: Tensor, n_q: int, n_k: int) -> Tensor:
    return ((n_k - key) % 4 == 0) | (key == query + (n_k - n_q))


STRIDED = register_mask_rule("strided", strided, strided_jit)
BOUNDS = [{}, {"causal": True}, {"window": (9, 2), "prefix": 3}]


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
@pytest.mark.parametrize("backend", ["exact", "tiled", "triton"])
def test_a_rule_within_the_budget(backend: str, bounds: dict[str, object], device: str) -> None:
    mask = Mask(**bounds, rule=STRIDED)  # type: ignore[arg-type]
    p = random_problem(2, (19, 0, 7), (22, 3, 5), heads=2, heads_k=1, mask=mask, dlse=True, device=device)
    rows = check(run(backend_named(backend), p), error_budget(p))
    assert all(row.ok for row in rows), [row for row in rows if not row.ok]


@pytest.mark.parametrize("backend", ["tiled", "triton"])
def test_a_rule_is_the_bool_mask_that_it_writes_out(backend: str, device: str) -> None:
    q, k, v = torch.randn(3, 30, 2, 16, device=device)
    mask = Mask(causal=True, rule=STRIDED)
    seen = mask.visible(30, 30, device=device)
    assert 0 < int(seen.sum()) < int(Mask(causal=True).visible(30, 30).sum())
    ruled, written = attention(q, k, v, mask=mask, backend=backend), attention(q, k, v, bias=seen, backend=backend)
    torch.testing.assert_close(ruled.out, written.out, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ruled.lse, written.lse, rtol=1e-5, atol=1e-6)


def test_twins_that_disagree_are_found_before_the_kernel_is_used(device: str) -> None:
    name = register_mask_rule("one off", one_off, strided_jit)
    q = torch.randn(8, 1, 16, device=device)
    with pytest.raises(ValueError, match=r"twins of mask rule 'one off' disagree: with Nq = 70 and Nk = 70 torch "):
        attention(q, q, q, mask=Mask(rule=name), backend="triton")
    assert attention(q, q, q, mask=Mask(rule=name), backend="tiled").out.isfinite().all()
    device_of_q = q.device
    assert device_of_q not in rule_named("one off").checked
    attention(q, q, q, mask=Mask(rule=STRIDED), backend="triton")
    assert device_of_q in rule_named(STRIDED).checked


def test_what_is_refused(device: str) -> None:
    with pytest.raises(ValueError, match=r"there is no mask rule 'nobody'; registered: .*strided"):
        Mask(rule="nobody")
    with pytest.raises(ValueError, match=r"there is another mask rule of the name 'strided'"):
        register_mask_rule("strided", one_off)
    with pytest.raises(ValueError, match=r"a mask rule needs a name, got ''"):
        register_mask_rule("", one_off)
    assert register_mask_rule("strided", strided, strided_jit) == "strided"
    plain = register_mask_rule("of torch alone", one_off)
    q = torch.randn(8, 1, 16, device=device)
    with pytest.raises(ValueError, match=r"mask rule 'of torch alone' was registered without a kernel"):
        attention(q, q, q, mask=Mask(rule=plain), backend="triton")
    assert choose_backend(q, q, q, mask=Mask(rule=plain)).backend == "tiled"
    numbers = register_mask_rule("numbers", lambda i, j, n_q, n_k: i + j)
    with pytest.raises(TypeError, match=r"mask rule 'numbers' must return a bool tensor, got a torch.int64 tensor"):
        attention(q, q, q, mask=Mask(rule=numbers), backend="tiled")


def test_rules_combine_with_bounds_and_not_with_each_other() -> None:
    rule, causal = Mask(rule=STRIDED), Mask(causal=True)
    both = rule & causal
    assert both == Mask(causal=True, rule=STRIDED)
    assert torch.equal(both.visible(9, 9), rule.visible(9, 9) & causal.visible(9, 9))
    assert rule | rule == rule
    with pytest.raises(ValueError, match="a union with rule 'strided' is no mask"):
        _ = rule | causal
    with pytest.raises(ValueError, match="masks with rules 'strided' and 'of torch too'"):
        _ = rule & Mask(rule=register_mask_rule("of torch too", one_off))
    kinds = Mask(causal=True, rule=STRIDED).blocks(12, 12, 4, 4)
    assert kinds.tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
