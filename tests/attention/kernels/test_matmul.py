"""The kernel of the batch-invariant linear map, launched by itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
from quantattn.attention.kernels.matmul import BLOCKS, SMALL, launch_linear
from quantattn.attention.kernels.primitives import INTERPRETED
from quantattn.attention.testing import _floor, errors

# numpy, which the interpreter computes with, has no bfloat16.
DTYPES = [torch.float32, torch.float16] if INTERPRETED else [torch.float32, torch.float16, torch.bfloat16]


def run(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, **options: object) -> torch.Tensor:
    out = torch.full((x.shape[0], weight.shape[0]), torch.nan, dtype=x.dtype, device=x.device)
    launch_linear(x, weight, bias, out, **options)
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "k", "n"), [(1, 16, 16), (33, 40, 20), (17, 5, 1)])
@pytest.mark.parametrize("biased", [False, True])
def test_every_entry_is_written_and_within_the_budget(
    device: str, dtype: torch.dtype, rows: int, k: int, n: int, biased: bool
) -> None:
    torch.manual_seed(rows)
    x, weight, bias = (torch.randn(*size).to(device, dtype) for size in ((rows, k), (n, k), (n,)))
    bias = bias if biased else None
    y = run(x, weight, bias)
    truth = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    standard = torch.nn.functional.linear(x, weight, bias)
    assert errors(y, truth)[0] <= 2 * errors(standard, truth)[0] + _floor(truth, dtype)[0]
    assert errors(y, truth)[1] <= 2 * errors(standard, truth)[1] + _floor(truth, dtype)[1]


def test_a_nan_stays_in_its_row_and_padding_is_not_read(device: str) -> None:
    held = torch.full((21, 24), torch.nan, device=device)
    held[:20, :20] = torch.randn(20, 20)
    x, weight = held[:20, :20], held[:20, :20].clone()
    clean = run(x, weight, None)
    x[7, 3] = torch.nan
    y = run(x, weight, None)
    assert y[7].isnan().all()
    kept = [row for row in range(20) if row != 7]
    assert torch.equal(y[kept], clean[kept])


# In the interpreter numpy multiplies the blocks, whose bits depend on the place of a row and of the memory.
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_no_blocks_are_chosen_by_the_number_of_rows(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(5000, 384, device="cuda").to(dtype), torch.randn(1152, 384, device="cuda").to(dtype)
    whole = run(x, weight, None)
    assert torch.equal(run(x.flip(0), weight, None).flip(0), whole)
    for count in (1, 2, 15, 16, 17, 127, 128, 129, 1000):
        for first in (0, 1, 63, 3000):
            assert torch.equal(run(x[first : first + count], weight, None), whole[first : first + count])


@pytest.mark.skipif(not INTERPRETED, reason="the blocks of the device are what the other tests run")
def test_the_interpreter_runs_the_small_blocks() -> None:
    x, weight = torch.randn(20, 20), torch.randn(20, 20)
    assert torch.equal(run(x, weight, None), run(x, weight, None, blocks=SMALL))
    assert {bits: blocks.block_k * bits for bits, blocks in BLOCKS.items()} == {16: 1024, 32: 1024}


def test_its_blocks_assemble_without_a_spill() -> None:
    # A child, because in this process the kernels may belong to the interpreter.
    script = Path(__file__).parent / "compiling_matmul.py"
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    table = json.loads(done.stdout)
    assert len(table) == 5
    assert not [row for row in table if row["spills"] or row["shared"] > row["shared_limit"]]
    assert [row["wgmma"] for row in table if row["capability"] == 90] == [True, True]
