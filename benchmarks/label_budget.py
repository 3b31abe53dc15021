"""Whether pretraining pays when labels are few: log loss against the share of labels, by what a model begins with.

    python benchmarks/label_budget.py                                 # a small market, on a CPU
    python benchmarks/label_budget.py --market default --steps 700 --pretraining 1500 --device cuda
    python benchmarks/label_budget.py --draw benchmarks/results/label_budget-cpu.csv

An encoder begins from random weights, or from those that it has after masked events, the next event or CoLES on the
training rows without their labels, and is then trained on 1, 10 or 100 % of the labels. Everything else is equal:
rows, splits, vocabulary, recipe, seeds; the test rows are the same in every cell.

Which labels are left out: those of whole entities, drawn by the seed, in training and in validation alike. Choosing
single decisions at random would leave labels beside each gap, a few events away, in the same entity. Keeping the
earliest would mix the lack of labels with their age: the fewer, the further from the test. Choosing by anything that
came out later would not be honest in time. What was not labelled is not validated on either: labels that choose among
weights are labels, too.

Each cell (start, share, seed) is a row of benchmarks/results/label_budget-<device>.csv; one that is there is not run
again, but for the pretraining of a start whose cells are not all there.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from trained import Recipe, judge, market_of, read_cells, train

from quantattn.cli.benchmarks.results import results_file, write_rows
from quantattn.data.pack import Decisions
from quantattn.data.prepared import Prepared
from quantattn.data.synthetic import SyntheticMarket
from quantattn.evaluate.drawing import INK, MODEL, MUTED, OTHER, THIRD, Figure, draw
from quantattn.learn.files import write_text
from quantattn.learn.rows import training_rows
from quantattn.nn import Coles, Encoder, EncoderConfig, MaskedEvents, Model, NextEvent, Objective, Outcome

RESULTS = Path(__file__).parent / "results"
SCRATCH = "from scratch"
LOOKS = {
    SCRATCH: (OTHER, "s"),
    "masked events": (THIRD, "^"),
    "next event": (MODEL, "o"),
    "CoLES": (INK, "D"),
}
"""What a model begins with → colour and mark."""
SHARES = (0.01, 0.1, 1.0)
SMALL = {"marker_distance": 24, "channels": 1, "flow_events": 4, "cycle": 8, "events_per_entity": 2_048}
MARKETS = {
    "small": SyntheticMarket(entities=100, **SMALL),
    "default": SyntheticMarket(entities=100, events_per_entity=32_768),
}
KEY = ("market", "start", "labels", "seed", "steps", "pretraining")


@dataclass(frozen=True)
class Cell:
    """One model.

    Attributes:
        market: a key of `MARKETS`.
        start: what it began with.
        labels: share of the entities whose labels were known.
        seed: of weights, order, and which entities.
        steps: optimizer steps on labels.
        pretraining: optimizer steps before them, 0 from scratch.
        known: training labels.
        seconds: of training on labels.
        log_loss: on the test rows, nats.
        low: of its 95 % interval.
        high: of the same.
        baseline: log loss of the best baseline, fitted to the same labels.
        flow: least possible for one who cannot look back to the marker.
        bayes: least possible.
        decisions: test rows.
    """

    market: str
    start: str
    labels: float
    seed: int
    steps: int
    pretraining: int
    known: int
    seconds: float
    log_loss: float
    low: float
    high: float
    baseline: float
    flow: float
    bayes: float
    decisions: int


def with_labels(prepared: Prepared, share: float, seed: int) -> Prepared:
    """The same test rows, and of training and validation those of a share of the entities, one at least."""
    names = np.unique(prepared.entity["train"])
    order = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,))).permutation(names)
    known = order[: max(round(share * len(names)), 1)]
    changes: dict[str, object] = {}
    for part in ("train", "valid"):
        cut = getattr(prepared, part)
        kept = np.isin(prepared.entity[part], known)
        targets = {name: target[kept] for name, target in cut.decisions.targets.items()}
        changes[part] = replace(cut, decisions=Decisions(cut.decisions.row[kept], targets))
        for field in ("as_of", "entity"):
            held = changes.get(field, getattr(prepared, field))
            changes[field] = {**held, part: getattr(prepared, field)[part][kept]}  # type: ignore[dict-item]
        inputs = {name: rows[kept] for name, rows in prepared.baselines[part].items()}
        changes["baselines"] = {**changes.get("baselines", prepared.baselines), part: inputs}  # type: ignore[dict-item]
    return replace(prepared, **changes)  # type: ignore[arg-type]


def objective_of(start: str, seed: int) -> Objective:
    """What a start is pretrained by."""
    made: dict[str, Objective] = {
        "masked events": MaskedEvents(rate=0.3, seed=seed),
        "next event": NextEvent(),
        "CoLES": Coles(slices=4, shortest=8, longest=32, seed=seed),
    }
    return made[start]


def model_of(size: str, prepared: Prepared, objective: Objective, seed: int) -> Model:
    """An encoder of random weights with the objective's heads."""
    torch.manual_seed(seed)
    config = EncoderConfig.of_size(size, codes=prepared.codes, values=prepared.values, causal=True)
    return Model(Encoder(config), objective.heads(config, prepared.classes))


