"""Every generation assembles for three architectures, and the machine code shows what its paper is about."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
HERE = Path(__file__).parent
JOBS = {
    90: ("flash1", "flash2", "flash3", "flash4", "scores", "float8"),
    100: ("flash3", "flash4"),
    80: ("flash1", "flash4", "softmax", "product"),
}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def table() -> dict[tuple[int, str], dict]:
    # A child, because in this process the kernels may belong to the interpreter.
    jobs = [f"{kernel}:bf16:{128 if arch == 90 else 64}:{arch}" for arch, kernels in JOBS.items() for kernel in kernels]
    done = subprocess.run(
        [sys.executable, HERE / "compiling_generations.py", *jobs],
        env={**os.environ, "TRITON_INTERPRET": "0"},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return {(row["capability"], row["kernel"]): row for row in json.loads(done.stdout)}


def test_everything_assembles_and_fits(table):
    """Into shared memory, and into registers but for the few bytes a thread that triton 3.6 spills on sm_80."""
    assert len(table) == sum(map(len, JOBS.values()))
    wrong = [row for row in table.values() if row["shared"] > row["shared_limit"] or row["spills"] > 64]
    assert not wrong, wrong


def test_products_run_on_the_matrix_units_of_their_architecture(table):
    for (arch, _), row in table.items():
        assert row["wgmma"] == (arch == 90), row
        assert row["tcgen05"] == (arch == 100), row
    assert [key for key, row in table.items() if row["e4m3"]] == [(90, "float8")]


def test_blocks_of_float8_are_added_in_float32(table):
    """One multiplication and addition for each number of u that a thread holds, beside one for each weight."""
    row = table[90, "float8"]
    numbers = row["weights"] * 128 // 64  # D numbers of u to BLOCK_N weights
    assert row["spills"] == 0
    assert row["fused"] >= numbers + row["weights"]


def test_the_copy_engine_brings_tiles_from_the_third_generation_on(table):
    for arch in (90, 100):
        assert table[arch, "flash3"]["bulk_copies"]
        assert table[arch, "flash4"]["bulk_copies"]
    assert not table[90, "flash2"]["bulk_copies"]


def test_only_the_third_generation_makes_exponentials_under_a_product(table):
    """On Hopper: instructions between the start of a product and the first wait for one."""
    found = {kernel: table[90, kernel]["overlapped"] for kernel in ("flash1", "flash2", "flash3", "flash4")}
    row = table[90, "flash3"]
    assert found.pop("flash3") >= row["weights"] // 2  # the second half's weights, all of them
    assert set(found.values()) == {0}


def test_the_fourth_generation_takes_a_quarter_of_the_exponentials_from_the_special_unit(table):
    row = table[90, "flash4"]
    rescaling = row["exponentials"] - 3 * row["weights"] // 4
    assert 0 < rescaling <= 4  # one a row that the thread holds
    assert table[90, "flash2"]["exponentials"] >= 2 * table[90, "flash2"]["weights"]  # its two loops
