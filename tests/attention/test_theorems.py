"""What must hold of attention whoever computes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from quantattn.attention.exact import exact_attention
from quantattn.attention.mask import Mask
from quantattn.attention.problems import Problem, random_problem
from quantattn.attention.sdpa import sdpa_attention
from quantattn.attention.testing import Backend, run
from quantattn.attention.tiled import tiled_attention

BACKENDS = {
    "exact": exact_attention,
    "tiled": tiled_attention,
    "tiled 5x3": partial(tiled_attention, block_q=5, block_k=3),
    "sdpa": sdpa_attention,
}
FULL, CAUSAL, WINDOW = Mask(), Mask(causal=True), Mask(window=(4, 2))
LENGTHS, LENGTHS_K = (7, 0, 19, 3), (9, 4, 19, 0)

backends = pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)


def problem(mask: Mask = CAUSAL, dtype: torch.dtype = torch.float64, seed: int = 0, **options: object) -> Problem:
    settings = {"lengths": LENGTHS, "lengths_k": LENGTHS_K, "heads": 4, "heads_k": 2, "d": 8, "dlse": True} | options
    return random_problem(seed, mask=mask, dtype=dtype, **settings)  # type: ignore[arg-type]


def masks_of(backend: Backend) -> tuple[Mask, ...]:
    return (FULL, CAUSAL) if backend is sdpa_attention else (FULL, CAUSAL, WINDOW)


def close(a: dict[str, Tensor], b: dict[str, Tensor], rtol: float = 1e-10) -> None:
    for name, x in a.items():
        torch.testing.assert_close(x, b[name], rtol=rtol, atol=rtol / 10, msg=lambda text, name=name: f"{name}: {text}")


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    for name in a:
        assert torch.equal(a[name], b[name]), f"{name} differs by {(a[name] - b[name]).abs().max()}"


@backends
def test_permuting_the_keys_changes_nothing(backend: Backend) -> None:
    p = problem(FULL, lengths=(11,), lengths_k=(13,))
    order = torch.randperm(13, generator=torch.Generator().manual_seed(1))
    a, b = run(backend, p), run(backend, replace(p, k=p.k[order], v=p.v[order]))
    a["dk"], a["dv"] = a["dk"][order], a["dv"][order]
    close(a, b)


@backends
def test_permuting_the_sequences_permutes_the_results_to_the_bit(backend: Backend) -> None:
    for mask in masks_of(backend):
        p = problem(mask, torch.float32)
        rows = [torch.arange(a, b) for a, b in zip(p.cu_seqlens[:-1], p.cu_seqlens[1:], strict=True)]
        columns = [torch.arange(a, b) for a, b in zip(p.cu_seqlens_k[:-1], p.cu_seqlens_k[1:], strict=True)]
        order = (2, 3, 0, 1)
        i, j = torch.cat([rows[n] for n in order]), torch.cat([columns[n] for n in order])
        q = problem(mask, torch.float32, lengths=[LENGTHS[n] for n in order], lengths_k=[LENGTHS_K[n] for n in order])
        assert p.dlse is not None
        moved = replace(q, q=p.q[i], k=p.k[j], v=p.v[j], do=p.do[i], dlse=p.dlse[i])
        a, b = run(backend, p), run(backend, moved)
        equal({name: x[j if name in ("dk", "dv") else i] for name, x in a.items()}, b)


@backends
def test_a_sequence_does_not_notice_its_neighbours_to_the_bit(backend: Backend) -> None:
    for mask in masks_of(backend):
        p = problem(mask, torch.bfloat16)
        r, c = slice(7, 26), slice(13, 32)  # the third sequence
        alone = problem(mask, torch.bfloat16, lengths=LENGTHS[2:3], lengths_k=LENGTHS_K[2:3])
        assert p.dlse is not None
        alone = replace(alone, q=p.q[r], k=p.k[c], v=p.v[c], do=p.do[r], dlse=p.dlse[r])
        together = run(backend, p)
        equal({name: x[c if name in ("dk", "dv") else r] for name, x in together.items()}, run(backend, alone))


@backends
def test_adding_a_constant_to_the_scores_of_a_query_shifts_lse_alone(backend: Backend) -> None:
    for mask in masks_of(backend):
        p = problem(mask)
        shift = torch.randn(1, 2, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        a, b = run(backend, p, backward=False), run(backend, replace(p, k=p.k + shift), backward=False)
        close({"out": a["out"]}, {"out": b["out"]})
        moved = (p.q.unflatten(1, (2, 2)) * shift[:, :, None]).sum(-1).flatten(1) * p.scale
        close({"lse": a["lse"] + moved}, {"lse": b["lse"]})


@backends
def test_hidden_is_the_same_as_removed(backend: Backend) -> None:
    for mask in masks_of(backend):
        p = problem(mask, lengths=(6,), lengths_k=(9,))
        together = run(backend, p, backward=False)
        seen = mask.visible(6, 9)
        for i in range(6):
            alone = replace(
                p,
                q=p.q[i : i + 1],
                k=p.k[seen[i]],
                v=p.v[seen[i]],
                cu_seqlens=p.cu_seqlens.new_tensor([0, 1]),
                cu_seqlens_k=p.cu_seqlens.new_tensor([0, int(seen[i].sum())]),
                mask=FULL,
            )
            close({n: x[i : i + 1] for n, x in together.items()}, run(exact_attention, alone, backward=False))


@pytest.mark.parametrize("backend", [exact_attention, BACKENDS["tiled 5x3"]], ids=["exact", "tiled 5x3"])
def test_a_bias_of_minus_infinity_removes_a_key(backend: Backend) -> None:
    p = problem(FULL, lengths=(6,), lengths_k=(9,))
    keep = torch.tensor([True, False, True, True, False, False, True, True, True])
    hidden = torch.zeros(9, dtype=torch.float64).masked_fill(~keep, -torch.inf)
    dirty_k, dirty_v = p.k.clone(), p.v.clone()
    dirty_k[~keep], dirty_v[~keep] = torch.nan, torch.inf
    a = run(backend, replace(p, bias=hidden, k=dirty_k, v=dirty_v))
    removed = replace(p, k=p.k[keep], v=p.v[keep], cu_seqlens_k=p.cu_seqlens.new_tensor([0, int(keep.sum())]))
    assert not a["dk"][~keep].any()
    assert not a["dv"][~keep].any()
    close({n: x[keep] if n in ("dk", "dv") else x for n, x in a.items() if n != "dbias"}, run(backend, removed))
    assert bool(a["dbias"].isfinite().all())


@backends
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_what_no_query_sees_reaches_nothing(backend: Backend, poison: float) -> None:
    """Causal with fewer queries than keys sees all keys; a window hides the first ones from every query."""
    for mask in masks_of(backend)[2:] or (CAUSAL,):
        p = problem(mask, torch.float32, lengths=(4, 3), lengths_k=(12, 1))
        unseen = ~torch.cat([mask.visible(4, 12).any(0), mask.visible(3, 1).any(0)])
        blind = ~torch.cat([mask.visible(4, 12).any(1), mask.visible(3, 1).any(1)])
        q, k, v, do = p.q.clone(), p.k.clone(), p.v.clone(), p.do.clone()
        k[unseen] = v[unseen] = poison
        q[blind] = do[blind] = poison
        assert bool(unseen.any() or blind.any())
        a, b = run(backend, p), run(backend, replace(p, q=q, k=k, v=v, do=do))
        close(a, b, 1e-4) if backend is sdpa_attention else equal(a, b)  # sdpa goes by blocks where it meets a NaN
        assert not b["dk"][unseen].any()
        assert not b["dq"][blind].any()


@backends
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_the_future_does_not_reach_the_past_to_the_bit(backend: Backend, poison: float) -> None:
    p, t = problem(CAUSAL, torch.float32, lengths=(23,), lengths_k=(23,)), 12
    clean = {name: run(backend, p)[name][:t] for name in ("out", "lse", "dq")}
    for new in (-p.k[t:], torch.full((11, 2, 8), poison)):
        k, v = p.k.clone(), p.v.clone()
        k[t:], v[t:] = new, new
        changed = run(backend, replace(p, k=k, v=v))
        by_blocks = backend is sdpa_attention and not bool(new.isfinite().all())
        close(clean, {n: x[:t] for n, x in changed.items()}, 1e-4 if by_blocks else 0)
    assert not bool(changed["out"][t:].isfinite().any())


@backends
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_a_query_does_not_reach_the_keys_that_it_does_not_see(backend: Backend, poison: float) -> None:
    p, t = problem(CAUSAL, torch.float32, lengths=(23,), lengths_k=(23,), dlse=False), 12
    q, do = p.q.clone(), p.do.clone()
    q[:t], do[:t] = poison, poison
    clean = {name: x[t:] for name, x in run(backend, p).items()}
    for dirty in (replace(p, q=q), replace(p, do=do), replace(p, q=q, do=do)):
        close(clean, {name: x[t:] for name, x in run(backend, dirty).items()}, 1e-4)


@backends
def test_a_query_that_sees_nothing_gives_zeros(backend: Backend) -> None:
    p = problem(CAUSAL, torch.float32, lengths=(5, 3), lengths_k=(2, 0))
    r = run(backend, p)
    blind = torch.tensor([True, True, True, False, False, True, True, True])
    assert not r["out"][blind].any()
    assert bool((r["lse"][blind] == -torch.inf).all())
    assert not r["dq"][blind].any()
    assert bool(torch.isfinite(r["lse"][~blind]).all())
    with torch.autograd.set_detect_anomaly(True):  # not even in between is there a NaN
        equal(r, run(backend, p))


@backends
@pytest.mark.parametrize(("lengths", "lengths_k"), [((0,), (0,)), ((0,), (4,)), ((3,), (0,)), ((), ())])
def test_no_queries_and_no_keys_are_problems_too(
    backend: Backend, lengths: tuple[int, ...], lengths_k: tuple[int, ...]
) -> None:
    p = problem(CAUSAL, torch.float32, lengths=lengths, lengths_k=lengths_k)
    r = run(backend, p)
    assert r["out"].shape == p.q.shape
    assert bool((r["lse"] == -torch.inf).all())
    assert not any(bool(r[name].any()) for name in ("out", "dq", "dk", "dv"))


@backends
def test_when_only_lse_has_a_gradient_the_values_have_none(backend: Backend) -> None:
    for mask in masks_of(backend):
        p = problem(mask)
        r = run(backend, replace(p, do=torch.zeros_like(p.do)))
        assert not r["dv"].any()
        assert bool(r["dq"].any())
        assert bool(r["dk"].any())


@backends
def test_the_gradient_of_lse_is_its_slope(backend: Backend) -> None:
    """Central differences along one random direction."""
    p = problem(CAUSAL)
    assert p.dlse is not None
    p = replace(p, do=torch.zeros_like(p.do), dlse=p.dlse.double())
    r = run(backend, p)
    rng, h = torch.Generator().manual_seed(5), 1e-6
    dq, dk = (torch.randn(x.shape, generator=rng, dtype=x.dtype) for x in (p.q, p.k))

    def loss(step: float) -> Tensor:
        lse = run(backend, replace(p, q=p.q + step * dq, k=p.k + step * dk), backward=False)["lse"]
        return (lse.where(lse.isfinite(), 0) * p.dlse).sum()

    slope = (loss(h) - loss(-h)) / (2 * h)
    torch.testing.assert_close((r["dq"] * dq).sum() + (r["dk"] * dk).sum(), slope, rtol=1e-6, atol=1e-8)


@backends
def test_linear_in_the_values(backend: Backend) -> None:
    for mask in masks_of(backend):
        p, other = problem(mask), problem(mask, seed=1)
        a, b = (run(backend, replace(p, v=v), backward=False)["out"] for v in (p.v, other.v))
        both = run(backend, replace(p, v=2 * p.v - 3 * other.v), backward=False)["out"]
        close({"out": 2 * a - 3 * b}, {"out": both})


@backends
def test_inside_the_convex_hull_of_the_values(backend: Backend) -> None:
    for mask in masks_of(backend):
        p = problem(mask, lengths=(9,), lengths_k=(9,))
        out = run(backend, p, backward=False)["out"]
        v = p.v.repeat_interleave(2, dim=1)  # (Nk, H, D)
        seen = mask.visible(9, 9)[:, :, None, None]
        assert bool((out <= v.where(seen, -torch.inf).amax(1) + 1e-12).all())
        assert bool((out >= v.where(seen, torch.inf).amin(1) - 1e-12).all())


@backends
def test_the_same_input_gives_the_same_bits(backend: Backend) -> None:
    p = problem(CAUSAL, torch.bfloat16)
    equal(run(backend, p), run(backend, p))


@backends
@pytest.mark.parametrize("view", ["expanded", "transposed", "offset", "strided"])
def test_every_tensor_has_its_own_strides(backend: Backend, view: str) -> None:
    p = problem(FULL, lengths=(9,), lengths_k=(9,), heads_k=4)
    shapes: dict[str, Callable[[Tensor], Tensor]] = {
        "expanded": lambda x: x[:, :1].expand(-1, 4, -1),
        "transposed": lambda x: x.permute(2, 1, 0).contiguous().permute(2, 1, 0),
        "offset": lambda x: torch.cat([x, x, x])[9:18],
        "strided": lambda x: x.repeat_interleave(2, dim=2)[..., ::2],
    }
    viewed = replace(p, **{name: shapes[view](getattr(p, name)) for name in ("q", "k", "v", "do")})
    plain = replace(viewed, **{name: getattr(viewed, name).contiguous() for name in ("q", "k", "v", "do")})
    close(run(backend, viewed), run(backend, plain))
