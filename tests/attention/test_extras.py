"""What acts on scores and weights beside scale, mask and bias: every backend gives it or says why not, and it means
what its equation says."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise, product

import pytest
import torch
from torch import Tensor

from quantattn.attention import Mask, attention
from quantattn.attention.checks import backend_named, refused
from quantattn.attention.dropout import kept_weights, philox
from quantattn.attention.exact import exact_attention
from quantattn.attention.extras import Extras
from quantattn.attention.fuzz import Task, dense, is_dense, run_task
from quantattn.attention.problems import EXTRAS, Problem, any_problem, random_problem
from quantattn.attention.testing import check, error_budget, run
from quantattn.attention.tiled import tiled_attention

pytest.importorskip("triton")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy under the interpreter, where −inf is

DTYPES = [torch.float32, torch.float16] + ([torch.bfloat16] if torch.cuda.is_available() else [])
SETTINGS = list(product(DTYPES, ("packed", "dense")))
if not torch.cuda.is_available():  # every dtype and every layout, but not every pair of them under the interpreter
    SETTINGS = [(torch.float32, "packed"), (torch.float16, "dense")]
FEATURES: dict[str, dict[str, object]] = {
    "nothing": {},
    **{name: {"extras": (name,)} for name in EXTRAS},
    **{f"bias by {kind}": {"bias": kind} for kind in ("key", "query", "place", "head", "full", "bool")},
    "causal": {"mask": Mask(causal=True)},
    "window": {"mask": Mask(window=(5, 3))},
    "window on one side": {"mask": Mask(window=(4, None))},
    "window of itself": {"mask": Mask(window=(0, 0))},
    "prefix": {"mask": Mask(causal=True, prefix=7)},
    "window and prefix": {"mask": Mask(window=(2, 2), prefix=5)},
    "lse gradient": {"dlse": True},
    "everything": {"extras": EXTRAS, "bias": "full", "mask": Mask(causal=True, prefix=3), "dlse": True},
}
NOT_IN_SDPA = {name for name in FEATURES if name not in ("nothing", "causal", "lse gradient")}


def problem_of(feature: str, dtype: torch.dtype, device: str, layout: str) -> Problem:
    lengths = (18, 18) if layout == "dense" else (17, 0, 5)
    lengths_k = lengths if layout == "dense" else (20, 3, 4)
    settings = {"heads": 2, "heads_k": 1, "d": 24} | FEATURES[feature]
    return random_problem(3, lengths, lengths_k, dtype=dtype, device=device, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("feature", FEATURES)
def test_every_backend_gives_every_feature_or_refuses_it(feature: str, device: str) -> None:
    """Feature × backend × dtype × layout × pass; run with -s to see the row of the coverage table."""
    cells = []
    for backend, (dtype, layout) in product(("exact", "tiled", "sdpa", "triton"), SETTINGS):
        p = problem_of(feature, dtype, device, layout)
        reason = refused(backend, p.q, p.mask, p.bias, p.extras)
        if reason is not None:
            assert backend == "sdpa", reason
            assert feature in NOT_IN_SDPA or device == "cuda", reason
            cells.append("refused")
            continue
        assert not (backend == "sdpa" and feature in NOT_IN_SDPA)
        call = dense(backend) if layout == "dense" else backend_named(backend)
        rows = check(run(call, p), error_budget(p))  # type: ignore[arg-type]
        assert all(row.ok for row in rows), (backend, dtype, layout, [row for row in rows if not row.ok])
        assert {row.name for row in rows} >= {"out", "lse", "dq", "dk", "dv"}
        cells.append("forward, backward")
    print(f"{feature:>20} | " + " | ".join(cells))


@pytest.mark.parametrize("backend", ["tiled", "triton"])
def test_random_problems_of_every_sort(backend: str) -> None:
    kinds, dtypes = (40, DTYPES[:1]) if backend == "tiled" else (5, DTYPES[1:2])
    for kind, dtype in product(range(kinds), dtypes):
        outcome = run_task(Task(backend, kind, 10, 11, dtype, "cuda" if torch.cuda.is_available() else "cpu"))
        assert not outcome.failures, outcome.failures


def test_a_wrong_implementation_is_found_by_the_same_search() -> None:
    """Without its sinks, or with another seed, nothing random passes: the search can fail."""
    p = next(p for kind in range(100) if "sinks" in (p := any_problem(kind, 0, dtype=torch.float16)).extras.names())
    forgets = replace(p, extras=replace(p.extras, sinks=None))
    rows = check(run(exact_attention, forgets), error_budget(p))
    assert not all(row.ok for row in rows)


BACKENDS = ["exact", "tiled", "triton"]
backends = pytest.mark.parametrize("backend", BACKENDS)


def inputs(device: str, **options: object) -> Problem:
    settings = {"heads": 4, "heads_k": 2, "d": 16, "dtype": torch.float32} | options
    return random_problem(8, (18, 5, 21), device=device, **settings)  # type: ignore[arg-type]


def assert_same(
    backend: str, a: Problem, b: Problem, names: tuple[str, ...] = ("out", "lse", "dq", "dk", "dv")
) -> None:
    """Two problems that mean the same: the results of one within the budget of the other."""
    results, budget = run(backend_named(backend), a), error_budget(b)
    rows = [row for row in check({name: results[name] for name in names}, budget) if not row.ok]
    assert not rows, rows


@backends
def test_alibi_is_a_bias(backend: str, device: str) -> None:
    p = inputs(device, extras=("alibi",))
    places = torch.arange(21, device=device)
    distance = (places[:, None] - places[None, :]).abs()
    bias = torch.zeros(3, 4, 21, 21, device=device)
    for n, length in enumerate((18, 5, 21)):
        bias[n, :, :length, :length] = -p.extras.alibi[:, None, None] * distance[:length, :length]
    assert_same(backend, p, replace(p, extras=Extras(), bias=bias))


@backends
def test_a_sink_is_a_key_with_a_value_of_zero(backend: str, device: str) -> None:
    """q gets one more column in which the new key alone is not 0, so that its score is the sink."""
    p = inputs(device, heads=2, heads_k=2, extras=("sinks",))
    one = torch.ones_like(p.q[..., :1])
    q = torch.cat([p.q, one], -1)
    rows, k, v, offsets = p.cu_seqlens_k.tolist(), [], [], [0]
    for a, b in pairwise(rows):
        of_sink = torch.zeros_like(q[:1])
        of_sink[..., -1] = p.extras.sinks / p.scale
        k += [torch.cat([p.k[a:b], torch.zeros_like(p.k[a:b, :, :1])], -1), of_sink]
        v += [torch.cat([p.v[a:b], torch.zeros_like(p.v[a:b, :, :1])], -1), torch.zeros_like(of_sink)]
        offsets.append(offsets[-1] + b - a + 1)
    wide = replace(
        p, q=q, k=torch.cat(k), v=torch.cat(v), do=torch.cat([p.do, torch.zeros_like(one)], -1),
        cu_seqlens_k=torch.tensor(offsets, dtype=torch.int32, device=device), extras=Extras(),
    )  # fmt: skip
    results, budget = run(backend_named(backend), p, backward=False), error_budget(wide, backward=False)
    assert (results["out"] - budget.truth["out"][..., :-1]).abs().max() <= budget.allowed["out"][0]
    assert (results["lse"] - budget.truth["lse"]).abs().max() <= budget.allowed["lse"][0]


@backends
def test_segments_are_sequences(backend: str, device: str) -> None:
    p = random_problem(9, (30,), heads=2, device=device)
    cut = replace(p, cu_seqlens=(cu := torch.tensor([0, 11, 30], dtype=torch.int32, device=device)), cu_seqlens_k=cu)
    numbers = (torch.arange(30, device=device) >= 11).int()
    assert_same(backend, replace(p, extras=Extras(segments=numbers, segments_k=numbers)), cut)


@backends
def test_scales_by_head_are_scaled_queries(backend: str, device: str) -> None:
    p = inputs(device, extras=("scales",))
    scaled = replace(p, q=p.q * p.extras.scales[:, None], extras=Extras())
    assert_same(backend, p, scaled, ("out", "lse", "dk", "dv"))


@backends
def test_a_soft_cap_far_above_the_scores_is_none_and_one_below_bounds_them(backend: str, device: str) -> None:
    p = inputs(device)
    assert_same(backend, replace(p, extras=Extras(softcap=1e4)), p)
    lse = run(backend_named(backend), replace(p, q=1e3 * p.q, extras=Extras(softcap=0.5)), backward=False)["lse"]
    counts = torch.cat([torch.full((n,), float(n)) for n in (18, 5, 21)]).log().to(device)
    assert ((lse - counts[:, None]).abs() <= 0.5 + 1e-5).all()


@backends
def test_a_prefix_of_everything_is_no_mask(backend: str, device: str) -> None:
    p = inputs(device)
    assert_same(backend, replace(p, mask=Mask(causal=True, prefix=21)), p)


@backends
def test_a_bool_bias_hides_what_minus_infinity_hides(backend: str, device: str) -> None:
    p = inputs(device, bias="bool")
    q = replace(p, bias=torch.zeros(p.bias.shape, device=device).masked_fill(~p.bias, -torch.inf))
    assert_same(backend, p, q)
    if device == "cpu":  # on a GPU the two are two programs, and a multiplication may join another addition
        a, b = run(backend_named(backend), p), run(backend_named(backend), q)
        assert all(torch.equal(a[name], b[name]) for name in a)


@backends
@pytest.mark.parametrize("kind", ["key", "query", "place", "head"])
def test_the_gradient_of_a_broadcast_mask_is_the_sum_of_the_whole_one(backend: str, kind: str, device: str) -> None:
    p = random_problem(11, (17, 17), heads=4, heads_k=2, bias=kind, dlse=True, device=device)  # type: ignore[arg-type]
    whole = replace(p, bias=p.bias.expand(2, 4, 17, 17).contiguous())
    summed = run(backend_named(backend), whole)["dbias"].double().sum_to_size(p.bias.shape)
    got, budget = run(backend_named(backend), p)["dbias"], error_budget(p)
    assert (got - summed).abs().max() <= 2 * budget.allowed["dbias"][0]
    assert budget.truth["dbias"].abs().max() > 1e3 * budget.allowed["dbias"][0]


# Dropout.


@backends
def test_dropout_of_nothing_is_none_to_the_bit(backend: str, device: str) -> None:
    p = inputs(device)
    call = partial(attention, p.q, p.k, p.v, p.cu_seqlens, backend=backend)
    with_zero, without = call(dropout=0.0, dropout_seed=5), call()
    assert torch.equal(with_zero.out, without.out)
    assert torch.equal(with_zero.lse, without.lse)


def test_the_mask_of_dropout_is_written_out_and_every_backend_uses_it(device: str) -> None:
    """With v the unit vectors an output is its row of weights: what is kept there is `kept_weights`."""
    seed = torch.tensor([77], device=device)
    q, k = torch.randn(2, 24, 2, 32, device=device)
    v = torch.zeros(24, 2, 32, device=device)
    v[torch.arange(24), :, torch.arange(24)] = 1.0
    kept = kept_weights(seed, 0.4, 0, (0, 2), (0, 24), (0, 24))
    for backend in BACKENDS:
        out = attention(q, k, v, dropout=0.4, dropout_seed=seed, backend=backend).out[..., :24].transpose(0, 1)
        assert torch.equal(out > 0, kept), backend


def test_dropout_is_the_same_for_any_tiling_and_in_any_piece() -> None:
    p = random_problem(12, (33, 9), heads=4, extras=("dropout",), d=16)
    arguments = (p.q, p.k, p.v, p.cu_seqlens, p.cu_seqlens_k)
    budget = error_budget(p)
    for block_q, block_k in ((4, 7), (32, 5), (64, 64)):
        tiling = partial(tiled_attention, block_q=block_q, block_k=block_k)
        assert all(row.ok for row in check(run(tiling, p), budget)), (block_q, block_k)
    whole = exact_attention(*arguments, mask=Mask(), bias=None, scale=p.scale, extras=p.extras).out
    offsets = torch.tensor([0, 9], dtype=torch.int32)
    piece = replace(p.extras, origin=(1, 2))
    part = exact_attention(
        p.q[33:, 2:], p.k[33:, 2:], p.v[33:, 2:], offsets, offsets, mask=Mask(), bias=None, scale=p.scale, extras=piece
    ).out
    torch.testing.assert_close(part, whole[33:, 2:], rtol=1e-6, atol=1e-6)
    elsewhere = replace(piece, origin=(0, 2))
    other = exact_attention(
        p.q[33:, 2:], p.k[33:, 2:], p.v[33:, 2:], offsets, offsets, mask=Mask(), bias=None, scale=p.scale,
        extras=elsewhere,
    ).out  # fmt: skip
    assert (other - part).abs().max() > 0.1


@pytest.mark.parametrize("dropout", [0.1, 0.5, 0.9])
def test_the_share_that_is_kept(dropout: float) -> None:
    """2¹⁸ independent weights: the share is within five standard deviations, along every axis of the counter."""
    kept = kept_weights(torch.tensor([3]), dropout, 2, (0, 16), (0, 128), (0, 128)).double()
    for axes in ((0, 1), (0, 2), (1, 2)):
        shares = kept.mean(axes)
        n = kept.numel() // shares.numel()
        deviation = ((1 - dropout) * dropout / n) ** 0.5
        assert ((shares - (1 - dropout)).abs() < 5 * deviation).all()
    neighbours = kept[:, :, 1:] * kept[:, :, :-1]
    assert abs(float(neighbours.mean()) - (1 - dropout) ** 2) < 0.01


def test_the_generator_is_philox() -> None:
    """The known answers that accompany the generator's paper: zeros, ones, and digits of π, for ten rounds."""
    ones = 0xFFFFFFFF
    digits = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    cases = [((0,) * 4, 0, 0x6627E8D5), ((ones,) * 4, -1, 0x408F276D), (digits, 0x299F31D0A4093822, 0xD16CFE09)]
    for counter, key, word in cases:
        got = philox(torch.tensor([key]), *(torch.tensor([c]) for c in counter))
        assert int(got) == word, hex(int(got))


