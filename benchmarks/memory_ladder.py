"""Models that climb from marker to farther marker: what `long_memory.py` trains and measures."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from memory_markets import Rung, cut_short, events_of, of_distance, synthetic
from memory_models import MAKERS, beside, size_of
from torch import Tensor
from trained import Recipe, judge, read_cells, train

from quantattn.cli.benchmarks.results import results_file
from quantattn.data.prepared import Prepared
from quantattn.learn.checkpoint import read_checkpoint, write_checkpoint
from quantattn.learn.datamodule import PlannedLoader
from quantattn.learn.fit import Progress
from quantattn.nn import Encoder, EncoderConfig, Model, Outcome

ENCODER, CUT = "encoder", "encoder, context cut"
METHODS = (ENCODER, CUT, *MAKERS)
NEAR_AND_FAR = {"local_window": 16, "global_every": 2, "rotary_base": 1e8, "local_rotary_base": 1e4}
"""Of the encoder: every other layer sees the last events and knows their places, the others see everything and are
hardly turned by its place."""
HEAD = 64
"""Size of the encoder's heads; two of 32 take longer to find a marker."""
RATES = {"tiny": 3e-3, "small": 1e-3, "base": 5e-4, "long": 5e-4}
"""Size → peak learning rate, of every method."""
KEY = ("distance", "begun", "method", "size", "seed", "budget", "limit_s", "events", "copies", "lr")
TIMED, TIMED_S = 4, 2.0
"""The most steps that a model is timed on, and the seconds of them after which no further one begins."""
JUDGED = 2
"""How many times as many tokens a batch has on a GPU where there are no gradients."""


@dataclass(frozen=True)
class Cell:
    """One model at one distance.

    Attributes:
        distance: of the nearest that a decision's marker may lie, in events.
        begun: distances at which it was trained before, the nearest first, with > between; "" for none.
        method: one of `METHODS`.
        size: of the encoder, which says how many parameters all have.
        seed: of weights and order.
        budget: the most optimizer steps of the encoder; others have as many as take as long.
        limit_s: seconds of training at most, 0 for no limit.
        events: of each of the market's 32 entities.
        copies: of each marker.
        lr: peak learning rate.
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
        best_here: log loss of the law itself on the test rows, which is `bayes` on average over all that could be.
        skill_here: share of the gap between the baseline and `best_here` that is closed; the luck of the test rows is
            in both ends, and hardly in this figure.
        theory: the share that is possible with what a decision's sequence holds.
        decisions: test rows.
    """

    distance: int
    begun: str
    method: str
    size: str
    seed: int
    budget: int
    limit_s: float
    events: int
    copies: int
    lr: float
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
    best_here: float
    skill_here: float
    theory: float
    decisions: int


def as_large(state: dict[str, Tensor], own: dict[str, Tensor]) -> dict[str, Tensor]:
    """A state whose tables of codes have as many rows as `own`: a market may know one code of a field more or less than
    the one before. Codes that it alone knows begin as they are in `own`.
    """
    made = dict(state)
    for name, value in state.items():
        if value.shape[1:] == own[name].shape[1:] and len(value) != len(own[name]):
            rows = min(len(value), len(own[name]))
            made[name] = torch.cat([value[:rows].to(own[name]), own[name][rows:]])
    return made


def rows_before(before: str, now: str) -> dict[str, Tensor]:
    """Numeric field → for each of its codes now the one that meant it before, by the middle of its bin.

    Args:
        before: vocabulary of the market that a model comes from, as JSON.
        now: that of the market it goes to.
    """
    old, new = (json.loads(each)["numeric"] for each in (before, now))
    found = {}
    for name in sorted(old.keys() & new.keys()):
        edges = torch.tensor(new[name]["edges"], dtype=torch.float64)
        inside = torch.cat([edges[:1] - 1, (edges[:-1] + edges[1:]) / 2, edges[-1:]])  # a bin holds its lower edge
        bins = torch.searchsorted(torch.tensor(old[name]["edges"], dtype=torch.float64), inside, right=True)
        found[name] = torch.cat([torch.arange(2), 2 + bins])  # behind those of what is missing and what is hidden
    return found


