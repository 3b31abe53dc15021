"""The law of the floors, read off the source: who may import what, how long a file may get, what must not be needed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "quantattn"
FILES = sorted(PACKAGE.rglob("*.py"))


@dataclass(frozen=True)
class Room:
    """What one part of the package may import: other parts, and packages of other people."""

    ours: frozenset[str]
    theirs: frozenset[str]


def room(ours: str, theirs: str) -> Room:
    return Room(frozenset(ours.split()), frozenset(theirs.split()))


LAW = {
    "__init__": room("attention batch nn", ""),
    "__main__": room("cli", ""),
    "batch": room("", "torch"),
    "attention": room("", "torch"),
    "data": room("batch", "polars numpy dataframely exchange_calendars selectolax tokenizers fsspec"),
    "nn": room("batch attention", "torch safetensors"),
    "evaluate": room("", "polars numpy scipy matplotlib jinja2 sklearn threadpoolctl"),
    "learn": room("batch data nn evaluate attention", "lightning torch"),
    # arro3 is the Arrow implementation that deltalake itself depends on and takes tables from.
    "score": room("batch data nn evaluate", "torch deltalake arro3 ray"),
    # sqlalchemy is what optuna itself reaches databases by.
    "cli": room(
        "attention batch data nn evaluate learn score", "hydra omegaconf rich optuna sqlalchemy torch flash_attn"
    ),
}
PACKERS = {"data/pack.py"}
"""Files of `data` that may import torch."""
COMPILED = {
    "data/kernel.py",
    "data/market/replay.py",
    "data/market/level_replay.py",
    "data/market/sides.py",
    "data/sources/itch_walk.py",
    "data/sources/lobster_parse.py",
}
"""Files of `data` that may import numba, an extra; whoever needs one imports it inside a function."""
DECODERS = {"data/sources/dbn_format.py", "data/sources/pieces.py"}
"""Files of `data` that may import a vendor's decoder and what unpacks its files, inside functions: extras."""
RUNTIMES = {"nn/export.py"}
"""Files that may import what writes and runs models for other runtimes."""
HUGGING_FACE = {"attention/huggingface.py", "cli/benchmarks/encoder_peers.py"}
"""Files that may import transformers."""
TABLES = {"cli/benchmarks/tokens.py", "cli/benchmarks/tokens_pandas.py"}
TABLES |= {"cli/benchmarks/read_inputs.py", "cli/benchmarks/read_peers.py"}
"""Benchmarks of tables, and peers that they are set beside: files of `cli` that may import what holds tables."""
LAZY = {"ray", "optuna", "flash_attn", "transformers", "databento_dbn", "zstandard", "sklearn", "threadpoolctl"}
LAZY |= {"sqlalchemy"}
LAZY |= {"onnxruntime", "onnxscript"}
"""Packages imported only inside functions, because they are extras."""
PUBLIC_ONLY = {"nn", "learn"}
"""Rooms that see only what `quantattn.attention` itself exports."""


@dataclass(frozen=True)
class Import:
    """One imported module, where it stands, and whether it is inside a function."""

    module: str
    line: int
    lazy: bool


