"""The gradient of a table is that of torch, compiled or not, and no compiler turns it into something else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from quantattn.nn.lookup import _look_up, look_up


def drawn(device: str) -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    codes = torch.randint(5, (300,), generator=rng)
    codes[codes == 3] = 0  # a code that no row has
    table, do = torch.randn(5, 16, generator=rng), torch.randn(300, 16, generator=rng)
    return codes.to(device), table.to(device).requires_grad_(), do.to(device)


@pytest.mark.parametrize("compiled", [False, True])
def test_rows_and_gradients_are_those_of_torch(compiled: bool, device: str) -> None:
    codes, table, do = drawn(device)

    def call(codes: Tensor, table: Tensor) -> Tensor:
        return _look_up(codes, table)

    call = torch.compile(call, fullgraph=True, backend="aot_eager") if compiled else call
    rows, expected = call(codes, table), functional.embedding(codes, table)
    assert torch.equal(rows, expected)
    found, wanted = (torch.autograd.grad(x, table, do)[0] for x in (rows, expected))
    assert torch.equal(found, wanted)
    sums = torch.zeros(5, 16, dtype=torch.float64, device=device).index_add(0, codes, do.double())
    torch.testing.assert_close(found.double(), sums, rtol=0, atol=1e-4)
    assert not found[3].any()


def test_the_operator_keeps_the_rules_of_operators(device: str) -> None:
    codes, table, _ = drawn(device)
    torch.library.opcheck(_look_up, (codes, table))


@pytest.mark.gpu
def test_on_a_gpu_the_gradient_repeats_and_is_not_one_row_after_the_other(device: str) -> None:
    if device == "cpu":
        pytest.skip("needs a GPU")
    codes = torch.randint(4, (65_536,), device=device)
    table, do = torch.randn(4, 768, device=device, requires_grad=True), torch.randn(65_536, 768, device=device)
    call = torch.compile(look_up, fullgraph=True)
    torch.use_deterministic_algorithms(True)  # as `trainer.deterministic` asks; without it torch adds in any order
    try:
        found = [torch.autograd.grad(call(codes, table), table, do)[0] for _ in range(10)]
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.autograd.grad(call(codes, table), table, do)
        end.record()
        torch.cuda.synchronize()
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(found[0], other) for other in found)
    assert begin.elapsed_time(end) < 10.0
