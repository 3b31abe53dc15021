"""The programs for sm_90 assemble: products by wgmma side by side, loads by TMA, and all within the device's limits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")
SCRIPT = Path(__file__).with_name("compiling_hopper.py")

# Bytes a thread that are kept in local memory, stores and loads, at most; most of it before and after the loops.
OLD = tuple(int(part) for part in triton.__version__.split(".")[:2]) < (3, 7)
SPILLS = (
    {("fwd", 64): 160, ("fwd", 128): 48, ("fwd", 256): 112, ("short", 64): 0, ("short", 128): 24}
    | {("bwd", 64): 8, ("bwd", 128): 88, ("float8", 64): 8, ("float8", 128): 16}
    | {("keys", 256): 0, ("queries", 256): 24}
    if OLD
    else {("fwd", 64): 32, ("fwd", 128): 24, ("fwd", 256): 284, ("short", 64): 0, ("short", 128): 56}
    | {("bwd", 64): 40, ("bwd", 128): 32, ("float8", 64): 0, ("float8", 128): 0}
    | {("keys", 256): 0, ("queries", 256): 24}
)


@pytest.fixture(scope="module")
def table() -> list[dict[str, object]]:
    # A child, because in this process the kernels may belong to the interpreter.
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, SCRIPT], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_no_program_spills_more_than_what_was_measured(table):
    assert len(table) == 31
    wrong = [row for row in table if row["spills"] > SPILLS[row["kernel"], row["d"]]]
    assert not wrong, "\n".join(map(str, wrong))


def test_every_program_fits_the_device(table):
    assert not [row for row in table if row["shared"] > row["shared_limit"]]
    assert not [row for row in table if row["registers"] * row["threads"] > 65536]


def test_products_run_side_by_side_on_tiles_that_the_copy_engine_brought(table):
    assert all(row["wgmma"] and row["bulk_copies"] for row in table)
    assert not [row for row in table if row["serialized"]]


def test_no_program_hands_a_number_round_in_shared_memory(table):
    """Triton's atomics do, where it takes the place of barriers that it thinks are over (`arithmetic.draw`)."""
    assert not [row for row in table if row["atomics"]]