def recipe_of(asked: argparse.Namespace, steps: int, seed: int) -> Recipe:
    """How every model is trained, on labels and before."""
    return Recipe.of(asked.device, steps, asked.tokens, asked.lr, seed)


def pretrained(asked: argparse.Namespace, start: str, seed: int, windows: Prepared) -> dict[str, torch.Tensor]:
    """The weights of an encoder after pretraining on the training rows."""
    objective = objective_of(start, seed).fitted(training_rows(windows))
    model = model_of(asked.size, windows, objective, seed)
    done = train(model, objective, windows, recipe_of(asked, asked.pretraining, seed))
    print(f"  pretrained by {start}: validation loss {done.valid_loss:.4f} in {done.seconds:.0f} s", flush=True)
    return model.encoder.state_dict()


def measure(
    asked: argparse.Namespace,
    start: str,
    share: float,
    seed: int,
    prepared: Prepared,
    weights: dict[str, torch.Tensor],
    beside: dict[str, Any],
) -> Cell:
    """Train on a share of the labels, from the weights if there are some, and judge; `beside` as in `judge`."""
    market = MARKETS[asked.market]
    given = with_labels(prepared, share, seed)
    model = model_of(asked.size, given, Outcome(), seed)
    if weights:
        model.encoder.load_state_dict(weights)
    recipe = recipe_of(asked, asked.steps, seed)
    done = train(model, Outcome(), given, recipe)
    table = judge(model, given, recipe, beside)
    ours = table.model.figures[table.loss]
    return Cell(
        market=asked.market,
        start=start,
        labels=share,
        seed=seed,
        steps=asked.steps,
        pretraining=asked.pretraining if weights else 0,
        known=len(given.train.decisions),
        seconds=done.seconds,
        log_loss=ours.value,
        low=float("nan") if ours.low is None else ours.low,
        high=float("nan") if ours.high is None else ours.high,
        baseline=table.row(table.best_baseline).figures[table.loss].value,
        flow=market.bayes(market.flow_events + 1).log_loss,
        bayes=market.bayes().log_loss,
        decisions=table.decisions,
    )


def picture(rows: Sequence[dict[str, str]]) -> Figure:
    """Mean log loss of the seeds against the share of labels; bars reach over the intervals of all seeds."""

    def paint(axes: Axes) -> None:
        for level, name in ((rows[0]["bayes"], "best possible"), (rows[0]["flow"], "without the marker")):
            axes.axhline(float(level), color=MUTED, linewidth=1, linestyle=(0, (5, 3)))
            axes.annotate(name, (1.0, float(level)), color=MUTED, ha="right", va="bottom", fontsize=8)
        for place, (start, (colour, mark)) in enumerate(LOOKS.items()):
            mine = {share: [r for r in rows if r["start"] == start and float(r["labels"]) == share] for share in SHARES}
            mine = {share: cells for share, cells in mine.items() if cells}
            at = [share * 1.06 ** (place - 1.5) for share in mine]
            values = [fmean(float(cell["log_loss"]) for cell in cells) for cells in mine.values()]
            axes.plot(at, values, color=colour, marker=mark, markersize=4, label=start)
            low = [min(float(cell["low"]) for cell in cells) for cells in mine.values()]
            axes.vlines(at, low, [max(float(c["high"]) for c in cells) for cells in mine.values()], color=colour)
        axes.set_xscale("log")
        axes.set_yscale("log")
        ticks = (0.3, 0.4, 0.5, 0.7, 1.0, 1.5, 2.0)
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xticks(SHARES, [f"{share:.0%}" for share in SHARES])
        axes.minorticks_off()
        axes.set_xlabel("share of entities with labels")
        axes.set_ylabel("log loss (nats)")
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))

    seeds = len({row["seed"] for row in rows})
    caption = (
        f"Log loss on the same test rows, mean of at most {seeds} seeds, by what the encoder begins with; bars reach "
        "over the 95 % intervals of all seeds. Lower is better."
    )
    return draw("label-budget", "Labels and pretraining", caption, paint, size=(6.4, 3.2))


