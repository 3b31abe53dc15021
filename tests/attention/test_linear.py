"""The batch-invariant linear map: a row's bits are its own, and its rounding is no larger than torch's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from quantattn.attention import batch_invariant_linear
from quantattn.attention.linear import batch_invariant_linear_op
from quantattn.attention.testing import _floor, errors

SHAPES = [(64, 192), (33, 70), (12, 1), (96, 3), (1, 17)]  # (K, N): of a block, odd, of heads
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def draw(rows: int, k: int, n: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x, weight, bias = (torch.randn(*size, generator=generator) for size in ((rows, k), (n, k), (n,)))
    return x.to(dtype), weight.to(dtype), bias.to(dtype)


def offered(device: str, dtype: torch.dtype) -> None:
    if device == "cuda" and dtype == torch.float64:
        pytest.skip("float64 is offered on a CPU alone")


@pytest.fixture(params=[1, 3, 8])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("k", "n"), SHAPES)
def test_a_row_has_the_same_bits_at_every_place_among_any_rows(
    device: str, threads: int, dtype: torch.dtype, k: int, n: int
) -> None:
    offered(device, dtype)
    x, weight, bias = (t.to(device) for t in draw(150, k, n, dtype))
    alone = batch_invariant_linear(x[:1], weight, bias)
    for place in range(0, 150, 1 if threads == 3 else 7):
        among = x.flip(0).clone()
        among[place] = x[0]
        assert torch.equal(batch_invariant_linear(among, weight, bias)[place : place + 1], alone)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 5), st.booleans())
def test_any_part_of_the_rows_has_the_bits_of_the_whole(first: int, count: int, pad: int, biased: bool) -> None:
    x, weight, bias = draw(300, 40, 24, torch.float32)
    whole = batch_invariant_linear(x, weight, bias if biased else None)
    held = torch.zeros(300 * 40 + pad)  # any address, not only that of the beginning of a line
    shifted = held[pad:].view(300, 40).copy_(x)
    part = batch_invariant_linear(shifted[first : first + count], weight, bias if biased else None)
    assert torch.equal(part, whole[first : first + count])


def test_the_ordinary_map_fails_this(device: str) -> None:
    x, weight, bias = (t.to(device) for t in draw(300, 384, 512, torch.float32))
    whole = functional.linear(x, weight, bias)
    counts = range(1, 300, 7)
    assert any(not torch.equal(functional.linear(x[:count], weight, bias), whole[:count]) for count in counts)


@pytest.mark.parametrize("dtype", DTYPES[:3])
@pytest.mark.parametrize(("k", "n"), [(384, 200), (33, 70), (1024, 64)])
def test_its_rounding_is_within_the_budget(device: str, dtype: torch.dtype, k: int, n: int) -> None:
    x, weight, bias = (t.to(device) for t in draw(257, k, n, dtype))
    truth = functional.linear(x.double(), weight.double(), bias.double())
    worst, mean = errors(batch_invariant_linear(x, weight, bias), truth)
    loss, floor = errors(functional.linear(x, weight, bias), truth), _floor(truth, dtype)
    assert worst <= 2 * loss[0] + floor[0]
    assert mean <= 2 * loss[1] + floor[1]


def test_a_nan_stays_in_its_row(device: str) -> None:
    x, weight, bias = (t.to(device) for t in draw(140, 33, 70, torch.float32))
    clean = batch_invariant_linear(x, weight, bias)
    x[3, 5], x[130, 0] = torch.nan, torch.inf
    y = batch_invariant_linear(x, weight, bias)
    assert y[3].isnan().all()
    assert not y[130].isfinite().any()
    kept = [row for row in range(140) if row not in (3, 130)]
    assert torch.equal(y[kept], clean[kept])


def test_leading_axes_views_and_no_rows() -> None:
    x, weight, bias = draw(24, 10, 6, torch.float32)
    y = batch_invariant_linear(x, weight, bias)
    assert torch.equal(batch_invariant_linear(x.view(2, 3, 4, 10), weight, bias), y.view(2, 3, 4, 6))
    assert torch.equal(batch_invariant_linear(x[0], weight, bias), y[0])
    assert torch.equal(batch_invariant_linear(x[::2], weight, bias), y[::2])
    assert torch.equal(batch_invariant_linear(x.T.contiguous().T, weight.T.contiguous().T, bias), y)
    assert batch_invariant_linear(x[:0], weight).shape == (0, 6)
    assert torch.equal(batch_invariant_linear(x[:, :0], weight[:, :0], bias), bias.expand(24, 6))


def test_gradients_and_operator_rules(device: str) -> None:
    dtype = torch.float64 if device == "cpu" else torch.float32
    x, weight, bias = (t.to(device).requires_grad_() for t in draw(9, 10, 6, dtype))
    if device == "cpu":
        assert torch.autograd.gradcheck(batch_invariant_linear, (x, weight, bias))
    for given_bias in (bias, None):
        torch.library.opcheck(batch_invariant_linear_op, (x, weight, given_bias))


def test_it_is_one_graph_whatever_the_rows(device: str) -> None:
    compiled = torch.compile(batch_invariant_linear, fullgraph=True, dynamic=True, backend="eager")
    for rows in (5, 1, 200):
        x, weight, bias = (t.to(device) for t in draw(rows, 16, 8, torch.float32))
        assert torch.equal(compiled(x, weight, bias), batch_invariant_linear(x, weight, bias))
    torch._dynamo.reset()


def test_autocast_gives_what_the_lower_dtype_gives(device: str) -> None:
    x, weight, bias = (t.to(device) for t in draw(20, 33, 7, torch.float32))
    with torch.autocast(device, dtype=torch.bfloat16):
        found = batch_invariant_linear(x, weight, bias)
    assert torch.equal(found, batch_invariant_linear(x.bfloat16(), weight.bfloat16(), bias.bfloat16()))


@pytest.mark.parametrize(
    ("change", "kind", "says"),
    [
        (lambda x, w, b: (x[:, 1:], w, b), ValueError, r"got \(4, 9\), \(6, 10\), \(6,\)"),
        (lambda x, w, b: (x, w, b[1:]), ValueError, r"got \(4, 10\), \(6, 10\), \(5,\)"),
        (lambda x, w, b: (x.double(), w, b), TypeError, "one dtype, got torch.float64, torch.float32"),
        (lambda x, w, b: (x.int(), w.int(), b.int()), TypeError, "takes .* got torch.int32"),
        (lambda x, w, b: (x, w.to("meta"), b), ValueError, "one device, got cpu, meta"),
    ],
)
def test_refusals_say_what_came(change: object, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        batch_invariant_linear(*change(*draw(4, 10, 6, torch.float32)))  # type: ignore[operator]
