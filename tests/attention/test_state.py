"""The state is a commutative monoid, and its result is the softmax over all keys."""

from __future__ import annotations

from functools import reduce

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quantattn.attention.state import Attended, AttentionState

FEW = settings(max_examples=40, deadline=None)


def block(seed: int, rows: int, keys: int, d: int = 3, hidden: float = 0.3) -> tuple[Tensor, Tensor]:
    """Scores (rows, keys) of very different sizes with some −∞, and values (keys, d), float64."""
    rng = torch.Generator().manual_seed(seed)
    scores = torch.randn(rows, keys, generator=rng, dtype=torch.float64) * 30
    scores[torch.rand(rows, keys, generator=rng) < hidden] = -torch.inf
    return scores, torch.randn(keys, d, generator=rng, dtype=torch.float64)


def dense(scores: Tensor, values: Tensor) -> Attended:
    """The definition, for rows that see something; 0 and −∞ for the others."""
    sees = (scores != -torch.inf).any(-1)
    weights = torch.softmax(scores, -1).where(sees[:, None], 0)
    return Attended(weights @ values, torch.logsumexp(scores, -1))


def same_bits(a: AttentionState, b: AttentionState) -> bool:
    return torch.equal(a.m, b.m) and torch.equal(a.l, b.l) and torch.equal(a.u, b.u)


seeds = st.integers(0, 2**31)
sizes = st.integers(0, 7)


@FEW
@given(seeds, sizes)
def test_the_empty_state_is_the_identity_to_the_bit(seed: int, keys: int) -> None:
    state = AttentionState.of_block(*block(seed, 4, keys))
    empty = AttentionState.empty(4, 3, dtype=torch.float64)
    assert same_bits(state.merge(empty), state)
    assert same_bits(empty.merge(state), state)


def test_nothing_merged_with_nothing_is_nothing() -> None:
    empty = AttentionState.empty((2, 3), 4)
    assert same_bits(empty.merge(empty), empty)
    out, lse = empty.merge(empty).finish()
    assert torch.equal(out, torch.zeros(2, 3, 4))
    assert torch.equal(lse, torch.full((2, 3), -torch.inf))


@FEW
@given(seeds, sizes, sizes)
def test_merging_is_commutative_to_the_bit(seed: int, keys_a: int, keys_b: int) -> None:
    a = AttentionState.of_block(*block(seed, 4, keys_a))
    b = AttentionState.of_block(*block(seed + 1, 4, keys_b))
    assert same_bits(a.merge(b), b.merge(a))


