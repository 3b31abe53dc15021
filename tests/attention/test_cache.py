"""A stream in pieces is the sequence at once, to the bit."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quantattn.attention import Attended, KeyValueCache, Mask, attention, cache
from quantattn.attention.tiling import ORDERED_K

CAUSAL = Mask(causal=True)


def draw(n: int, *, heads: int = 2, heads_k: int = 1, d: int = 8, device: str = "cpu", **options: Any) -> list[Tensor]:
    rng = torch.Generator().manual_seed(n)
    return [torch.randn(n, h, d, generator=rng).to(device, **options) for h in (heads, heads_k, heads_k)]


def at_once(q: Tensor, k: Tensor, v: Tensor, mask: Mask, backend: str, **options: Any) -> Attended:
    return attention(q, k, v, mask=mask, deterministic="batch", backend=backend, **options)


def stream(q: Tensor, k: Tensor, v: Tensor, cuts: list[int], held: KeyValueCache, **options: Any) -> Attended:
    """Everything in pieces that begin and end at the cuts."""
    parts = []
    for a, b in pairwise(cuts):
        held.append(k[..., a:b, :, :], v[..., a:b, :, :])
        parts.append(held.attend(q[..., a:b, :, :], **options))
    return Attended(torch.cat([p.out for p in parts], -3), torch.cat([p.lse for p in parts], -2))


def same(a: Attended, b: Attended) -> bool:
    assert a.out.shape == b.out.shape
    return torch.equal(a.out, b.out) and torch.equal(a.lse, b.lse)


@settings(max_examples=25, deadline=None)
@given(data=st.data(), left=st.sampled_from([None, 0, 3, 40, 300]), heads=st.sampled_from([(1, 1), (4, 4), (6, 2)]))
def test_any_pieces_are_the_sequence_at_once(data: st.DataObject, left: int | None, heads: tuple[int, int]) -> None:
    n = data.draw(st.integers(1, 900))
    cuts = sorted(data.draw(st.sets(st.integers(0, n), max_size=12)) | {0, n})
    mask = Mask(causal=True, window=None if left is None else (left, 0))
    q, k, v = draw(n, heads=heads[0], heads_k=heads[1])
    held = KeyValueCache(mask=mask, backend="tiled")
    assert same(stream(q, k, v, cuts, held), at_once(q, k, v, mask, "tiled"))
    assert held.length == n
    if left is not None:
        assert held.held < left + ORDERED_K + max(b - a for a, b in pairwise(cuts)) + 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_every_dtype_and_every_option_that_a_stream_has(dtype: torch.dtype) -> None:
    q, k, v = draw(330, heads=4, heads_k=2, dtype=dtype)
    options = {
        "scale": torch.tensor([0.3, -0.2, 1.0, 0.0]),
        "softcap": 5.0,
        "alibi": torch.tensor([0.1, 0.2, 0.0, 1.0]),
        "sinks": torch.tensor([0.0, 1.0, -torch.inf, 2.0]),
    }
    mask = Mask(causal=True, window=(30, 0))
    got = stream(q, k, v, [0, 100, 290, 291, 320, 330], KeyValueCache(mask=mask, backend="tiled"), **options)
    assert same(got, at_once(q, k, v, mask, "tiled", **options))


@pytest.mark.parametrize("backend", ["tiled", "auto"])
def test_streams_in_step_are_each_alone(backend: str) -> None:
    q, k, v = (x.view(3, 100, *x.shape[1:]) for x in draw(300))
    together = stream(q, k, v, [0, 1, 60, 100], KeyValueCache(backend=backend))
    for i in range(3):
        alone = stream(q[i], k[i], v[i], [0, 30, 31, 100], KeyValueCache(backend=backend))
        assert same(alone, Attended(together.out[i], together.lse[i]))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("left", [None, 37])
def test_the_kernels_too(dtype: torch.dtype, left: int | None, device: str) -> None:
    """Under the interpreter pieces begin where its tiles of 16 do: numpy sums a row by its place in a matrix."""
    pytest.importorskip("triton")
    cuts = [0, 16, 48, 49] if left is None else [0, 288, 304, 307]
    if device == "cuda":
        cuts = [0, 1, 30, 333, 334, 335, 999, 1500]
    mask = Mask(causal=True, window=None if left is None else (left, 0))
    q, k, v = draw(cuts[-1], d=64, device=device, dtype=dtype)
    held = KeyValueCache(mask=mask, backend="triton")
    assert same(stream(q, k, v, cuts, held), at_once(q, k, v, mask, "triton"))
    assert (held.first > 0) == (left is not None)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("backend", ["tiled", "triton"])
def test_without_the_mode_the_bits_are_others(backend: str, device: str) -> None:
    """The control: queries one by one where the kernels' tiles begin, a window that their tiles cut elsewhere."""
    if backend == "triton":
        pytest.importorskip("triton")
    step = 128 if device == "cuda" else 16
    n, mask = 6 * step, Mask(causal=True, window=(2 * step + 5, 0))
    q, k, v = draw(n, d=64, device=device if backend == "triton" else "cpu")
    places = range(3 * step, n, step)
    outs = {}
    for mode in ("batch", True):
        options = {"mask": mask, "backend": backend, "deterministic": mode}
        whole = attention(q, k, v, **options)
        alone = [attention(q[i : i + 1], k[: i + 1], v[: i + 1], **options) for i in places]
        outs[mode] = torch.equal(torch.cat([a.out for a in alone]), whole.out[list(places)])
    assert outs == {"batch": True, True: False}


