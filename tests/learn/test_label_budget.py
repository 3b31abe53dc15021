"""Which labels a budget leaves, in `benchmarks/label_budget.py`: whole entities, and the test rows as they were."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from quantattn.data.synthetic import SyntheticMarket

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    from label_budget import SMALL, with_labels
    from trained import market_of

ENTITIES = 20


def test_a_budget_is_of_whole_entities_and_leaves_the_test_alone() -> None:
    whole = market_of(SyntheticMarket(entities=ENTITIES, **{**SMALL, "events_per_entity": 512}))
    known = []
    for share, entities in ((0.01, 1), (0.1, 2), (1.0, ENTITIES)):
        given = with_labels(whole, share, seed=3)
        assert given.test is whole.test
        for part in ("train", "valid"):
            cut, before = getattr(given, part), getattr(whole, part)
            names = np.asarray(cut.table.entities)[cut.table.entity_of(cut.decisions.row)]
            assert names.tolist() == given.entity[part].tolist(), "rows of every array are those of the decisions"
            assert (cut.table.time[cut.decisions.row] == given.as_of[part]).all()
            assert all(len(rows) == len(cut.decisions) for rows in given.baselines[part].values())
            kept = np.isin(whole.entity[part], given.entity[part])
            assert cut.decisions.row.tolist() == before.decisions.row[kept].tolist(), "all labels of an entity or none"
            assert cut.decisions.targets["label"].tolist() == before.decisions.targets["label"][kept].tolist()
        assert len(set(given.entity["train"])) == entities
        assert set(given.entity["valid"]) <= set(given.entity["train"])
        known.append(set(given.entity["train"]))
    assert known[0] < known[1] < known[2], "a larger budget has the labels of a smaller one"
    assert set(with_labels(whole, 0.1, seed=4).entity["train"]) != known[1]
