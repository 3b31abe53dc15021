"""`bench=attention` at sizes that a CPU runs: who is let in, what is timed, and what is written."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from quantattn.attention import Mask
from quantattn.attention.testing import error_budget
from quantattn.cli import main
from quantattn.cli.benchmarks import attention as bench
from quantattn.cli.benchmarks import gate, peers, timing
from quantattn.cli.benchmarks.peers import Calls, Inputs
from quantattn.cli.benchmarks.shapes import Case, Shape
from tests.cli.attention_cases import CAUSAL, SHAPES, measure

CHEAP = ["bench=attention", "dtype=float32", "rounds=2", "warmup=1", "width=16", "tokens=32"]


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["quantattn", *arguments])
    return main("bench")


def read(folder: Path) -> list[dict[str, str]]:
    (table,) = folder.glob("attention-*.csv")
    with table.open(newline="") as file:
        return list(csv.DictReader(file))


# The gate.


def spoiled(inputs: Inputs, spoil: Callable[[Tensor, Sequence[Tensor]], None]) -> Calls:
    """Ours, with something of its results changed."""
    calls = peers.ours(inputs)
    out, grads = calls.forward().clone(), [x.clone() for x in calls.backward()]
    spoil(out, grads)
    return Calls(lambda: out, lambda: grads)


def test_what_is_wrong_gets_a_reason_and_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(inputs: Inputs) -> Calls:
        raise AssertionError("head size 8 is not supported\nand more")

    wrong = {
        "no_out": partial(spoiled, spoil=lambda out, grads: out[0, -1].zero_()),
        "no_dv": partial(spoiled, spoil=lambda out, grads: grads[2][0, 0].mul_(1.01)),
        "broken": broken,
    }
    monkeypatch.setattr(bench, "PEERS", peers.PEERS | wrong)
    rows = {(row.impl, row.stage): row for row in measure(SHAPES["causal pack"], [*wrong, "quantattn"])}
    assert "out is off by" in rows["no_out", "forward"].note
    assert "out is off by" in rows["no_out", "backward"].note
    assert rows["no_dv", "forward"].ms > 0
    assert "dv is off by" in rows["no_dv", "backward"].note
    assert rows["broken", "forward"].note == "AssertionError: head size 8 is not supported"
    assert all(math.isnan(row.ms) for row in rows.values() if row.note)
    assert rows["quantattn", "backward"].ms > 0
    assert not any(row.failed for row in rows.values())


def test_a_call_that_fails_while_it_is_timed_takes_no_other_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def tired(inputs: Inputs) -> Calls:
        calls, left = peers.ours(inputs), [1, 1]

        def once(turn: int, run: Callable[[], Any]) -> Any:
            left[turn] -= 1
            if left[turn] < 0:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")
            return run()

        return Calls(lambda: once(0, calls.forward), lambda: once(1, calls.backward))

    monkeypatch.setattr(bench, "PEERS", peers.PEERS | {"tired": tired})
    rows = {(row.impl, row.stage): row for row in measure(SHAPES["full"], ["tired", "quantattn"])}
    for stage in ("forward", "backward"):
        assert "Tried to allocate" in rows["tired", stage].note
        assert rows["quantattn", stage].ms > 0


@pytest.mark.parametrize("mask", [Mask(window=(5, 3)), Mask(window=(5, 0)), Mask(window=(None, 2)), CAUSAL])
def test_the_last_queries_of_a_long_problem_have_the_truth_of_the_whole(
    mask: Mask, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = bench.draw(Shape(8, 40, 1, 4, 2, mask), torch.float32, 0)
    whole = error_budget(gate.piece_of(inputs, 2))
    monkeypatch.setattr(gate, "LONGEST", 30)
    monkeypatch.setattr(gate, "LAST", 12)
    part = gate.Gate(inputs, backward=True)
    for name in ("out", "dq"):
        torch.testing.assert_close(part.budget.truth[name], whole.truth[name][-12:])
    keys = 12 - (mask.right or 0)
    for name in ("dk", "dv"):
        torch.testing.assert_close(part.budget.truth[name], whole.truth[name][-keys:])
    calls = peers.ours(inputs)
    assert part.forward(calls.forward()) < 3
    grads = list(calls.backward())
    assert part.backward(grads) < 3
    grads[1][0, -keys, 0] *= 1.01
    with pytest.raises(ValueError, match="dk is off by"):
        part.backward(grads)


@pytest.mark.parametrize(("once", "expected"), [(0.01, 30), (0.1, 10), (10.0, 3)])
def test_a_slow_call_takes_part_in_fewer_rounds_evenly(once: float, expected: int) -> None:
    turns = sorted(timing._turns(30, once, 1.0))
    assert len(turns) == expected
    assert {b - a for a, b in pairwise(turns)} == {30 // expected}


@pytest.mark.parametrize(("asking", "expected"), [(0.0, 1), (3e-5, 1), (2e-4, 5), (1.0, 16)])
def test_the_device_is_busy_while_the_host_launches(asking: float, expected: int) -> None:
    assert timing._clears(asking) == expected


# What is written.


def test_one_command_writes_rows_and_a_second_one_adds_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if torch.cuda.is_available():
        pytest.skip("its file is named after the GPU, and the sizes are a CPU's")
    lines = ["impl,dtype,D,N,batch,heads,mask,pass,ms,tflops,peak_mib,error_ratio,commit,torch,triton,date"]
    lines += [f"{impl},float32,16,{n},{32 // n},1,full,forward,9,1,2,0.5,a,b,c,d" for impl, n in
              (("quantattn", 8), ("quantattn", 16), ("older", 16))]  # fmt: skip
    (tmp_path / "attention-cpu.csv").write_text("\n".join(lines) + "\n")
    own = "shapes=[[16,16,full],[16,32,[3,1]],[16,ragged,causal]]"
    pack = ["ragged.tokens=24", "ragged.longest=12", "ragged.shortest=2", "ragged.median=5"]
    names = "peers=[quantattn,cudnn,standard]"
    assert call(monkeypatch, *CHEAP, *pack, own, names, f"results={tmp_path}") == 0
    rows = read(tmp_path)
    # Rows of before stay with what they lacked, but where the same was measured again.
    assert [(row["impl"], row["N"], row["kind"], row["heads_k"], row["tokens"]) for row in rows[:2]] == [
        ("quantattn", "8", "dense", "1", "32"),
        ("older", "16", "dense", "1", "32"),
    ]
    new = rows[2:]
    assert {(row["mask"], row["kind"]) for row in new} == {
        ("full", "dense"), ("window 3:1", "dense"), ("causal", "ragged")
    }  # fmt: skip
    assert len(new) == 3 * 3 * 2
    for row in new:
        assert (row["note"] != "") is (row["impl"] == "cudnn") is math.isnan(float(row["ms"]))
    assert "TFLOP/s, forward / backward" in capsys.readouterr().out
    assert (tmp_path / "attention-cpu.svg").exists()
    assert call(monkeypatch, *CHEAP, "shapes=[[16,8,full]]", "peers=[quantattn]", f"results={tmp_path}") == 0
    again = read(tmp_path)
    assert again[:-2] == rows[1:]
    assert [(row["N"], row["pass"]) for row in again[-2:]] == [("8", "forward"), ("8", "backward")]


def test_nothing_is_begun_after_the_limit() -> None:
    said: list[str] = []
    cases = [Case(SHAPES["full"], ("quantattn",))] * 2
    assert not list(bench.benchmark(cases, torch.float32, rounds=1, warmup=1, seed=0, say=said.append, ends=-math.inf))
    assert said == ["D 8 N 12 full, H/Hkv 2: not begun, the limit was reached"] * 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU would time it")
def test_groups_are_for_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "bench=attention", "shapes=short") == 1
    assert "torch sees no CUDA device here" in capsys.readouterr().err


def test_what_compiles_ahead_and_fails_is_told() -> None:
    assert bench._compile(SHAPES["pack"], "quantattn", torch.float32) is None
    told = bench._compile(SHAPES["window"], "cudnn", torch.float32)
    assert (
        told == "cudnn, D 8 N 20 window 3:2: it takes full and causal masks, causal ones with as many queries as keys"
    )
