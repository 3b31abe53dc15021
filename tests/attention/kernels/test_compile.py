"""Every default configuration assembles for sm_80, sm_90 and sm_100: no spills, and it fits into shared memory."""

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


def test_every_pass_dtype_and_architecture_is_in_the_table(table):
    seen = {(row["kernel"], row["dtype"], row["d"], row["capability"]) for row in table}
    assert len(seen) == 3 * 2 * 3 * 3


def test_nothing_spills_and_everything_fits(table):
    wrong = [row for row in table if row["spills"] or row["shared"] > row["shared_limit"]]
    assert not wrong, "\n".join(map(str, wrong))


def test_hopper_reads_tiles_with_the_copy_engine_and_multiplies_with_wgmma(table):
    rows = [row for row in table if row["capability"] == 90 and row["dtype"] == "bf16"]
    assert rows
    assert all(row["wgmma"] and row["bulk_copies"] for row in rows)
