"""Every generation is attention: worked examples, the error budget, and mistakes that must be caught."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from quantattn.attention import Mask
from quantattn.attention.examples import worked_examples
from quantattn.attention.problems import random_problem
from quantattn.attention.testing import check, error_budget

pytest.importorskip("triton")
import triton
import triton.language as tl

from quantattn.attention.kernels.configs import Config
from quantattn.attention.kernels.generations import flash1, flash2, flash4
from quantattn.attention.kernels.generations.registry import GENERATIONS, attend, blocks_for, prepare
from quantattn.attention.kernels.generations.step import absorb, finish, pivot_of
from quantattn.attention.kernels.primitives import INTERPRETED, exp2

# The interpreter computes −inf − (−inf) through numpy, which warns about a value that the kernels select away.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
interpreted = pytest.mark.skipif(not INTERPRETED, reason="compiled kernels cannot be changed from outside")

DTYPES = [torch.float32, torch.float16] + ([torch.bfloat16] if torch.cuda.is_available() else [])
EXAMPLES = [e for e in worked_examples() if e.bias is None and e.mask.left is None and len(e.scores) == 1]
LENGTHS = [(33, 33), (18, 37), (20, 9)]  # as many keys, more, and fewer: then a causal mask leaves rows empty
every_generation = pytest.mark.parametrize("name", GENERATIONS)


def shaped(name: str, block_m: int = 16, block_n: int = 16) -> Config:
    """Small blocks; FlashAttention-3 halves those of queries, -4 needs 32 keys."""
    warps = 1 if INTERPRETED else 4
    return Config(
        2 * block_m if name == "flash3" else block_m, max(32, block_n) if name == "flash4" else block_n, warps, 1
    )


HEADS = 1 if INTERPRETED else 8  # the more elements, the steadier the largest error that the budget is made of


def problem_of(device, n_q=33, n_k=33, causal=True, dtype=torch.float32, heads=HEADS, d=16, seed=2, stretch=1.0):
    p = random_problem(seed, (n_q,), (n_k,), heads=heads, d=d, mask=Mask(causal=causal), dtype=dtype, device=device)
    return replace(p, scale=p.scale * stretch)


def call_of(name, p, blocks=None):
    """A call whose outputs hold NaN, so that an element which is not written shows."""
    q, k, v = (x[None].contiguous() for x in (p.q, p.k, p.v))
    call = prepare(name, q, k, v, causal=p.mask.causal, scale=p.scale, blocks=blocks)
    call.out.fill_(torch.nan)
    call.lse.fill_(torch.nan)
    return call


def results(name, p, blocks=None, launch=None):
    call = call_of(name, p, blocks)
    (launch or GENERATIONS[name].launch)(call)
    return {"out": call.out[0], "lse": call.lse[0].T}


def within(found, p) -> bool:
    return all(row.ok for row in check(found, error_budget(p, backward=False)))


@every_generation
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_within_the_error_budget(name, causal, dtype, device):
    for n_q, n_k in LENGTHS:
        p = problem_of(device, n_q, n_k, causal, dtype)
        rows = check(results(name, p, shaped(name)), error_budget(p, backward=False))
        assert all(row.ok for row in rows), (n_q, n_k, rows)


@every_generation
@pytest.mark.parametrize("blocks", [(32, 16), (64, 64)], ids=str)
def test_any_blocks(name, blocks, device):
    p = problem_of(device, 35, 70, dtype=torch.float16, d=32)
    assert within(results(name, p, shaped(name, *blocks)), p)


@every_generation
@pytest.mark.parametrize("d", [64, 128])
def test_the_blocks_of_the_table(name, d, device):
    longer = 1 if INTERPRETED else 20
    p = problem_of(device, 33 * longer, 35 * longer, dtype=torch.float16, heads=1, d=d)
    assert within(results(name, p), p)


@every_generation
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.name)
def test_worked_examples(name, example, device):
    arguments = example.arguments(torch.float32, device)
    q, k, v = (x[None].contiguous() for x in arguments[:3])
    out, lse = attend(name, q, k, v, causal=example.mask.causal, scale=1.0, blocks=shaped(name))
    expected = example.expected()
    torch.testing.assert_close(out[0].cpu().double(), expected.out, rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(lse[0].cpu().double(), expected.lse, rtol=2e-6, atol=2e-6)


def test_six_worked_examples_are_without_bias_window_and_shared_heads():
    assert len(EXAMPLES) == 6


@every_generation
def test_the_future_changes_no_earlier_bit(name, device):
    """The future begins with a tile: FlashAttention-4 decides for a whole tile whether to rescale."""
    p = problem_of(device, 40, 40)
    later = p.k.clone(), p.v.clone()
    for x in later:
        x[32:] += 1
    before, after = (results(name, replace(p, k=k, v=v), shaped(name)) for k, v in ((p.k, p.v), later))
    for part in ("out", "lse"):
        assert torch.equal(before[part][:32], after[part][:32])
        assert not torch.equal(before[part][32:], after[part][32:])


@every_generation
def test_sequences_and_heads_lie_where_they_should(name, device):
    torch.manual_seed(2)
    q, k, v = (torch.randn(2, n, 2, 16, device=device) for n in (17, 18, 18))
    out, lse = attend(name, q, k, v, blocks=shaped(name))
    for b in range(2):
        for h in range(2):
            alone = attend(name, *(x[b : b + 1, :, h : h + 1].contiguous() for x in (q, k, v)), blocks=shaped(name))
            assert torch.equal(alone.out[0, :, 0], out[b, :, h])
            assert torch.equal(alone.lse[0, :, 0], lse[b, :, h])


# Mistakes made on purpose: each is one line of a generation left out.


@triton.jit
def absorb_without_rescaling(m, l, u, scores, unit, v, PRECISION: tl.constexpr):
    raised = tl.maximum(m, tl.max(scores, 1) * unit)
    p = exp2(scores * unit - pivot_of(raised)[:, None])
    return raised, l + tl.sum(p, 1), tl.dot(p.to(v.dtype), v, u, input_precision=PRECISION)


@triton.jit
def finish_without_division(m, l, u):
    return u, finish(m, l, u)[1]


@triton.jit
def hide_nothing(scores, first, block, n_q, n_k, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    return scores


@interpreted
@pytest.mark.parametrize(
    ("name", "module", "what", "wrong"),
    [
        ("flash1", flash1, "absorb", absorb_without_rescaling),
        ("flash2", flash2, "absorb", absorb_without_rescaling),
        ("flash4", flash4, "finish", finish_without_division),
        ("flash1", flash1, "hide", hide_nothing),
        ("flash2", flash2, "hide", hide_nothing),
    ],
    ids=["1 unrescaled", "2 unrescaled", "4 undivided", "1 unmasked", "2 unmasked"],
)
def test_a_mistake_leaves_the_budget(name, module, what, wrong, device, monkeypatch):
    p = problem_of(device, dtype=torch.float16)
    assert within(results(name, p, shaped(name)), p)
    monkeypatch.setattr(module, what, wrong)
    rows = check(results(name, p, shaped(name)), error_budget(p, backward=False))
    assert not all(row.ok for row in rows)
    assert max(row.worst / row.allowed for row in rows) > 10


# FlashAttention-4: rescaling past a threshold.


def growing(device, step, dtype=torch.float32):
    """Scores up to 0 whose maximum grows by about `step` powers of two from block to block of 32 keys."""
    p = problem_of(device, 20, 160, causal=False, dtype=dtype)
    q, k = p.q / 4, p.k.clone()
    q[..., 0] = 1.0
    k[..., 0] = torch.arange(-159, 1, device=device)[:, None] * (step * 0.6931 / 32)
    return replace(p, q=q, k=k, scale=1.0)


@pytest.mark.skipif(
    not INTERPRETED, reason="compiled, l · shrink + Σ p is one rounding in one of them and two in the other"
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_threshold_0_gives_the_bits_of_plain_rescaling(dtype, causal, device):
    p = problem_of(device, 37, 75, causal, dtype, stretch=4.0)
    plain = results("flash2", p, shaped("flash4"))
    always = results("flash4", p, shaped("flash4"), partial(flash4.launch, threshold=0.0, degree=0))
    assert all(torch.equal(plain[part], always[part]) for part in plain)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("step", [1.5, 3.0, 7.5, 20.0])
def test_rescaling_past_a_threshold_is_exact(dtype, step, device):
    """Also where weights grow to 2^7.5 under one reference, and where every block forces a new one."""
    p = growing(device, step, dtype)
    assert within(results("flash4", p, shaped("flash4"), partial(flash4.launch, degree=0)), p)


@interpreted
@pytest.mark.parametrize(("step", "threshold", "times"), [(1.5, 8.0, 1), (1.5, 0.0, 5), (5.0, 8.0, 3), (20.0, 8.0, 5)])
def test_the_threshold_spares_rescalings(step, threshold, times, device, monkeypatch):
    """One program, five blocks of keys: how often l and u are multiplied."""
    seen = []

    def counted(m):
        seen.append(1)
        return pivot_of(m)

    monkeypatch.setattr(flash4, "pivot_of", counted)
    p = growing(device, step)
    p = replace(p, q=p.q * torch.eye(16, device=device)[0])  # the growth alone
    results("flash4", p, Config(32, 32, 1, 1), partial(flash4.launch, threshold=threshold, degree=0))
    # Each block asks once for its exponentials, and once more where it rescales.
    assert len(seen) == 5 + times


# FlashAttention-4: exponentials by a polynomial.


@triton.jit
def _write_exp2(x_ptr, y_ptr, n, DEGREE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    tl.store(y_ptr + at, flash4.exp2_polynomial(x, DEGREE), mask=at < n)


def polynomial(x, degree):
    y, block = torch.full_like(x, torch.nan), 1 << (20 if INTERPRETED else 12)
    _write_exp2[(-(-x.numel() // block),)](x, y, x.numel(), DEGREE=degree, BLOCK=block)
    return y


@pytest.mark.parametrize("degree", [3, 5])
def test_the_polynomial_keeps_its_bound(degree, device):
    """On every float32 of [−1, −1/2], on every 1024th from there to 0, and in steps further down and up."""
    octave = torch.arange(0x3F000000, 0x3F800001, dtype=torch.int32, device=device).view(torch.float32)
    below = torch.arange(0x00000000, 0x3F000001, 1024, dtype=torch.int32, device=device).view(torch.float32)
    for x in (-octave, -below, torch.linspace(-126, 15, 1 << 18, device=device)):
        gap = (polynomial(x, degree).double() / torch.exp2(x.double()) - 1).abs().max()
        assert gap <= flash4.RELATIVE_ERROR[degree]


@pytest.mark.parametrize("degree", [3, 5])
def test_the_polynomial_is_exact_where_it_must_be(degree, device):
    x = torch.tensor([0.0, -1.0, -20.0, -126.0, -127.0, -1e4, -torch.inf, 8.0], device=device)
    expected = torch.tensor([1.0, 0.5, 2.0**-20, 2.0**-126, 0.0, 0.0, 0.0, 256.0], device=device)
    assert torch.equal(polynomial(x, degree), expected)


def test_a_degree_too_low_for_float32_leaves_its_budget(device):
    """Degree 3 is enough under 16-bit weights and not under float32: the budget tells them apart."""
    for dtype, inside in ((torch.float16, True), (torch.float32, False)):
        p = problem_of(device, 37, 75, dtype=dtype)
        found = results("flash4", p, Config(64, 32, 4 if not INTERPRETED else 1, 1), partial(flash4.launch, degree=3))
        assert within(found, p) is inside


# What is refused, in one sentence, before anything is computed.


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"name": "flash5"}, "expected one of standard, flash1, flash2, flash3, flash4, got 'flash5'"),
        ({"scale": 0.0}, "scale must be above 0, got 0.0"),
        ({"q": torch.zeros(1, 8, 1, 24)}, "of one dtype, got q (1, 8, 1, 24)"),
        ({"q": torch.zeros(8, 1, 16)}, "expected q (B, Nq, H, D)"),
        ({"q": torch.zeros(1, 0, 1, 16)}, "expected at least one row"),
        ({"v": torch.zeros(1, 8, 1, 16).half()}, "of one dtype"),
        ({"q": torch.zeros(1, 16, 1, 16)[:, ::2]}, "expected contiguous"),
    ],
)
def test_what_is_refused(change, sentence, device):
    arguments = {name: torch.zeros(1, 8, 1, 16) for name in "qkv"} | {"name": "flash2"} | change
    arguments = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in arguments.items()}
    if "q" in change and not change["q"].is_contiguous():
        arguments["q"] = torch.zeros(1, 16, 1, 16, device=device)[:, ::2]
    with pytest.raises(ValueError) as refused:
        attend(**arguments)
    assert sentence in str(refused.value)


@pytest.mark.parametrize("wrong", [{"threshold": 16.0}, {"threshold": -1.0}, {"degree": 4}])
def test_flash4_refuses_what_it_has_not(wrong, device):
    with pytest.raises(ValueError, match="got"):
        flash4.launch(call_of("flash4", problem_of(device)), **wrong)


def test_every_generation_has_blocks_for_every_architecture():
    for name in GENERATIONS:
        for arch in (0, 80, 90, 100):
            for bits in (16, 32):
                for d in (16, 64, 128):
                    found = blocks_for(name, bits, d, arch)
                    assert found.block_m >= 16
                    assert found.block_n >= (32 if name == "flash4" else 16)
    assert absorb is flash1.absorb is flash2.absorb
