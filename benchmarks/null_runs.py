"""What the report of a run says when there is nothing to find: how often it is wrong.

    python benchmarks/null_runs.py [--seeds 50] [--worlds classes-entity values-day …] [--steps 60]

A small market is prepared once. For every seed its labels are drawn anew, each from all labels of all parts, a small
encoder is trained on them, and the closing table is made as `train.py` makes it. (`data.shuffle_labels=true` deals
labels out within each part: then the parts still differ in their means, and a model of another level than the training
mean may be better in truth.) Labels are independent of everything, and their law is known, so the loss that each fixed
forecast has in truth is known too. Worlds are classes or values, with intervals from blocks of entities, stretches of
time or days. Counted are three statements:

- `differs`: the interval of a figure leaves out what the figure is when forecast and outcome are independent: 0 for
  MCC and rank correlation, 1/C for balanced accuracy. True of every method, so 5 % of the seeds may say it.
- `misses`: the interval of skill leaves out the skill that these forecasts have in truth: 5 %.
- `better`: the verdict of the report is that the encoder is better than the best baseline, and in truth it is not. One
  of the two ways in which a 95 % interval may be wrong: 2.5 %, or fewer.

Beside each share stands the 99 % binomial interval that an honest one stays in. Rows go to
benchmarks/results/null-cpu.csv. The exit code is 1 when a share is outside.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import stats
from trained import Recipe, scores_of, train

from quantattn.cli.benchmarks.results import write_rows
from quantattn.data.market.prepare import prepare_market
from quantattn.data.pack import SequenceSet
from quantattn.data.prepared import PARTS, Prepared
from quantattn.data.protocol import MidLabel, RealisedVolatility
from quantattn.data.protocol.splits import WalkForward
from quantattn.data.synthetic import SyntheticMarket
from quantattn.evaluate import Table, verdict
from quantattn.learn.closing import judged
from quantattn.learn.rows import training_rows
from quantattn.learn.trainer import TrainerSettings
from quantattn.nn import Encoder, Model, Outcome, Regression

LABEL = "label"
RESULTS = Path(__file__).parent / "results"
FIELDS = ("kind", "side", "size", "price", "mid_move")
LAW = {"marker_distance": 24, "channels": 1, "flow_events": 4, "cycle": 8}
BLOCKS = {
    "entity": {"entities": 32, "events_per_entity": 4096},
    "time": {"entities": 6, "events_per_entity": 16_384, "events_per_session": 16_384},
    "day": {"entities": 6, "events_per_entity": 16_384, "events_per_session": 256},
}
"""Kind of block → the market whose test decisions `choose_blocks` puts into such blocks."""
WORLDS = tuple(f"{what}-{kind}" for what in ("classes", "values") for kind in BLOCKS)
HONEST = {"differs": 0.05, "misses": 0.05, "better": 0.025}
SURE = 0.99


@dataclass(frozen=True)
class Share:
    """How often a statement was made.

    Attributes:
        world: kind of label and of block.
        method: whose figure.
        figure: which.
        says: differs, misses or better.
        seeds: that could make the statement.
        share: of them that made it.
        low: of what an honest share stays in.
        high: of the same.
    """

    world: str
    method: str
    figure: str
    says: str
    seeds: int
    share: float
    low: float
    high: float

    @property
    def honest(self) -> bool:
        """Whether the share is inside; to be wrong less often than is allowed is no fault of a `better`."""
        return self.share <= self.high and (self.says == "better" or self.share >= self.low)


def world_of(name: str) -> Prepared:
    """The prepared market of a world."""
    what, kind = name.split("-")
    label = MidLabel(horizon=1, method=0, classes=2, rule="fixed", theta=0)
    given = {"label": label, "decision_kinds": [5]} if what == "classes" else {"label": RealisedVolatility(horizon=40)}
    return prepare_market(
        SyntheticMarket(**LAW, **BLOCKS[kind]),
        **given,
        decision_every=1 if what == "classes" else 23,
        fields=FIELDS,
        max_seq_len=64,
        min_context=32,
        split=WalkForward(test=0.4, valid=0.1),
    )


def redrawn(prepared: Prepared, seed: int) -> Prepared:
    """The same decisions with labels that are drawn from those of all parts, each alike."""
    rng, pool = np.random.default_rng(seed), labels_of(prepared)

    def part(cut: SequenceSet) -> SequenceSet:
        drawn = rng.choice(pool, len(cut.decisions))
        return replace(cut, decisions=replace(cut.decisions, targets={LABEL: drawn}))

    parts = {name: part(getattr(prepared, name)) for name in PARTS}
    return replace(prepared, bayes=None, **parts)


def labels_of(prepared: Prepared) -> npt.NDArray[Any]:
    """The labels of all parts."""
    return np.concatenate([getattr(prepared, name).decisions.targets[LABEL] for name in PARTS])


def run_of(prepared: Prepared, seed: int, steps: int) -> tuple[Table, float]:
    """The closing table of a run on labels that say nothing, and the skill that its forecasts have in truth."""
    given = redrawn(prepared, seed)
    objective = (Outcome() if prepared.classes else Regression()).fitted(training_rows(given))
    torch.manual_seed(seed)
    shape = {"n_layers": 1, "hidden": 64}
    encoder = Encoder("tiny", codes=prepared.codes, values=prepared.values, causal=True, **shape)
    model = Model(encoder, objective.heads(encoder.config, prepared.classes))
    # Weights of the last step: the best validation would choose those that have learned nothing yet.
    trainer = TrainerSettings(max_steps=steps, validate_every=steps, threads=1)
    recipe = Recipe(trainer, max_tokens=2048, lr=1e-2, weight_decay=0.0, seed=seed)
    train(model, objective, given, recipe)
    scores = scores_of(model, given, recipe)
    table, others = judged(given, LABEL, scores, seed=seed)
    ours = scores["prob" if prepared.classes else "value"].numpy()
    labels = labels_of(prepared)
    return table, 1 - true_loss(ours, labels) / true_loss(others[table.best_baseline], labels)


def true_loss(forecast: npt.ArrayLike, labels: npt.NDArray[Any]) -> float:
    """Expected log loss of (Q, C) probabilities, or squared error of (Q,) values, over labels each drawn from these."""
    said = np.asarray(forecast, np.float64)
    if said.ndim == 1:
        return float(((said - labels.mean()) ** 2).mean() + labels.var())
    shares = np.bincount(labels, minlength=said.shape[1]) / len(labels)
    return float(-(np.log(said / said.sum(axis=1, keepdims=True)) @ shares).mean())


def statements(table: Table, n_classes: int, truth: float) -> Iterator[tuple[str, str, str, bool]]:
    """Method, figure, what is said, and whether this table says it."""
    independent = {"mcc": 0.0, "balanced_accuracy": 1 / max(n_classes, 1), "rank_ic": 0.0}
    for row in table.rows:
        for name, value in independent.items():
            figure = row.figures.get(name)
            if figure is not None and figure.low != figure.high:  # a constant forecast is what it is, without chance
                yield row.method, name, "differs", figure.excludes(value)
    yield "encoder", "skill", "misses", table.skill.excludes(truth)
    yield "encoder", "skill", "better", verdict(table).tone == "better" and truth <= 0


def shares(world: str, seeds: int, steps: int) -> list[Share]:
    """Every statement of a world with how often it was made."""
    prepared, began = world_of(world), time.monotonic()
    made, could = Counter[tuple[str, str, str]](), Counter[tuple[str, str, str]]()
    for seed in range(seeds):
        table, truth = run_of(prepared, seed, steps)
        for method, figure, says, yes in statements(table, len(prepared.classes), truth):
            made[method, figure, says] += yes
            could[method, figure, says] += 1
        left = (time.monotonic() - began) / (seed + 1) * (seeds - seed - 1)
        print(f"\r  {world}: {seed + 1} of {seeds} seeds, {left:.0f} s left ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    found = []
    for (method, figure, says), n in could.items():
        low, high = stats.binom.interval(SURE, n, HONEST[says])
        found.append(Share(world, method, figure, says, n, made[method, figure, says] / n, low / n, high / n))
    return found


def main() -> int:
    """Count, print and keep; 1 when a share is not honest."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps of a run (%(default)s)")
    parser.add_argument("--worlds", nargs="+", choices=WORLDS, default=WORLDS)
    parser.add_argument("--results", type=Path, default=RESULTS)
    asked = parser.parse_args()
    if asked.seeds < 1 or asked.steps < 1:
        parser.error("--seeds and --steps must be at least 1")
    outside = 0
    for world in asked.worlds:
        found = shares(world, asked.seeds, asked.steps)
        print(f"\n{world}: {asked.seeds} seeds")
        for each in found:
            outside += not each.honest
            between = f"{each.low:.0%} … {each.high:.0%}"
            mark = "" if each.honest else "  OUTSIDE"
            print(f"  {each.share:6.1%}  {each.says:8} {each.figure:18} {each.method:22} {between}{mark}", flush=True)
        write_rows(found, asked.results, "null", "cpu", key=("world", "method", "figure", "says"))
    print(f"\n{outside} shares outside")
    return outside > 0


if __name__ == "__main__":
    raise SystemExit(main())
