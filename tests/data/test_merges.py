"""Joined events against the same in plain Python, and that nothing of a stretch depends on what follows it."""

from __future__ import annotations

import doctest
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantattn.data.merges import FIRST_CODE, MISSING, Merges, require_merges

quick = settings(max_examples=80, deadline=None)
Rows = list[tuple[int, int, bool, bool]]


def rows() -> st.SearchStrategy[Rows]:
    """Two small codes of every event, whether a stretch ends with it, and whether training may see it."""
    rarely = st.sampled_from([False, False, False, True])
    return st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), rarely, rarely.map(lambda x: not x)), max_size=60)


def arrays(given: Rows) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    table = np.asarray([row[:2] for row in given], np.uint16).reshape(-1, 2)
    flags = np.asarray([row[2:] for row in given], np.bool_).reshape(-1, 2)
    return {"kind": table[:, 0], "size": table[:, 1]}, flags[:, 0], flags[:, 1]


def fitted(given: Rows, n_pairs: int) -> Merges:
    """Of these rows; of one more that is seen, so that there is one."""
    columns, stop, seen = arrays([*given, (1, 1, True, True)])
    return Merges.fit(columns, seen, stop, n_pairs)


def stretches(codes: list[int], stop: list[bool]) -> list[list[int]]:
    cut: list[list[int]] = [[]]
    for code, ends in zip(codes, stop, strict=True):
        cut[-1].append(code)
        if ends:
            cut.append([])
    return [each for each in cut if each]


def joined(stretch: list[int], pair: tuple[int, int], code: int) -> list[int]:
    made: list[int] = []
    place = 0
    while place < len(stretch):
        here = tuple(stretch[place : place + 2]) == pair
        made.append(code if here else stretch[place])
        place += 2 if here else 1
    return made


@given(rows(), st.integers(0, 8))
@quick
def test_pairs_are_those_of_the_plain_algorithm(given: Rows, n_pairs: int) -> None:
    """Sennrich's loop over lists: count neighbours of every stretch, join the most frequent, and again."""
    merges = fitted(given, n_pairs)
    every = [*given, (1, 1, True, True)]
    types = sorted({row[:2] for row in every if row[3]})
    assert merges.types == tuple(types)
    seen: list[list[int]] = [[]]
    for kind, size, ends, may in every:
        if may:
            seen[-1].append(FIRST_CODE + types.index((kind, size)))
        if ends or not may:
            seen.append([])
    expected: list[tuple[int, int]] = []
    for code in range(FIRST_CODE + len(types), FIRST_CODE + len(types) + n_pairs):
        counts = Counter(pair for each in seen for pair in pairwise(each))
        most = max(counts.values(), default=0)
        if most < 2:
            break
        expected.append(min(pair for pair, count in counts.items() if count == most))
        seen = [joined(each, expected[-1], code) for each in seen]
    assert merges.pairs == tuple(expected)


@given(rows(), rows(), st.integers(0, 8))
@quick
def test_tokens_say_their_events_again(train: Rows, asked: Rows, n_pairs: int) -> None:
    """Exactly, whatever the table, its cuts, and types that training has not seen; and as plain lists have them."""
    merges = fitted(train, n_pairs)
    columns, stop, _ = arrays(asked)
    codes = merges.of_rows(columns)
    tokens, last = merges.encode(codes, stop)
    assert merges.decode(tokens).tolist() == codes.tolist()
    told = merges.to_rows(codes)
    known = [row[:2] in merges.types for row in asked]
    for name, column in columns.items():
        assert told[name].tolist() == [int(c) if there else MISSING for c, there in zip(column, known, strict=True)]
    assert (codes == MISSING).tolist() == [not there for there in known]
    plain = stretches(codes.tolist(), stop.tolist())
    for code, pair in enumerate(merges.pairs, FIRST_CODE + len(merges.types)):
        plain = [joined(each, pair, code) for each in plain]
    assert tokens.tolist() == [token for each in plain for token in each]
    assert (np.cumsum(merges.lengths[tokens]) - 1).tolist() == last.tolist()
    assert set(np.flatnonzero(stop)) <= set(last)
    assert tokens.max(initial=0) < merges.n_codes


@given(rows(), rows(), rows(), st.integers(1, 8))
@quick
def test_a_stretch_that_is_over_does_not_depend_on_what_follows(
    train: Rows, past: Rows, future: Rows, n_pairs: int
) -> None:
    merges = fitted(train, n_pairs)
    past = [*past, (1, 1, True, True)]
    alone, whole = (
        merges.encode(merges.of_rows(columns), stop) for columns, stop, _ in (arrays(past), arrays(past + future))
    )
    for short, long in zip(alone, whole, strict=True):
        assert long[: len(short)].tolist() == short.tolist()


