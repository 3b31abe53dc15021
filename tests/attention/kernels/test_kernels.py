"""The Triton kernels against the specification: under the interpreter on a CPU, compiled where there is a GPU."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import torch

from quantattn.attention import Mask, attention
from quantattn.attention.checks import backend_named
from quantattn.attention.problems import Problem, any_problem, random_problem
from quantattn.attention.testing import check, error_budget, run

pytest.importorskip("triton")
from quantattn.attention.kernels import launch
from quantattn.attention.kernels.configs import Config

# The interpreter computes NaN and inf through numpy, which warns about the very values that these tests plant.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

DTYPES = [torch.float32, torch.float16] + ([torch.bfloat16] if torch.cuda.is_available() else [])
# Blocks on a GPU are up to 128 rows, under the interpreter 16: lengths and windows grow with them, so that every tile
# meets full blocks and cut ones in both places.
GROW = 19 if torch.cuda.is_available() else 1


def grown(*lengths: int) -> tuple[int, ...]:
    return tuple(GROW * length for length in lengths)


LENGTHS = (grown(5, 0, 33, 17), grown(9, 3, 40, 0))
MASKS = [
    Mask(),
    Mask(causal=True),
    Mask(window=grown(5, 3)),
    Mask(window=(None, 4 * GROW)),
    Mask(window=(20 * GROW, None)),
    Mask(window=(0, 0)),
    Mask(causal=True, window=(7 * GROW, None)),
]


kernels = backend_named("triton")


def assert_within_budget(problem: Problem) -> None:
    rows = check(run(kernels, problem), error_budget(problem))
    assert all(row.ok for row in rows), f"{problem.label}: " + "; ".join(str(row) for row in rows if not row.ok)


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_mask_within_the_budget(mask, dtype, device):
    assert_within_budget(random_problem(1, *LENGTHS, heads=2, d=24, mask=mask, dlse=True, dtype=dtype, device=device))


@pytest.mark.parametrize("d", [8, 16, 64, 72, 80, 96, 128, 160, 256])
def test_every_head_size_within_the_budget(d, device):
    problem = random_problem(d, grown(7, 40), heads=1, d=d, mask=Mask(causal=True), dtype=torch.float16, device=device)
    assert_within_budget(problem)


@pytest.mark.parametrize(("heads", "heads_k"), [(6, 2), (3, 1), (5, 5), (7, 7)])
def test_any_integer_ratio_of_heads(heads, heads_k, device):
    problem = random_problem(
        2, grown(21, 4), grown(18, 9), heads=heads, heads_k=heads_k, mask=Mask(window=grown(6, 2)), device=device
    )
    assert_within_budget(problem)


@pytest.mark.parametrize("bias", ["key", "full"])
@pytest.mark.parametrize("mask", [Mask(), Mask(causal=True)], ids=str)
def test_additive_mask_with_minus_infinity(bias, mask, device):
    assert_within_budget(random_problem(3, *LENGTHS, mask=mask, bias=bias, dlse=True, device=device))


@pytest.mark.parametrize("scale", [-0.7, 0.0, 3.0])
def test_any_sign_of_the_scale(scale, device):
    assert_within_budget(replace(random_problem(4, grown(19), mask=Mask(causal=True), device=device), scale=scale))


@pytest.mark.parametrize("descriptors", [False, True])
def test_both_ways_of_reading_tiles_give_the_same_bits(descriptors, device):
    if device == "cuda" and launch.capability(torch.device("cuda")) < 90:
        pytest.skip("descriptors need compute capability 9.0")
    p = random_problem(5, grown(40), grown(37), d=64, dtype=torch.float16, device=device)
    q, k, v = (x[None] for x in (p.q, p.k, p.v))
    problem = launch.Problem(p.scale, 9, 3)
    poisoned = [torch.full_like(q, torch.nan), torch.full((1, 2, 40 * GROW), torch.nan, device=device)]
    launch.launch_forward(q, k, v, *poisoned, problem, descriptors=descriptors)
    out, lse = kernels(p.q, p.k, p.v, p.cu_seqlens, p.cu_seqlens_k, mask=Mask(window=(9, 3)), bias=None, scale=p.scale)
    assert torch.equal(poisoned[0][0], out)
    assert torch.equal(poisoned[1][0].T, lse)


CONFIGS = [Config(16, 16, 1, 1), Config(32, 16, 1, 1), Config(16, 32, 1, 1), Config(64, 16, 1, 1)]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_every_block_shape_writes_every_element(config, device):
    """Each shape alone, on outputs filled with NaN; a pack with empty sequences and a window that cuts both sides."""
    if device == "cuda":
        config = replace(config, num_warps=4)
    p = random_problem(6, *LENGTHS, d=32, mask=Mask(window=(6, 4)), device=device, dtype=torch.float16)
    q, k, v, do = (x[None] for x in (p.q, p.k, p.v, p.do))
    problem = launch.Problem(p.scale, 6, 4, p.cu_seqlens, p.cu_seqlens_k)
    out, dq, dk, dv = (torch.full_like(x, torch.nan) for x in (q, q, k, v))
    lse = torch.full((1, q.shape[2], q.shape[1]), torch.nan, device=device)
    launch.launch_forward(q, k, v, out, lse, problem, config=config)
    delta = torch.full_like(lse, torch.nan)
    launch.launch_dq(do, None, q, k, v, out, lse, delta, dq, problem, config)
    launch.launch_dkdv(do, q, k, v, lse, delta, dk, dv, problem, config)
    results = {"out": out[0], "lse": lse[0].T, "dq": dq[0], "dk": dk[0], "dv": dv[0]}
    rows = check(results, error_budget(p))
    assert all(row.ok for row in rows), rows


def test_a_sequence_does_not_depend_on_its_neighbours(device):
    """Bits of output and gradients, alone and in a pack: the schedule of a sequence knows only its own lengths."""
    packed = random_problem(7, *LENGTHS, mask=Mask(causal=True), dlse=True, device=device)
    together = run(kernels, packed)
    rows, columns = packed.cu_seqlens.tolist(), packed.cu_seqlens_k.tolist()
    for (a, b), (c, d) in zip(pairwise(rows), pairwise(columns), strict=True):
        alone = replace(
            packed, q=packed.q[a:b], k=packed.k[c:d], v=packed.v[c:d], do=packed.do[a:b], dlse=packed.dlse[a:b],
            cu_seqlens=packed.cu_seqlens.new_tensor([0, b - a]), cu_seqlens_k=packed.cu_seqlens.new_tensor([0, d - c]),
        )  # fmt: skip
        for name, value in run(kernels, alone).items():
            part = together[name][c:d] if name in ("dk", "dv") else together[name][a:b]
            assert torch.equal(part, value), name


def test_dense_batches_are_packs_of_equal_lengths(device):
    p = random_problem(8, grown(12, 12, 12), heads=4, heads_k=2, mask=Mask(causal=True), device=device)
    packed = kernels(p.q, p.k, p.v, p.cu_seqlens, p.cu_seqlens_k, mask=p.mask, bias=None, scale=p.scale)
    dense = attention(*(x.view(3, 12 * GROW, *x.shape[1:]) for x in (p.q, p.k, p.v)), mask=p.mask, backend="triton")
    assert torch.equal(dense.out.flatten(0, 1), packed.out)
    assert torch.equal(dense.lse.flatten(0, 1), packed.lse)


def test_any_strides_are_read_as_they_are(device):
    """Transposed, expanded and offset views, also for the gradient that comes back, against contiguous copies."""
    torch.manual_seed(9)
    q = torch.randn(2, 3, 20, 16, device=device, dtype=torch.float16).transpose(1, 2)
    k = torch.randn(2, 20, 1, 16, device=device, dtype=torch.float16).expand(2, 20, 3, 16)
    v = torch.randn(2, 21, 3, 19, device=device, dtype=torch.float16)[:, 1:, :, 3:]
    do = torch.randn(1, 1, 1, 16, device=device, dtype=torch.float16).expand(2, 20, 3, 16)
    results = []
    for views in ((q, k, v, do), tuple(x.contiguous() for x in (q, k, v, do))):
        leaves = [x.detach().requires_grad_() for x in views[:3]]
        out, lse = attention(*leaves, backend="triton")
        results.append([out, lse, *torch.autograd.grad(out, leaves, views[3])])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_offsets_do_not_wrap_at_two_to_the_31(dtype, device):
    """Rows 2²⁶ elements apart, so that the last ones lie beyond 2³¹; only the pages that are used exist."""
    n, stride = 40, 1 << 26
    storage = torch.empty(n * stride, dtype=dtype, device=device)
    rng = torch.Generator().manual_seed(15)
    packed = [torch.randn(n, 2, 32, generator=rng).to(device, dtype) for _ in range(4)]
    spread = [storage.as_strided(x.shape, (stride, 32, 1), 4096 * i) for i, x in enumerate(packed)]
    for wide, x in zip(spread, packed, strict=True):
        wide.copy_(x)
    results = []
    for q, k, v, do in (packed, spread):
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        out, lse = attention(*leaves, mask=Mask(causal=True), backend="triton")
        results.append([out, lse, *torch.autograd.grad(out, leaves, do)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_offsets_may_be_views(device):
    p = random_problem(15, *LENGTHS, mask=Mask(causal=True), device=device)
    spread = [torch.stack([cu, cu + 1000], dim=1)[:, 0] for cu in (p.cu_seqlens, p.cu_seqlens_k)]
    before, after = run(kernels, p), run(kernels, replace(p, cu_seqlens=spread[0], cu_seqlens_k=spread[1]))
    assert all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize("bound", [2**31 - 1, 2**62])
def test_a_window_wider_than_any_sequence_is_none(bound, device):
    p = random_problem(16, (20, 3), (9, 40), heads=1, device=device)
    before, after = run(kernels, p), run(kernels, replace(p, mask=Mask(window=(bound, bound))))
    assert all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize("mask", [Mask(causal=True), Mask(window=(3, 2))], ids=str)
@pytest.mark.parametrize("planted", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_reaches_only_those_who_see_it(mask, planted, device):
    clean = random_problem(10, (13, 30), heads=2, mask=mask, dlse=True, device=device)
    victim = 30  # a key, a value, a query and a gradient row of the second sequence
    before = run(kernels, clean)
    for name in ("q", "k", "v", "do"):
        value = getattr(clean, name).clone()
        value[victim, :, 2] = planted
        after = run(kernels, replace(clean, **{name: value}))
        seen = torch.zeros(43, 43, dtype=torch.bool)
        seen[:13, :13], seen[13:, 13:] = mask.visible(13, 13), mask.visible(30, 30)
        tainted_rows = seen[:, victim] if name in ("k", "v") else torch.arange(43) == victim
        tainted_keys = seen[tainted_rows].any(0) | (torch.arange(43) == victim)
        for result, changed in (("out", tainted_rows), ("lse", tainted_rows), ("dq", tainted_rows | tainted_keys),
                                ("dk", tainted_keys), ("dv", tainted_keys)):  # fmt: skip
            safe = ~changed.to(device)
            assert torch.equal(after[result][safe], before[result][safe]), (name, result)
    assert not torch.isfinite(after["dv"][victim]).all()  # the last planted is do, and key `victim` is seen by its row


def test_a_row_that_sees_nothing_spoils_nobody(device):
    """With more queries than keys the first causal rows are empty; whatever stands in them, nothing else changes."""
    clean = random_problem(14, (24,), (9,), heads=2, mask=Mask(causal=True), dlse=True, device=device)
    before = run(kernels, clean)
    empty = torch.arange(24, device=device) < 15
    for names in (("q",), ("do",), ("dlse",), ("q", "do", "dlse")):
        planted = {name: getattr(clean, name).clone() for name in names}
        for value in planted.values():
            value[3] = torch.nan
            value[11] = -torch.inf
        after = run(kernels, replace(clean, **planted))
        assert all(torch.equal(after[name], before[name]) for name in before), names
    assert torch.equal(before["out"][empty], torch.zeros_like(before["out"][empty]))
    assert torch.equal(before["dq"][empty], torch.zeros_like(before["dq"][empty]))
    assert bool((before["lse"][empty] == -torch.inf).all())


def test_causal_future_changes_no_earlier_bit(device):
    p = random_problem(11, (37,), mask=Mask(causal=True), device=device)
    changed = replace(p, k=p.k.clone(), v=p.v.clone())
    changed.k[20:] = 7.0
    changed.v[20:] = torch.nan
    before, after = run(kernels, p, backward=False), run(kernels, changed, backward=False)
    assert torch.equal(before["out"][:20], after["out"][:20])
    assert not torch.equal(before["out"][20:], after["out"][20:])


def test_no_sequences_no_keys_no_queries(device):
    empty = torch.zeros(0, 2, 16, device=device)
    full = torch.randn(6, 2, 16, device=device)
    assert attention(empty, empty, empty, backend="triton").out.shape == (0, 2, 16)
    assert attention(empty, full, full, backend="triton").lse.shape == (0, 2)
    leaf = full.clone().requires_grad_()
    out, lse = attention(leaf, empty, empty, backend="triton")
    assert torch.equal(out, torch.zeros_like(out))
    assert torch.equal(lse, torch.full_like(lse, -torch.inf))
    (out.sum() + 0 * lse.nan_to_num(neginf=0).sum()).backward()
    assert torch.equal(leaf.grad, torch.zeros_like(full))


def test_gradients_repeat_to_the_bit(device):
    p = random_problem(12, *LENGTHS, heads=4, heads_k=2, mask=Mask(causal=True), dlse=True, device=device)
    first = run(kernels, p)
    for _ in range(3):
        again = run(kernels, p)
        assert all(torch.equal(first[name], again[name]) for name in first)


def test_only_lse_has_a_gradient_then_dv_is_zero(device):
    p = random_problem(13, (11, 5), device=device)
    leaves = [x.clone().requires_grad_() for x in (p.q, p.k, p.v)]
    lse = partial(attention, backend="triton")(*leaves, p.cu_seqlens).lse
    dq, dk, dv = torch.autograd.grad(lse.sum(), leaves)
    assert torch.equal(dv, torch.zeros_like(dv))
    assert dq.abs().sum() > 0
    assert dk.abs().sum() > 0


@pytest.mark.parametrize(
    ("kind", "seed", "dtype"),
    [(12, 20072, torch.float32), (19, 10063, torch.float16), (2, 20098, torch.float32), (12, 20066, torch.float32)],
)
def test_problems_whose_loss_cannot_be_avoided_are_within_the_budget(device, kind, seed, dtype):
    """Found at random: a gradient of lse that goes through rebuilt weights, and one of two sinks."""
    p = any_problem(kind, seed, dtype=dtype, device=device)
    rows = check(run(kernels, p), error_budget(p))
    assert all(row.ok for row in rows), [row for row in rows if not row.ok]
