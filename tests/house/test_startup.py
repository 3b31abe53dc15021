"""What an import and a command bring along, read off the modules of a fresh process: nothing that is not needed yet."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEAVY = (
    "torch._dynamo",
    "torch._inductor",
    "sympy",
    "triton",
    "lightning",
    "matplotlib",
    "scipy.stats",
    "transformers",
)
STEPS = f"""
import contextlib, io, json, sys, tempfile
from pathlib import Path

def here():
    return [name for name in {HEAVY!r} if name in sys.modules and name not in by_torch]

def packages():
    return {{name.partition(".")[0] for name in sys.modules}} - sys.stdlib_module_names

found = {{}}
import torch
by_torch = set(sys.modules) | packages()
import quantattn
found["import"] = here() + sorted(packages() - by_torch - {{"quantattn"}})

from quantattn.cli import main
for command in ("train", "score"):
    sys.argv = [command, "--help"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):  # by which Hydra leaves
        main(command)
found["help"] = here() + sorted({{"polars", "deltalake"}} & packages())

import quantattn.cli.score
sys.path.insert(0, "tests/score")
import small_job
from quantattn.score import score
with tempfile.TemporaryDirectory() as folder:
    recipe = small_job.recipe(small_job.save_model(Path(folder) / "model"), Path(folder) / "out")
    assert score(recipe.worker("cpu"), recipe.out)
    assert small_job.rows(recipe.out).height > 100
found["score"] = here()

x = torch.ones(2)
assert torch.equal(torch.compile(lambda x: x + 1, backend="eager")(x), x + 1)
found["compile"] = here()
print(json.dumps(found))
"""


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    done = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, cwd=ROOT, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["import"] == [], "importing the package brings itself, and what torch brings"
    assert found["help"] == [], "help reads no data, trains nothing and draws nothing"
    assert found["score"] == [], "scoring compiles, trains and draws nothing"
    assert "torch._dynamo" in found["compile"], "what is listed is noticed when it comes"
