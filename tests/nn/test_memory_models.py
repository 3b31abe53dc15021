"""What `benchmarks/long_memory.py` sets the encoder beside: causal, unmixed, as large; the linear one exact."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quantattn.batch import PackedBatch
from quantattn.nn import Encoder

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    from memory_models import MAKERS, Convolution, Place, Recurrence, StateSpace, beside, earlier, size_of

REACH = 7
KINDS = pytest.mark.parametrize("kind", list(MAKERS))


def made(kind: str, tiny: Any) -> nn.Module:
    torch.manual_seed(3)
    return MAKERS[kind](tiny(causal=True, width=8, n_heads=2, hidden=8).config, 6, REACH).double()


def doubles(batch: PackedBatch) -> PackedBatch:
    return replace(batch, fields={k: v.double() if v.is_floating_point() else v for k, v in batch.fields.items()})


def place_of(lengths: list[int]) -> Place:
    bounds = torch.tensor([0, *lengths]).cumsum(0).int()
    none = torch.zeros(0, dtype=torch.int64)
    return Place.of(PackedBatch({}, torch.arange(sum(lengths)), bounds, max(lengths), none, none))


@KINDS
def test_what_comes_later_changes_no_bit_before_it(packs: Any, tiny: Any, kind: str) -> None:
    model, batch = made(kind, tiny), doubles(packs.random([9]))
    other = doubles(packs.random([9], seed=1))
    mixed = {k: torch.cat([v[:5], other.fields[k][5:]]) for k, v in batch.fields.items()}
    one, two = model(batch), model(replace(batch, fields=mixed))
    assert torch.equal(one[:5], two[:5])
    assert not torch.isclose(one[5:], two[5:]).all(dim=1).any()


@KINDS
def test_the_first_event_of_what_must_be_seen_is_seen(packs: Any, tiny: Any, kind: str) -> None:
    model, batch = made(kind, tiny), doubles(packs.random([REACH]))
    changed = {k: v.clone() for k, v in batch.fields.items()}
    changed["size_value"][0] += 1
    assert not torch.equal(model(batch)[-1], model(replace(batch, fields=changed))[-1])


@KINDS
def test_packed_is_alone_whatever_the_neighbours(packs: Any, tiny: Any, kind: str) -> None:
    model, batch = made(kind, tiny), doubles(packs.random([5, 1, 9, 3]))
    pieces = [model(packs.take(batch, [n])) for n in range(4)]
    for order in ([0, 1, 2, 3], [2, 0, 3, 1]):
        found = model(packs.take(batch, order))
        torch.testing.assert_close(found, torch.cat([pieces[n] for n in order]), rtol=0, atol=1e-12)
    decided = model(batch, at_decisions=True)
    torch.testing.assert_close(decided, model(batch)[batch.positions], rtol=0, atol=0)


@KINDS
def test_a_neighbour_that_is_no_number_spoils_no_other(packs: Any, tiny: Any, kind: str) -> None:
    torch.manual_seed(0)
    mixer = made(kind, tiny).mixers[-1]  # type: ignore[union-attr]
    x, place = torch.randn(12, 8, dtype=torch.float64), place_of([4, 5, 3])
    poisoned = x.clone()
    poisoned[4:9] = torch.nan
    expected, found = mixer(x, place), mixer(poisoned, place)
    assert torch.equal(found[:4], expected[:4])
    assert torch.equal(found[9:], expected[9:])
    assert found[4:9].isnan().all()


def test_rows_that_lie_before_their_sequence_are_zero() -> None:
    x = torch.arange(1.0, 6)[:, None]
    before = place_of([2, 3]).before
    assert earlier(x, 1, before)[:, 0].tolist() == [0, 1, 0, 3, 4]
    assert earlier(x, 2, before)[:, 0].tolist() == [0, 0, 0, 0, 3]
    assert earlier(x, 9, before)[:, 0].tolist() == [0] * 5


def test_a_recurrence_of_known_numbers() -> None:
    half, turn = 0.5 + 0j, 1j  # u decays by half; u turns by a quarter
    drive = torch.tensor([[1, 1], [2, 0], [4, 0], [8, 1]], dtype=torch.complex128)
    state = Recurrence.apply(torch.tensor([half, turn]), drive, place_of([3, 1]))  # type: ignore[no-untyped-call]
    assert state[:, 0].tolist() == [1, 2.5, 5.25, 8]
    assert state[:, 1].tolist() == [1, 1j, -1, 1]


def one_by_one(decay: Tensor, drive: Tensor, lengths: list[int]) -> Tensor:
    rows = []
    for start, stop in pairwise(torch.tensor([0, *lengths]).cumsum(0).tolist()):
        state = torch.zeros_like(decay)
        for row in range(start, stop):
            state = decay * state + drive[row]
            rows.append(state)
    return torch.stack(rows)


@pytest.mark.parametrize("lengths", [[1], [2, 3], [7, 1, 16, 5]])
def test_the_parallel_form_is_the_recurrence_and_so_are_its_gradients(lengths: list[int]) -> None:
    torch.manual_seed(0)
    decay = (0.95 * torch.exp(1j * torch.rand(3, dtype=torch.float64))).requires_grad_()
    drive = torch.randn(sum(lengths), 3, dtype=torch.complex128, requires_grad=True)
    weight = torch.randn(sum(lengths), 3, dtype=torch.complex128)
    found: Tensor = Recurrence.apply(decay, drive, place_of(lengths))  # type: ignore[no-untyped-call]
    expected = one_by_one(decay, drive, lengths)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    ours, theirs = (torch.autograd.grad((s * weight).sum().abs(), [decay, drive]) for s in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def test_states_keep_for_as_long_as_a_decision_looks_back(tiny: Any) -> None:
    space = StateSpace(tiny(causal=True).config, 5, 10_000)
    kept = space.decay().abs().log().neg().reciprocal()  # rows until a state has fallen to 1/e
    torch.testing.assert_close(kept, torch.tensor([1.0, 10, 100, 1000, 10_000]), rtol=1e-3, atol=0)


def test_a_convolution_of_known_numbers() -> None:
    layer = Convolution(1, 1, dilation=2)
    with torch.no_grad():
        layer.project_in.weight.copy_(torch.tensor([[100.0, 10.0, 1.0]]))  # of this row, two and four before it
        layer.project_in.bias.zero_()
        layer.project_out.weight.fill_(1.0)
    x = torch.arange(1.0, 8)[:, None] * 10  # so large that SiLU changes nothing
    assert layer(x, place_of([6, 1]))[:, 0].tolist() == [1000, 2000, 3100, 4200, 5310, 6420, 7000]


@pytest.mark.parametrize("reach", [302, 50_200])
@pytest.mark.parametrize("size", ["tiny", "small", "base"])
@KINDS
def test_each_is_as_large_as_the_encoder(kind: str, size: str, reach: int) -> None:
    with torch.device("meta"):
        encoder = Encoder(size, codes={"kind": 9}, values=("size_value",), causal=True)
        found = beside(kind, encoder.config, reach, size_of(encoder))
    assert abs(size_of(found) / size_of(encoder) - 1) < 0.05


def test_one_that_cannot_be_as_small_is_refused(tiny: Any) -> None:
    with pytest.raises(ValueError, match="a temporal CNN that sees 50200 rows cannot be made with 2000 ± 5 %"):
        beside("temporal CNN", tiny(causal=True).config, 50_200, 2000)
