"""The kernels for sm_90 beside float64, on such a GPU: every mask, layout and head size that they take."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor

from quantattn import Mask, attention
from quantattn.attention import choose_backend
from quantattn.attention.checks import backend_named
from quantattn.attention.fuzz import dense
from quantattn.attention.problems import Problem, random_problem
from quantattn.attention.testing import check, error_budget, run

pytest.importorskip("triton")

from quantattn.attention.kernels.hopper.configs import FORWARD, SHORT
from quantattn.attention.kernels.hopper.launch import launch_forward
from quantattn.attention.kernels.launch import Problem as Launched

pytestmark = pytest.mark.gpu
NAMES = ("out", "lse", "dq", "dk", "dv")
MASKS = {
    "full": Mask(),
    "causal": Mask(causal=True),
    "left": Mask(window=(5, None)),
    "right": Mask(window=(None, 200)),
    "diagonal": Mask(window=(0, 0)),
    "around": Mask(window=(100, 30)),
    "causal window": Mask(causal=True, window=(128, None)),
    "wider than N": Mask(window=(5000, 5000)),
}
LENGTHS = {
    "ragged, one empty": ((128, 129, 0, 1, 300), None),
    "unlike": ((200, 0, 17), (33, 5, 400)),
    "more keys": ((700,), (1000,)),
    "more queries": ((1000,), (300,)),
    "blocks": ((256, 256), (512, 512)),
    "one query": ((1, 1, 1), (1000, 1000, 1000)),
    "odd": ((577, 577), (130, 130)),
    "no query": ((0, 0), (300, 5)),
    "short": ((5, 1, 7) * 20, None),
}


@pytest.fixture(autouse=True)
def on_hopper() -> None:
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a GPU of compute capability 9.0")


def assert_within(p: Problem, backend: str = "hopper") -> None:
    budget = error_budget(p)
    equal = all(len(set(cu.diff().tolist())) == 1 for cu in (p.cu_seqlens, p.cu_seqlens_k))
    for call in (backend_named(backend), *([dense(backend)] if equal else [])):
        rows = check(run(call, p), budget)
        assert {row.name for row in rows} == set(NAMES)
        assert all(row.ok for row in rows), [row for row in rows if not row.ok]


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize(
    ("d", "dtype"), [(64, torch.bfloat16), (128, torch.float16), (80, torch.bfloat16), (256, torch.bfloat16)]
)
def test_every_mask_and_length_is_within_the_budget(d, dtype, mask, lengths):
    for group in (1, 4):
        assert_within(
            random_problem(d + group, *lengths, heads=4, heads_k=4 // group, d=d, mask=mask, dtype=dtype, dlse=True,
                           device="cuda")
        )  # fmt: skip


@pytest.mark.parametrize("columns", FORWARD)
@pytest.mark.parametrize("mask", [MASKS["full"], MASKS["causal"], MASKS["around"]], ids=["full", "causal", "around"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_configuration_alone_is_within_the_budget_on_outputs_of_nan(columns, mask, dtype):
    for table, lengths in product((FORWARD, SHORT), LENGTHS.values()):
        p = random_problem(columns, *lengths, heads=4, heads_k=2, d=columns, mask=mask, dtype=dtype, device="cuda")
        q, k, v = (x[None] for x in (p.q, p.k, p.v))
        out, lse = torch.full_like(q, torch.nan), torch.full((1, 4, len(p.q)), torch.nan, device="cuda")
        described = Launched(p.scale, mask.left, mask.right, p.cu_seqlens, p.cu_seqlens_k)
        if columns in table:
            launch_forward(q, k, v, out, lse, described, table[columns])
            rows = check({"out": out[0], "lse": lse[0].T}, error_budget(p, backward=False))
            assert all(row.ok for row in rows), [row for row in rows if not row.ok]


@pytest.mark.parametrize("d", [40, 72, 96, 104, 136, 192])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_head_sizes_between(d, dtype):
    assert_within(random_problem(d, (333, 333), heads=2, d=d, mask=Mask(causal=True), dtype=dtype, device="cuda"))


def spread(x: Tensor) -> Tensor:
    """The same numbers as every second row of a larger tensor that is NaN elsewhere."""
    wide = torch.full((2 * x.shape[0], *x.shape[1:]), torch.nan, dtype=x.dtype, device=x.device)
    wide[1::2] = x
    return wide[1::2]


@pytest.mark.parametrize("mask", [Mask(), Mask(causal=True)], ids=["full", "causal"])
def test_strides_and_alignment_change_no_bit(mask):
    p = random_problem(5, (300, 77), heads=2, d=64, mask=mask, dtype=torch.bfloat16, device="cuda")
    shifted = torch.empty(p.v.numel() + 1, dtype=p.v.dtype, device="cuda")[1:].view_as(p.v).copy_(p.v)
    other = replace(p, q=spread(p.q), k=spread(p.k), v=shifted, do=spread(p.do))
    here, there = (run(backend_named("hopper"), x) for x in (p, other))
    assert all(torch.equal(here[name], there[name]) for name in NAMES)


@pytest.mark.parametrize(
    ("d", "mask", "lengths"),
    [
        *((d, MASKS[mask], (500, 300)) for d in (64, 128, 256) for mask in ("causal", "around")),
        (64, MASKS["causal"], (2500, 1700)),  # few keys have another configuration
    ],
)
@pytest.mark.parametrize("name", ["q", "k", "v", "do"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_reaches_whom_it_concerns_and_changes_no_other_bit(d, mask, lengths, name, value):
    p = random_problem(7, lengths, heads=2, d=d, mask=mask, dtype=torch.bfloat16, device="cuda")
    clean = run(backend_named("hopper"), p)
    first, total = lengths[0], sum(lengths)
    sees = torch.zeros(total, total, dtype=torch.bool, device="cuda")
    for a, n in ((0, first), (first, lengths[1])):
        sees[a : a + n, a : a + n] = mask.visible(n, n, device="cuda")
    for row in (130, first - 1, first + 10):
        spoiled = getattr(p, name).clone()
        spoiled[row, 0, 3] = value
        results = run(backend_named("hopper"), replace(p, **{name: spoiled}))
        queries = torch.zeros(total, dtype=torch.bool, device="cuda")
        queries[row] = True
        if name in "kv":
            queries = sees[:, row]
        keys = sees[queries].any(0)
        hit = {"out": queries & (name != "do"), "lse": queries & (name in "qk"), "dq": queries, "dk": keys, "dv": keys}
        for result, rows in hit.items():
            assert torch.equal(results[result][~rows], clean[result][~rows]), result
            assert torch.equal(results[result][:, 1], clean[result][:, 1]), result
        if (name, value) != ("k", torch.inf):  # which makes scores of −∞ as well, that is no weight
            reached = results["out" if name != "do" else "dq"][:, 0][queries]
            assert not reached.isfinite().all(-1).any()


@pytest.mark.parametrize(("d", "name"), [*product((64, 128, 256), ("full", "causal", "around"))])
def test_a_thousand_repeats_have_the_same_bits(d, name):
    p = random_problem(3, (3000, 1111, 2000), heads=4, d=d, mask=MASKS[name], dtype=torch.bfloat16, device="cuda")
    leaves = [x.requires_grad_() for x in (p.q, p.k, p.v)]
    noise = torch.randn(4096, 4096, device="cuda")

    def once(i: int) -> tuple[Tensor, ...]:
        if i % 3 == 1:  # others on the GPU: programs start at other times
            noise.matmul(noise)
        out = attention(*leaves, p.cu_seqlens, mask=p.mask, backend="hopper").out
        return out, *torch.autograd.grad(out, leaves, p.do)

    first = once(0)
    assert all(all(torch.equal(a, b) for a, b in zip(once(i), first, strict=True)) for i in range(1000))


@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mask", [MASKS["full"], MASKS["causal"], MASKS["around"]], ids=["full", "causal", "around"])
def test_gradients_without_an_order_are_within_the_budget_too(d, dtype, mask):
    p = random_problem(d, (700, 0, 300), heads=4, heads_k=2, d=d, mask=mask, dtype=dtype, device="cuda")
    leaves = [x.requires_grad_() for x in (p.q, p.k, p.v)]
    results = attention(*leaves, p.cu_seqlens, mask=mask, deterministic=False, backend="hopper")
    gradients = torch.autograd.grad(results.out, leaves, p.do)
    found = dict(zip(NAMES, (results.out.detach(), results.lse.detach(), *gradients), strict=True))
    rows = check(found, error_budget(p))
    assert {row.name for row in rows} == set(NAMES)
    assert all(row.ok for row in rows), [row for row in rows if not row.ok]


def test_gradients_that_are_views_without_strides():
    q, k, v = (torch.randn(2, 130, 2, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    by_sum = torch.autograd.grad(attention(q, k, v, backend="hopper").out.sum(), (q, k, v))
    out = attention(q, k, v, backend="hopper").out
    by_ones = torch.autograd.grad(out, (q, k, v), torch.ones_like(out))
    assert all(torch.equal(a, b) for a, b in zip(by_sum, by_ones, strict=True))


def test_the_operators_keep_the_rules_of_operators_and_trace_to_one_graph():
    from quantattn.attention.ops import attention_op

    q, k, v = (torch.randn(1, 140, 2, 64, device="cuda", dtype=torch.float16, requires_grad=True) for _ in range(3))
    arguments = (q, k, v, None, None, None, 0.1, None, 0)
    torch.library.opcheck(attention_op, arguments, {"hopper": True}, rtol=1e-2, atol=1e-3)

    def loss(x: Tensor) -> Tensor:
        return attention(x, 2 * x, x, mask=Mask(causal=True), backend="hopper").out.square().sum()

    eager, traced = (torch.autograd.grad(f(q), q)[0] for f in (loss, torch.compile(loss, fullgraph=True)))
    assert torch.allclose(eager, traced, rtol=1e-2, atol=1e-3)


def test_a_captured_graph_replays_the_bits():
    q, k, v = (torch.randn(1, 700, 4, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    eager = attention(q, k, v, mask=Mask(causal=True), backend="hopper").out
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attention(q, k, v, mask=Mask(causal=True), backend="hopper").out
    for _ in range(3):
        out.fill_(torch.nan)
        graph.replay()
        assert torch.equal(out, eager)


def test_auto_takes_them_where_it_may():
    q = torch.zeros(300, 2, 64, device="cuda", dtype=torch.bfloat16)
    assert choose_backend(q, q, q).backend == "hopper"
    assert choose_backend(q, q, q, mask=MASKS["around"]).backend == "hopper"
    narrow = torch.zeros(300, 2, 32, device="cuda", dtype=torch.bfloat16)
    for other, options, why in (
        (q.float(), {}, "float16 and bfloat16"),
        (narrow, {}, "above 32 and up to 256"),
        (q, {"mask": Mask(causal=True, prefix=3)}, "full, causal and windows"),
        (q, {"bias": torch.zeros(300, device="cuda")}, "plain scores, got bias"),
        (q, {"deterministic": "batch"}, "order of sums"),
    ):
        choice = choose_backend(other, other, other, **options)
        assert choice.backend == "triton"
        assert why in choice.reason
        with pytest.raises(ValueError, match="backend 'hopper' cannot run this"):
            attention(other, other, other, backend="hopper", **options)


def test_wrong_kernels_leave_the_budget():
    """What a lost block or a lost rescaling would do is not hidden by the budget."""
    p = random_problem(9, (600,), heads=2, d=64, mask=Mask(causal=True), dtype=torch.bfloat16, device="cuda")
    budget = error_budget(p)
    fewer = replace(p, mask=Mask(causal=True, window=(500, None)))
    wrong = run(backend_named("hopper"), fewer)
    assert not all(row.ok for row in check(wrong, budget))


@pytest.mark.parametrize(("queries", "keys"), [(1, 512), (64, 512), (64, 64), (65, 300)])
@pytest.mark.parametrize("d", [64, 128])
def test_no_tile_of_a_pack_of_thousands_is_lost(queries, keys, d):
    """Each program draws many tiles, some of which own no row; what is not written stays NaN."""
    count = 2184
    rng = torch.Generator(device="cuda").manual_seed(0)
    q, k, v = (torch.randn(1, count * n, 2, d, device="cuda", generator=rng).bfloat16() for n in (queries, keys, keys))
    offsets = torch.arange(count + 1, dtype=torch.int32, device="cuda")
    problem = Launched(d**-0.5, None, None, offsets * queries, offsets * keys)
    dense = [x.view(count, -1, 2, d) for x in (q, k, v)]
    expected = attention(*dense, backend="triton")
    first = None
    for _ in range(8):
        out, lse = torch.full_like(q, torch.nan), torch.full((1, 2, q.shape[1]), torch.nan, device="cuda")
        launch_forward(q, k, v, out, lse, problem)
        assert torch.isfinite(lse).all()
        assert torch.isfinite(out).all()
        first = (out, lse) if first is None else first
        assert torch.equal(out, first[0])
        assert torch.equal(lse, first[1])
    assert (out.view_as(expected.out) - expected.out).abs().max() < 0.05
    torch.testing.assert_close(lse[0].T.reshape(expected.lse.shape), expected.lse, rtol=0, atol=1e-3)


def test_gradients_of_a_pack_of_thousands_repeat():
    count, n = 2184, 64
    rng = torch.Generator(device="cuda").manual_seed(0)
    q, k, v, do = (torch.randn(count * n, 2, 64, device="cuda", generator=rng).bfloat16() for _ in range(4))
    offsets = torch.arange(count + 1, dtype=torch.int32, device="cuda") * n
    leaves = [x.requires_grad_() for x in (q, k, v)]
    runs = [torch.autograd.grad(attention(*leaves, offsets).out, leaves, do) for _ in range(6)]
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(run, runs[0], strict=True))
    by_another = torch.autograd.grad(attention(*leaves, offsets, backend="triton").out, leaves, do)
    for a, b in zip(runs[0], by_another, strict=True):
        assert (a.float() - b.float()).norm() < 0.01 * b.float().norm()
