"""The worked examples are right by exact arithmetic, and everything that computes attention agrees with them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial, reduce
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from quantattn.attention import examples as examples_module
from quantattn.attention.exact import exact_attention, standard_attention
from quantattn.attention.examples import Example, number, worked_examples
from quantattn.attention.mask import Mask
from quantattn.attention.sdpa import sdpa_attention, supports
from quantattn.attention.state import AttentionState
from quantattn.attention.testing import Backend
from quantattn.attention.tiled import tiled_attention

FILE = Path(__file__).parents[2] / "data" / "worked_examples.json"
ENTRIES = json.loads(FILE.read_text("utf-8"))["examples"]
BACKENDS = {
    "exact": exact_attention,
    "standard": standard_attention,
    "sdpa": sdpa_attention,
    **{
        f"tiled {q}x{k}": partial(tiled_attention, block_q=q, block_k=k)
        for q, k in ((1, 1), (1, 2), (2, 2), (2, 3), (3, 1), (8, 8))
    },
}
TOLERANCE = {torch.float64: 1e-14, torch.float32: 5e-7, torch.float16: 4e-3, torch.bfloat16: 3e-2}

every_entry = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["name"])
every_example = pytest.mark.parametrize("example", worked_examples(), ids=lambda example: example.name)
every_split = pytest.mark.parametrize("example", [e for e in worked_examples() if e.blocks], ids=lambda e: e.name)


def mass(score: Any, bias: Any, plus: Fraction) -> Fraction:
    """exp(score + bias − plus) as an exact rational; 0 for −∞ and below exp(−10000)."""
    factor = Fraction(1)
    for written in (score, bias):
        if written == "-inf":
            return Fraction(0)
        log = written if isinstance(written, dict) else {"ln": "1", "plus": written}
        factor *= Fraction(log["ln"])
        plus -= Fraction(log.get("plus", "0"))
    assert plus == 0 or plus > 10_000, "exp of a rational other than 0 is not rational"
    return factor if plus == 0 else Fraction(0)


@every_entry
def test_weights_outputs_and_logsumexps_are_right_by_exact_arithmetic(entry: dict[str, Any]) -> None:
    heads, heads_k = len(entry["scores"]), len(entry["values"])
    mask = Mask(**entry["mask"])
    for head, rows in enumerate(entry["scores"]):
        values = [Fraction(v) for v in entry["values"][head * heads_k // heads]]
        visible = mask.visible(len(rows), len(values)).tolist()
        for i, row in enumerate(rows):
            lse = entry["lse"][head][i]
            plus = Fraction(lse.get("plus", "0")) if isinstance(lse, dict) else Fraction(0)
            bias = entry["bias"][i if len(entry["bias"]) > 1 else 0] if "bias" in entry else ["0"] * len(row)
            masses = [
                mass(s, b, plus) if seen else Fraction(0) for s, b, seen in zip(row, bias, visible[i], strict=True)
            ]
            total = sum(masses, Fraction(0))
            weights = [m / total if total else Fraction(0) for m in masses]
            assert [Fraction(w) for w in entry["weights"][head][i]] == weights
            assert Fraction(entry["out"][head][i]) == sum(w * v for w, v in zip(weights, values, strict=True))
            assert number(lse) == (float(plus) + math.log(total) if total else -math.inf)


@every_entry
def test_blocks_add_up_by_exact_arithmetic(entry: dict[str, Any]) -> None:
    l_sum, u_sum = Fraction(0), Fraction(0)
    for block in entry.get("blocks", ()):
        l, u, by = (Fraction(block[name]) for name in ("l", "u", "rescaled_by"))
        assert Fraction(block["out"]) == (u / l if l else 0)
        relative = number(block["m"]) - number(entry["merged"]["m"])
        assert float(by) == pytest.approx(math.exp(relative))
        l_sum, u_sum = l_sum + l * by, u_sum + u * by
    if "merged" in entry:
        assert (Fraction(entry["merged"]["l"]), Fraction(entry["merged"]["u"])) == (l_sum, u_sum)
        assert u_sum / l_sum == Fraction(entry["out"][0][0])


@every_example
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("stretch", [1, 5])
@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_every_backend_gives_the_right_answer_and_no_wrong_one(
    example: Example, dtype: torch.dtype, backend: Backend, stretch: int
) -> None:
    a = example.arguments(dtype, stretch=stretch)
    if backend is sdpa_attention and supports(a.q, a.mask, a.bias) is not None:
        with pytest.raises(ValueError, match="sdpa cannot run this"):
            backend(a.q, a.k, a.v, a.cu_seqlens, a.cu_seqlens_k, mask=a.mask, bias=a.bias, scale=a.scale)
        return
    out, lse = backend(a.q, a.k, a.v, a.cu_seqlens, a.cu_seqlens_k, mask=a.mask, bias=a.bias, scale=a.scale)
    out, lse = out[::stretch], lse[::stretch]
    expected = example.expected()
    scale = float(example.values.abs().where(example.values.abs() < 50, 0).max())
    assert (out.double() - expected.out).abs().max() <= TOLERANCE[dtype] * scale
    if backend is not standard_attention or dtype == torch.float64:
        torch.testing.assert_close(lse.double(), expected.lse, rtol=1e-7, atol=1e-6)
    for name, wrong in example.wrong.items():
        assert not torch.allclose(out[..., 0].double().T, wrong, atol=0.1), name


@every_split
def test_the_states_of_the_blocks_and_their_merge_are_those_of_the_example(example: Example) -> None:
    scores = example.scores[0, 0] + (0 if example.bias is None else example.bias[0])
    states = [
        AttentionState.of_block(scores[None, slice(*block.keys)], example.values[0, slice(*block.keys), None])
        for block in example.blocks
    ]
    for state, block in zip(states, example.blocks, strict=True):
        for value, expected in ((state.m, block.m), (state.l, block.l), (state.u, block.u)):
            assert value.item() == pytest.approx(float(expected), rel=1e-14)
    merged = reduce(AttentionState.merge, states)
    assert example.merged is not None
    for value, expected in zip((merged.m, merged.l, merged.u), example.merged, strict=True):
        assert value.item() == pytest.approx(float(expected), rel=1e-14)
    assert merged.finish().out.item() == pytest.approx(example.out.item(), rel=1e-14)


MISTAKES: dict[str, Callable[[Example], Fraction]] = {
    "sums added without rescaling": lambda e: Fraction(sum(b.u for b in e.blocks)) / sum(b.l for b in e.blocks),
    "block outputs averaged": lambda e: Fraction(sum(b.out for b in e.blocks)) / len(e.blocks),
}


@every_split
def test_the_wrong_answers_are_what_the_mistakes_lead_to(example: Example) -> None:
    for name in MISTAKES.keys() & example.wrong.keys():
        missed = float(MISTAKES[name](example))
        assert missed == example.wrong[name].item()
        assert abs(missed - example.out.item()) > 0.1


def test_each_mistake_is_shown_by_an_example() -> None:
    listed = {name for example in worked_examples() for name in example.wrong}
    assert listed > MISTAKES.keys()


def test_the_two_examples_of_the_text() -> None:
    lecture, practice = worked_examples()[:2]
    assert (lecture.out.item(), lecture.wrong["sums added without rescaling"].item()) == (17 / 6, 2.6)
    assert (practice.out.item(), practice.wrong["block outputs averaged"].item()) == (20 / 3, 7.5)


def test_without_the_maximum_large_scores_are_not_a_number() -> None:
    example = next(e for e in worked_examples() if e.name == "large scores")
    scores = example.scores[0].float()
    naive = torch.exp(scores) @ example.values[0].float() / torch.exp(scores).sum(-1)
    assert bool(naive.isnan().all())
    assert bool(example.wrong["no running maximum"].isnan().all())


def test_sixteen_bit_inputs_carry_the_scores() -> None:
    for example in worked_examples():
        for dtype in (torch.float16, torch.bfloat16):
            a = example.arguments(dtype)
            k = a.k.double().repeat_interleave(a.q.shape[1] // a.k.shape[1], 1)
            scores: Tensor = torch.einsum("ihd,jhd->hij", a.q.double(), k)
            torch.testing.assert_close(scores, example.scores, rtol=1e-6, atol=1e-7)


def test_a_head_too_small_for_an_example_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a head size of 9, got 8"):
        next(e for e in worked_examples() if e.name == "a causal triangle").arguments(d=8)


def test_the_installed_file_is_preferred_to_that_of_the_checkout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    entry = ENTRIES[0] | {"name": "installed"}
    (tmp_path / "worked_examples.json").write_text(json.dumps({"examples": [entry]}), "utf-8")
    monkeypatch.setattr(examples_module, "files", lambda package: tmp_path)
    assert [e.name for e in worked_examples.__wrapped__()] == ["installed"]
