r"""How far back each kind of memory reaches: skill against the distance of what decides, on a market of known law.

    python benchmarks/long_memory.py                                              # tiny, on a CPU: 24 and 200 events
    python benchmarks/long_memory.py --device cuda --within 420 …                 # as docs/learning_proofs.md has it
    python benchmarks/long_memory.py --draw benchmarks/results/long_memory-cpu.csv

Half of a decision's outcome hangs on a marker that lies `distance` events back (docs/synthetic.md). Skill is the share
of the gap between the best baseline of the closing table and the Bayes bound that a model closes on later data, with
its interval from resampled blocks. Beside the encoder stand the encoder with its context cut to half of the distance,
where theory says what is left, and the models of `memory_models.py`: as many parameters within 5 %, the same embedding,
head, optimizer, schedule and order of batches, and as much training time. For that each is timed on a few of the same
batches before it is trained (processor time on a CPU, which others share), and gets as many steps as fit into the
time of the encoder's `--steps`.

The distances are a ladder: at each a model begins with the weights that it had at the one before, the nearest from
random ones, and is judged. Why: docs/learning_proofs.md.

Each cell (distance, method, seed) is a row of benchmarks/results/long_memory-<device>.csv, written when it is known.
One that is there is not run again. The picture of all rows is written at the end, and the weights to `--weights`.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import torch
from memory_ladder import KEY, METHODS, RATES, Ladder
from memory_markets import Rung, rung_of
from memory_picture import draw_memory
from trained import read_cells

from quantattn.cli.benchmarks.results import write_rows
from quantattn.learn.files import write_text

RESULTS = Path(__file__).parent / "results"
WEIGHTS = Path("outputs") / "long_memory"


def draw(path: Path) -> Path:
    """The picture of a file of results, beside it."""
    picture = path.with_suffix(".svg")
    write_text(picture, draw_memory(read_cells(path)).svg)
    return picture


def arguments() -> argparse.ArgumentParser:
    """What the command takes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--distances", type=int, nargs="+", default=[24, 200], help="events back (%(default)s)")
    add("--methods", nargs="+", choices=METHODS, default=METHODS)
    add("--size", choices=tuple(RATES), default="tiny")
    add("--seeds", type=int, nargs="+", default=[0, 1], help="of the encoder (%(default)s)")
    add("--seeds-beside", type=int, nargs="*", default=[0], help="of every other method (%(default)s)")
    add("--steps", type=int, default=400, help="the most of the encoder at a distance (%(default)s)")
    one = "one for all distances or one for each, in order"
    add(
        "--limit-s", type=float, nargs="+", default=[0.0], help=f"seconds of training of a cell at most, {one}; 0: none"
    )
    add("--within", type=float, default=0.0, help="seconds after which no cell is begun; 0: all are")
    add("--tokens", type=int, default=6144, help="a batch at least (%(default)s)")
    add("--sequences", type=int, default=1, help="of the longest that a batch has room for (%(default)s)")
    add("--lr", type=float, nargs="+", help=f"peak learning rate, {one}; by size when not given")
    add("--events", type=int, nargs="+", help=f"of each of 32 entities, {one}; by distance when not given")
    add("--copies", type=int, default=2, help="of each marker (%(default)s)")
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--threads", type=int, default=1, help="of the CPU (%(default)s)")
    add("--results", type=Path, default=RESULTS)
    add("--weights", type=Path, default=WEIGHTS, help="folder of the weights after each distance (%(default)s)")
    add("--draw", type=Path, metavar="CSV", help="only draw what stands in this file")
    return parser