def imports_of(source: str, package: str) -> Iterator[Import]:
    """Every import of a file, relative ones made absolute; `package` is the dotted package that holds the file."""

    def for_types_alone(node: ast.AST) -> bool:
        return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"

    def walk(node: ast.AST, lazy: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            inside = lazy or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) or for_types_alone(child)
            if isinstance(child, ast.Import):
                yield from (Import(alias.name, child.lineno, lazy) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                parts = package.split(".")[: len(package.split(".")) - child.level + 1] if child.level else []
                module = ".".join([*parts, *([child.module] if child.module else [])])
                if module == "quantattn":
                    yield from (Import(f"quantattn.{alias.name}", child.lineno, lazy) for alias in child.names)
                else:
                    yield Import(module, child.lineno, lazy)
            else:
                yield from walk(child, inside)

    return walk(ast.parse(source), False)


def breaches(relative: str, source: str) -> list[str]:
    """Sentences, one for each import of the file that the law forbids."""
    path = Path(relative)
    here = path.parts[0].removesuffix(".py")
    package = ".".join(["quantattn", *path.parts[:-1]])
    allowed = LAW[here]
    found = []
    for item in imports_of(source, package):
        top, *rest = item.module.split(".")
        where = f"{relative}:{item.line} imports {item.module}"
        if top == "quantattn":
            floor = rest[0] if rest else ""
            # `from quantattn import __version__` and names of the package itself carry no floor.
            if floor in LAW and floor != here and floor not in allowed.ours:
                found.append(f"{where}: {here} may import {sorted(allowed.ours) or 'nothing of ours'}")
            if floor == "attention" and here in PUBLIC_ONLY and len(rest) > 1:
                found.append(f"{where}: {here} uses the public names of quantattn.attention only")
            crossing = {"attention/exact.py": "kernels", "attention/kernels": "exact"}
            for start, target in crossing.items():
                if relative.startswith(start) and rest[:2] == ["attention", target]:
                    found.append(f"{where}: the specification and the kernels never import each other")
        elif top not in sys.stdlib_module_names:
            theirs = set(allowed.theirs)
            if relative.startswith("attention/kernels/"):
                theirs.add("triton")
            if relative in PACKERS:
                theirs.add("torch")
            if relative in COMPILED:
                theirs.add("numba")
            if relative in DECODERS:
                theirs |= {"databento_dbn", "zstandard"}
            if relative in RUNTIMES:
                theirs |= {"onnxruntime", "onnxscript"}
            if relative in HUGGING_FACE:
                theirs.add("transformers")
            if relative in TABLES:
                theirs |= {"numpy", "pandas", "polars"}
            if top not in theirs:
                found.append(f"{where}: {here} may use {sorted(theirs)}")
            elif top in LAZY and not item.lazy:
                found.append(f"{where} at the top; {top} is an extra and is imported inside a function")
    return found


def test_every_file_keeps_the_law() -> None:
    found = [line for path in FILES for line in breaches(str(path.relative_to(PACKAGE)), path.read_text("utf-8"))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("relative", "source"),
    [
        ("attention/api.py", "from quantattn.batch import PackedBatch"),
        ("attention/api.py", "import triton"),
        ("attention/exact.py", "from quantattn.attention.kernels import forward"),
        ("attention/exact.py", "from .kernels import forward"),
        ("attention/kernels/forward.py", "from quantattn.attention.exact import exact"),
        ("attention/huggingface.py", "import transformers"),
        ("attention/adapters.py", "def f():\n    import transformers"),
        ("batch.py", "import numpy"),
        ("data/tokens.py", "import torch"),
        ("data/tokens.py", "def f():\n    import torch"),
        ("data/market/book.py", "import numba"),
        ("data/sources/dbn_format.py", "import databento_dbn"),
        ("data/market/book.py", "from quantattn.nn import Encoder"),
        ("data/market/book.py", "from ...evaluate import metrics"),
        ("nn/encoder.py", "from quantattn.attention.exact import exact"),
        ("nn/encoder.py", "import polars"),
        ("nn/export.py", "import onnxruntime"),
        ("nn/model.py", "def f():\n    import onnxruntime"),
        ("evaluate/metrics.py", "from quantattn import batch"),
        ("evaluate/boosting.py", "import sklearn"),
        ("learn/module.py", "import hydra"),
        ("learn/module.py", "from quantattn.cli import main"),
        ("score/sink.py", "import lightning"),
        ("score/worker.py", "import ray"),
        ("cli/sweep.py", "import pandas"),
        ("cli/sweep.py", "import optuna"),
        ("cli/sweep.py", "if True:\n    import optuna"),
        ("cli/benchmarks/loader.py", "import polars"),
    ],
)
def test_the_law_notices_a_breach(relative: str, source: str) -> None:
    assert breaches(relative, source)


@pytest.mark.parametrize(
    ("relative", "source"),
    [
        ("attention/kernels/forward.py", "import triton\nimport torch"),
        ("data/pack.py", "import torch\nfrom quantattn.batch import PackedBatch"),
        ("nn/encoder.py", "from quantattn.attention import Mask, attention"),
        ("score/worker.py", "def f():\n    import ray"),
        ("cli/sweep.py", "if TYPE_CHECKING:\n    from optuna import Study"),
        ("attention/huggingface.py", "def f():\n    from transformers import AttentionInterface"),
        ("cli/train.py", "import hydra\nfrom quantattn.learn import runs\nimport json"),
    ],
)
def test_the_law_lets_good_imports_pass(relative: str, source: str) -> None:
    assert breaches(relative, source) == []


def test_no_drawers_for_leftovers() -> None:
    banned = {"utils.py", "util.py", "base.py", "helpers.py", "common.py", "misc.py"}
    drawers = {"utils", "common", "helpers", "misc"}
    found = [path for path in FILES if path.name in banned or drawers & set(path.relative_to(PACKAGE).parts[:-1])]
    assert not found


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function from `def` to its end, its docstring left out."""
    assert function.end_lineno is not None
    first = function.body[0]
    lines = function.end_lineno - function.lineno + 1
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        assert first.end_lineno is not None
        lines -= first.end_lineno - first.lineno + 1
    return lines


def test_files_and_functions_stay_small() -> None:
    found = []
    for path in [*FILES, *sorted((ROOT / "tests").rglob("*.py"))]:
        relative = path.relative_to(ROOT)
        kernel = "kernels" in relative.parts
        text = path.read_text("utf-8")
        if (lines := text.count("\n")) > (500 if kernel else 350):
            found.append(f"{relative} has {lines} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = code_lines(node)
                if lines > (150 if kernel else 60):
                    found.append(f"{relative}:{node.lineno} {node.name} has {lines} lines")
    assert not found, "\n".join(found)


def test_the_package_needs_only_torch_to_be_imported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    declared = [re.split(r"[^\w-]", line)[0] for line in project["dependencies"]]
    optional = {name.replace("-", "_") for name in declared} - {"torch", "numpy", "jinja2", "safetensors"}
    assert {"triton", "polars", "lightning", "hydra_core", "deltalake", "selectolax"} <= optional
    code = f"""
import sys

class Absent:
    blocked = {sorted(optional | {"hydra", "ray", "optuna", "transformers"})!r}
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.blocked:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
import torch, quantattn
q = torch.randn(6, 2, 8)
out = quantattn.attention(q, q, q).out
assert out.shape == (6, 2, 8) and bool(out.isfinite().all())
assert quantattn.Encoder is not None and quantattn.load_model is not None
state = quantattn.AttentionState.empty(3, 4)
print("imported", quantattn.__version__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("imported")
