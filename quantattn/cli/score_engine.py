"""How a scoring job is carried out: by how many workers, on which devices, and which of its shards."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console

from quantattn.cli import show
from quantattn.cli.errors import UsageError
from quantattn.data.filings.pool import available_cores
from quantattn.score.cluster import Cluster, require_ray
from quantattn.score.crew import Alone, Crew, Recipe
from quantattn.score.installed import processor
from quantattn.score.pipeline import OnBad
from quantattn.score.processes import Processes
from quantattn.score.run import Progress, score_with
from quantattn.score.share import share
from quantattn.score.sink import DeltaSink, apart
from quantattn.score.worker import Worker

SHARDS_A_WORKER, MOST_ON_A_CPU = 4, 8
PRECISIONS = {"32-true": None, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
"""Precision, as in training → dtype of products and attention; None is that of the parameters."""


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """What of `score.yaml` says how a job is carried out. But for `bits` it changes no row.

    Attributes:
        deterministic: "on" gives the same bits for the same batches; "batch" the same whatever the batches are; "off"
            promises neither.
        engine: "local", processes of this machine; or "ray", those of a cluster.
        precision: a key of `PRECISIONS`.
        device: "cpu", "cuda", or "auto", the GPUs when there are any.
        workers: processes; None: one a GPU; on a CPU as many as there are cores, 8 at most, and no more than keeps each
            at four shards, which are worth its start.
        threads: of the CPU, on which each of them computes.
        shards: "FIRST:LAST" of the plan's, when other jobs do the others; None: all.
        on_bad: what becomes of a decision without a score: "stop" ends the job, "quarantine" writes it apart.
    """

    deterministic: str | bool
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    engine: Literal["local", "ray"] = "local"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    workers: int | None = None
    threads: int = 1
    shards: str | None = None
    on_bad: OnBad = "stop"

    def __post_init__(self) -> None:
        # YAML reads a bare on or off as true or false.
        if self.deterministic not in ("batch", "on", "off", True, False):
            raise ValueError(f"deterministic must be batch, on or off, got {self.deterministic!r}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device=cuda needs an NVIDIA GPU and a CUDA build of torch, and there is none here")
        if self.engine == "ray":
            require_ray()
        for name in ("workers", "threads"):
            given = getattr(self, name)
            if given is not None and not 1 <= given <= 1024:
                raise ValueError(f"{name} must be from 1 to 1024, got {given}")

    @property
    def mode(self) -> str:
        """`deterministic` in words, however YAML has read it."""
        if isinstance(self.deterministic, str):
            return self.deterministic
        return "on" if self.deterministic else "off"

    def devices(self, shards: int = 1) -> tuple[str, ...]:
        """One a worker, for so many shards."""
        gpus = torch.cuda.device_count() if self.device != "cpu" and torch.cuda.is_available() else 0
        cores = min(shards // SHARDS_A_WORKER, available_cores() // self.threads, MOST_ON_A_CPU)
        workers = self.workers or gpus or max(cores, 1)
        return tuple(f"cuda:{number % gpus}" if gpus else "cpu" for number in range(workers))

    @property
    def bits(self) -> dict[str, Any]:
        """What of it decides the bits of a row: for a plan."""
        device = self.devices()[0]
        # How many threads share a sum on a CPU decides how it is rounded.
        threads = {} if device.startswith("cuda") else {"threads": self.threads}
        # 32-true is left out, as it was before there was another.
        precision = {} if PRECISIONS[self.precision] is None else {"precision": self.precision}
        where = {"device": device.split(":")[0], "processor": processor(device)}
        return {"deterministic": self.mode, **where, **threads, **precision}


def sizes(path: str | None, names: Iterable[str]) -> dict[str, int]:
    """Those of the inputs of these names that are files at or below `path` → their bytes."""
    if path is None:
        return {}
    root, wanted = Path(path), set(names)
    files = [root] if root.is_file() else [file for file in sorted(root.rglob("*")) if file.is_file()]
    called = {name: file for file in files for name in (file.name, str(file.relative_to(root)))}
    return {name: called[name].stat().st_size for name in sorted(wanted & set(called))}


def carry_out(asked: EngineSettings, recipe: Recipe, model: Any, folder: Path, out: Console) -> bool:
    """Score what the settings say; whether all of it is in the table, which it is not when a SIGTERM came.

    `folder` is where the files of the work lie or are put.

    Raises:
        UsageError: shards that the plan does not have.
        ValueError: see `score_with`.
    """
    try:
        shards = recipe.plan.between(asked.shards)
    except ValueError as error:
        raise UsageError(str(error)) from error
    first, last = (int(part or 0) for part in (asked.shards or ":").split(":"))
    if last > (there := len(recipe.plan.shards)):
        done = f"the plan has 0:{there}, so {first}:{there} are done"
        out.print(f"note: shards={asked.shards} goes beyond the last one; {done}", soft_wrap=True)
    with ExitStack() as stack:
        stop = stack.enter_context(_told_to_stop())
        crew = _crew(asked, recipe, len(shards), model, folder, stack)
        finished = score_with(crew, recipe.plan, recipe.out, shards, watch=_teller(out), stop=stop)
    if finished and len(shards) == len(recipe.plan.shards) and (left := DeltaSink(recipe.out, recipe.plan).clean()):
        out.print(f"removed {left} files of rows that writers had left behind who were killed before their commit")
    if without := DeltaSink(apart(recipe.out), recipe.plan).rows:
        out.print(f"{without:,} rows without a score, each with its reason, in {apart(recipe.out)}")
    return finished


def _crew(asked: EngineSettings, recipe: Recipe, shards: int, model: Any, folder: Path, stack: ExitStack) -> Crew:
    devices = asked.devices(shards)
    if asked.engine == "local" and len(devices) == 1:
        stack.enter_context(_threads(asked.threads))
        return Alone(Worker(model, device=devices[0], **recipe.given), recipe.out, recipe.on_bad)
    # Under names that hold wherever a worker runs.
    place = recipe.out.absolute() if isinstance(recipe.out, Path) else recipe.out
    given = {**recipe.given, "work": share(recipe.given["work"], folder.absolute())}
    recipe = replace(recipe, given=given, out=place, model=str(Path(recipe.model).absolute()))
    if asked.engine == "ray":
        return Cluster(recipe, asked.workers, devices[0].startswith("cuda"))
    return Processes(recipe, devices)


def reading(out: Console) -> Callable[[int], None]:
    """What prints, every ten seconds, how many events were read."""
    begun = printed = time.monotonic()

    def tell(events: int) -> None:
        nonlocal printed
        now = time.monotonic()
        if now - printed >= show.SECONDS_BETWEEN_LINES:
            printed = now
            out.print(f"{events:,} events read  {events / (now - begun):,.0f}/s")

    return tell


def _teller(out: Console) -> Callable[[Progress], None]:
    """What prints how far the job is: at its begin and end, every ten seconds, and when a worker is lost."""
    printed = -math.inf

    def tell(at: Progress) -> None:
        nonlocal printed
        if at.said:
            out.print(f"{at.said}; another one takes its place", soft_wrap=True)
        now = time.monotonic()
        if now - printed < show.SECONDS_BETWEEN_LINES and at.done < at.total:
            return
        printed = now
        there = f", {at.found:,} were there" if at.found else ""
        pace = f"  {at.per_second:,.0f}/s" if at.per_second >= 1 else ""
        if at.done < at.total and 0 < at.share < 1:
            pace += f"  {at.share:.0%} computed"
        pace += f", {show.clock(at.seconds_left)} left" if at.share > 0 else ""
        lost = f", {at.lost} workers lost" if at.lost else ""
        lost += f", {at.refused:,} without a score" if at.refused else ""
        out.print(f"{at.done:,}/{at.total:,} decisions{there}{pace}{lost or ', no failures'}")

    return tell


@contextmanager
def _told_to_stop() -> Iterator[Callable[[], bool]]:
    """Whether a SIGTERM or a SIGUSR1 has come: the first ends nothing, the second the command, which loses a shard."""
    stopped: list[int] = []

    def told(given: int, _: Any) -> None:
        if stopped:
            raise SystemExit(128 + signal.SIGTERM)
        stopped.append(given)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    numbers = (signal.SIGTERM, signal.SIGUSR1)
    before = {number: signal.signal(number, told) for number in numbers}
    try:
        yield lambda: bool(stopped)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
