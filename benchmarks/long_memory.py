"""How far back each kind of memory reaches: skill against the distance of what decides, on a market of known law.

    python benchmarks/long_memory.py                                              # tiny, on a CPU: 200 events
    python benchmarks/long_memory.py --distances 200 2000 16000 50000 --size small --device cuda
    python benchmarks/long_memory.py --draw benchmarks/results/long_memory-cpu.csv

Half of a decision's outcome hangs on a marker that lies `distance` events back (docs/synthetic.md). Skill is the share
of the gap between the best baseline of the closing table and the Bayes bound that a model closes on later data, with
its interval from resampled blocks. Beside the encoder stand the encoder with its context cut to half of the distance,
where theory says what is left, and the models of `memory_models.py`: as many parameters within 5 %, the same embedding,
head, optimizer, schedule and order of batches, and as much training time. For that each is timed on the same few
batches before it is trained (processor time on a CPU, which others share), and gets as many steps as fit into the
time of the encoder's `--steps`.

Each cell (distance, method, seed) is a row of benchmarks/results/long_memory-<device>.csv; one that is there is not run
again. The picture of all rows is written beside it.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path

import torch
from memory_models import MAKERS, beside, size_of
from memory_picture import draw_memory
from trained import Recipe, judge, train

from quantattn.cli.benchmarks.results import results_file, write_rows
from quantattn.data.market.prepare import prepare_market
from quantattn.data.prepared import Prepared
from quantattn.data.protocol import MidLabel
from quantattn.data.protocol.splits import WalkForward
from quantattn.data.synthetic import SyntheticMarket
from quantattn.learn.datamodule import PlannedLoader
from quantattn.learn.files import write_text
from quantattn.learn.fit import Progress
from quantattn.learn.trainer import TrainerSettings
from quantattn.nn import Encoder, EncoderConfig, Model, Outcome

RESULTS = Path(__file__).parent / "results"
FIELDS = ("kind", "side", "size", "price", "mid_move")
ENCODER, CUT = "encoder", "encoder, context cut"
METHODS = (ENCODER, *MAKERS, CUT)
EVENTS = {200: 65_536, 2_000: 131_072, 16_000: 524_288, 50_000: 1_572_864}
"""Distance → events of each of 32 entities; decisions are eight in a little more than the distance."""
FAR = 10_000
"""From this distance on decisions are few, and more of them are kept for the test."""
RATES = {"tiny": 3e-3, "small": 1e-3, "base": 5e-4, "long": 5e-4}
"""Size → peak learning rate, of every method."""
KEY = ("distance", "method", "size", "seed", "budget", "events", "copies")
TIMED = 4


@dataclass(frozen=True)
class Cell:
    """One model at one distance.

    Attributes:
        distance: of the nearest that a decision's marker may lie, in events.
        method: one of `METHODS`.
        size: of the encoder, which says how many parameters all have.
        seed: of weights and order.
        budget: optimizer steps of the encoder; others have as many as take as long.
        events: of each of the market's 32 entities.
        copies: of each marker.
        parameters: with embedding and head.
        steps: optimizer steps.
        step_ms: time of one before the run: processor time on a CPU, else wall time.
        seconds: that the run took on the wall, validations included.
        log_loss: on the test rows, nats.
        baseline: the best one's.
        bayes: the least that is possible.
        skill: share of the gap between those two that is closed.
        low: of its 95 % interval.
        high: of the same.
        theory: the share that is possible with what a decision's sequence holds.
        decisions: test rows.
    """

    distance: int
    method: str
    size: str
    seed: int
    budget: int
    events: int
    copies: int
    parameters: int
    steps: int
    step_ms: float
    seconds: float
    log_loss: float
    baseline: float
    bayes: float
    skill: float
    low: float
    high: float
    theory: float
    decisions: int


@lru_cache(maxsize=1)
def market_of(distance: int, events: int, copies: int, cut: bool) -> Prepared:
    """The prepared market, whose sequences hold the marker of each of their decisions, or half of the way to it."""
    market = SyntheticMarket(marker_distance=distance, events_per_entity=events, copies=copies)
    seen = distance // 2 if cut else int(market.distances.max()) + 1
    return prepare_market(
        market,
        label=MidLabel(horizon=1, method=0, classes=2, rule="fixed", theta=0),
        decision_kinds=[5],
        fields=FIELDS,
        min_context=seen,
        max_seq_len=seen + market.channels * market.cycle,  # all decisions of an epoch in one sequence
        split=WalkForward(test=0.1 if distance < FAR else 0.25, valid=0.05),
    )


def model_of(method: str, size: str, prepared: Prepared, seed: int) -> Model:
    """A model of that kind, as large as the encoder of that size."""
    torch.manual_seed(seed)
    config = EncoderConfig.of_size(size, codes=prepared.codes, values=prepared.values, causal=True)
    encoder = Encoder(config)
    if method in MAKERS:
        reach = int(prepared.test.contexts.max())
        torch.manual_seed(seed)
        encoder = beside(method, config, reach, size_of(encoder))  # type: ignore[assignment]
    return Model(encoder, Outcome().heads(config, prepared.classes))


def step_time(model: Model, prepared: Prepared, recipe: Recipe) -> float:
    """Seconds of a training step of `model`, the median of a few on the first batches; its weights stay as they are."""
    cuda = recipe.device == "cuda"
    clock = time.perf_counter if cuda else time.process_time
    half = recipe.trainer.attention_dtype
    loader = PlannedLoader(prepared.train, recipe.max_tokens, seed=recipe.seed, shuffle=True, total=TIMED + 2)
    model, taken = model.to(recipe.device).train(), []
    for batch in loader:
        given = batch.to(recipe.device)
        began = clock()
        with torch.autocast(recipe.device, dtype=half, enabled=half != torch.float32):
            loss = Outcome()(model, given, step=0).loss
        loss.backward()
        float(loss.detach())
        if cuda:
            torch.cuda.synchronize()
        taken.append(clock() - began)
        model.zero_grad(set_to_none=True)
    return statistics.median(taken[2:])


def measure(asked: argparse.Namespace, distance: int, method: str, seed: int, say: Callable[[str], None]) -> Cell:
    """Train one model, as long as the encoder of this distance would take, and judge it."""
    prepared = market_of(distance, events_of(asked, distance), asked.copies, method == CUT)
    recipe = recipe_of(asked, prepared, asked.steps, seed)
    model = model_of(method, asked.size, prepared, seed)
    step = step_time(model, prepared, recipe)
    steps = asked.steps
    if method in MAKERS:
        ours = step_time(model_of(ENCODER, asked.size, prepared, seed), prepared, recipe)
        steps = max(round(asked.steps * ours / step), 1)
    recipe = recipe_of(asked, prepared, steps, seed)

    def watch(at: Progress) -> None:
        say(f"{at.step}/{at.total} steps, loss {at.train_loss:.4f}, {at.seconds_left:.0f} s left")

    done = train(model, Outcome(), prepared, recipe, watch)
    table = judge(model, prepared, recipe)
    bayes, seen, loss = prepared.bayes, prepared.bayes_in_context, table.loss
    assert bayes is not None
    assert seen is not None
    best = table.row(table.best_baseline).figures[loss].value
    closed = table.gap_closed
    assert closed is not None
    return Cell(
        distance=distance,
        method=method,
        size=asked.size,
        seed=seed,
        budget=asked.steps,
        events=events_of(asked, distance),
        copies=asked.copies,
        parameters=size_of(model),
        steps=steps,
        step_ms=1e3 * step,
        seconds=done.seconds,
        log_loss=table.model.figures[loss].value,
        baseline=best,
        bayes=bayes.log_loss,
        skill=closed.value,
        low=float("nan") if closed.low is None else closed.low,
        high=float("nan") if closed.high is None else closed.high,
        theory=(best - seen.log_loss) / (best - bayes.log_loss),
        decisions=table.decisions,
    )


def events_of(asked: argparse.Namespace, distance: int) -> int:
    """Events of each entity."""
    return int(asked.events or EVENTS.get(distance, 40 * distance))


def recipe_of(asked: argparse.Namespace, prepared: Prepared, steps: int, seed: int) -> Recipe:
    """How every method is trained."""
    gpu = asked.device == "cuda"
    trainer = TrainerSettings(
        accelerator="gpu" if gpu else "cpu",
        precision="bf16-mixed" if gpu else "32-true",
        max_steps=steps,
        validate_every=max(steps // 7, 1),
        lr_floor=0.0,
        threads=None if gpu else asked.threads,
    )
    tokens = max(asked.tokens, int(prepared.train.lengths.max()), int(prepared.test.lengths.max()))
    return Recipe(trainer, tokens, lr=asked.lr or RATES[asked.size], seed=seed)


def read_cells(path: Path) -> list[dict[str, str]]:
    """The rows that stand in a file of results; none where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def cells_left(asked: argparse.Namespace, path: Path) -> Iterator[tuple[int, str, int]]:
    """Distance, method and seed of every cell that has no row yet."""
    there = {tuple(row[name] for name in KEY) for row in read_cells(path)}
    for distance in asked.distances:
        given = str(asked.steps), str(events_of(asked, distance)), str(asked.copies)
        # The market is prepared twice, with sequences cut and not, whatever the number of seeds.
        for cut, seed in product((False, True), range(asked.seeds)):
            for method in asked.methods:
                if (method == CUT) == cut and (str(distance), method, asked.size, str(seed), *given) not in there:
                    yield distance, method, seed


