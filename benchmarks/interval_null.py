"""How often a 95 % interval leaves out what is true, where the law is known: drawn forecasts, no training.

    python benchmarks/interval_null.py [--draws 2000] [--blocks 10 20 30 100]

Rows come in blocks that share a shock. A model and five baselines forecast without looking: four baselines say a
constant that was fitted to a small sample, as the baselines of a run do, and one says noise. What each loses in truth
is known, so it is known whether an interval of a closing table is right. The best baseline is the one that did best on
these rows, which luck helps to choose; `one baseline` names it beforehand. Beside each share stands the 99 % binomial
interval that an honest 5 % stays in, and `below` and `above` say on which side of the truth the interval lies.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from scipy import stats

from quantattn.evaluate import Blocks, Table, closing_table, regression_table

ROWS = 20
"""Rows of a block."""
TRAINED = 400
"""Rows that a constant was fitted to."""
RIVALS = 4
REPLICATES = 1000
Floats = npt.NDArray[np.float64]
Misses = Iterator[tuple[str, float, float | None, float | None]]


def classes(rng: np.random.Generator, ids: npt.NDArray[np.int64]) -> Misses:
    """Figure, its truth, and the ends of its interval: two classes, each with probability one half."""
    shock = rng.normal(size=int(ids.max()) + 1)[ids] * 0.3
    y = (rng.random(ids.size) < 1 / (1 + np.exp(-shock))).astype(np.int64)
    constants = [np.full(ids.size, rng.binomial(TRAINED, 0.5) / TRAINED) for _ in range(RIVALS)]
    noise, model = (1 / (1 + np.exp(-0.1 * rng.normal(size=ids.size))) for _ in range(2))
    said = {f"constant {place}": p for place, p in enumerate(constants)} | {"noise": noise}
    lost = {name: float(-np.log(p * (1 - p)).mean() / 2) for name, p in {"encoder": model, **said}.items()}

    def table(*others: str) -> Table:
        two = {name: np.column_stack([1 - p, p]) for name, p in {"encoder": model, **said}.items()}
        beside = {name: two[name] for name in others}
        return closing_table(y, ids, blocks_of(ids), two["encoder"], beside, replicates=REPLICATES)

    yield from against(table("constant 0"), table(*said), lost, "log_loss")
    own = table("constant 0").model.figures
    for name, truth in {"log_loss": lost["encoder"], "mcc": 0.0, "balanced_accuracy": 0.5}.items():
        yield f"classes: {name}", truth, own[name].low, own[name].high


def values(rng: np.random.Generator, ids: npt.NDArray[np.int64]) -> Misses:
    """The same of values with Student's t(8) noise, whose mean is zero."""
    shock = rng.normal(size=int(ids.max()) + 1)[ids] * 0.3
    y, spread = rng.standard_t(8, size=ids.size) + shock, 8 / 6 + 0.09
    constants = [np.full(ids.size, rng.normal() * np.sqrt(spread / TRAINED)) for _ in range(RIVALS)]
    noise, model = (0.1 * rng.normal(size=ids.size) for _ in range(2))
    said = {f"constant {place}": p for place, p in enumerate(constants)} | {"noise": noise}
    lost = {name: spread + float((p**2).mean()) for name, p in {"encoder": model, **said}.items()}

    def table(*others: str) -> Table:
        beside = {name: said[name] for name in others}
        return regression_table(y, ids, blocks_of(ids), model, beside, others[0], replicates=REPLICATES)

    yield from against(table("constant 0"), table(*said), lost, "mse")
    own = table("constant 0").model.figures
    truths = {"mse": lost["encoder"], "r2": 1 - lost["encoder"] / lost["constant 0"], "rank_ic": 0.0}
    for name, truth in truths.items():
        yield f"values: {name}", truth, own[name].low, own[name].high


def against(one: Table, many: Table, lost: dict[str, float], loss: str) -> Misses:
    """Skill and difference of losses against one baseline, and against the best of all."""
    kind = "classes" if loss == "log_loss" else "values"
    for table, name in ((one, "one baseline"), (many, f"best of {RIVALS + 1}")):
        best = lost[table.best_baseline]
        yield f"{kind}: skill, {name}", 1 - lost["encoder"] / best, table.skill.low, table.skill.high
        found = table.difference[loss]
        yield f"{kind}: {loss} − its, {name}", lost["encoder"] - best, found.low, found.high


def blocks_of(ids: npt.NDArray[np.int64]) -> Blocks:
    """The blocks as the library wants them."""
    return Blocks(ids, "day", int(ids.max()) + 1)


def main() -> int:
    """Print the table of each number of blocks; 1 when a share is not honest."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--blocks", type=int, nargs="+", default=[10, 20, 30, 100])
    asked = parser.parse_args()
    low, high = stats.binom.interval(0.99, asked.draws, 0.05) / np.array(asked.draws)
    outside = 0
    for count in asked.blocks:
        began, sides = time.monotonic(), {"below": Counter[str](), "above": Counter[str]()}
        ids = np.repeat(np.arange(count), ROWS)
        for seed in range(asked.draws):
            for law in (classes, values):
                for what, truth, left, right in law(np.random.default_rng(seed), ids):
                    sides["below"][what] += right is not None and right < truth
                    sides["above"][what] += left is not None and left > truth
            if seed % 100 == 99:
                left_over = (time.monotonic() - began) / (seed + 1) * (asked.draws - seed - 1)
                print(f"  {count} blocks: {seed + 1} draws, {left_over:.0f} s left", file=sys.stderr)
        print(f"\n{count} blocks of {ROWS} rows, {asked.draws} draws; 5 % is {low:.1%} … {high:.1%}")
        for what in sides["below"]:
            below, above = (sides[side][what] / asked.draws for side in ("below", "above"))
            honest = low <= below + above <= high
            outside += not honest
            mark = "" if honest else "(outside)"
            print(f"  {below + above:6.1%}  {below:5.1%} below {above:5.1%} above  {what} {mark}", flush=True)
    print(f"\n{outside} shares outside")
    return outside > 0


if __name__ == "__main__":
    raise SystemExit(main())
