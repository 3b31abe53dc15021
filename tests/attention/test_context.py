"""Ring attention on one to four processes is attention in one."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from ring_cases import PROCESSES, Case, cases
from torch import Tensor

from quantattn import Attended, Mask, attention, merge_attention
from quantattn.attention import ring_attention
from quantattn.attention.context import unshard
from quantattn.attention.placement import Placement, Plan
from quantattn.attention.problems import Problem, random_problem
from quantattn.attention.testing import check, error_budget

NAMES = ("out", "lse", "dq", "dk", "dv")
every_case = pytest.mark.parametrize("case", cases(), ids=lambda case: case.label)


def computed_on(device: str, folder: Path) -> list[dict[str, Any]]:
    """What each of the four processes computed, by case."""
    script = Path(__file__).with_name("ring_cases.py")
    environment = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **os.environ}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script), str(folder), device],
        capture_output=True, text=True, timeout=600, env=environment, cwd=script.parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [torch.load(folder / f"{process}.pt", weights_only=True) for process in range(PROCESSES)]


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return computed_on("cpu", tmp_path_factory.mktemp("ring"))


def of(case: Case, computed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The results of a case by rank."""
    found = sorted((results[case.label] for results in computed if case.label in results), key=lambda r: r["rank"])
    assert [r["rank"] for r in found] == list(range(case.world))
    return found


@every_case
def test_a_ring_is_attention_within_the_budget(case: Case, computed: list[dict[str, Any]]) -> None:
    results, placement = of(case, computed), case.placed()
    joined = {name: placement.join([r[name] for r in results]) for name in NAMES}
    rows = check(joined, error_budget(case.problem()))
    assert all(row.ok for row in rows), rows
    assert case.do or not joined["dv"].any()  # a value has no part in lse


@every_case
def test_a_ring_repeats_to_the_bit_and_keeps_its_own_rows_alone(case: Case, computed: list[dict[str, Any]]) -> None:
    for rank, r in enumerate(of(case, computed)):
        assert r["repeats"]
        offsets, table = len(case.lengths) + 1, case.placed().table.shape[0]
        assert sorted(r["kept"]) == sorted([case.placed().size(rank)] * 5 + [offsets, table])  # q, k, v, out, lse
        assert r["joined"]
        assert r.get("as_alone", True)  # one rank has the bits of `attention`


@pytest.mark.gpu
def test_a_ring_of_gpus_is_attention_within_the_budget(tmp_path: Path) -> None:
    if torch.cuda.device_count() < PROCESSES:
        pytest.skip(f"needs {PROCESSES} GPUs, here are {torch.cuda.device_count()}")
    computed = computed_on("cuda", tmp_path)
    for case in cases():
        test_a_ring_is_attention_within_the_budget(case, computed)
        test_a_ring_repeats_to_the_bit_and_keeps_its_own_rows_alone(case, computed)


def test_nan_in_the_future_changes_no_bit_of_the_past(computed: list[dict[str, Any]]) -> None:
    assert [r["hides the future"] for r in computed if "hides the future" in r] == [True, True]


def test_a_compiled_ring_is_one_graph_for_every_pack_and_placement(computed: list[dict[str, Any]]) -> None:
    assert [r["compiled"] for r in computed if "compiled" in r] == [True, True]