def test_dropout_draws_its_seed_from_torch(device: str) -> None:
    q = torch.randn(16, 2, 16, device=device)

    def draw() -> Tensor:
        return attention(q, q, q, dropout=0.3, backend="tiled").out

    torch.manual_seed(1)
    a, b = draw(), draw()
    torch.manual_seed(1)
    assert torch.equal(draw(), a)
    assert not torch.equal(a, b)


def test_dropout_leaves_the_mean(device: str) -> None:
    """Over many seeds the output is that without dropout: 400 draws, five standard errors."""
    p = random_problem(13, (12,), heads=1, d=8, device=device)
    outs = torch.stack(
        [attention(p.q, p.k, p.v, dropout=0.5, dropout_seed=seed, backend="tiled").out for seed in range(400)]
    ).double()
    plain = attention(p.q, p.k, p.v, backend="tiled").out
    assert ((outs.mean(0) - plain).abs() < 5 * outs.std(0) / 20).all()


def test_all_packs_of_equal_lengths_are_dense() -> None:
    assert is_dense(random_problem(0, (4, 4)))
    assert not is_dense(random_problem(0, (4, 5)))
    assert not is_dense(random_problem(0, (0, 0)))


# What is not finite, and numbers too large.


@backends
@pytest.mark.parametrize("extras", [{"softcap": 5.0}, {"sinks": True}, {"scales": True}], ids=str)
def test_what_is_hidden_and_not_finite_reaches_no_gradient(
    backend: str, extras: dict[str, object], device: str
) -> None:
    """Causal, more queries than keys: the first queries see nothing, the last key is seen by the last query alone."""
    p = random_problem(21, (12,), (8,), heads=2, heads_k=1, mask=Mask(causal=True), device=device)
    given = {name: torch.ones(2, device=device) if value is True else value for name, value in extras.items()}
    p = replace(p, extras=Extras(**given))  # type: ignore[arg-type]
    clean = run(backend_named(backend), p)
    q, k, v, do = (x.clone() for x in (p.q, p.k, p.v, p.do))
    q[0], do[1], k[-1], v[-1] = torch.nan, torch.inf, torch.nan, torch.inf
    results = run(backend_named(backend), replace(p, q=q, k=k, v=v, do=do))
    assert torch.equal(results["dq"][2:-1], clean["dq"][2:-1])
    blind = run(backend_named(backend), replace(p, q=q))
    for name in ("dk", "dv", "dscales", "dsinks"):
        if name in clean and name != "dsinks":
            assert torch.equal(blind[name], clean[name]), name


@backends
def test_the_least_number_of_float32_hides_nothing(backend: str, device: str) -> None:
    """A row whose every bias is that number is the mean of its values: the softmax of equal scores."""
    q, k, v = torch.randn(3, 9, 1, 16, device=device)
    bias = torch.full((9, 9), torch.finfo(torch.float32).min, device=device)
    out = attention(q, k, v, bias=bias, backend=backend).out
    torch.testing.assert_close(out, v.mean(0, keepdim=True).expand_as(out), rtol=1e-5, atol=1e-5)


@backends
def test_a_dropout_next_to_one_keeps_finite_numbers(backend: str, device: str) -> None:
    q = torch.randn(9, 1, 16, device=device)
    assert attention(q, q, q, dropout=1 - 1e-10, dropout_seed=1, backend=backend).out.isfinite().all()
