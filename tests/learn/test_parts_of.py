"""The account of the parts of the data: whose decisions, from when to when, and whom training had not seen."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from quantattn.learn.card import parts_of


def account(**names: str) -> dict[str, Any]:
    """Of parts with a decision an entity, a letter each, at times that count up."""
    entity = {part: np.array(list(who), object) for part, who in names.items()}
    given: Any = SimpleNamespace(entity=entity, as_of={part: np.arange(len(who)) + 10 for part, who in entity.items()})
    return parts_of(given)


def test_entities_are_new_where_training_has_not_seen_them() -> None:
    found = account(train="abb", valid="bc", test="acdd")
    assert {name: part["new_entities"] for name, part in found["parts"].items()} == {"train": 0, "valid": 1, "test": 2}
    assert {name: part["entities"] for name, part in found["parts"].items()} == {"train": 2, "valid": 2, "test": 3}
    assert {name: part["decisions"] for name, part in found["parts"].items()} == {"train": 3, "valid": 2, "test": 4}
    assert (found["parts"]["test"]["first"], found["parts"]["test"]["last"]) == (10, 13)
    assert found["universe"] == {"entities": 4, "names": ["a", "b", "c", "d"]}


def test_no_decision_has_no_time_and_a_large_universe_no_names() -> None:
    found = account(train="".join(map(chr, range(200, 251))), valid="", test="a")
    assert (found["parts"]["valid"]["first"], found["parts"]["valid"]["last"]) == (None, None)
    assert found["universe"] == {"entities": 52, "names": []}
    assert len(account(train="".join(map(chr, range(200, 250))), valid="", test="")["universe"]["names"]) == 50