def model_of(method: str, size: str, prepared: Prepared, reach: int, seed: int) -> Model:
    """A model of that kind, as large as the encoder of that size; baselines are made to see `reach` events."""
    torch.manual_seed(seed)
    config = EncoderConfig.of_size(size, codes=prepared.codes, values=prepared.values, causal=True, **NEAR_AND_FAR)
    config = config.with_changes(n_heads=config.width // HEAD)
    encoder = Encoder(config)
    if method in MAKERS:
        torch.manual_seed(seed)
        encoder = beside(method, config, reach, size_of(encoder))  # type: ignore[assignment]
    return Model(encoder, Outcome().heads(config, prepared.classes))


def step_time(model: Model, prepared: Prepared, recipe: Recipe, warm: int = 2) -> float:
    """Seconds of a training step of `model`, the least of a few behind `warm`; its weights stay as they are."""
    cuda = recipe.device == "cuda"
    clock = time.perf_counter if cuda else time.process_time
    half = recipe.trainer.attention_dtype
    loader = PlannedLoader(prepared.train, recipe.max_tokens, seed=recipe.seed, shuffle=True, total=TIMED + warm)
    model, taken = model.to(recipe.device).train(), []
    for batch in loader:
        start = clock()
        given = batch.to(recipe.device)
        with torch.autocast(recipe.device, dtype=half, enabled=half != torch.float32):
            loss = Outcome()(model, given, step=0).loss
        loss.backward()
        float(loss.detach())
        if cuda:
            torch.cuda.synchronize()
        taken.append(clock() - start)
        model.zero_grad(set_to_none=True)
        if sum(taken[warm:]) > TIMED_S:
            break
    return min(taken[min(warm, len(taken) - 1) :])


class Ladder:
    """The cells of one command: every method and seed, from the nearest distance to the farthest."""

    def __init__(self, asked: argparse.Namespace, device: str) -> None:
        self.asked, self.device = asked, device
        self.path = results_file(asked.results, "long_memory", device, "csv")
        self.there = {tuple(row.get(name, "") for name in KEY) for row in read_cells(self.path)}
        self.climbers = [
            (method, seed)
            for method in asked.methods
            for seed in (asked.seeds if method == ENCODER else asked.seeds_beside)
        ]
        self.encoder_s: dict[int, float] = {}  # distance → seconds of the encoder's step
        self.slower = 1.0  # how many times as long the last cell took as its steps alone would have
        self.beside: dict[int, dict[str, Any]] = {}  # distance → forecasts of the baselines

    def limit(self, distance: int) -> float:
        """Seconds of training of a cell at this distance, 0 for no limit."""
        return float(of_distance(self.asked, self.asked.limit_s, distance))

    def begun(self, distance: int) -> str:
        """The distances before it."""
        return ">".join(str(each) for each in self.asked.distances if each < distance)

    def left(self, distance: int) -> list[tuple[str, int]]:
        """Method and seed of every cell of this distance that has no row yet."""
        asked = self.asked
        given = (asked.steps, self.limit(distance), events_of(asked, distance), asked.copies, rate_of(asked, distance))
        done = {
            (method, seed)
            for method, seed in self.climbers
            if tuple(map(str, (distance, self.begun(distance), method, asked.size, seed, *given))) in self.there
        }
        return [each for each in self.climbers if each not in done]

    def weights(self, distance: int, method: str, seed: int) -> Path:
        """The file of a model's weights after this distance."""
        asked = self.asked
        given = (asked.limit_s, asked.events, asked.lr)
        limits, events, rates = ("+".join(f"{each:g}" for each in values or [0]) for values in given)
        setting = f"{asked.size}-{asked.steps}-{limits}-{asked.copies}-{events}-{rates}"
        climbed = f"{self.begun(distance)}>{distance}".strip(">").replace(">", "-")
        name = f"{method} {seed} {setting} {climbed}".replace(",", "").replace(" ", "_")
        return Path(asked.weights) / f"{results_file(Path(), 'device', self.device, 'x').stem}-{name}.ckpt"

    def climb_on(self, model: Model, distance: int, method: str, seed: int, vocabulary: str = "") -> None:
        """Give a model the weights that it had at the distance before, if there is one."""
        before = [each for each in self.asked.distances if each < distance]
        if not before:
            return
        path = self.weights(before[-1], method, seed)
        if not path.is_file():
            raise SystemExit(
                f"{path} is not there, with which {method}, seed {seed}, goes on from {before[-1]} events: name its "
                f"folder with --weights, or take the rows of this method out of {self.path}"
            )
        kept = read_checkpoint(path)
        state = dict(kept["state_dict"])
        if kept.get("vocabulary"):
            names = model.encoder.embedding.names
            for field, rows in rows_before(kept["vocabulary"], vocabulary).items():
                table = f"encoder.embedding.tables.{names.index(f'{field}_code')}.weight"
                state[table] = state[table][rows]
        model.load_state_dict(as_large(state, model.state_dict()))

    def measure(self, distance: int, rung: Rung, method: str, seed: int, say: Callable[[str], None]) -> Cell:
        """Train one model, as long as the encoder of this distance would take, and judge it."""
        asked, market, prepared = self.asked, synthetic(self.asked, distance), rung.prepared
        given = cut_short(prepared, market) if method == CUT else prepared
        reach = int(synthetic(asked, asked.distances[-1]).distances.max()) + 1
        model = model_of(method, asked.size, given, reach, seed)
        self.climb_on(model, distance, method, seed, given.vocabulary_json)
        rate = rate_of(asked, distance)
        recipe = recipe_of(asked, given, asked.steps, seed, rate)
        if distance not in self.encoder_s:
            ours = model_of(ENCODER, asked.size, prepared, reach, seed)
            self.encoder_s[distance] = step_time(ours, prepared, recipe_of(asked, prepared, 1, seed, rate))
        encoder_s = self.encoder_s[distance]
        step = encoder_s if method == ENCODER else step_time(model, given, recipe, warm=2 if method == CUT else 1)
        seconds = min(asked.steps * encoder_s, self.limit(distance) or math.inf)
        if asked.device == "cuda":  # whose time validations and others take too, and a limit is one of all of it
            seconds = min(asked.steps * encoder_s, (self.limit(distance) or math.inf) / self.slower)
        steps = max(round(seconds / step), 1)
        recipe = recipe_of(asked, given, steps, seed, rate)

        def watch(at: Progress) -> None:
            say(f"{at.step}/{at.total} steps, loss {at.train_loss:.4f}, {at.seconds_left:.0f} s left")

        done = train(model, Outcome(), given, recipe, watch)
        self.slower = max(done.seconds / (steps * step), 1.0)
        judged = recipe if asked.device == "cpu" else replace(recipe, max_tokens=JUDGED * recipe.max_tokens)
        table = judge(model, given, judged, self.beside.setdefault(distance, {}))
        kept = self.weights(distance, method, seed)
        kept.parent.mkdir(parents=True, exist_ok=True)
        state = {name: each.cpu() for name, each in model.state_dict().items()}
        write_checkpoint({"state_dict": state, "vocabulary": given.vocabulary_json}, kept)
        bayes, seen, loss = given.bayes, given.bayes_in_context, table.loss
        assert bayes is not None
        assert seen is not None
        best = table.row(table.best_baseline).figures[loss].value
        lost, closed = table.model.figures[loss].value, table.gap_closed
        assert closed is not None
        return Cell(
            distance=distance,
            begun=self.begun(distance),
            method=method,
            size=asked.size,
            seed=seed,
            budget=asked.steps,
            limit_s=self.limit(distance),
            events=events_of(asked, distance),
            copies=asked.copies,
            lr=rate,
            parameters=size_of(model),
            steps=steps,
            step_ms=1e3 * step,
            seconds=done.seconds,
            log_loss=lost,
            baseline=best,
            bayes=bayes.log_loss,
            skill=closed.value,
            low=float("nan") if closed.low is None else closed.low,
            high=float("nan") if closed.high is None else closed.high,
            best_here=rung.best_here,
            skill_here=(best - lost) / (best - rung.best_here),
            theory=(best - seen.log_loss) / (best - bayes.log_loss),
            decisions=table.decisions,
        )


def rate_of(asked: argparse.Namespace, distance: int) -> float:
    """Peak learning rate at a distance."""
    return float(of_distance(asked, asked.lr or [RATES[asked.size]], distance))


def recipe_of(asked: argparse.Namespace, prepared: Prepared, steps: int, seed: int, rate: float) -> Recipe:
    """How every method is trained."""
    longest = max(int(part.lengths.max()) for part in (prepared.train, prepared.valid, prepared.test))
    tokens = max(asked.tokens, asked.sequences * longest)
    return Recipe.of(asked.device, steps, tokens, rate, seed, 4, asked.threads)