def checked(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """What was asked, with the distances in order."""
    asked = parser.parse_args()
    asked.distances = sorted(set(asked.distances))
    if min(asked.distances) < 20 or min(asked.sequences, asked.steps, asked.tokens) < 1:
        parser.error("--distances must be at least 20, and --sequences, --steps and --tokens at least 1")
    if min([*asked.seeds, *asked.seeds_beside]) < 0:
        parser.error("--seeds and --seeds-beside must be 0 or more")
    if not min(*asked.limit_s, asked.within) >= 0:
        parser.error(f"--limit-s and --within must be 0 or more, got {asked.limit_s} and {asked.within}")
    if not min(asked.lr or [1.0]) > 0:
        parser.error(f"--lr must be positive, got {asked.lr}")
    for name in ("limit_s", "events", "lr"):
        if len(getattr(asked, name) or [0]) not in (1, len(asked.distances)):
            parser.error(f"--{name.replace('_', '-')} must have one value, or one for each of {asked.distances}")
    if asked.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda needs an NVIDIA GPU and a CUDA build of torch, and there is none here")
    return asked


def sparing(apart: float = 10.0) -> Callable[[str], None]:
    """Prints a line when the one before it is `apart` seconds old."""
    said = time.monotonic()

    def say(line: str) -> None:
        nonlocal said
        if time.monotonic() - said > apart:
            said = time.monotonic()
            print(f"  {line}", flush=True)

    return say


def prepared_ahead(asked: argparse.Namespace, distances: list[int]) -> dict[int, Future[Rung]]:
    """The markets, prepared one after the other by a thread that nobody waits for at the end."""
    ahead: dict[int, Future[Rung]] = {distance: Future() for distance in distances}

    def work() -> None:
        for distance, future in ahead.items():
            try:
                future.set_result(rung_of(asked, distance))
            except Exception as error:  # whoever asks for it gets it
                future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return ahead


def climb(ladder: Ladder) -> bool:
    """Run the cells that are left, one method and seed after the other, each up the ladder; whether all are done.

    With `--within` none is begun that took longer, at its distance or for its method, than there is time.
    """
    asked, began = ladder.asked, time.monotonic()
    left = {distance: ladder.left(distance) for distance in asked.distances}
    order = [(d, *climber) for climber in ladder.climbers for d in asked.distances if climber in left[d]]
    ahead = prepared_ahead(asked, [distance for distance in asked.distances if left[distance]])
    took: list[tuple[int, str, float]] = []
    for at, (distance, method, seed) in enumerate(order):
        like = [each for d, m, each in took if distance == d or method == m]
        rest, now = asked.within - (time.monotonic() - began), time.monotonic()
        try:
            if asked.within and rest < max(like, default=0.0):
                raise TimeoutError
            rung = ahead[distance].result(max(rest, 0.0) if asked.within else None)
        except TimeoutError:
            print(f"{len(order) - at} cells are left after {now - began:.0f} s; the same command goes on", flush=True)
            return False
        said = f"{_left(order[at:], took):.0f} s left" if took else "time left unknown"
        print(f"cell {at + 1} of {len(order)} ({said}): {distance} events, {method}, seed {seed}", flush=True)
        now = time.monotonic()
        cell = ladder.measure(distance, rung, method, seed, sparing())
        write_rows([cell], asked.results, "long_memory", ladder.device, KEY, lambda row: {"lr": "", **row})
        took.append((distance, method, time.monotonic() - now))
        found = (
            f"skill {cell.skill:.3f} ({cell.low:.3f} … {cell.high:.3f}), {cell.skill_here:.3f} of what these rows allow"
        )
        found = f"{found}, {cell.steps} steps"
        print(f"  {found}, {took[-1][2]:.0f} s, {time.monotonic() - began:.0f} s in all", flush=True)
    return True


def _left(order: list[tuple[int, str, int]], took: list[tuple[int, str, float]]) -> float:
    """Seconds for these cells, each taken to need what the last one at its distance did, or the mean of all."""
    at = {distance: seconds for distance, _, seconds in took}
    mean = sum(at.values()) / len(at)
    return sum(at.get(distance, mean) for distance, _, _ in order)


def main() -> int:
    """Run the cells that are left, one row after the other, then draw."""
    parser = arguments()
    asked = checked(parser)
    if asked.draw is not None:
        print(draw(asked.draw))
        return 0
    ladder = Ladder(asked, "cpu" if asked.device == "cpu" else torch.cuda.get_device_name())
    climb(ladder)
    if ladder.path.exists():
        print(f"{ladder.path}\n{draw(ladder.path)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
