"""What the judging of scores says when there is nothing to find: how often it calls a figure significant.

    python benchmarks/score_null.py [--seeds 200]

Three worlds without skill: returns dealt out at random among entities; the same with outcomes that overlap and scores
that persist; and returns in which a shock is shared by all entities of a time. The table says, for each figure, the
share of seeds that call it significant, beside the binomial interval (99 %) that an honest 5 % stays in.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from dataclasses import replace

import numpy as np
from scipy import stats

from quantattn.evaluate.assessment import Terms, assess, shuffled
from quantattn.evaluate.forecasts import judge_classes, judge_values
from quantattn.evaluate.inference import MeanTest
from quantattn.evaluate.panel import as_panel
from quantattn.evaluate.scores import Scores

DAY = 86_400 * 10**9
START = 19_723 * DAY  # 2024-01-01


def world(name: str, seed: int, times: int, entities: int) -> Scores:
    """Scores that know nothing of the outcomes."""
    rng = np.random.default_rng(seed)
    horizon = 5 if name == "overlapping" else 1
    steps = rng.standard_t(5, size=(times + horizon, entities)) * 0.01
    if name == "shocks":
        steps += rng.normal(size=(times + horizon, 1)) * 0.02
    outcome = np.stack([steps[t + 1 : t + 1 + horizon].sum(axis=0) for t in range(times)])
    score = rng.normal(size=(times, entities))
    if name == "overlapping":
        for t in range(1, times):
            score[t] = 0.9 * score[t - 1] + np.sqrt(1 - 0.81) * score[t]
    at, entity = (grid.ravel() for grid in np.indices(outcome.shape))
    data, order = as_panel(START + at * DAY, [f"E{i:03d}" for i in entity], outcome.ravel(), horizon=horizon)
    other = rng.normal(size=score.size)
    made = Scores(data, score.ravel()[order], {"another": other})
    return shuffled(made, seed) if name == "shuffled" else made


def significant(test: MeanTest) -> bool:
    """Whether there is a p-value and it is below 5 %."""
    return test.p is not None and test.p < 0.05


def found_in(scores: Scores, seed: int) -> dict[str, bool]:
    """Figure → whether it is called significant."""
    judged = assess({scores.data.horizon: scores}, Terms(cost_bps=0, seed=seed))
    said = {f"p: {what}": p < 0.05 for what, (p, _) in judged.adjusted.items() if "differs" not in what}
    said["p: rank IC differs from that of another score"] = significant(judged.differences["another"])
    tests = {
        "mean rank IC": judged.model.ranking.test if judged.model.ranking else None,
        "net return a period": judged.model.net,
        "rank IC at age 0": judged.ages[0],
        "rank IC at age 5": judged.ages[5],
        "rank IC, turbulent": judged.regimes.get("turbulent"),
        "lowest quantile's mean outcome": judged.quantiles[0],
    }
    said["interval: rank IC differs from that of the best baseline"] = judged.against_best.excludes(0)
    said |= {f"interval: {name}": t.low is not None and not t.low <= 0 <= t.high for name, t in tests.items() if t}
    blocks = ("entity" if kind == "entity" else "time" for kind in judged.intervals)
    said |= {
        f"bootstrap: rank IC by {k}": i.excludes(0) for k, i in zip(blocks, judged.intervals.values(), strict=True)
    }
    said["any p-value after Benjamini and Hochberg"] = any(q < 0.05 for _, q in judged.adjusted.values())
    return said


def forecasts_in(scores: Scores, seed: int) -> dict[str, bool]:
    """The same of two forecasts, or two classifiers, that are equally bad."""
    values = replace(scores, score=0.001 * scores.score, beside={"another": 0.001 * scores.beside["another"]})
    judged = judge_values(values, seed=seed, replicates=500)
    said = {"p: squared errors differ (Diebold, Mariano)": significant(judged.tests["another"])}
    if judged.coverage is not None:
        said["interval: conformal coverage of 90 %"] = judged.coverage.found.excludes(0.9)
    prob = 1 / (1 + np.exp(-0.1 * scores.score))
    classes = replace(
        scores,
        data=replace(scores.data, outcome=(scores.data.outcome > 0).astype(float)),
        score=np.column_stack([1 - prob, prob]),
        beside={},
        classes=("down", "up"),
    )
    other = 1 / (1 + np.exp(-0.1 * scores.beside["another"]))
    beside = {"another": np.column_stack([1 - other, other])}
    tests = judge_classes(classes, beside=beside, seed=seed, replicates=500).tests
    return {**said, "p: log losses differ (Diebold, Mariano)": significant(tests["another"])}


def main() -> None:
    """Print the table of each world."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--times", type=int, default=120)
    parser.add_argument("--entities", type=int, default=20)
    asked = parser.parse_args()
    low, high = stats.binom.interval(0.99, asked.seeds, 0.05) / np.array(asked.seeds)
    for name in ("shuffled", "overlapping", "shocks"):
        began, total, seen = time.monotonic(), Counter[str](), Counter[str]()
        for seed in range(asked.seeds):
            scores = world(name, seed, asked.times, asked.entities)
            for what, yes in {**found_in(scores, seed), **forecasts_in(scores, seed)}.items():
                total[what] += bool(yes)
                seen[what] += 1
            if seed % 20 == 19:
                left = (time.monotonic() - began) / (seed + 1) * (asked.seeds - seed - 1)
                print(f"  {name}: {seed + 1} of {asked.seeds} seeds, {left:.0f} s left", file=sys.stderr)
        size = f"{asked.seeds} seeds, {asked.times} times, {asked.entities} entities"
        print(f"\n{name}: {size}; 5 % is {low:.1%} … {high:.1%}")
        for what, count in total.items():
            share = count / seen[what]
            print(f"  {share:6.1%}  {'' if low <= share <= high else '(outside) '}{what}")


if __name__ == "__main__":
    main()