def test_a_block_let_go_in_part_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: 100 keys are no whole number of blocks, and what stays moves inside them."""
    q, k, v = draw(700)
    mask = Mask(causal=True, window=(300, 0))
    expected = at_once(q, k, v, mask, "tiled")
    cuts = [*range(0, 701, 50)]
    assert same(stream(q, k, v, cuts, KeyValueCache(mask=mask, backend="tiled")), expected)
    monkeypatch.setattr(cache, "ORDERED_K", 100)
    assert not same(stream(q, k, v, cuts, KeyValueCache(mask=mask, backend="tiled")), expected)


@settings(max_examples=15, deadline=None)
@given(data=st.data(), left=st.sampled_from([None, 20, 300]))
def test_what_is_taken_back_was_never_there(data: st.DataObject, left: int | None) -> None:
    mask = Mask(causal=True, window=None if left is None else (left, 0))
    q, k, v = draw(800)
    expected = at_once(q, k, v, mask, "tiled")
    held = KeyValueCache(mask=mask, margin=60, backend="tiled")
    while held.length < 800:
        a = held.length
        b = min(800, a + data.draw(st.integers(1, 300)))
        wrong = data.draw(st.integers(0, 60))
        held.append(v[:wrong], k[:wrong])
        held.rollback(wrong)
        held.append(k[a:b], v[a:b])
        got = held.attend(q[a:b])
        assert same(got, Attended(expected.out[a:b], expected.lse[a:b]))


def test_a_fork_and_its_origin_do_not_see_each_other() -> None:
    q, k, v = draw(600)
    mask = Mask(causal=True, window=(20, 0))
    origin = KeyValueCache(mask=mask, backend="tiled")
    stream(q[:550], k[:550], v[:550], [0, 300, 550], origin)
    branch = origin.fork()
    assert branch.first == origin.first > 0
    assert same(
        stream(q[550:], v[550:], k[550:], [0, 50], branch),
        Attended(
            *(x[550:] for x in at_once(q, torch.cat([k[:550], v[550:]]), torch.cat([v[:550], k[550:]]), mask, "tiled"))
        ),
    )
    assert same(
        stream(q[550:], k[550:], v[550:], [0, 1, 50], origin),
        Attended(*(x[550:] for x in at_once(q, k, v, mask, "tiled"))),
    )
    branch.rollback(50)
    assert branch.length == 550
    assert KeyValueCache().fork().length == 0


def test_buffers_grow_with_what_is_held_and_not_with_the_stream() -> None:
    _, k, v = draw(64)
    held = KeyValueCache(mask=Mask(causal=True, window=(500, 0)))
    sizes, moves = [], 0
    for _ in range(400):
        before = held._k
        held.append(k, v)
        moves += held._k is not before
        sizes.append(held.nbytes)
    row = 2 * 8 * 4
    assert max(sizes) <= 2 * row * (500 + ORDERED_K + 2 * 64)
    assert moves < 400 * 64 / 500
    endless = KeyValueCache()
    moves = 0
    for _ in range(400):
        before = endless._k
        endless.append(k, v)
        moves += endless._k is not before
    assert endless.held == 400 * 64
    assert moves < 10


def test_what_cannot_be_meant_is_refused() -> None:
    q, k, v = draw(700)
    for wrong, match in (
        ({"mask": Mask()}, "causal mask"),
        ({"mask": Mask(causal=True, window=(4, 0), prefix=2)}, "causal mask"),
        ({"margin": -1}, "margin counts tokens"),
    ):
        with pytest.raises(ValueError, match=match):
            KeyValueCache(**wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="mask must be a Mask"):
        KeyValueCache(mask=None)  # type: ignore[arg-type]
    held = KeyValueCache(mask=Mask(causal=True, window=(100, 0)), backend="tiled")
    with pytest.raises(ValueError, match="empty"):
        held.attend(q[:1])
    with pytest.raises(ValueError, match="no gradient"):
        held.append(k.requires_grad_(), v)
    k = k.detach()
    with pytest.raises(ValueError, match="both be"):
        held.append(k, v[:, :, :4])
    with pytest.raises(TypeError, match="must be tensors"):
        held.append(k, None)  # type: ignore[arg-type]
    held.append(k[:600], v[:600])
    with pytest.raises(ValueError, match=r"as the first ones, \(n, 1, 8\) torch.float32 cpu, got"):
        held.append(k.double(), v.double())
    with pytest.raises(ValueError, match=r"as the first ones, \(n, 1, 8\) .*, got k \(1, 700, 1, 8\)"):
        held.append(k[None], v[None])
    with pytest.raises(ValueError, match="701 queries and 600 tokens"):
        held.attend(torch.zeros(701, 2, 8))
    with pytest.raises(ValueError, match="3 axes"):
        held.attend(q[None])
    held.append(k[600:], v[600:])
    assert held.first == ORDERED_K
    held.attend(q[-100:])
    with pytest.raises(ValueError, match="place 100 sees keys from 0 on, held from 256 on"):
        held.attend(q[-600:])
    with pytest.raises(ValueError, match="margin=0"):
        held.rollback(600)
    with pytest.raises(ValueError, match="rollback takes"):
        held.rollback(701)
    assert held.length == 700


def test_the_newest_queries_have_gradients() -> None:
    q, k, v = draw(40)
    held = KeyValueCache(backend="tiled")
    held.append(k, v)
    q = q[-3:].requires_grad_()
    (dq,) = torch.autograd.grad(held.attend(q).out.sum(), q)
    (expected,) = torch.autograd.grad(at_once(q, k, v, CAUSAL, "tiled").out.sum(), q)
    assert torch.equal(dq, expected)


def test_memory_follows_what_is_held_also_after_a_long_first_piece() -> None:
    cache = KeyValueCache(mask=Mask(causal=True, window=(256, 0)))
    row = torch.randn(1, 1, 4)
    cache.append(row.expand(20_000, 1, 4), row.expand(20_000, 1, 4))
    for _ in range(600):
        cache.append(row, row)
    assert cache.nbytes <= 2 * 2 * 2 * cache.held * row.nbytes
