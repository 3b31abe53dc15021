"""Runs beside each other: tables read back, the verdict, and what may not be compared."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from quantattn.evaluate import Interval, closing_table, render_report
from quantattn.evaluate.comparison import Run, apart, compare_runs, table_of
from quantattn.evaluate.report import Check

RNG = np.random.default_rng(0)
N = 600
Y = RNG.integers(0, 2, N)
TIME = 1_700_000_000 * 10**9 + np.arange(N) * 3_600 * 10**9


def table(confidence: float):
    """Of a classifier that gives the true class this probability on four rows of five."""
    right = np.where(np.arange(N) % 5 > 0, confidence, 1 - confidence)
    prob = np.where(np.arange(2) == Y[:, None], right[:, None], 1 - right[:, None])
    flat = np.full((N, 2), 0.5)
    return closing_table(Y, TIME, None, prob, {"flat": flat}, {"log_loss": 0.1}, replicates=100)


def run(name: str, confidence: float, **other) -> Run:
    known = {"settings": {"seed": name, "model": "tiny"}, "hashes": {"source": "ab", "tokens": name}}
    return Run(name, table(confidence), **{**known, **other})


def test_a_closing_table_is_read_back_as_it_was() -> None:
    found = table(0.7)
    assert table_of(json.loads(json.dumps(found.to_dict()))) == found
    unskilled = replace(found, skill=Interval(math.nan), gap_closed=None)
    back = table_of(json.loads(json.dumps(unskilled.to_dict())))
    assert math.isnan(back.skill.value)
    assert back.gap_closed is None
    for broken in ({}, {**found.to_dict(), "rows": 3}, {**found.to_dict(), "skill": None}):
        with pytest.raises(ValueError, match="no closing table"):
            table_of(broken)


def test_the_best_run_is_named_with_how_sure() -> None:
    page = compare_runs([run("a", 0.52), run("b", 0.75)])
    assert page.said is not None
    assert page.said.headline == "b has the best log loss of 2 runs."
    assert page.said.tone == "better"
    assert "better than flat, its best baseline" in page.said.better
    assert [row.method for row in page.table.rows] == ["a", "b", "flat", "Bayes bound"]  # what is shared stands once
    differs = page.sheets[-1]
    assert [[cell.text for cell in row] for row in differs.rows] == [["seed", "a", "b"]]
    assert "b has the best log loss" in render_report(page)
    document = table(0.6).to_dict()
    document["rows"][0]["figures"]["log_loss"]["value"] = None  # was infinite
    lost = compare_runs([replace(run("a", 0.6), table=table_of(document)), run("b", 0.6), run("c", 0.7)])
    assert lost.said is not None
    assert lost.said.headline == "c has the best log loss of 3 runs."
    near = compare_runs([run("a", 0.7), run("b", 0.701), run("c", 0.699)])
    assert near.said is not None
    assert near.said.headline.endswith("but the difference may be chance.")
    assert near.said.sure.endswith("some of its lead is luck.")


def test_what_was_predicted_is_said_in_the_words_that_all_runs_have() -> None:
    def question(*words: str | None) -> str:
        given = [{} if each is None else {"question": each} for each in words]
        hashes = {"source": "ab", "decisions": "cd"}
        return compare_runs([run(n, 0.7, settings=g, hashes=hashes) for n, g in zip("ab", given, strict=True)]).question

    same = f", on the same {N} decisions."
    assert question("Does it rise?\n", "Does it rise?\n") == f"Does it rise? Answered by 2 runs{same}"
    for words in (("Does it rise?", "Does it fall?"), (None, None), ("None", "None")):
        assert question(*words) == f"The same outcome by several runs{same}"


def test_the_best_run_is_not_praised_where_a_baseline_is_better() -> None:
    """Nobody should read in green that a run is the best of several which all lose to a simple rule."""
    runs = [run("a", 0.7), run("b", 0.72)]
    worse = [replace(each, table=replace(each.table, skill=Interval(-0.1, -0.2, -0.05))) for each in runs]
    page = compare_runs(worse)
    assert page.said is not None
    assert page.said.tone == "worse"
    assert page.said.headline.endswith("and is worse than its best baseline.")
    assert "It is worse than flat, its best baseline." in page.said.better


def test_runs_on_other_rows_are_not_called_better() -> None:
    other = run("b", 0.75, hashes={"source": "cd"})
    page = compare_runs([run("a", 0.52), other])
    assert page.said is not None
    assert (page.said.tone, page.said.headline) == ("unclear", "b has the best log loss of 2 runs, on rows of its own.")
    assert [row.method for row in page.table.rows][:4] == ["a", "b", "flat, a", "flat, b"]
    assert any("rows were easier" in caveat for caveat in page.caveats)
    failed = run("b", 0.75, checks=(Check("no leak", False),))
    assert "A check of the audit failed in b." in compare_runs([run("a", 0.52), failed]).caveats


def test_a_difference_of_two_intervals_by_hand() -> None:
    """0.5 (0.2 … 0.9) and 0.3 (0 … 0.7): down √(0.3² + 0.4²) = 0.5, up √(0.4² + 0.3²) = 0.5."""
    found = apart(Interval(0.5, 0.2, 0.9), Interval(0.3, 0.0, 0.7))
    assert (found.value, found.low, found.high) == pytest.approx((0.2, -0.3, 0.7))
    assert apart(Interval(1.0), Interval(0.5, 0, 1)) == Interval(0.5)


def test_what_cannot_be_compared_is_one_sentence() -> None:
    one = run("a", 0.7)
    for runs, sentence in (
        ([one], "expected two runs or more"),
        ([one, one], "different names"),
        ([one, replace(one, name="b", table=replace(one.table, loss="mse"))], "a is judged by log_loss and b by mse"),
        ([one, replace(one, name="b", table=replace(one.table, metrics=()))], "a and b have different figures"),
    ):
        with pytest.raises(ValueError, match=sentence):
            compare_runs(runs)
