"""Operators are closed to torch's compiler, and nobody pays for importing it who does not compile."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORK = """
import json, sys, torch
from quantattn.attention.operators import operator

@operator("sines", "(Tensor x) -> Tensor", torch.empty_like)
def sines(x):
    return x.sin() + 1

x = torch.linspace(0, 1, 5)
before = sines(x)
uncompiled = "torch._dynamo" not in sys.modules

import torch._dynamo
from torch._dynamo.testing import CompileCounter

library = torch.library.Library("quantattn_other", "DEF")
def other(name, implementation):
    library.define(f"{name}(Tensor x) -> Tensor")
    library.impl(name, implementation, "CompositeExplicitAutograd")
    return getattr(torch.ops.quantattn_other, name).default

def plain(x):
    return x.sin() + 1

def watched(op):
    '''Graphs, and why they break, where a compiler meets the operator outside of them; frames looked at once more.'''
    @torch._dynamo.disable(recursive=False)
    def outside(x):
        return op(x)

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    counter = CompileCounter()
    compiled = torch.compile(lambda x: outside(x * 2) * 3, backend=counter)
    assert torch.equal(compiled(x), (x * 2).sin().add(1) * 3)
    looked = torch._dynamo.utils.counters["frames"]["total"]
    compiled(x)
    counters = torch._dynamo.utils.counters
    return [counter.frame_count, len(counters["graph_break"]), counters["frames"]["total"] - looked]

def inside(op):
    counter = CompileCounter()
    compiled = torch.compile(lambda x: op(x) * 3, backend=counter, fullgraph=True)
    assert torch.equal(compiled(x), before * 3)
    return [counter.frame_count, counter.op_count]

disabled = other("disabled", torch.compiler.disable(lambda x: plain(x)))
print(json.dumps({
    "uncompiled": uncompiled,
    "ours": watched(sines),
    "disabled": watched(disabled),
    "open": watched(other("open", lambda x: plain(x))),
    "inside": inside(sines),
}))
"""


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=600, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_an_operator_first_called_without_a_compiler_is_closed_to_it_later() -> None:
    found = json.loads(python(WORK))
    assert found["uncompiled"]
    assert found["ours"] == found["disabled"], "as with torch.compiler.disable"
    assert found["ours"] < found["open"], "which makes fewer graphs than where a compiler looks in"
    assert found["inside"] == [1, 2], "in a graph the operator is one node"