def test_the_operator_keeps_the_rules_of_operators(computed: list[dict[str, Any]]) -> None:
    (checks,) = [r["opcheck"] for r in computed if "opcheck" in r]
    assert checks
    assert set(checks.values()) == {"SUCCESS"}


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        ("heads", "the ranks must agree on the query heads: rank 0 has 2 and rank 2 has 4"),
        ("rows", "the ranks must agree on the rows of the whole pack: rank 0 has 12 and rank 1 has 15"),
        ("share", "the ranks must agree on the rows beyond a rank's share (0): rank 0 has 0 and rank 1 has 1"),
        ("mask", "the ranks must agree on the right bound of the mask (-1 is none): rank 0 has 0 and rank 1 has -1"),
        ("dtype", "the ranks must agree on the dtype: rank 0 has torch.float32 and rank 1 has torch.float64"),
        ("alike", "no error"),
        ("cu", "cu_seqlens must rise from 0, got [1, 13]"),
        ("total", "is of 24 rows on 3 ranks with 8 on rank 1, got 24 rows on 3 ranks with 4 on rank 1"),
        ("world", "is of 12 rows on 2 ranks with 6 on rank 1, got 12 rows on 3 ranks with 4 on rank 1"),
        ("exact", "backend 'exact' forms the N × N matrix and stays in one process"),
        ("sdpa", "backend 'sdpa' cannot run this: its masks are full and causal"),
        ("shapes", "of the same rows, got q (4, 2, 8), k (3, 2, 8), v (3, 2, 8)"),
        ("gradient", "unshard has no gradient"),
    ],
)
def test_mistakes_end_with_one_sentence(mistake: str, told: str, computed: list[dict[str, Any]]) -> None:
    sentences = [r["refusals"][mistake] for r in computed if "refusals" in r]
    assert len(sentences) == 3
    assert told in sentences[1]
    if "the ranks must agree" in told:
        assert len(set(sentences)) == 1  # every rank raises, none is left waiting


def test_a_ring_needs_a_process_group_and_a_place_in_it(computed: list[dict[str, Any]]) -> None:
    assert [r["outside"] for r in computed if "outside" in r] == [
        "group must be a ProcessGroup that this process belongs to, got -100"
    ]
    q = torch.zeros(4, 2, 8)
    with pytest.raises(ValueError, match="needs a process group: call torch"):
        ring_attention(q, q, q)
    with pytest.raises(ValueError, match=r"a ring takes masks without a prefix and without a rule, got Mask.*prefix=2"):
        ring_attention(q, q, q, mask=Mask(causal=True, prefix=2))
    with pytest.raises(ValueError, match="needs a process group"):
        unshard(q, Placement.contiguous(4, 1))


def parts(p: Problem, rank: int, world: int) -> list[tuple[Tensor, Tensor, Attended]]:
    """(rows, columns, result) of every block of a rank, one causal sequence in contiguous chunks, in one process."""
    placement = Placement.contiguous(p.q.shape[0], world)
    plan = Plan(placement, tuple(p.cu_seqlens.tolist()), p.mask.left, p.mask.right)
    found = []
    for distance in range(rank + 1):
        (block,) = plan.blocks(rank, rank - distance)
        rows, columns = placement.rows(rank)[slice(*block.rows)], placement.rows(rank - distance)[slice(*block.columns)]
        mask = Mask(window=(block.left, block.right))
        found.append((rows, columns, attention(p.q[rows], p.k[columns], p.v[columns], mask=mask, scale=p.scale)))
    return found


def test_a_wrong_ring_leaves_the_budget() -> None:
    p = random_problem(3, (96,), mask=Mask(causal=True))
    budget = error_budget(p)

    def within(name: str, value: Tensor) -> bool:
        return all(row.ok for row in check({name: value}, budget))

    blocks = [[part for _, _, part in parts(p, rank, 3)] for rank in range(3)]
    assert within("out", torch.cat([merge_attention(own).out for own in blocks]))
    assert not within("out", torch.cat([torch.stack([part.out for part in own]).mean(0) for own in blocks]))
    assert not within("out", torch.cat([merge_attention(own[: max(1, len(own) - 1)]).out for own in blocks]))
    assert not within("lse", torch.cat([merge_attention(own[: max(1, len(own) - 1)]).lse for own in blocks]))


def test_a_backward_with_the_lse_of_the_block_leaves_the_budget() -> None:
    p = random_problem(3, (96,), mask=Mask(causal=True))
    budget = error_budget(p)
    for x in (p.q, p.k, p.v):
        x.requires_grad_()
    blocks = [parts(p, rank, 3) for rank in range(3)]
    whole = torch.cat([merge_attention([part for _, _, part in own]).out for own in blocks])
    (right,) = torch.autograd.grad(whole, p.v, p.do, retain_graph=True)
    outs = [(part.out, p.do[rows]) for rows, _, part in chain.from_iterable(blocks)]
    (wrong,) = torch.autograd.grad([out for out, _ in outs], p.v, [do for _, do in outs])
    assert [row.ok for row in check({"dv": right}, budget)] == [True]
    assert [row.ok for row in check({"dv": wrong}, budget)] == [False]