def test_an_open_stretch_does_depend_on_what_follows() -> None:
    """Why decisions cut: without the cut the same event is a token alone, or half of one."""
    merges = Merges(("kind",), ((1,), (2,)), ((2, 3),))
    codes = np.asarray([2, 3])
    assert merges.encode(codes, np.asarray([True, True]))[0].tolist() == [2, 3]
    assert merges.encode(codes, np.asarray([False, True]))[0].tolist() == [4]


@given(rows(), rows(), st.integers(0, 8))
@quick
def test_rows_that_training_may_not_see_change_nothing(given: Rows, other: Rows, n_pairs: int) -> None:
    hidden = [
        (2 - kind, 1 - size, stop, False) if not may else (kind, size, stop, may) for kind, size, stop, may in given
    ]
    behind = [(kind, size, stop, False) for kind, size, stop, _ in other]
    made = [fitted(each, n_pairs) for each in (given, hidden)]
    columns, stop, seen = arrays([*given, (1, 1, True, True), *behind])
    made.append(Merges.fit(columns, seen, stop, n_pairs))
    assert made[0] == made[1] == made[2]


@given(rows(), st.integers(0, 8))
@quick
def test_json_gives_back_an_equal_vocabulary(given: Rows, n_pairs: int) -> None:
    merges = fitted(given, n_pairs)
    assert Merges.of_plain(json.loads(json.dumps(merges.plain()))) == merges


def test_a_worked_example() -> None:
    """Of a, b, a, b, a, c the pair (a, b) stands twice, then nothing does; a, a, a, a is joined two and two."""
    a, b, c = 2, 3, 4
    column = np.asarray([10, 11, 10, 11, 10, 12])
    all_seen, never = np.ones(6, np.bool_), np.zeros(6, np.bool_)
    merges = Merges.fit({"kind": column}, all_seen, never, 9)
    assert (merges.types, merges.pairs) == (((10,), (11,), (12,)), ((a, b),))
    tokens, last = merges.encode(merges.of_rows({"kind": column}), never)
    assert (tokens.tolist(), last.tolist()) == ([5, 5, a, c], [1, 3, 4, 5])
    same = Merges.fit({"kind": np.full(6, 10)}, all_seen, never, 2)
    assert same.pairs == ((2, 2), (3, 3))
    assert same.encode(np.full(6, 2), never)[0].tolist() == [4, 3]
    assert same.lengths.tolist() == [1, 1, 1, 2, 4]


def test_only_the_last_rows_are_counted_and_many_codes_are_sorted() -> None:
    """Two ways to count give the same pairs: one count for every possible pair, or the pairs that there are, sorted."""
    random = np.random.default_rng(0)
    column = random.integers(0, 40, 3_000)
    wide = np.concatenate([column, 10_000 + np.arange(2_100)])  # so many types that counting each pair costs more
    narrow = Merges.fit({"kind": column}, np.ones(3_000, np.bool_), np.zeros(3_000, np.bool_), 20)
    stop = np.arange(5_100) >= 2_999
    sorted_ones = Merges.fit({"kind": wide}, np.ones(5_100, np.bool_), stop, 20)
    shift = 2_100  # codes of what was joined follow those of the types
    moved = tuple(tuple(c if c < 42 else c + shift for c in pair) for pair in narrow.pairs)
    assert sorted_ones.pairs == moved
    late = Merges.fit({"kind": column}, np.ones(3_000, np.bool_), np.zeros(3_000, np.bool_), 5, max_rows=500)
    assert late.pairs == Merges.fit({"kind": column}, np.arange(3_000) >= 2_500, np.zeros(3_000, np.bool_), 5).pairs


def test_what_cannot_be_is_refused() -> None:
    column, seen = np.zeros(3, np.int64), np.ones(3, np.bool_)
    with pytest.raises(ValueError, match="no event may be seen"):
        Merges.fit({"kind": column}, ~seen, ~seen, 1)
    with pytest.raises(ValueError, match="join fewer fields, or give them fewer bins"):
        Merges.fit({"kind": column}, seen, ~seen, 2**16)
    plain = Merges(("kind",), ((1,), (2,)), ((2, 3),)).plain()
    with pytest.raises(ValueError, match="pair 0 joins"):
        Merges.of_plain(plain | {"pairs": [[2, 4]]})
    with pytest.raises(ValueError, match="sorted tuples"):
        Merges.of_plain(plain | {"types": [[2], [1]]})
    for joint, merges, sentence in (
        (None, 3, "say with joint"),
        (["kind"], -1, "whole number"),
        (["kind"], True, "whole number"),
        (["kind", "kind"], 1, "each once"),
        (["price"], 1, "some of the token fields kind, side"),
        ("kind", 1, "some of the token fields"),
    ):
        with pytest.raises(ValueError, match=sentence):
            require_merges(joint, merges, ("kind", "side"))


def test_the_example_of_the_page_is_right() -> None:
    page = Path(__file__).parents[2] / "docs" / "event_tokens.md"
    found = doctest.testfile(str(page), module_relative=False)
    assert found.attempted >= 8
    assert not found.failed
