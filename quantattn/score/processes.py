"""A crew of processes on this machine, one a device."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

import torch

from quantattn.score.crew import Recipe, told
from quantattn.score.pipeline import Outcome, Pipeline, shards_held
from quantattn.score.plan import Shard
from quantattn.score.sink import DeltaSink
from quantattn.score.worker import repeating


@dataclass
class _Hand:
    """One process, the end of its pipe that this one has, and the shards that it was given, in that order."""

    number: int
    process: SpawnProcess
    pipe: Connection
    shards: list[Shard] = field(default_factory=list)
    ready: bool = False


class Processes:
    """Spawned processes that each make a worker of their own and are replaced when they are lost.

    They end with this process, however it ends.

    Args:
        recipe: how a process makes its worker; its work should be files (`share`), or every process has a copy.
        devices: one a process, such as "cpu" or "cuda:1".
        held: how many shards a process has at once; None: as many as its device is worth, see `shards_held`.
    """

    def __init__(self, recipe: Recipe, devices: Sequence[str], held: int | None = None) -> None:
        self._recipe, self._devices = recipe, tuple(devices)
        self._held = shards_held(self._devices[0]) if held is None else held
        self._hands: list[_Hand] = []

    def __enter__(self) -> Processes:
        for number in range(len(self._devices)):
            self._hands.append(self._started(number))
        return self

    def __exit__(self, *failure: object) -> None:
        for hand in self._hands:
            hand.process.kill()
        for hand in self._hands:
            hand.process.join()
            hand.pipe.close()
        self._hands.clear()

    def idle(self) -> int:
        """How many further shards those that are ready may have."""
        return sum(self._held - len(hand.shards) for hand in self._hands if hand.ready)

    def give(self, shard: Shard) -> None:
        """Send it to the process that has the fewest."""
        hand = min((hand for hand in self._hands if hand.ready), key=lambda hand: len(hand.shards))
        hand.shards.append(shard)
        with suppress(OSError):  # a process that is gone: `outcomes` says so, and of which shard
            hand.pipe.send(shard)

    def outcomes(self, seconds: float) -> Sequence[Outcome]:
        """What processes have said; a lost one is told of and replaced."""
        wait([each for hand in self._hands for each in (hand.pipe, hand.process.sentinel)], seconds)
        found: list[Outcome] = []
        for place, hand in enumerate(self._hands):
            lost = not hand.process.is_alive()
            while hand.pipe.poll():
                try:
                    said = hand.pipe.recv()
                except (EOFError, OSError):
                    lost = True
                    break
                hand.ready = True
                if said is not None:
                    found.append(_taken(hand, said))
            if lost:
                found.append(self._lost(hand))
                self._hands[place] = self._started(hand.number)
        return found

    def _started(self, number: int) -> _Hand:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_work,
            args=(self._recipe, self._devices[number], theirs),
            name=f"quantattn worker {number}",
            daemon=True,
        )
        process.start()
        theirs.close()
        return _Hand(number, process, ours)

    def _lost(self, hand: _Hand) -> Outcome:
        hand.process.kill()  # its pipe may be what is broken
        hand.process.join()
        hand.pipe.close()
        code = hand.process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        at = hand.shards[0] if hand.shards else None
        doing = f"at {at.name}" if at is not None else "while it had no shard"
        said = f"worker {hand.number} (process {hand.process.pid}) {how} {doing}"
        return Outcome(at, "lost", said=said, others=tuple(hand.shards[1:]))


def _taken(hand: _Hand, said: Outcome) -> Outcome:
    """What a process has said, with the shards that it has no longer when it has failed."""
    if said.what == "failed":
        others, hand.shards = tuple(shard for shard in hand.shards if shard != said.shard), []
        return replace(said, others=others)
    if said.what != "underway":
        hand.shards = [shard for shard in hand.shards if shard != said.shard]
    return said


def _work(recipe: Recipe, device: str, pipe: Connection) -> None:
    """What a process does: makes its worker, and writes the shards that it is sent until it is ended."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # a terminal or a scheduler tells all; the parent decides
    at: Shard | None = None
    try:
        if device.startswith("cuda"):
            torch.cuda.set_device(device)
        torch.set_num_threads(recipe.threads)
        repeating(recipe.given.get("deterministic") is not False)
        pipeline = Pipeline(recipe.worker(device), DeltaSink(recipe.out, recipe.plan), recipe.on_bad)
        pipe.send(None)
        while True:
            while not len(pipeline) or pipe.poll():
                pipeline.give(at := pipe.recv())
            for outcome in pipeline.outcomes():
                pipe.send(outcome)
    except EOFError:
        return
    except (ValueError, OSError, RuntimeError, ArithmeticError, MemoryError) as error:
        pipe.send(Outcome(at, "failed", error=told(error)))
        pipe.recv()  # stay until it is heard


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