def draw(path: Path) -> Path:
    """The picture of a file of results, beside it."""
    picture = path.with_suffix(".svg")
    write_text(picture, draw_memory(read_cells(path)).svg)
    return picture


def arguments() -> argparse.ArgumentParser:
    """What the command takes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--distances", type=int, nargs="+", default=[200], help="events back (%(default)s)")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--size", choices=tuple(RATES), default="tiny")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=700, help="of the encoder (%(default)s)")
    parser.add_argument("--tokens", type=int, default=6144, help="a batch; at least the longest sequence (%(default)s)")
    parser.add_argument("--lr", type=float, help="peak learning rate; by size when not given")
    parser.add_argument("--events", type=int, help="of each of 32 entities; by distance when not given")
    parser.add_argument("--copies", type=int, default=2, help="of each marker (%(default)s)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="of the CPU (%(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--draw", type=Path, metavar="CSV", help="only draw what stands in this file")
    return parser


def main() -> int:
    """Run the cells that are left, one row after the other, then draw."""
    parser = arguments()
    asked = parser.parse_args()
    if asked.draw is not None:
        print(draw(asked.draw))
        return 0
    if min(asked.distances) < 20 or min(asked.seeds, asked.steps, asked.tokens) < 1:
        parser.error("--distances must be at least 20, and --seeds, --steps and --tokens at least 1")
    if asked.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda needs an NVIDIA GPU and a CUDA build of torch, and there is none here")
    device = "cpu" if asked.device == "cpu" else torch.cuda.get_device_name()
    path = results_file(asked.results, "long_memory", device, "csv")
    left = list(cells_left(asked, path))
    began = time.monotonic()
    for at, (distance, method, seed) in enumerate(left):
        spent = time.monotonic() - began
        rest = f"{spent / at * (len(left) - at) / 60:.0f} min left" if at else "time left unknown"
        name = f"cell {at + 1} of {len(left)} ({rest}): {distance} events, {method}, seed {seed}"
        print(name, flush=True)
        said = 0.0

        def say(line: str) -> None:
            nonlocal said
            if time.monotonic() - said > 10:
                said = time.monotonic()
                print(f"  {line}", flush=True)

        cell = measure(asked, distance, method, seed, say)
        write_rows([cell], asked.results, "long_memory", device, key=KEY)
        print(f"  skill {cell.skill:.3f} ({cell.low:.3f} … {cell.high:.3f}), {cell.steps} steps, {cell.seconds:.0f} s")
    print(f"{path}\n{draw(path)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
