"""The kernels of the summaries against the specification, and what the assembler says of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from quantattn.attention import AttentionSummary, Mask, attention, attention_map, attention_summary
from quantattn.attention.extras import Extras
from quantattn.attention.problems import Problem, random_problem
from quantattn.attention.seen import bias_of_sequence
from quantattn.attention.summary_exact import summary_budget
from quantattn.attention.summary_ops import arguments, attention_map_op, attention_summary_op
from quantattn.attention.testing import check

pytest.importorskip("triton")
from quantattn.attention.kernels import summaries
from quantattn.attention.kernels.configs import Config
from quantattn.attention.kernels.launch import Problem as Launched
from quantattn.attention.kernels.launch import capability

# The interpreter computes NaN and inf through numpy, which warns about the very values that these tests plant.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

DTYPES = [torch.float32, torch.float16] + ([torch.bfloat16] if torch.cuda.is_available() else [])
# Blocks on a GPU are up to 128 rows, under the interpreter 16: lengths and windows grow with them.
GROW = 19 if torch.cuda.is_available() else 1


def grown(*lengths: int) -> tuple[int, ...]:
    return tuple(GROW * length for length in lengths)


LENGTHS = (grown(5, 0, 33, 7), grown(9, 3, 40, 0))
MASKS = [Mask(), Mask(causal=True), Mask(window=grown(5, 3)), Mask(window=(20 * GROW, None))]


def shared_arguments(p: Problem) -> dict[str, Any]:
    """Of attention and of its summaries."""
    e = p.extras
    same = {"softcap": e.softcap, "alibi": e.alibi, "segments": e.segments, "segments_k": e.segments_k}
    scale = p.scale if e.scales is None else p.scale * e.scales
    return {"mask": p.mask, "bias": p.bias, "scale": scale, **same}


def kernels(p: Problem, lse_by: str = "tiled") -> AttentionSummary:
    """The summary by kernels, of an lse that by default no kernel computed."""
    same = shared_arguments(p)
    lse = attention(p.q, p.k, p.v, p.cu_seqlens, p.cu_seqlens_k, backend=lse_by, sinks=p.extras.sinks, **same).lse
    return attention_summary(p.q, p.k, lse, p.cu_seqlens, p.cu_seqlens_k, backend="triton", **same)


def assert_within_budget(p: Problem, lse_by: str = "tiled") -> None:
    rows = check(kernels(p, lse_by)._asdict(), summary_budget(p))
    assert all(row.ok for row in rows), rows


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_mask_within_the_budget(mask, dtype, device):
    assert_within_budget(random_problem(1, *LENGTHS, heads=2, heads_k=1, d=24, mask=mask, dtype=dtype, device=device))


@pytest.mark.parametrize("d", [8, 80, 128, 256])
def test_every_head_size_within_the_budget(d, device):
    mask = Mask(causal=True)
    for dtype in DTYPES[-1:]:
        assert_within_budget(random_problem(d, grown(7, 20), heads=1, d=d, mask=mask, dtype=dtype, device=device))


@pytest.mark.parametrize("bias", ["key", "full"])
def test_additive_mask_with_minus_infinity(bias, device):
    assert_within_budget(random_problem(3, *LENGTHS, mask=Mask(causal=True), bias=bias, device=device))


@pytest.mark.parametrize("mask", [Mask(causal=True, prefix=20 * GROW), Mask(window=grown(5, 3), prefix=3)], ids=str)
@pytest.mark.parametrize("extras", [(), ("softcap", "alibi", "segments"), ("scales", "sinks")], ids=str)
def test_whatever_acts_on_scores_and_prefixes(mask, extras, device):
    bias = "bool" if "scales" in extras else "none"
    p = random_problem(5, *LENGTHS, mask=mask, extras=extras, bias=bias, device=device)
    # Kernels round the factors of scores in base 2; with one more factor the error is theirs and of their lse alike.
    assert_within_budget(p, lse_by="triton")


@pytest.mark.parametrize("scale", [-0.7, 0.0])
def test_any_sign_of_the_scale(scale, device):
    assert_within_budget(replace(random_problem(4, grown(19), mask=Mask(causal=True), device=device), scale=scale))


@pytest.mark.parametrize("descriptors", [False, True])
@pytest.mark.parametrize("config", [Config(16, 16, 1, 1), Config(32, 16, 1, 1), Config(16, 32, 1, 1)], ids=str)
def test_every_block_shape_writes_every_element(config, descriptors, device):
    """Each shape alone, by pointers and by descriptors, on outputs filled with NaN; a window that cuts both sides."""
    if device == "cuda":
        config = replace(config, num_warps=4)
        if descriptors and capability(torch.device("cuda")) < 90:
            pytest.skip("descriptors need compute capability 9.0")
    p = random_problem(6, *LENGTHS, d=32, mask=Mask(window=(6, 4)), device=device, dtype=torch.float16)
    lse = attention(p.q, p.k, p.v, p.cu_seqlens, p.cu_seqlens_k, mask=p.mask, backend="tiled").lse.T[None].contiguous()
    received, entropy, distance = (torch.full((1, 2, len(x)), torch.nan, device=device) for x in (p.k, p.q, p.q))
    problem = Launched(p.scale, 6, 4, p.cu_seqlens, p.cu_seqlens_k)
    summaries.launch_received(p.q[None], p.k[None], lse, received, problem, config, descriptors)
    summaries.launch_rows(p.q[None], p.k[None], lse, entropy, distance, problem, config, descriptors)
    results = {"received": received[0].T, "entropy": entropy[0].T, "distance": distance[0].T}
    rows = check(results, summary_budget(p))
    assert all(row.ok for row in rows), rows


def test_a_sequence_does_not_depend_on_its_neighbours(device):
    p = random_problem(7, *LENGTHS, mask=Mask(causal=True), device=device)
    together = kernels(p)
    rows, columns = (pairwise(cu.tolist()) for cu in (p.cu_seqlens, p.cu_seqlens_k))
    for (a, b), (c, d) in zip(rows, columns, strict=True):
        ends = [p.cu_seqlens.new_tensor([0, n]) for n in (b - a, d - c)]
        alone = kernels(
            replace(p, q=p.q[a:b], k=p.k[c:d], v=p.v[c:d], do=p.do[a:b], cu_seqlens=ends[0], cu_seqlens_k=ends[1])
        )
        assert torch.equal(together.received[c:d], alone.received)
        assert torch.equal(together.entropy[a:b], alone.entropy)
        assert torch.equal(together.distance[a:b], alone.distance)


def test_dense_batches_are_packs_of_equal_lengths(device):
    p = random_problem(8, grown(12, 12), heads=4, heads_k=2, mask=Mask(causal=True), device=device)
    dense = [x.view(2, 12 * GROW, *x.shape[1:]) for x in (p.q, p.k, p.v)]
    lse = attention(*dense, mask=p.mask, backend="tiled").lse
    for a, b in zip(attention_summary(*dense[:2], lse, mask=p.mask, backend="triton"), kernels(p), strict=True):
        assert a.shape == lse.shape
        assert torch.equal(a.flatten(0, 1), b)


@pytest.mark.parametrize("planted", [torch.nan, torch.inf])
def test_what_is_not_finite_reaches_only_those_who_see_it(planted, device):
    """In a key: the queries that see it, and the keys that those see. In an empty row: nobody."""
    clean = random_problem(10, (13, 30), (13, 21), heads=2, mask=Mask(causal=True), device=device)
    k, q = clean.k.clone(), clean.q.clone()
    k[20, :, 2] = planted  # the second sequence's key 7, which its query 16 is the first to see
    q[13 + 4] = planted  # of the second sequence's first nine queries, which see no key
    before, after = kernels(clean), kernels(replace(clean, k=k, q=q))
    seers = slice(13 + 16, None)
    assert torch.equal(before.entropy[: seers.start], after.entropy[: seers.start])
    assert torch.equal(before.distance[: seers.start], after.distance[: seers.start])
    assert torch.equal(before.received[:13], after.received[:13])
    assert not bool(after.entropy[seers].isfinite().all())


def test_no_sequences_no_keys_no_queries(device):
    empty, full = torch.zeros(0, 2, 16, device=device), torch.randn(6, 2, 16, device=device)
    nothing, unseen = full.new_zeros(0, 2), full.new_full((6, 2), -torch.inf)
    assert attention_summary(empty, empty, nothing, backend="triton").entropy.shape == (0, 2)
    assert not attention_summary(empty, full, nothing, backend="triton").received.any()
    rows = attention_summary(full, empty, unseen, backend="triton")
    assert not rows.entropy.any()
    assert not rows.distance.any()


@pytest.mark.parametrize(
    ("mask", "sizes", "bias", "extras"),
    [
        (Mask(), (7, 18), "none", ()),
        (Mask(causal=True), (40, 9), "full", ()),
        (Mask(window=grown(5, 3)), (19, 21), "none", ("softcap", "segments")),
        (Mask(window=grown(5, 3), prefix=4), (3, 9), "none", ("alibi",)),
    ],
    ids=str,
)
def test_maps_within_the_budget(mask, sizes, bias, extras, device):
    """Of blocks that are longer and shorter than a tile, none of them a multiple of it."""
    p = random_problem(9, *LENGTHS, heads=2, heads_k=1, mask=mask, bias=bias, extras=extras, device=device)
    same = shared_arguments(p)
    lse = attention(p.q, p.k, p.v, p.cu_seqlens, p.cu_seqlens_k, backend="tiled", **same).lse
    offsets = (pairwise(cu.tolist()) for cu in (p.cu_seqlens, p.cu_seqlens_k))
    maps = []
    for n, ((a, b), (c, d)) in enumerate(zip(*offsets, strict=True)):
        own = None if p.bias is None else bias_of_sequence(p.bias, n, b - a, d - c)
        more = arguments(mask, p.scale, p.extras.of_sequence(n, slice(a, b), slice(c, d)))
        maps.append(attention_map_op(p.q[a:b], p.k[c:d], lse[a:b].T, *sizes, own, *more).flatten())
    (row,) = check({"maps": torch.cat(maps)}, summary_budget(p, sizes))
    assert row.ok, row


def test_a_map_is_asked_for_as_the_others_are(device):
    p = random_problem(11, (5, 0, 20), heads=2, mask=Mask(causal=True), device=device)
    lse = attention(p.q, p.k, p.v, p.cu_seqlens, mask=p.mask, backend="tiled").lse
    maps = [attention_map(p.q, p.k, lse, p.cu_seqlens, mask=p.mask, blocks=4, backend=b) for b in ("triton", "exact")]
    for got, expected in zip(*maps, strict=True):
        assert (got.query_edges, got.key_edges) == (expected.query_edges, expected.key_edges)
        torch.testing.assert_close(got.sums, expected.sums)


def test_opcheck(device):
    rng = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, n, h, 16, generator=rng).to(device) for n, h in ((14, 2), (16, 1)))
    cu_q, cu_k = (torch.tensor(o, dtype=torch.int32, device=device) for o in ([0, 10, 14], [0, 9, 16]))
    lse = torch.randn(1, 2, 14, generator=rng).to(device)
    segments, segments_k = (torch.arange(n, dtype=torch.int32, device=device) // 4 for n in (14, 16))
    extras = Extras(
        softcap=2.0, alibi=torch.rand(2, generator=rng).to(device), segments=segments, segments_k=segments_k
    )
    more = arguments(Mask(causal=True, window=(5, 0), prefix=2), 0.25, extras)
    torch.library.opcheck(attention_summary_op, (q, k, lse, cu_q, cu_k, None, *more))
    torch.library.opcheck(attention_map_op, (q[0], k[0], lse[0], 14, 8, None, *more))


@pytest.fixture(scope="module")
def table() -> list[dict[str, Any]]:
    # A child, because in this process the kernels may belong to the interpreter.
    script = Path(__file__).parent / "compiling_summaries.py"
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_they_assemble_for_every_architecture_without_a_spill(table):
    assert {row["capability"] for row in table} == {80, 90, 100}
    wrong = [row for row in table if row["spills"] or row["shared"] > row["shared_limit"]]
    assert not wrong, "\n".join(map(str, wrong))


def test_hopper_multiplies_with_wgmma(table):
    rows = [row["wgmma"] for row in table if row["capability"] == 90 and row["dtype"] == "bf16"]
    assert rows
    assert all(rows)
