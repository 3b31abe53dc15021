"""The pictures and tables of docs/splits.md, drawn again."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

from test_split_plans import even

from quantattn.data.protocol import CombinatorialPurged, PurgedKFold, Split, WalkForward

PAGE = (Path(__file__).parents[3] / "docs" / "splits.md").read_text("utf-8")
SIGNS = {"train": "=", "valid": "v", "test": "T", "purged": "x", "embargoed": "e", "outside": "."}


def drawn(split: Split) -> str:
    """One sign a row."""
    sign = {row: SIGNS[part] for part in SIGNS for row in getattr(split, part).tolist()}
    return f"{split.fold}  " + "".join(sign[row] for row in range(len(sign)))


def test_the_picture_of_the_folds_is_what_the_plans_do() -> None:
    for asked, plan in (
        ("WalkForward(n_folds=3, test=0.2, valid=0.1, embargo=30)", WalkForward(3, 0.2, 0.1, embargo=30)),
        ("PurgedKFold(n_folds=5, embargo=30)", PurgedKFold(5, embargo=30)),
    ):
        picture = "\n".join([asked, *(drawn(split) for split in plan.split(even(60, 2)))])
        assert f"\n{picture}\n" in PAGE


def test_the_worked_fold_is_what_the_plan_does() -> None:
    middle = PurgedKFold(5, embargo=30).split(even(60, 2))[2]
    assert (middle.test[0], middle.test[-1], middle.valid[0], middle.valid[-1]) == (24, 35, 12, 21)
    assert (middle.purged.tolist(), middle.embargoed.tolist()) == ([10, 11, 22, 23, 36, 37], [38, 39, 40])


def test_the_table_of_paths_is_that_of_the_plan() -> None:
    plan = CombinatorialPurged(4, 2, valid=0)
    for number, path in enumerate(plan.paths):
        assert f"| {number} | {' | '.join(f'fold {fold}' for fold in path)} |" in PAGE
    assert "(0, 1), (0, 2), (0, 3), (1, 2), (1, 3) and (2, 3)" in PAGE
    assert list(combinations(range(4), 2))[-1] == (2, 3)
