"""Angles of the rotation: exact in positions and times, relative in their effect."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantattn.attention.rotation import rotate
from quantattn.nn.config import EncoderConfig
from quantattn.nn.rotary import _table_op, position_frequencies, rotary_table, time_frequencies
from quantattn.nn.rows import offsets_of_decisions, starts_of_rows


def table(time: torch.Tensor, starts: list[int], **options: float) -> tuple[torch.Tensor, torch.Tensor]:
    config = EncoderConfig.of_size("tiny", codes={"kind": 3}, **options)
    cos, sin = rotary_table(config, config.rotary_base, time, torch.tensor(starts, dtype=torch.int32))
    assert torch.equal(cos[..., :16], cos[..., 16:])
    assert torch.equal(sin[..., :16], -sin[..., 16:])
    return cos[..., 16:], sin[..., 16:]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 6), max_size=8))
def test_starts_of_rows(lengths: list[int]) -> None:
    ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
    expected = [end - length for end, length in zip(ends, lengths, strict=True) for _ in range(length)]
    offsets = torch.tensor([0, *ends], dtype=torch.int32)
    assert starts_of_rows(offsets, sum(lengths)).tolist() == expected


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.booleans(), max_size=5), max_size=6))
def test_offsets_of_decisions(decides: list[list[bool]]) -> None:
    flat = [decision for sequence in decides for decision in sequence]
    cu_seqlens = torch.tensor([0, *accumulate(map(len, decides))], dtype=torch.int32)
    found = offsets_of_decisions(torch.tensor(flat, dtype=torch.bool).nonzero().flatten(), cu_seqlens)
    assert found.dtype == torch.int32
    assert found.tolist() == [0, *accumulate(map(sum, decides))]


def test_positions_begin_anew_with_each_sequence() -> None:
    cos, sin = table(torch.zeros(7, dtype=torch.int64), [0, 3, 3, 7])
    assert torch.equal(cos[:3], cos[3:6])
    assert torch.equal(sin[:3], sin[3:6])
    assert cos[0].eq(1).all()
    assert sin[0].eq(0).all()
    first_pair = torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=torch.float64)
    torch.testing.assert_close(sin[3:, 0, 0], first_pair.sin().float(), rtol=0, atol=1e-7)


def test_a_million_positions_cost_no_precision() -> None:
    n, config = 1_000_003, EncoderConfig.of_size("tiny", codes={"code": 4})
    time, last = torch.zeros(n, dtype=torch.int64), torch.tensor([n - 1])
    cos, _ = rotary_table(config, config.rotary_base, time, torch.tensor([0, n], dtype=torch.int32), last)
    assert cos[-1, 0, 0].item() == pytest.approx(math.cos(n - 1), abs=1e-7)
    in_float32 = torch.tensor(10_000.0) ** (-torch.arange(16) / 16) * torch.tensor(float(n - 1))
    assert abs(in_float32.cos()[1].item() - cos[-1, 0, 1].item()) > 1e-3  # what the usual float32 table loses


def test_nanoseconds_of_the_epoch_are_not_lost() -> None:
    epoch, step = 1_760_000_000_123_456_789, 137
    time = epoch + step * torch.arange(5)
    _, sin = table(time, [0, 5], time_rotary=1.0, time_periods=(1e-6, 1.0))
    exact = [float(Fraction(step * i, 10**9)) * 2 * math.pi / 1e-6 for i in range(5)]
    assert sin[:, 0, 0].tolist() == pytest.approx([math.sin(angle) for angle in exact], abs=1e-6)
    assert float(time[1]) * 1e-9 - float(time[0]) * 1e-9 != pytest.approx(step * 1e-9, rel=0.1)  # floats first: lost


def test_frequencies_span_their_range() -> None:
    assert position_frequencies(4, 10_000.0).tolist() == pytest.approx([1, 0.1, 0.01, 0.001])
    periods = 2 * math.pi / time_frequencies(3, (0.01, 100.0))
    assert periods.tolist() == pytest.approx([0.01, 1.0, 100.0])
    assert time_frequencies(1, (0.5, 100.0)).tolist() == pytest.approx([4 * math.pi])


def test_half_of_the_pairs_turn_with_time() -> None:
    time = torch.tensor([0, 5_000_000_000, 5_000_000_000])
    cos, _ = table(time, [0, 3], time_rotary=0.5)
    assert torch.equal(cos[1, :, 8:], cos[2, :, 8:])
    assert (cos[1, :, :7] != cos[2, :, :7]).all()


def test_the_table_is_a_sound_operator() -> None:
    time, offsets = torch.arange(7) * 10**9, torch.tensor([0, 3, 3, 7], dtype=torch.int32)
    for time_pairs in (0, 3, 8):
        torch.library.opcheck(_table_op, (time, offsets, 8, time_pairs, 1e4, 1e-3, 10.0, False))
    torch.library.opcheck(_table_op, (time, offsets, 8, 3, 1e4, 1e-3, 10.0, False, torch.tensor([1, 4, 6])))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 1000))
def test_products_depend_on_the_distance_alone(i: int, j: int, shift: int) -> None:
    n, config = 2048, EncoderConfig.of_size("tiny", codes={"kind": 3})
    cos, sin = rotary_table(config, 10_000.0, torch.zeros(n, dtype=torch.int64), torch.tensor([0, n]))
    draw = torch.Generator().manual_seed(i * 1000 + j)
    q, k = torch.randn(2, 1, 1, 32, generator=draw, dtype=torch.float64).expand(-1, n, -1, -1)
    turned_q, turned_k = rotate(q, cos, sin), rotate(k, cos, sin)
    here = (turned_q[i] * turned_k[j]).sum()
    there = (turned_q[i + shift] * turned_k[j + shift]).sum()
    assert here.item() == pytest.approx(there.item(), abs=1e-5)
    angle = torch.tensor(float(i), dtype=torch.float64)
    a, b = q[i, 0, 0], q[i, 0, 16]
    assert turned_q[i, 0, 0].item() == pytest.approx((a * angle.cos() - b * angle.sin()).item(), abs=1e-5)
    assert turned_q[i, 0, 16].item() == pytest.approx((a * angle.sin() + b * angle.cos()).item(), abs=1e-5)
    assert turned_q.square().sum(-1)[i].item() == pytest.approx(q.square().sum(-1)[i].item(), rel=1e-6)
