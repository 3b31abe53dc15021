"""A crew of processes on this machine, one a device."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

import torch

from quantattn.score.crew import Outcome, Recipe, told, write_shard
from quantattn.score.plan import Shard
from quantattn.score.sink import DeltaSink


@dataclass
class _Hand:
    """One process, the end of its pipe that this one has, and the shard that it was given."""

    number: int
    process: SpawnProcess
    pipe: Connection
    shard: Shard | None = None
    ready: bool = False


class Processes:
    """Spawned processes that each make a worker of their own and are replaced when they are lost.

    They end with this process, however it ends.

    Args:
        recipe: how a process makes its worker; its work should be files (`share`), or every process has a copy.
        devices: one a process, such as "cpu" or "cuda:1".
    """

    def __init__(self, recipe: Recipe, devices: Sequence[str]) -> None:
        self._recipe, self._devices = recipe, tuple(devices)
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
        """Processes that are ready and have no shard."""
        return sum(hand.ready and hand.shard is None for hand in self._hands)

    def give(self, shard: Shard) -> None:
        """Send it to an idle process."""
        hand = next(hand for hand in self._hands if hand.ready and hand.shard is None)
        hand.shard = shard
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
                    hand.shard = None
                    found.append(said)
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
        doing = f"at {hand.shard.name}" if hand.shard is not None else "while it had no shard"
        return Outcome(hand.shard, "lost", said=f"worker {hand.number} (process {hand.process.pid}) {how} {doing}")


def _work(recipe: Recipe, device: str, pipe: Connection) -> None:
    """What a process does: makes its worker, and writes the shards that it is sent until it is ended."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # a terminal or a scheduler tells all; the parent decides
    shard: Shard | None = None
    try:
        if device.startswith("cuda"):
            torch.cuda.set_device(device)
        torch.set_num_threads(recipe.threads)
        torch.use_deterministic_algorithms(recipe.given.get("deterministic") is not False)
        worker, sink = recipe.worker(device), DeltaSink(recipe.out, recipe.plan)
        pipe.send(None)
        while True:
            shard = pipe.recv()
            pipe.send(write_shard(worker, sink, shard, recipe.on_bad))
    except EOFError:
        return
    except (ValueError, OSError, RuntimeError, ArithmeticError, MemoryError) as error:
        pipe.send(Outcome(shard, "failed", error=told(error)))
        pipe.recv()  # stay until it is heard


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
