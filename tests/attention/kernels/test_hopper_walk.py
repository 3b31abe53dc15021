"""The order of the backward on sm_90, its code run by Python: all is visited, and nobody waits for a later program."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import quantattn
from quantattn import Mask

SOURCE = Path(quantattn.__file__).parent / "attention" / "kernels" / "hopper" / "walk.py"
KEYS = 128


class Pointer(NamedTuple):
    """An address in a list."""

    numbers: tuple[int, ...]
    at: int = 0

    def __add__(self, i: int) -> Pointer:  # type: ignore[override]
        return Pointer(self.numbers, self.at + i)


class Place(NamedTuple):
    """As `arguments.Place`, without the compiler's types."""

    batch: int
    sequence: int
    first: int
    q_start: int
    n_q: int
    k_start: int
    n_k: int


def find_sequence(tile: int, cu: Pointer, n_sequences: int, keys: int) -> int:
    """The last sequence whose tiles begin at `tile` or before."""
    return max(n for n in range(n_sequences) if cu.numbers[n] // keys + n <= tile)


@pytest.fixture(scope="module")
def walk() -> SimpleNamespace:
    """The functions of walk.py, as Python."""
    text = re.sub(r"^(from (triton|quantattn).*|@gluon\.jit)$", "", SOURCE.read_text(), flags=re.MULTILINE)
    gl = SimpleNamespace(
        constexpr=lambda x: x, minimum=min, maximum=max, where=lambda c, a, b: a if c else b,
        load=lambda pointer: pointer.numbers[pointer.at],
    )  # fmt: skip
    space: dict[str, Any] = {"gl": gl, "Place": Place, "find_sequence": find_sequence, "__name__": "walk"}
    exec(compile(text, str(SOURCE), "exec"), space)
    return SimpleNamespace(**space)


LENGTHS = st.lists(st.tuples(st.integers(0, 900), st.integers(0, 900)), min_size=1, max_size=4)
BOUNDS = [(None, None), (None, 0), (None, 130), (70, None), (64, 9), (0, 0), (300, 0)]


@pytest.mark.parametrize("bounds", BOUNDS)
@settings(max_examples=20, deadline=None)
@given(
    lengths=LENGTHS, packed=st.booleans(), heads_k=st.integers(1, 2), group=st.integers(1, 2),
    together=st.integers(1, 6), block=st.sampled_from([64, 128]),
)  # fmt: skip
def test_turns_have_no_gap_and_wait_only_for_who_has_started(
    walk, lengths, bounds, packed, heads_k, group, together, block
):
    left, right = bounds
    lengths = lengths if packed else [lengths[0]] * len(lengths)
    cu_q, cu_k = (Pointer(tuple(sum(pair[i] for pair in lengths[:n]) for n in range(len(lengths) + 1))) for i in (0, 1))
    n_q, n_k = (cu_q.numbers[-1], cu_k.numbers[-1]) if packed else lengths[0]
    tiles_k = n_k // KEYS + len(lengths) if packed else -(-n_k // KEYS)
    strips = heads_k if packed else heads_k * len(lengths)
    s = SimpleNamespace(packed=packed, block=block)
    turns: dict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)
    visited: set[tuple[int, int, int, int]] = set()
    launch = walk.Launch(cu_q, cu_k, len(lengths), n_q, n_k, heads_k, group, tiles_k, strips, min(together, strips))
    for number in range(tiles_k * strips):
        place, kv_head, path = walk.find_work(number, launch, left, right, s)
        at, member = path.offset, 0
        for _ in range(path.steps):
            head = path.head + member
            visited.add((place.sequence, head, place.first, path.low + at))
            around = int(at < path.offset)
            turn = walk.turn_of(at, place, path, left, right, s)
            turns[head, path.slot + path.low + at, around].append((turn, number))
            at, member = walk.advance(at, member, path, left, right)
        assert kv_head * group <= path.head < (kv_head + 1) * group
    for waiting in turns.values():
        assert [turn for turn, _ in sorted(waiting)] == list(range(len(waiting)))
        assert [number for _, number in sorted(waiting)] == sorted(number for _, number in waiting)
    mask = Mask(window=(left, right))
    for n, (a, b) in enumerate(lengths):
        shown = mask.visible(a, b).nonzero()
        seen = {(int(key) // KEYS * KEYS, int(query) // block) for query, key in shown[:: max(1, len(shown) // 3000)]}
        assert {(n, h, *pair) for pair in seen for h in range(heads_k * group)} <= visited


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("right", [0, 200])
def test_programs_of_a_causal_head_that_begin_at_once_are_a_step_apart_and_stay_so(walk, group, right):
    n, block, keys = 1500, 64, -(-1500 // KEYS)
    launch = walk.Launch(None, None, 1, n, n, 1, group, keys, 1, 1)
    passed: dict[tuple[int, int], int] = {}
    for number in range(keys):
        place, _, path = walk.find_work(number, launch, None, right, SimpleNamespace(packed=False, block=block))
        at, member, clock = path.offset, 0, 0
        for _ in range(path.steps):
            clock = max(clock, passed.get((member, at + path.low), 0)) + 1
            passed[member, at + path.low] = clock
            at, member = walk.advance(at, member, path, None, right)
        assert clock == path.steps + number
        assert place.first == number * KEYS
