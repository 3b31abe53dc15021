"""Every default configuration assembles for sm_80, sm_90 and sm_100 without a spill, and fits into shared memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def table() -> list[dict[str, object]]:
    # A child, because in this process the kernels may belong to the interpreter.
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, HERE / "compiling.py"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def key(row: dict[str, object]) -> tuple[object, ...]:
    return row["kernel"], row["dtype"], row["d"], row["capability"]


def test_every_pass_and_head_size_is_in_the_table(table):
    assert len({key(row) for row in table if not row["terms"]}) == 3 * 3 * 4
    assert len(table) == 3 * 3 * 4 + 4 * 3 + 8 + 1


def test_no_default_configuration_spills(table):
    wrong = [row for row in table if not row["terms"] and row["spills"]]
    assert not wrong, "\n".join(map(str, wrong))


def test_everything_fits_into_shared_memory(table):
    wrong = [row for row in table if row["shared"] > row["shared_limit"]]
    assert not wrong, "\n".join(map(str, wrong))


def test_hopper_reads_tiles_with_the_copy_engine_and_multiplies_with_wgmma(table):
    rows = [row for row in table if row["capability"] == 90 and row["dtype"] == "bf16" and row["kernel"] != "dbias"]
    assert rows
    assert all(row["wgmma"] and row["bulk_copies"] for row in rows)
