"""Judged scores as words and tables: what is said of skill, of chance, of costs, and at the edges."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from quantattn.cli import dispatch
from quantattn.evaluate.assessment import Terms, assess, shuffled
from quantattn.evaluate.forecasts import judge_classes, judge_values
from quantattn.evaluate.inference import lag_of, mean_test
from quantattn.evaluate.panel import as_panel
from quantattn.evaluate.report import render_report
from quantattn.evaluate.score_page import Told, report_on
from quantattn.evaluate.score_report import money
from quantattn.evaluate.score_words import in_words, likely
from quantattn.evaluate.scores import Columns, Scores, read_scores
from quantattn.evaluate.sharpe import deflated_sharpe, probabilistic_sharpe
from tests.evaluate.score_tables import DAY, START, made

TOLD = Told("Made", "Which earns more.", {})


def scores_of(seed: int = 0, **how) -> Scores:
    return Scores(*made(seed, **how))


def test_skill_is_seen_and_chance_is_not() -> None:
    skilled, lucky = (assess({1: scores_of(1, skill=skill)}, Terms(trials=1)) for skill in (0.3, 0.0))
    assert in_words(skilled).tone == "better"
    assert in_words(skilled).headline == "The score orders what comes after better than the best baseline."
    assert in_words(lucky).tone == "unclear"
    assert in_words(lucky).chance == "May be chance"
    turned = scores_of(1, skill=-0.3)
    assert in_words(assess({1: turned}, Terms())).tone == "worse"


def test_a_perfect_score_is_better_and_suspicious() -> None:
    data, _ = made(1, times=20)
    page = report_on({1: Scores(data, 3 * data.outcome)}, "return", TOLD)
    assert page.said is not None
    assert page.said.tone == "better"
    assert any("look for a leak" in caveat for caveat in page.caveats)
    modest = report_on({1: scores_of(1, skill=0.3)}, "return", TOLD)
    assert not any("look for a leak" in caveat for caveat in modest.caveats)


def test_costs_can_eat_all_and_the_page_says_so() -> None:
    scores = scores_of(1, skill=0.3)
    cheap, dear = (assess({1: scores}, Terms(cost_bps=bps)) for bps in (0, 1000))
    assert dear.model.gross == cheap.model.gross
    assert dear.model.net.value == pytest.approx(cheap.model.net.value - 0.1 * dear.model.book.traded.mean(), abs=1e-15)
    assert in_words(dear).headline.endswith("but that it earns its costs is not shown.")
    even = assess({1: scores}, Terms(cost_bps=cheap.model.book.break_even_bps))
    assert even.model.net.value == pytest.approx(0, abs=1e-15)
    assert "nobody said" in in_words(dear).sure
    assert in_words(cheap).cost[0].endswith("bp a day left")


def test_no_probability_is_rounded_to_a_certainty() -> None:
    assert [likely(p) for p in (0.0, 0.0099, 0.01, 0.5, 0.99, 0.9949, 1.0)] == [
        *("less than 1%", "less than 1%", "1%", "50%", "99%", "more than 99%", "more than 99%")
    ]


def test_trials_deflate_and_are_counted_with_what_stands_in_the_table() -> None:
    data, score = made(3, skill=0.1)
    one, many = (assess({1: Scores(data, score)}, Terms(trials=n, cost_bps=0)) for n in (1, 50))
    ratio = one.model.sharpe
    assert ratio is not None
    assert one.deflated == probabilistic_sharpe(ratio)
    assert many.deflated == deflated_sharpe(ratio, 50, 1 / (ratio.n - 1))
    assert many.deflated < one.deflated
    beside = Scores(data, score, {"rival": score[::-1].copy()})
    with pytest.raises(ValueError, match="every score that was tried, 2 stand in the table; got 1"):
        assess({1: beside}, Terms(trials=1))


def test_baselines_always_stand_beside() -> None:
    data, score = made(4)
    for kind, last in (("return", "reversal"), ("value", "zero")):
        page = report_on({1: Scores(data, score)}, kind, TOLD)
        assert [row.method for row in page.table.rows] == ["score", "history", "persistence", last]
        assert set(page.table.model.figures) >= {"rank_ic"}
    prob = np.column_stack([np.full(score.size, 0.5)] * 2)
    classes = Scores(replace(data, outcome=(data.outcome > 0).astype(float)), prob, classes=("down", "up"))
    page = report_on({1: classes}, "class", TOLD)
    assert [row.method for row in page.table.rows] == ["score", "majority class", "persistence", "history"]


def test_no_row_is_lost_on_the_way_to_the_page() -> None:
    data, score = made(11, times=20)
    rows = pl.DataFrame({"entity": data.entity, "time": data.times[data.at], "score": score, "outcome": data.outcome})
    rows = rows.with_columns(
        score=pl.when(pl.int_range(pl.len()) % 7 > 0).then("score"),
        outcome=pl.when(pl.int_range(pl.len()) % 5 > 0).then("outcome"),
    )
    both = pl.concat([rows.with_columns(horizon=pl.lit(h)) for h in (1, 4)])
    page = report_on(read_scores(both, "return", Columns(horizon="horizon")), "return", TOLD)
    counts = page.rows
    assert counts["rows read"] == 800
    assert counts["rows read"] == counts["scores judged"] + counts["of longer horizons"] + sum(page.dropped.values())
    assert counts["of these with an outcome"] == page.table.decisions == counts["scores judged"] - page.table.unlabelled
    assert counts["of these with an outcome"] == sum(row % 7 > 0 and row % 5 > 0 for row in range(400))


def test_differences_are_paired_and_a_copy_of_the_score_is_no_worse() -> None:
    data, score = made(5, skill=0.2)
    found = assess({1: Scores(data, score, {"copy": np.exp(score)})}, Terms())
    assert found.differences["copy"].value == 0
    assert found.differences["copy"].p is None
    assert found.best.name == "copy"
    ours = found.model.ranking
    assert ours is not None
    turned = assess({1: Scores(data, score, {"turned": -score})}, Terms()).differences["turned"]
    assert turned.value == pytest.approx(2 * ours.test.value, abs=1e-15)
    expected = mean_test(2 * ours.rank_ic, lag_of(ours.at.size))
    assert (turned.t, turned.p) == (pytest.approx(expected.t), pytest.approx(expected.p))


def test_adjusted_p_values_are_those_of_statsmodels() -> None:
    multitest = pytest.importorskip("statsmodels.stats.multitest", reason="statsmodels is not installed")
    found = assess({1: scores_of(6, skill=0.05)}, Terms()).adjusted
    p, q = zip(*found.values(), strict=True)
    assert len(p) == 7
    assert multitest.multipletests(p, method="fdr_bh")[1] == pytest.approx(q, abs=1e-12)


def test_shuffled_outcomes_are_seldom_significant() -> None:
    """Twenty-five seeds of each p-value and interval; `benchmarks/score_null.py` takes two hundred."""
    called, looked = 0, 0
    for seed in range(25):
        scores = shuffled(scores_of(seed, times=40, skill=1.0), seed)
        found = assess({1: scores}, Terms(cost_bps=0))
        ours = found.model.ranking
        assert ours is not None
        p = [p for what, (p, _) in found.adjusted.items() if "differs" not in what]
        tests = [ours.test, found.model.net, *found.ages.values()]
        outside = [test.low > 0 or test.high < 0 for test in tests if test.low is not None and test.high is not None]
        outside += [interval.excludes(0) for interval in found.intervals.values()]
        called += sum(value < 0.05 for value in p) + sum(outside)
        looked += len(p) + len(outside)
    assert looked == 25 * (4 + 9 + 2)
    assert 0.01 < called / looked < 0.10  # they hang together, so a binomial interval would be too narrow
    real = assess({1: scores_of(0, times=40, skill=1.0)}, Terms(cost_bps=0))
    assert all(p < 0.001 for what, (p, _) in real.adjusted.items())  # the control: unshuffled


def test_forecasts_of_values_and_classes() -> None:
    data, noise = made(7, times=80)
    good = judge_values(Scores(data, 0.5 * data.outcome + 0.001 * noise), replicates=200)
    assert good.table.best_baseline in ("history", "zero")
    assert good.tests["zero"].value < 0
    assert good.tests["zero"].p is not None
    assert good.tests["zero"].p < 1e-6
    assert good.by_entity is not None
    assert good.by_entity.skill.value == pytest.approx(good.table.skill.value, abs=1e-12)
    y = (data.outcome > 0).astype(float)
    true = np.where(y == 1, 0.7, 0.3)
    said = judge_classes(
        Scores(replace(data, outcome=y), np.column_stack([1 - true, true]), classes=("down", "up")), replicates=200
    )
    assert said.tests["majority class"].value == pytest.approx(
        -np.log(0.7) - said.table.row("majority class").figures["log_loss"].value, abs=1e-12
    )


@pytest.mark.parametrize("kind", ["return", "value"])
@pytest.mark.parametrize(("times", "entities", "scale"), [(1, 2, 1e-2), (2, 3, 1e-9), (3, 40, 1e6), (35, 2, 1e-2)])
def test_pages_at_the_edges(kind: str, times: int, entities: int, scale: float) -> None:
    data, score = made(8, times=times, entities=entities, scale=scale)
    page = report_on({1: Scores(data, score, volume=np.full(score.size, 1e6))}, kind, TOLD)
    assert not re.findall(r">[^<]*\b(?:nan|inf)\b[^<]*<", render_report(page))


def test_what_cannot_be_judged_is_one_sentence() -> None:
    data, score = made(9)
    alone, order = as_panel(START + np.arange(20) * DAY, ["a"] * 20, np.random.default_rng(0).normal(size=20))
    with pytest.raises(ValueError, match="no time has two entities whose scores and outcomes differ"):
        report_on({1: Scores(alone, np.arange(20.0)[order])}, "return", TOLD)
    with pytest.raises(ValueError, match="none of the 1,200 scores has an outcome"):
        report_on({1: Scores(replace(data, outcome=np.full(1200, np.nan)), score)}, "return", TOLD)
    with pytest.raises(ValueError, match="kind=value judges one horizon, the table has 1, 2"):
        report_on({1: Scores(data, score), 2: Scores(data, score)}, "value", TOLD)
    assert report_on({1: Scores(alone, np.arange(20.0)[order])}, "value", TOLD).table.decisions == 20


def test_money_has_three_digits() -> None:
    assert [money(v) for v in (141_234.0, 1.5, 0.0123456, 123_456_789.0)] == ["141,000", "1.5", "0.0123", "123,000,000"]


def test_the_command_writes_page_and_figures(tmp_path, capsys, monkeypatch) -> None:
    data, score = made(10, times=30, skill=0.3)
    table = tmp_path / "s.parquet"
    pl.DataFrame(
        {"who": data.entity, "as_of": data.times[data.at], "score": score, "outcome": data.outcome}
    ).write_parquet(table)
    page, figures = tmp_path / "page.html", tmp_path / "figures.json"
    words = ["quantattn", "evaluate", str(table), "--kind=return", "--entity=who", "--time=as_of", "--trials=3"]
    monkeypatch.setattr("sys.argv", [*words, f"--out={page}", f"--json={figures}"])
    assert dispatch.main() == 0
    said = capsys.readouterr().out
    assert "The score orders what comes after better than the best baseline" in said
    assert "best of 3 tried" in page.read_text()
    found = json.loads(figures.read_text())
    assert found["table"]["best_baseline"] in ("history", "persistence", "reversal")
    assert found["hashes"]["scores"] in page.read_text()
    monkeypatch.setattr("sys.argv", [*words, f"--out={tmp_path}/no/page.html"])
    assert dispatch.main() == 2
    assert "there is no folder" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", [*words[:4], f"--out={page}"])
    assert dispatch.main() == 1
    assert "the table has no column 'entity', 'time'; it has who, as_of, score, outcome" in capsys.readouterr().err