def drawn(path: Path) -> Path:
    """The picture of a file of results, beside it."""
    rows = read_cells(path)
    if len({row["market"] for row in rows}) != 1:
        raise SystemExit(f"{path} must hold rows of one market")
    write_text(path.with_suffix(".svg"), picture(rows).svg)
    return path.with_suffix(".svg")


def main() -> int:
    """Run the cells that are left, then draw."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--market", choices=tuple(MARKETS), default="small")
    parser.add_argument("--starts", nargs="+", choices=tuple(LOOKS), default=tuple(LOOKS))
    parser.add_argument("--size", default="tiny", help="of the encoder (%(default)s)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=150, help="on labels (%(default)s)")
    parser.add_argument("--pretraining", type=int, default=300, help="steps before (%(default)s)")
    parser.add_argument("--tokens", type=int, default=3072, help="a batch (%(default)s)")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--within", type=float, default=0.0, help="seconds after which no cell is begun; 0: all are")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--draw", type=Path, metavar="CSV", help="only draw what stands in this file")
    asked = parser.parse_args()
    if asked.draw is not None:
        print(drawn(asked.draw))
        return 0
    device = "cpu" if asked.device == "cpu" else torch.cuda.get_device_name()
    path = results_file(asked.results, "label_budget", device, "csv")
    there = {tuple(row[name] for name in KEY) for row in read_cells(path)}

    def done(start: str, share: float, seed: int) -> bool:
        before = 0 if start == SCRATCH else asked.pretraining
        return tuple(map(str, (asked.market, start, share, seed, asked.steps, before))) in there

    left = [c for c in product(range(asked.seeds), asked.starts, SHARES) if not done(c[1], c[2], c[0])]
    if left:
        run(asked, left, device)
    if path.exists():
        print(f"{path}\n{drawn(path)}")
    return 0


def run(asked: argparse.Namespace, left: Sequence[tuple[int, str, float]], device: str) -> None:
    """Run these cells (seed, start, share); with `--within` none that would take longer than there is time."""
    began = time.monotonic()
    whole, windows = (market_of(MARKETS[asked.market], layout) for layout in ("chunks", "windows"))
    assert whole.vocabulary_json == windows.vocabulary_json
    print(f"the market is prepared, {time.monotonic() - began:.0f} s", flush=True)
    weights: dict[str, torch.Tensor] = {}
    held, longest, first = None, 0.0, time.monotonic()
    beside: dict[tuple[int, float], dict[str, Any]] = {}
    for at, (seed, start, share) in enumerate(left):
        now = time.monotonic()
        if asked.within and now - began + longest > asked.within:
            print(f"{len(left) - at} cells are left after {now - began:.0f} s; the same command goes on", flush=True)
            return
        if held != (seed, start):
            held, weights = (seed, start), {} if start == SCRATCH else pretrained(asked, start, seed, windows)
        cell = measure(asked, start, share, seed, whole, weights, beside.setdefault((seed, share), {}))
        write_rows([cell], asked.results, "label_budget", device, key=KEY)
        longest = max(longest, time.monotonic() - now)
        rest = (time.monotonic() - first) / (at + 1) * (len(left) - at - 1)
        said = f"{start}, {share:.0%} of labels, seed {seed}: {cell.log_loss:.4f} ({cell.low:.4f} … {cell.high:.4f})"
        print(f"{at + 1} of {len(left)} ({rest:.0f} s left): {said}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
