"""Few queries over many keys: what is cut into parts and merged is the same attention."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from quantattn.attention import Mask
from quantattn.attention.extras import Extras
from quantattn.attention.fuzz import dense
from quantattn.attention.problems import random_problem
from quantattn.attention.testing import check, error_budget, run

pytest.importorskip("triton")
from quantattn.attention.kernels import configs, split

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy under the interpreter, where −inf is
CASES = {
    "full": {},
    "causal": {"mask": Mask(causal=True)},
    "a window that ends within a part": {"mask": Mask(window=(37, None))},
    "a window and a prefix, apart": {"mask": Mask(causal=True, window=(20, None), prefix=70)},
    "sinks": {"extras": ("sinks",)},
    "everything": {"extras": ("softcap", "alibi", "sinks", "segments", "dropout"), "bias": "key"},
}


@pytest.fixture(autouse=True)
def short_parts(monkeypatch, device):
    """Parts of 64 keys on a CPU, where steps are slow; on a GPU two of the size that the library uses."""
    if device == "cpu":
        monkeypatch.setattr(split, "PART", 64)


def keys(device: str) -> int:
    return 2 * split.PART + (17 if device == "cpu" else 301)


@pytest.mark.parametrize("n_q", [1, 5])
@pytest.mark.parametrize("case", CASES)
def test_parts_are_attention_within_the_budget(case, n_q, device, monkeypatch):
    p = random_problem(
        n_q, (n_q, n_q), (keys(device),) * 2, heads=2, heads_k=1, dlse=True, device=device, **CASES[case]
    )
    merged = []
    real = split.merge_parts
    monkeypatch.setattr(split, "merge_parts", lambda *a: (merged.append(a[0].shape[0]), real(*a)))
    rows = check(run(dense("triton"), p), error_budget(p))
    assert all(row.ok for row in rows), [row for row in rows if not row.ok]
    assert merged == [3]


def test_a_row_without_keys_and_a_part_without_keys(device):
    """A window that only the last part holds, and a segment that no key has."""
    p = random_problem(3, (2, 2), (keys(device),) * 2, heads=1, mask=Mask(causal=True, window=(3, None)), device=device)
    numbers = torch.tensor([0, 1, 0, 0], dtype=torch.int32, device=device)
    zeros = torch.zeros(p.k.shape[0], dtype=torch.int32, device=device)
    p = replace(p, extras=Extras(segments=numbers, segments_k=zeros))
    results = run(dense("triton"), p)
    assert all(row.ok for row in check(results, error_budget(p)))
    assert torch.equal(results["lse"][1], torch.full_like(results["lse"][1], -torch.inf))
    assert torch.equal(results["out"][1], torch.zeros_like(results["out"][1]))


def test_the_bits_do_not_depend_on_the_batch(device):
    p = random_problem(4, (3, 3, 3), (keys(device),) * 3, heads=2, device=device)
    together = run(dense("triton"), p, backward=False)
    n = keys(device)
    offsets = [torch.tensor([0, length], dtype=torch.int32, device=device) for length in (3, n)]
    alone = replace(p, q=p.q[3:6], k=p.k[n : 2 * n], v=p.v[n : 2 * n], cu_seqlens=offsets[0], cu_seqlens_k=offsets[1])
    results = run(dense("triton"), alone, backward=False)
    assert torch.equal(results["out"], together["out"][3:6])
    assert torch.equal(results["lse"], together["lse"][3:6])


@pytest.mark.parametrize("room", [6, 5])
def test_heads_that_share_keys_have_the_bits_of_heads_that_do_not(room, device, monkeypatch):
    """They stand in one tile where there is room for them."""
    monkeypatch.setattr(split, "FEW_QUERIES", room)
    p = random_problem(5, (3,), (keys(device),), heads=4, heads_k=2, d=16, device=device)
    apart = replace(p, k=p.k.repeat_interleave(2, 1), v=p.v.repeat_interleave(2, 1))
    seen = []
    real = split.heads_to_rows
    monkeypatch.setattr(split, "heads_to_rows", lambda q, heads_k: seen.append(heads_k) or real(q, heads_k))
    shared, own = (run(dense("triton"), x, backward=False) for x in (p, apart))
    assert seen == ([2] if room == 6 else [])
    assert torch.equal(shared["out"], own["out"])
    assert torch.equal(shared["lse"], own["lse"])


def test_what_is_cut():
    part = split.PART
    assert split.count_parts(1, 2 * part - 1) == 1
    assert split.count_parts(split.FEW_QUERIES, 2 * part + 1) == 3
    assert split.count_parts(split.FEW_QUERIES + 1, 10 * part) == 1
    tables = (configs._DEFAULT, configs._HOPPER, configs._BLACKWELL)
    assert all(2048 % config.block_n == 0 for table in tables for config in table.values())


def test_a_tile_has_no_more_rows_than_few_queries_fill():
    large, small = configs.Config(128, 64, 8, 3), configs.Config(64, 128, 4, 3)
    assert split.config_of(64, large) == configs.Config(64, 64, 4, 4)
    assert split.config_of(65, large) == large
    assert split.config_of(1, small) == small
