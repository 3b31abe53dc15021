"""A crew of actors on a Ray cluster.

Actors and not Ray Data: nothing flows from one step into the next, a shard's number goes out and the table takes the
rows, so there is no data set to plan; and the loop over shards, with what it does about lost workers and other jobs,
stays the one that processes of this machine have.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch

from quantattn.score.crew import Recipe, told
from quantattn.score.pipeline import Outcome, write_shard
from quantattn.score.plan import Shard
from quantattn.score.sink import DeltaSink
from quantattn.score.worker import repeating


def require_ray() -> None:
    """Refuse to go on without the package ray; it is looked for and not loaded.

    Raises:
        ValueError: it is not installed.
    """
    if find_spec("ray") is None:
        raise ValueError("engine=ray needs the package ray: pip install 'quantattn[ray]'")


class _Hand:
    """What an actor is: a worker of its own."""

    def __init__(self, recipe: Recipe, device: str) -> None:
        self._recipe, self._device = recipe, device

    def ready(self) -> int:
        """Make the worker, and say in which process it is: an error in `__init__` would come back without its class."""
        recipe = self._recipe
        torch.set_num_threads(recipe.threads)
        repeating(recipe.given.get("deterministic") is not False)
        self._worker, self._sink = recipe.worker(self._device), DeltaSink(recipe.out, recipe.plan)
        return os.getpid()

    def write(self, shard: Shard) -> Outcome:
        """See `write_shard`."""
        return write_shard(self._worker, self._sink, shard, self._recipe.on_bad)


@dataclass
class _Place:
    """One actor, what it was last asked, and the shard that it was given."""

    number: int
    actor: Any
    asked: Any | None
    pid: int | None = None
    shard: Shard | None = None


class Cluster:
    """Actors that each make a worker of their own and are replaced when they are lost.

    The model's folder, the files of the work and the table must have the same names on every node.

    Args:
        recipe: how an actor makes its worker; its work should be files (`share`), or every actor has a copy.
        workers: how many; None: one for every GPU of the cluster, or every processor where it has none.
        gpu: whether each has a GPU of its own.

    Raises:
        ValueError: ray is not installed, or the cluster has no room for so many workers.
    """

    def __init__(self, recipe: Recipe, workers: int | None, gpu: bool) -> None:
        require_ray()
        import ray

        self._ray: Any = ray
        self._ours = not ray.is_initialized()
        if self._ours:  # RAY_ADDRESS names a cluster that runs; without it one of this machine is started
            ray.init(include_dashboard=False, log_to_driver=False, configure_logging=False)
        self._recipe, self._device = recipe, "cuda" if gpu else "cpu"
        self._needs = {"num_gpus": 1, "num_cpus": 1} if gpu else {"num_cpus": recipe.threads}
        room = int(ray.cluster_resources().get("GPU" if gpu else "CPU", 0) // (1 if gpu else recipe.threads))
        self._workers = workers or room
        if not 1 <= self._workers <= room:
            self._leave()
            raise ValueError(f"workers={self._workers}, but the Ray cluster has room for {room}")
        self._places: list[_Place] = []
        self._put: Any = None

    def __enter__(self) -> Cluster:
        self._put = self._ray.put(self._recipe)
        self._places = [self._started(number) for number in range(self._workers)]
        return self

    def __exit__(self, *failure: object) -> None:
        for place in self._places:
            self._ray.kill(place.actor)
        self._places.clear()
        self._put = None
        self._leave()

    def idle(self) -> int:
        """Actors that are ready and have no shard."""
        return sum(place.asked is None for place in self._places)

    def give(self, shard: Shard) -> None:
        """Ask an idle actor for it."""
        place = next(place for place in self._places if place.asked is None)
        place.shard, place.asked = shard, place.actor.write.remote(shard)

    def outcomes(self, seconds: float) -> Sequence[Outcome]:
        """What actors have answered; a lost one is told of and replaced."""
        asked = [place.asked for place in self._places if place.asked is not None]
        done = set(self._ray.wait(asked, num_returns=1, timeout=seconds)[0]) if asked else set()
        found: list[Outcome] = []
        for at, place in enumerate(self._places):
            if place.asked not in done:
                continue
            try:
                said = self._ray.get(place.asked)
            except self._ray.exceptions.RayTaskError as error:
                found.append(Outcome(place.shard, "failed", error=told(error.cause)))
                place.shard = None
            except self._ray.exceptions.RayError as error:
                found.append(self._lost(place, error))
                self._places[at] = self._started(place.number)
                continue
            else:
                if isinstance(said, Outcome):
                    found.append(said)
                    place.shard = None
                else:
                    place.pid = said
            place.asked = None
        return found

    def _started(self, number: int) -> _Place:
        actor = self._ray.remote(_Hand).options(max_restarts=0, **self._needs).remote(self._put, self._device)
        return _Place(number, actor, actor.ready.remote())

    def _lost(self, place: _Place, error: Exception) -> Outcome:
        doing = f"at {place.shard.name}" if place.shard is not None else "while it had no shard"
        why = str(error).strip().splitlines()[-1]
        return Outcome(place.shard, "lost", said=f"worker {place.number} (process {place.pid}) was lost {doing}: {why}")

    def _leave(self) -> None:
        if self._ours:
            self._ray.shutdown()
