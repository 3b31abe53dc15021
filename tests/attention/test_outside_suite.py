"""The driver of other people's tests: it counts what was called, keeps their reference and hides no failure."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DRIVER = Path(__file__).resolve().parents[2] / "benchmarks" / "outside_suite.py"
SUITE = """
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attention

X = torch.randn(1, 2, 5, 8)

def test_agrees():
    with sdpa_kernel(SDPBackend.MATH):
        expected = attention(X, X, X, is_causal=True)
    torch.testing.assert_close(attention(X, X, X, is_causal=True), expected)

def test_disagrees():
    assert attention(X, X, X).sum() == X.sum()

def test_refused():
    attention(X, X, X.double())

def test_refused_as_expected():
    try:
        attention(X, X, X.double())
    except RuntimeError:
        return
    raise AssertionError

def test_calls_nothing():
    assert X.shape[0] == 1
"""


def test_a_pass_with_ours_records_calls_refusals_and_failures(tmp_path: Path) -> None:
    suite, found, alone = (tmp_path / name for name in ("test_toy.py", "found.json", "alone.json"))
    suite.write_text(SUITE)
    alone.write_text("[]")
    command = [sys.executable, str(DRIVER), str(suite), "--here=ours", f"--json={found}", f"--only-math={alone}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    cases = {name.split("::")[-1]: case for name, case in json.loads(found.read_text()).items()}
    facts = {name: (c["outcome"], c["calls"], c["under_math"], len(c["refused"])) for name, c in cases.items()}
    assert facts == {
        "test_agrees": ("passed", 1, 1, 0),
        "test_disagrees": ("failed", 1, 0, 0),
        "test_refused": ("failed", 1, 0, 1),
        "test_refused_as_expected": ("passed", 1, 0, 1),
        "test_calls_nothing": ("passed", 0, 0, 0),
    }


def case(outcome: str = "passed", calls: int = 1, refused: tuple[str, ...] = (), error: str = "") -> dict[str, Any]:
    return {"outcome": outcome, "calls": calls, "under_math": 0, "refused": list(refused), "error": error}


@pytest.mark.parametrize(
    ("plain", "watched", "ours", "expected"),
    [
        (case(calls=0), case(), case(), "passed"),
        (case(calls=0), case(), case("failed", error="off"), "disagrees"),
        (case(calls=0), case(), case("failed", refused=("dropout",)), "refused"),
        (case(calls=0), case(calls=0), case(calls=0), "never calls the function"),
        (case("failed"), case("failed"), case("failed"), "fails without us"),
        (case("skipped"), case("skipped"), case("skipped"), "skipped by the suite"),
        (case(), case("failed"), case("failed"), "cannot be watched: it scripts or compiles the function itself"),
    ],
)
def test_only_what_reached_ours_and_passed_is_counted_as_passed(plain, watched, ours, expected) -> None:
    spec = importlib.util.spec_from_file_location("outside_suite", DRIVER)
    assert spec is not None
    assert spec.loader is not None
    driver = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(driver)
    assert driver.reason(plain, watched, ours)[0] == expected
