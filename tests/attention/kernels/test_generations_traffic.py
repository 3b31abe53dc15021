"""The bytes that each generation moves and allocates: its formula against every load and store that it makes."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("triton")
from triton.runtime import interpreter

from quantattn.attention.kernels.configs import Config
from quantattn.attention.kernels.generations.call import Moved, Shape
from quantattn.attention.kernels.generations.registry import GENERATIONS, prepare
from quantattn.attention.kernels.primitives import INTERPRETED

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.skipif(not INTERPRETED, reason="only the interpreter lets loads and stores be counted"),
]

WORKSPACE = {"standard": "sp", "flash1": "oml"}
"""Names of what a launch allocates, in that order."""
BLOCKS = {"flash3": [(32, 16), (64, 32)], "flash4": [(16, 32), (32, 64)]}


class Allocations(TorchDispatchMode):
    """Every tensor that is made while the mode is on."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[torch.Tensor] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten.empty, torch.ops.aten.empty_like) and out.numel():
            self.made.append(out)
        return out


def counted(name, monkeypatch, *, causal, sizes, blocks, dtype):
    """Bytes read and written by tensor, as the interpreter sees them, and the bytes that the launch allocates."""
    batch, n_q, n_k, heads, d = sizes
    q, k, v = (torch.randn(batch, n, heads, d).to(dtype) for n in (n_q, n_k, n_k))
    call = prepare(name, q, k, v, causal=causal, blocks=Config(*blocks, 1, 1))
    read: Counter[int] = Counter()
    written: Counter[int] = Counter()
    load, store = (getattr(interpreter.InterpreterBuilder, f"create_masked_{what}", None) for what in ("load", "store"))

    def add(count, pointers, mask):
        at = pointers.data[mask.data]
        count.update(at.ravel().tolist())

    def counting_load(self, ptrs, mask, *args, **kwargs):
        add(read, ptrs, mask)
        return load(self, ptrs, mask, *args, **kwargs)

    def counting_store(self, ptrs, value, mask, *args, **kwargs):
        add(written, ptrs, mask)
        return store(self, ptrs, value, mask, *args, **kwargs)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_masked_load", counting_load)
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_masked_store", counting_store)
    with Allocations() as allocations:
        GENERATIONS[name].launch(call)
    made = allocations.made
    assert len(made) == len(WORKSPACE.get(name, ""))
    tensors = {"q": q, "k": k, "v": v, "out": call.out, "lse": call.lse}
    tensors |= dict(zip(WORKSPACE.get(name, ""), made, strict=True))
    found = {}
    for label, x in tensors.items():
        inside = range(x.data_ptr(), x.data_ptr() + x.numel() * x.element_size(), x.element_size())
        found[label] = Moved(*(x.element_size() * sum(count.pop(at, 0) for at in inside) for count in (read, written)))
    assert not read
    assert not written, "something was moved that belongs to no tensor"
    return found, sum(x.untyped_storage().nbytes() for x in made), call.shape


@pytest.mark.parametrize("name", GENERATIONS)
def test_the_formula_counts_every_load_and_store(name, monkeypatch):
    small, large = BLOCKS.get(name, [(16, 16), (16, 32)])
    more, fewer = (2, 20, 37, 1, 16), (1, 24, 9, 2, 16)  # keys than queries
    cases = [(False, more, small), (True, more, large), (True, fewer, small)]
    for place, (causal, sizes, blocks) in enumerate(cases):
        dtype = (torch.float16, torch.float32)[place % 2]
        with monkeypatch.context() as patch:
            found, allocated, shape = counted(name, patch, causal=causal, sizes=sizes, blocks=blocks, dtype=dtype)
        assert found == GENERATIONS[name].traffic(shape, *blocks), (causal, sizes, blocks)
        assert allocated == GENERATIONS[name].workspace(shape)


def shape(n: int, causal: bool = False) -> Shape:
    return Shape(1, n, n, 16, 128, 2, causal)


def moved(name: str, n: int, causal: bool = False) -> Moved:
    parts = GENERATIONS[name].traffic(shape(n, causal), 128, 64).values()
    return Moved(sum(part.read for part in parts), sum(part.written for part in parts))


def test_three_round_trips_become_one_write():
    """What is written grows with N² in standard attention and in FlashAttention-1, with N from the second on."""
    for name, growth in (("standard", 4), ("flash1", 4), ("flash2", 2), ("flash3", 2), ("flash4", 2)):
        assert moved(name, 16384).written / moved(name, 8192).written == pytest.approx(growth, rel=0.02)
    parts = GENERATIONS["standard"].traffic(shape(8192), 128, 64)
    matrix = 16 * 8192**2 * 2
    assert parts["s"] == parts["p"] == Moved(matrix, matrix)
    assert set(GENERATIONS["flash2"].traffic(shape(8192), 128, 64)) == {"q", "k", "v", "out", "lse"}


def test_memory_beyond_the_outputs_grows_with_n_squared_then_n_then_not_at_all():
    growth = {
        name: g.workspace(shape(2048)) / g.workspace(shape(1024)) if g.workspace(shape(1024)) else None
        for name, g in GENERATIONS.items()
    }
    assert growth == {"standard": 4, "flash1": 2, "flash2": None, "flash3": None, "flash4": None}


def test_a_causal_mask_halves_what_is_read_from_the_second_generation_on():
    for name, share in (("standard", 1), ("flash1", 1), ("flash2", 0.5), ("flash3", 0.5), ("flash4", 0.5)):
        assert moved(name, 16384, True).read / moved(name, 16384).read == pytest.approx(share, rel=0.02)