@FEW
@given(seeds, st.tuples(sizes, sizes, sizes))
def test_merging_is_associative(seed: int, keys: tuple[int, int, int]) -> None:
    a, b, c = (AttentionState.of_block(*block(seed + i, 4, n)) for i, n in enumerate(keys))
    left, right = a.merge(b).merge(c).finish(), a.merge(b.merge(c)).finish()
    torch.testing.assert_close(left.out, right.out, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(left.lse, right.lse, rtol=1e-13, atol=1e-12)


@FEW
@given(seeds, st.integers(1, 12), st.data())
def test_any_partition_in_any_order_is_the_softmax_over_all_keys(seed: int, keys: int, data: st.DataObject) -> None:
    scores, values = block(seed, 5, keys)
    part_of = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=keys, max_size=keys)))
    order = data.draw(st.permutations(range(4)))
    parts = [AttentionState.of_block(scores[:, part_of == part], values[part_of == part]) for part in order]
    out, lse = reduce(AttentionState.merge, parts).finish()
    expected = dense(scores, values)
    torch.testing.assert_close(out, expected.out, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(lse, expected.lse, rtol=1e-13, atol=1e-12)


@FEW
@given(seeds, st.floats(-1e4, 1e4))
def test_the_reference_is_free(seed: int, shift: float) -> None:
    state = AttentionState.of_block(*block(seed, 4, 5, hidden=0))
    scores, values = block(seed, 4, 5, hidden=0)
    shifted = AttentionState.of_block(scores + shift, values).finish()
    torch.testing.assert_close(shifted.out, state.finish().out, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(shifted.lse, state.finish().lse + shift, rtol=1e-12, atol=1e-9)
    other = AttentionState(state.m - 1, state.l * torch.e, state.u * torch.e)
    torch.testing.assert_close(other.finish().out, state.finish().out)
    torch.testing.assert_close(other.finish().lse, state.finish().lse)


@FEW
@given(seeds)
def test_a_finished_result_is_a_state_again(seed: int) -> None:
    scores, values = block(seed, 6, 9, hidden=0.7)
    halves = [AttentionState.of_block(scores[:, s], values[s]) for s in (slice(4), slice(4, 9))]
    again = [AttentionState.of_attended(half.finish()) for half in halves]
    for half, state in zip(halves, again, strict=True):
        assert torch.equal(half.finish().out, state.finish().out)
        assert torch.equal(half.finish().lse, state.finish().lse)
    out, lse = again[0].merge(again[1]).finish()
    expected = dense(scores, values)
    torch.testing.assert_close(out, expected.out, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(lse, expected.lse, rtol=1e-13, atol=1e-12)


def test_gradients_are_those_of_the_definition() -> None:
    torch.manual_seed(0)
    scores, values = block(3, 4, 6, hidden=0)
    scores = scores / 30
    scores[1, :3], scores[2] = -torch.inf, -torch.inf
    visible = scores != -torch.inf

    def merged(s: Tensor, v: Tensor, per_row: Tensor) -> tuple[Tensor, Tensor]:
        s = s.masked_fill(~visible, -torch.inf)
        first = AttentionState.of_block(s[:, :3], v[:3])
        second = AttentionState.of_attended(AttentionState.of_block(s[:, 3:], per_row).finish())
        out, lse = AttentionState.empty(4, 3, dtype=s.dtype).merge(first).merge(second).finish()
        return out, lse.where(visible.any(-1), 0)

    s, v = torch.randn(4, 6, dtype=torch.float64).requires_grad_(), values.requires_grad_()
    per_row = torch.randn(4, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(merged, (s, v, per_row))
    grads = torch.autograd.grad([x.sum() for x in merged(s, v, per_row)], (s, v, per_row))
    assert all(bool(g.isfinite().all()) for g in grads)
    assert torch.equal(grads[0][2], torch.zeros(6, dtype=torch.float64))


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("per_row", [False, True])
def test_a_hidden_value_goes_nowhere(poison: float, per_row: bool) -> None:
    scores, values = block(0, 4, 6, hidden=0)
    scores[:2, 2] = -torch.inf
    values = values.expand(4, 6, 3).clone() if per_row else values
    planted = values.clone()
    planted[..., 2, :] = poison
    results, grads = [], []
    for v in (values, planted):
        s, v = scores.clone().requires_grad_(), v.clone().requires_grad_()
        out, lse = AttentionState.of_block(s, v).finish()
        results.append(out.detach())
        grads.append(torch.autograd.grad((out[:2] ** 2).sum() + lse[:2].sum(), (s, v)))
    assert torch.equal(results[0][:2], results[1][:2])
    assert not bool(results[1][2:].isfinite().any())
    (clean_ds, clean_dv), (dirty_ds, dirty_dv) = grads
    assert torch.equal(clean_ds[:2], dirty_ds[:2])  # the other rows see the value
    assert torch.equal(clean_dv, dirty_dv)


def test_leading_dimensions_are_rows_too() -> None:
    scores, values = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 5, 6)
    out, _ = AttentionState.of_block(scores, values).finish()
    torch.testing.assert_close(out, scores.softmax(-1) @ values)


def test_the_wrong_merges_are_wrong() -> None:
    scores, values = block(1, 4, 8, hidden=0)
    a = AttentionState.of_block(scores[:, :4], values[:4])
    b = AttentionState.of_block(scores[:, 4:], values[4:])
    right = a.merge(b).finish().out
    unrescaled = (a.u + b.u) / (a.l + b.l)[:, None]
    averaged = (a.finish().out + b.finish().out) / 2
    without_maximum = torch.exp(scores * 100) @ values / torch.exp(scores * 100).sum(-1, keepdim=True)
    assert (unrescaled - right).abs().max() > 0.1
    assert (averaged - right).abs().max() > 0.1
    assert bool(without_maximum.isnan().any())


@pytest.mark.parametrize(("scores", "values"), [((2, 3), (4, 5)), ((2, 3), (3, 3, 5)), ((3,), (3, 5)), ((2, 3), (3,))])
def test_shapes_that_do_not_belong_together_are_refused(scores: tuple[int, ...], values: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="scores"):
        AttentionState.of_block(torch.zeros(scores), torch.zeros(values))


def test_a_state_of_other_shapes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"u \(2,\)"):
        AttentionState(torch.zeros(2), torch.zeros(2), torch.zeros(2))


@pytest.mark.parametrize("per_row", [False, True])
def test_autocast_does_not_round_a_block(per_row: bool) -> None:
    scores, values = (x.float() for x in block(3, 4, 6))
    values = values.expand(4, 6, 3) if per_row else values
    plain = AttentionState.of_block(scores, values)
    with torch.autocast("cpu", torch.bfloat16):
        assert same_bits(AttentionState.of_block(scores, values), plain)
