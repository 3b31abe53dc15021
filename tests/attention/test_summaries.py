"""What attended to what: the streamed summaries are those of the whole matrix, which none of them forms."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quantattn.attention import Attended, Mask, attention, attention_map, attention_summary, top_keys
from quantattn.attention.problems import EXTRAS, Problem, random_problem
from quantattn.attention.summary_exact import exact_map, exact_summary, exact_weights, summary_budget
from quantattn.attention.summary_tiles import Pack, block_sums, largest_weights, summarize
from quantattn.attention.testing import check

FLOAT64 = torch.float64
MASKS = [Mask(), Mask(causal=True), Mask(window=(5, 3)), Mask(window=(0, 0))]
LENGTHS, LENGTHS_K = (5, 0, 33, 17), (9, 3, 40, 0)
every_mask = pytest.mark.parametrize("mask", MASKS, ids=str)
bounds = st.one_of(st.none(), st.integers(0, 9))


def attended(p: Problem, backend: str = "tiled") -> Attended:
    return attention(p.q, p.k, p.v, **shared_arguments(p), sinks=p.extras.sinks, backend=backend)


def shared_arguments(p: Problem) -> dict[str, Any]:
    """Of attention and of every summary."""
    e = p.extras
    rest = {"cu_seqlens": p.cu_seqlens, "cu_seqlens_k": p.cu_seqlens_k, "mask": p.mask, "bias": p.bias}
    rest |= {"softcap": e.softcap, "alibi": e.alibi, "segments": e.segments, "segments_k": e.segments_k}
    return {**rest, "scale": p.scale if e.scales is None else p.scale * e.scales}


def arguments(p: Problem) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """Of every summary, for `p`: what comes before the queries or the offsets, and the rest by name."""
    return (p.q, p.k, attended(p).lse), shared_arguments(p)


def pack_of(p: Problem) -> Pack:
    rows, columns = (tuple(cu.tolist()) for cu in (p.cu_seqlens, p.cu_seqlens_k))
    return Pack(p.q, p.k, attended(p).lse, rows, columns, p.mask, p.bias, p.scale, p.extras)


def maps_of(p: Problem, sizes: tuple[int, int], tile: int) -> Tensor:
    pack = pack_of(p)
    return torch.cat([block_sums(pack.sequence(n), sizes, tile).flatten() for n in range(len(pack))])


def named(summary: tuple[Tensor, Tensor, Tensor]) -> dict[str, Tensor]:
    return dict(zip(("received", "entropy", "distance"), summary, strict=True))


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 1000),
    lengths=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=4),
    heads=st.sampled_from([(1, 1), (3, 1), (6, 2)]),
    causal=st.booleans(),
    window=st.one_of(st.none(), st.tuples(bounds, bounds)),
    prefix=st.sampled_from([0, 0, 1, 3, 8]),
    bias=st.sampled_from(["none", "key", "full", "bool"]),
    extras=st.sets(st.sampled_from([x for x in EXTRAS if x != "dropout"])),
    tiles=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    top=st.integers(1, 5),
    sizes=st.tuples(st.integers(1, 14), st.integers(1, 14)),
)
def test_all_of_them_are_those_of_the_matrix(
    seed: int, lengths: list[tuple[int, int]], heads: tuple[int, int], causal: bool, window: Any, prefix: int,
    bias: Any, extras: set[str], tiles: tuple[int, int], top: int, sizes: tuple[int, int],
) -> None:  # fmt: skip
    n_q, n_k = zip(*lengths, strict=True)
    p = random_problem(
        seed, n_q, n_k, heads=heads[0], heads_k=heads[1], d=3, mask=Mask(causal=causal, window=window, prefix=prefix),
        bias=bias, extras=sorted(extras), dtype=FLOAT64,
    )  # fmt: skip
    pack = pack_of(p)
    for got, expected in zip(summarize(pack, *tiles), exact_summary(pack), strict=True):
        close(got, expected)
    matrices = [exact_weights(pack, n) for n in range(len(pack))]
    for n, matrix in enumerate(matrices):
        sums = block_sums(pack.sequence(n), sizes, min(tiles))
        rows, columns = (torch.arange(m) // size for m, size in zip(matrix.shape[1:], sizes, strict=True))
        drawn = torch.zeros_like(sums)
        drawn.index_put_((torch.arange(heads[0])[:, None, None], rows[:, None], columns), matrix, accumulate=True)
        close(sums, drawn)
        close(exact_map(pack, n, sizes), drawn)
    queries = list(range(sum(n_q)))[::-2]
    weights, keys = largest_weights(pack, queries, top, *tiles)
    for row, w, j in zip(queries, weights, keys, strict=True):
        n = next(n for n in range(len(pack)) if pack.rows[n] <= row < pack.rows[n + 1])
        dense = matrices[n][:, row - pack.rows[n]]  # (H, Nk)
        expected, _ = torch.nn.functional.pad(dense, (0, top)).topk(top)
        close(w, expected)
        at = (j - pack.columns[n]).clamp(min=0)
        close(torch.nn.functional.pad(dense, (0, 1)).gather(-1, at).where(j >= 0, 0), w)
        assert all(len(set(kept)) == len(kept) for kept in ([x for x in head if x >= 0] for head in j.tolist()))


@pytest.mark.parametrize("backend", ["tiled", "exact"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@every_mask
def test_they_stay_within_the_budget(mask: Mask, dtype: torch.dtype, backend: str) -> None:
    p = random_problem(4, (67, 0, 31), (80, 3, 31), heads=4, heads_k=2, mask=mask, bias="full", dtype=dtype)
    positional, rest = arguments(p)
    rows = check(attention_summary(*positional, **rest, backend=backend)._asdict(), summary_budget(p))
    assert all(row.ok for row in rows), rows


@pytest.mark.parametrize("tiles", [(1, 64), (32, 7), (256, 256)])
def test_no_size_of_tiles_leaves_the_budget(tiles: tuple[int, int]) -> None:
    p = random_problem(5, (67, 31), mask=Mask(causal=True), heads=2)
    results = named(summarize(pack_of(p), *tiles)) | {"maps": maps_of(p, (9, 40), min(tiles))}
    rows = check(results, summary_budget(p, (9, 40)))
    assert all(row.ok for row in rows), rows


def test_the_budget_notices_mistakes() -> None:
    p = random_problem(6, (40,), (43,), mask=Mask(causal=True))
    budget, pack = summary_budget(p), pack_of(p)
    right = named(summarize(pack, 16, 16))
    wrong = {
        "another lse": named(summarize(replace(pack, lse=pack.lse + 1e-3), 16, 16)),
        "another mask": named(summarize(replace(pack, mask=Mask()), 16, 16)),
        "bits for nats": {"entropy": right["entropy"] / math.log(2)},
        "the queries beside the first keys": {"distance": right["distance"] + 3},
        "the neighbour's": {"received": right["received"].roll(1, 0)},
    }
    assert all(row.ok for row in check(right, budget))
    for mistake, results in wrong.items():
        assert not any(row.ok for row in check(results, budget)), mistake


@every_mask
@pytest.mark.parametrize("bias", ["none", "full"])
def test_what_the_keys_receive_is_what_the_queries_give(mask: Mask, bias: Any) -> None:
    """Σ_j received_j is the number of queries that see a key, in every head; an empty row has nothing at all."""
    p = random_problem(7, LENGTHS, LENGTHS_K, heads=4, heads_k=2, mask=mask, bias=bias, dtype=FLOAT64)
    positional, rest = arguments(p)
    received, entropy, distance = attention_summary(*positional, **rest)
    sees = positional[2] != -torch.inf
    close(received.sum(0), sees.sum(0).double())
    assert not entropy[~sees].any()
    assert not distance[~sees].any()
    some = top_keys(*positional, [*range(p.q.shape[0])], **rest, top=2)
    assert torch.equal(some.keys[..., 0] >= 0, sees)
    assert torch.equal(some.weights > 0, some.keys >= 0)


@every_mask
def test_entropy_is_at_most_that_of_equal_scores(mask: Mask) -> None:
    p = random_problem(8, (12, 9), (15, 9), heads=2, mask=mask, dtype=FLOAT64)
    visible = torch.cat([mask.visible(12, 15).sum(1), mask.visible(9, 9).sum(1)])[:, None].expand(21, 2)
    most = torch.log(visible.double())
    positional, rest = arguments(p)
    entropy = attention_summary(*positional, **rest).entropy
    assert bool((entropy <= most + 1e-12).all())
    assert bool((entropy[visible > 1] < most[visible > 1]).all())
    close(entropy[visible == 1], torch.zeros_like(entropy[visible == 1]))
    positional, rest = arguments(replace(p, q=p.q * 0))
    close(attention_summary(*positional, **rest).entropy, most)


@every_mask
def test_all_keys_of_a_query_make_its_output(mask: Mask) -> None:
    p = random_problem(9, LENGTHS, LENGTHS_K, heads=4, heads_k=2, mask=mask, bias="full", dtype=FLOAT64)
    positional, rest = arguments(p)
    queries = torch.tensor([3, 0, 54, 20, 20, 7])
    weights, keys = top_keys(*positional, queries, **rest, top=41)
    sees = (positional[2][queries] != -torch.inf).double()
    close(weights.sum(-1), sees)
    assert bool((weights.diff(dim=-1) <= 0).all())
    values = p.v.repeat_interleave(2, dim=1)[keys.clamp(min=0), torch.arange(4)[None, :, None]]  # (Q, H, top, D)
    close((weights[..., None] * values).sum(-2), attended(p).out[queries])


def test_the_earlier_of_equal_keys_comes_first() -> None:
    p = replace(random_problem(10, (9,), heads=1), q=torch.zeros(9, 1, 16))
    pack = pack_of(p)
    for block in (1, 2, 4, 16):
        assert largest_weights(pack, [8], 4, 4, block)[1].tolist() == [[[0, 1, 2, 3]]]


@every_mask
@pytest.mark.parametrize("blocks", [1, 7, (64, 3)])
def test_a_map_adds_up_by_row_and_by_column(mask: Mask, blocks: Any) -> None:
    p = random_problem(11, LENGTHS, LENGTHS_K, heads=2, mask=mask, dtype=FLOAT64)
    positional, rest = arguments(p)
    received = attention_summary(*positional, **rest).received
    for picture, n_q, k in zip(
        attention_map(*positional, **rest, blocks=blocks), LENGTHS, received.split(LENGTHS_K), strict=True
    ):
        sums, rows, columns = picture.sums, picture.query_edges, picture.key_edges
        assert sums.shape == (2, len(rows) - 1, len(columns) - 1)
        assert (rows[-1], columns[-1]) == (n_q, len(k))
        for j, (a, b) in enumerate(pairwise(columns)):
            close(sums[:, :, j].sum(1), k[a:b].sum(0))
        sees = mask.visible(n_q, len(k)).any(1).double()
        for i, (a, b) in enumerate(pairwise(rows)):
            close(sums[:, i].sum(1), sees[a:b].sum().expand(2))
            close(picture.shares[:, i].sum(1), sees[a:b].mean().expand(2))


def test_as_many_blocks_as_places_draw_the_matrix() -> None:
    p = random_problem(12, (7,), (11,), mask=Mask(causal=True), dtype=FLOAT64)
    positional, rest = arguments(p)
    (picture,) = attention_map(*positional, **rest, blocks=64)
    close(picture.sums, exact_weights(pack_of(p), 0))
    assert picture.query_edges == tuple(range(8))


def test_permuting_the_keys_permutes_what_they_receive() -> None:
    p = random_problem(13, (20,), (31,), heads=4, heads_k=2, dtype=FLOAT64)
    order = torch.randperm(31, generator=torch.Generator().manual_seed(0))
    results = []
    for problem in (p, replace(p, k=p.k[order], v=p.v[order])):
        positional, rest = arguments(problem)
        results.append((attention_summary(*positional, **rest), top_keys(*positional, [4, 19], **rest, top=6)))
    (a, top_a), (b, top_b) = results
    close(a.received[order], b.received)
    close(a.entropy, b.entropy)
    close(top_a.weights, top_b.weights)
    assert torch.equal(top_a.keys, order[top_b.keys])


def test_a_sequence_does_not_notice_its_neighbours_to_the_bit() -> None:
    p = random_problem(14, LENGTHS, LENGTHS_K, heads=2, mask=Mask(causal=True))
    positional, rest = arguments(p)
    together, pictures = attention_summary(*positional, **rest), attention_map(*positional, **rest, blocks=5)
    rows, columns = (pairwise(cu.tolist()) for cu in (p.cu_seqlens, p.cu_seqlens_k))
    for n, ((a, b), (c, d)) in enumerate(zip(rows, columns, strict=True)):
        q, k, lse = positional[0][a:b], positional[1][c:d], positional[2][a:b]
        alone = attention_summary(q, k, lse, mask=p.mask, scale=p.scale)
        assert torch.equal(alone.received, together.received[c:d])
        assert torch.equal(alone.entropy, together.entropy[a:b])
        assert torch.equal(alone.distance, together.distance[a:b])
        (picture,) = attention_map(q, k, lse, mask=p.mask, scale=p.scale, blocks=5)
        assert torch.equal(picture.sums, pictures[n].sums)


def test_dense_batches_are_packs_of_equal_lengths() -> None:
    p = random_problem(15, (12, 12, 12), (14, 14, 14), heads=4, heads_k=2, mask=Mask(causal=True), bias="full")
    positional, rest = arguments(p)
    wide = [x.view(3, -1, *x.shape[1:]) for x in positional]
    same = {"mask": p.mask, "bias": p.bias, "scale": p.scale}
    for a, b in zip(attention_summary(*wide, **same), attention_summary(*positional, **rest), strict=True):
        assert torch.equal(a.flatten(0, 1), b)
    for a, b in zip(attention_map(*wide, **same), attention_map(*positional, **rest), strict=True):
        assert torch.equal(a.sums, b.sums)
    dense = top_keys(*wide, [11, 2], **same, top=3)
    packed = top_keys(*positional, [11, 2, 23, 14, 35, 26], **rest, top=3)
    assert torch.equal(dense.weights.flatten(0, 1), packed.weights)
    offsets = torch.tensor([0, 0, 14, 14, 28, 28])[:, None, None]
    assert torch.equal(dense.keys.flatten(0, 1), torch.where(packed.keys < 0, -1, packed.keys - offsets))


@pytest.mark.parametrize("planted", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("backend", ["tiled", "exact"])
def test_what_is_not_finite_reaches_only_those_who_see_it(planted: float, backend: str) -> None:
    """In a key: the queries that see it, and the keys that those see. In an empty row: nobody."""
    clean = random_problem(16, (13, 30), (13, 21), mask=Mask(causal=True), dtype=FLOAT64)
    victim = 20
    k, q = clean.k.clone(), clean.q.clone()
    k[victim, :, 2] = planted
    q[13 + 4] = planted  # of the second sequence's first nine queries, which see no key
    before, rest = arguments(clean)
    after, _ = arguments(replace(clean, k=k, q=q))
    one = attention_summary(*before, **rest, backend=backend)
    two = attention_summary(*after, **rest, backend=backend)
    first_to_see = 13 + (victim - 13) + 9
    assert torch.equal(one.entropy[:first_to_see], two.entropy[:first_to_see])
    assert torch.equal(one.distance[:first_to_see], two.distance[:first_to_see])
    assert torch.equal(one.received[:13], two.received[:13])
    assert not torch.equal(one.entropy[first_to_see:], two.entropy[first_to_see:])
    early = [*range(first_to_see)]
    assert torch.equal(top_keys(*before, early, **rest).weights, top_keys(*after, early, **rest).weights)
    assert torch.equal(attention_map(*before, **rest)[0].sums, attention_map(*after, **rest)[0].sums)


def test_shards_of_the_keys_add_up_to_the_whole() -> None:
    p = random_problem(17, (20,), (31,), dtype=FLOAT64)
    positional, rest = arguments(p)
    q, k, lse = positional
    whole = attention_summary(q, k, lse, scale=p.scale)
    parts = [attention_summary(q, k[at], lse, scale=p.scale) for at in (slice(0, 12), slice(12, 31))]
    close(torch.cat([part.received for part in parts]), whole.received)
    close(parts[0].entropy + parts[1].entropy, whole.entropy)
    assert rest["mask"] == Mask()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, FLOAT64], ids=str)
def test_the_worked_example(dtype: torch.dtype) -> None:
    """Scores (0, ln 2, ln 3): weights (1, 2, 3)/6, the query beside the last of three keys."""
    bias = torch.tensor([0.0, math.log(2), math.log(3)], dtype=FLOAT64 if dtype == FLOAT64 else torch.float32)
    q, k = torch.zeros(1, 1, 4, dtype=dtype), torch.zeros(3, 1, 4, dtype=dtype)
    lse = attention(q, k, k, bias=bias, backend="tiled").lse
    summary = attention_summary(q, k, lse, bias=bias)
    tolerance = 1e-14 if dtype == FLOAT64 else 1e-6
    assert summary.received.flatten().tolist() == pytest.approx([1 / 6, 2 / 6, 3 / 6], abs=tolerance)
    nats = math.log(6) - (2 * math.log(2) + 3 * math.log(3)) / 6
    assert summary.entropy.item() == pytest.approx(nats, abs=tolerance)
    assert summary.distance.item() == pytest.approx((1 * 2 + 2 * 1 + 3 * 0) / 6, abs=tolerance)
    best = top_keys(q, k, lse, [0], bias=bias, top=4)
    assert best.keys.flatten().tolist() == [2, 1, 0, -1]
    assert best.weights.flatten().tolist() == pytest.approx([3 / 6, 2 / 6, 1 / 6, 0], abs=tolerance)
    (picture,) = attention_map(q, k, lse, bias=bias, blocks=(1, 2))
    assert picture.key_edges == (0, 2, 3)
    assert picture.sums.flatten().tolist() == pytest.approx([3 / 6, 3 / 6], abs=tolerance)


@pytest.mark.parametrize("scale", [-0.7, 0.0, 3.0])
def test_any_sign_of_the_scale(scale: float) -> None:
    p = replace(random_problem(18, (19,), mask=Mask(causal=True)), scale=scale)
    rows = check(named(summarize(pack_of(p), 8, 8)), summary_budget(p))
    assert all(row.ok for row in rows), rows


def test_nothing_to_look_at() -> None:
    empty, full = torch.zeros(0, 2, 8), torch.randn(6, 2, 8)
    none = attention_summary(empty, full, torch.zeros(0, 2))
    assert not none.received.any()
    assert none.entropy.shape == (0, 2)
    unseen = torch.full((6, 2), -torch.inf)
    assert attention_summary(full, empty, unseen).received.shape == (0, 2)
    assert not attention_summary(full, empty, unseen).entropy.any()
    assert bool((top_keys(full, empty, unseen, [1], top=2).keys == -1).all())
    assert attention_map(full, empty, unseen)[0].sums.shape == (2, 6, 0)
    no_sequence = torch.zeros(1, dtype=torch.int32)
    for backend in ("tiled", "exact"):
        assert attention_summary(empty, empty, torch.zeros(0, 2), no_sequence, backend=backend).entropy.shape == (0, 2)
    assert attention_map(empty, empty, torch.zeros(0, 2), no_sequence) == []
    assert top_keys(full, full, attention(full, full, full).lse, []).keys.shape == (0, 2, 8)
