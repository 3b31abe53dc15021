"""PyTorch's own tests of scaled_dot_product_attention, run with ours in its place.

    python benchmarks/outside_suite.py path/to/pytorch/test/test_transformers.py [--every 8] [--json FILE] [PYTEST …]

The suite is the reader's: any checkout's test/test_transformers.py that fits the installed torch, read where it
stands. It runs three times: as it is, with torch's function behind a wrapper that counts its calls, and with
`quantattn.attention.adapters` behind that wrapper; the table says of each case whether ours was called and what came of
it. Where a test compares with the MATH backend by name, that call stays torch's, for it is the test's reference; a test
that calls nothing else has a reference of its own.

`--every N` keeps every Nth case of a test with more than a hundred, the same ones each time.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, _cur_sdpa_kernel_backends

from quantattn.attention.adapters import scaled_dot_product_attention as ours

TORCHS = torch.nn.functional.scaled_dot_product_attention


class Refused(RuntimeError, ValueError):
    """What ours refuses, as the classes that torch's function raises."""


class Record:
    """A pytest plugin: what each case called and how it ended.

    Attributes:
        cases: by node id: outcome, calls beside MATH, calls under MATH, what ours refused, the last error.
        only_math: cases that call under MATH alone, in which those calls are what is tested.
    """

    def __init__(self, every: int, only_math: set[str] | None) -> None:
        self.every, self.only_math = every, only_math
        self.cases: dict[str, dict[str, Any]] = {}
        self.case: dict[str, Any] = {}

    def attention(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """torch.nn.functional.scaled_dot_product_attention while the suite runs."""
        math = _cur_sdpa_kernel_backends() == [SDPBackend.MATH]
        self.case["under_math" if math else "calls"] += 1
        if self.only_math is None or (math and self.case["id"] not in self.only_math):
            torch.nn.functional.scaled_dot_product_attention = TORCHS  # which masks that are classes ask for by name
            try:
                return TORCHS(*args, **kwargs)
            finally:
                torch.nn.functional.scaled_dot_product_attention = self.attention
        try:
            return ours(*args, **kwargs)
        except (ValueError, TypeError) as error:
            self.case["refused"].append(str(error))
            raise Refused(str(error)) from error

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Thin out what has more than a hundred cases."""
        groups: dict[Any, list[pytest.Item]] = {}
        for item in items:
            groups.setdefault(re.sub(r"_[A-Za-z]*Backend.*|_(\d|[A-Z]|batch).*", "", item.name), []).append(item)
        kept = {id(x) for group in groups.values() for x in group[:: self.every if len(group) > 100 else 1]}
        config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
        items[:] = [item for item in items if id(item) in kept]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """A new case."""
        self.case = {"id": item.nodeid, "outcome": "passed", "calls": 0, "under_math": 0, "refused": [], "error": ""}
        self.cases[item.nodeid] = self.case

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """How the case ended: its worst phase."""
        if report.outcome != "passed":
            self.case["outcome"] = report.outcome
            where = report.longrepr
            text = where[2] if isinstance(where, tuple) else getattr(getattr(where, "reprcrash", None), "message", "")
            self.case["error"] = str(text).strip().split("\n")[0][:160]


def run_here(options: argparse.Namespace, pytest_options: list[str]) -> int:
    """One pass in this process, written to `options.json`."""
    only_math = set(json.loads(options.only_math.read_text())) if options.only_math else None
    record = Record(options.every, only_math)
    if options.here != "plain":
        torch.nn.functional.scaled_dot_product_attention = record.attention
    sys.argv = [str(options.suite)]  # which the suite reads for options of its own
    quiet = ["-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", "-W", "ignore", "-c", "/dev/null"]
    code = pytest.main([*quiet, f"--rootdir={options.suite.parent}", str(options.suite), *pytest_options], [record])
    options.json.write_text(json.dumps(record.cases))
    return 0 if code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) else int(code)


def passes(options: argparse.Namespace, pytest_options: list[str]) -> list[dict[str, dict[str, Any]]]:
    """The cases as they are, with torch's function watched, and with ours, each in a process of its own."""
    found: list[dict[str, dict[str, Any]]] = []
    with tempfile.TemporaryDirectory() as folder:
        alone = Path(folder, "only_math.json")
        for name in ("plain", "watched", "ours"):
            path = Path(folder, f"{name}.json")
            command = [sys.executable, __file__, str(options.suite), f"--here={name}", f"--every={options.every}"]
            command += [f"--json={path}", *([f"--only-math={alone}"] if name == "ours" else [])]
            subprocess.run([*command, *pytest_options], check=True, stdout=sys.stderr)
            found.append(json.loads(path.read_text()))
            alone.write_text(json.dumps([i for i, c in found[-1].items() if c["under_math"] and not c["calls"]]))
    return found


def reason(plain: dict[str, Any], watched: dict[str, Any], case: dict[str, Any]) -> tuple[str, str]:
    """(what came of a case, why)."""
    if plain["outcome"] == "skipped":
        return "skipped by the suite", plain["error"].removeprefix("Skipped: ")
    if plain["outcome"] == "failed":
        return "fails without us", plain["error"]
    if watched["outcome"] == "failed":
        return "cannot be watched: it scripts or compiles the function itself", ""
    if watched["calls"] + watched["under_math"] == 0:
        return "never calls the function", ""
    if case["outcome"] == "passed":
        return "passed", "after a call that was refused, as the test expects" if case["refused"] else ""
    if case["refused"]:
        return "refused", re.sub(r"\(\d[\d, ]*\)", "(…)", case["refused"][-1])
    return "disagrees", case["error"]


def main() -> int:
    """Run the passes and print the table; 1 when a case fails in which nothing was refused."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", type=Path)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--here", help=argparse.SUPPRESS)
    parser.add_argument("--only-math", type=Path, help=argparse.SUPPRESS)
    options, pytest_options = parser.parse_known_args()
    options.suite = options.suite.resolve()
    if options.here:
        return run_here(options, pytest_options)
    plain, watched, replaced = passes(options, pytest_options)
    rows = {i: reason(plain[i], watched[i], replaced[i]) for i in plain}
    if options.json:
        options.json.write_text(json.dumps({i: {"result": rows[i], **replaced[i]} for i in rows}, indent=1))
    counts = Counter(rows.values())
    print(f"{len(rows)} cases of {options.suite.name}, torch {torch.__version__}")
    for kind, number in Counter(kind for kind, _ in rows.values()).most_common():
        print(f"{number:6}  {kind}")
        for (other, why), count in counts.most_common():
            if other == kind and why:
                print(f"        {count:6}  {why}")
    return int(any(kind == "disagrees" for kind, _ in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
