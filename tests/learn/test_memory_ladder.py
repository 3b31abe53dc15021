"""The ladder of `benchmarks/long_memory.py`: what a cut leaves in view, what a model begins with, what is run again."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from quantattn.data.protocol.splits import WalkForward
from quantattn.data.synthetic import SyntheticMarket
from quantattn.learn.checkpoint import write_checkpoint
from quantattn.learn.closing import judged

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    from long_memory import arguments, checked, climb
    from memory_ladder import CUT, ENCODER, Ladder, as_large, model_of, recipe_of, rows_before
    from memory_markets import cut_short, events_of, lost_by_the_law, prepared_of
    from trained import judge, market_of, scores_of


def asked(folder: Path, *more: int | str) -> argparse.Namespace:
    """`more` begins with the distances."""
    given = ["--methods", ENCODER, "--seeds", "0", "--steps", "1", "--events", "512", "--tokens", "512"]
    folders = ["--results", str(folder), "--weights", str(folder / "weights")]
    return arguments().parse_args([*given, *folders, "--distances", *map(str, more)])


@pytest.mark.parametrize("distance", [24, 200])
def test_a_cut_context_leaves_the_flow_and_no_marker_of_the_same_decisions(distance: int) -> None:
    market = SyntheticMarket(entities=8, marker_distance=distance, events_per_entity=4096)
    whole = market_of(market)
    cut = cut_short(whole, market)
    assert whole.bayes_in_context.marker_seen == pytest.approx(1, rel=1e-12)
    assert cut.bayes_in_context.marker_seen == 0
    assert cut.bayes_in_context.log_loss == pytest.approx(market.bayes(market.flow_events + 1).log_loss, rel=1e-12)
    for part in ("train", "valid", "test"):
        before, after = getattr(whole, part), getattr(cut, part)
        assert after.decisions is before.decisions
        assert market.flow_events < after.contexts.min()
        assert after.contexts.max() <= market.marker_distance


def test_the_law_loses_what_is_expected_of_it_on_many_rows_and_is_of_the_same_events() -> None:
    market = SyntheticMarket(entities=32, marker_distance=24, events_per_entity=8192, seed=3)
    prepared = market_of(market, split=WalkForward(test=0.6, valid=0.1))
    rows = len(prepared.test.decisions)
    assert lost_by_the_law(market, prepared) == pytest.approx(market.bayes().log_loss, abs=4 * 0.5 / rows**0.5)
    with pytest.raises(ValueError, match="not of the same events"):
        lost_by_the_law(replace(market, seed=4), prepared)


def test_a_rung_begins_with_the_weights_of_the_one_below(tmp_path: Path) -> None:
    ladder, below, above = Ladder(asked(tmp_path, 24, 36), "cpu"), nn.Linear(3, 2), nn.Linear(3, 2)
    drawn = above.weight.clone()
    ladder.climb_on(above, 24, ENCODER, 0)
    assert torch.equal(above.weight, drawn), "nothing lies below the first"
    with pytest.raises(SystemExit, match=r"encoder, seed 0, goes on from 24 events: name its folder with --weights"):
        ladder.climb_on(above, 36, ENCODER, 0)
    path = ladder.weights(24, ENCODER, 0)
    path.parent.mkdir()
    write_checkpoint({"state_dict": dict(below.state_dict())}, path)
    ladder.climb_on(above, 36, ENCODER, 0)
    assert torch.equal(above.weight, below.weight)
    elsewhere = {ladder.weights(*at) for at in ((24, CUT, 0), (24, ENCODER, 1), (36, ENCODER, 0))}
    assert len(elsewhere - {path}) == 3
    assert Ladder(asked(tmp_path, 20, 24), "cpu").weights(24, ENCODER, 0) != path, "it has climbed another ladder"


def test_a_cell_that_has_its_row_is_not_run_again_and_no_other_is_taken_for_it(tmp_path: Path) -> None:
    ladder = Ladder(asked(tmp_path, 24), "cpu")
    assert ladder.left(24) == [(ENCODER, 0)]
    assert not climb(Ladder(asked(tmp_path, 24, "--within", "1e-9"), "cpu")), "no time, and nothing begun"
    assert not ladder.path.exists()
    assert climb(ladder)
    assert Ladder(asked(tmp_path, 24), "cpu").left(24) == []
    assert ladder.weights(24, ENCODER, 0).is_file()
    for more in (["--steps", "2"], ["--seeds", "1"], ["--limit-s", "1"], ["--copies", "3"], ["--lr", "0.1"]):
        assert Ladder(asked(tmp_path, 24, *more), "cpu").left(24), more
    assert Ladder(asked(tmp_path, 20, 24), "cpu").left(24), "it would begin with other weights"


def test_a_value_is_of_all_distances_or_each_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = asked(tmp_path, 24, 36, "--events", "512", "1024", "--limit-s", "2")
    assert [events_of(given, distance) for distance in (24, 36)] == [512, 1024]
    assert [Ladder(given, "cpu").limit(distance) for distance in (24, 36)] == [2.0, 2.0]
    for wrong in (["--events", "1", "2", "3"], ["--limit-s", "1", "2", "3"], ["--within", "-1"]):
        monkeypatch.setattr("sys.argv", ["long_memory.py", "--distances", "24", "36", *wrong])
        with pytest.raises(SystemExit) as left:
            checked(arguments())
        assert left.value.code == 2, wrong


def test_baselines_that_are_kept_give_the_table_of_those_that_are_fitted_anew(tmp_path: Path) -> None:
    given = asked(tmp_path, 24)
    prepared, kept = prepared_of(given, 24), dict[str, Any]()
    recipe = recipe_of(given, prepared, 1, 0, 3e-3)
    for seed in (0, 1):
        model = model_of(ENCODER, "tiny", prepared, 40, seed)
        expected = judged(prepared, "label", scores_of(model, prepared, recipe), seed=0)[0]
        assert judge(model, prepared, recipe, kept) == judge(model, prepared, recipe) == expected
    assert len(kept) > 2


def test_codes_are_handed_on_by_what_they_mean() -> None:
    """One market's bins of a price are …, −2, −1, 0, 1, 2 …, the other's put −1 and 0 together."""
    fine, coarse = (
        json.dumps({"numeric": {"price": {"edges": edges}}}) for edges in ([-2, -1, 0, 1, 2], [-2, -1, 1, 2])
    )
    assert rows_before(fine, coarse)["price"].tolist() == [0, 1, 2, 3, 5, 6, 7]
    assert rows_before(coarse, fine)["price"].tolist() == [0, 1, 2, 3, 4, 4, 5, 6]
    assert rows_before(fine, fine)["price"].tolist() == list(range(8))


def test_a_market_with_other_codes_goes_on_with_those_that_both_know() -> None:
    three, five = (nn.Embedding(count, 2).state_dict() for count in (3, 5))
    for state, own in ((three, five), (five, three)):
        begun = as_large(state, own)["weight"]
        assert torch.equal(begun[:3], state["weight"][:3])
        assert torch.equal(begun[3:], own["weight"][3:])
    assert as_large(three, three) == three
