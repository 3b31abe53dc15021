"""Who computes shards: what every crew of workers offers, and the crew of one, this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from quantattn.nn import load_model
from quantattn.score.installed import installed, processor
from quantattn.score.pipeline import OnBad, Outcome, Pipeline, shards_held
from quantattn.score.plan import Plan, Shard, changed
from quantattn.score.sink import DeltaSink, Place
from quantattn.score.worker import Worker


class Crew(Protocol):
    """Workers that take shards and tell what became of them; left, as a context, they end."""

    def __enter__(self) -> Crew:
        """Begin."""

    def __exit__(self, *failure: object) -> None:
        """End every worker, whatever it does."""

    def idle(self) -> int:
        """How many further shards can be given now."""

    def give(self, shard: Shard) -> None:
        """Let an idle worker write a shard."""

    def outcomes(self, seconds: float) -> Sequence[Outcome]:
        """What has come to an end, waiting at most so long for a first one."""


@dataclass(frozen=True)
class Recipe:
    """How a process makes a worker of its own: plain values and names of files, and no weights.

    Attributes:
        model: folder of the model.
        attention_backend: see `load_model`.
        given: everything else that a `Worker` has, but for its device.
        out: the table that it writes to.
        threads: of the CPU, on which it computes.
        on_bad: what becomes of a decision without a score: it stops the job, or is written apart.
    """

    model: str
    attention_backend: str | None
    given: dict[str, Any]
    out: Place
    threads: int = 1
    on_bad: OnBad = "stop"

    @property
    def plan(self) -> Plan:
        """The plan."""
        plan: Plan = self.given["plan"]
        return plan

    def worker(self, device: str) -> Worker:
        """A worker on a device.

        Raises:
            ValueError: the folder holds another model than was planned with, or this installation or machine would give
                other bits than the one that planned.
        """
        planned = self.plan.described
        here = {"code": dict(installed()), "policy": {**planned["policy"], "processor": processor(device)}}
        there = {"code": planned["code"], "policy": {"processor": here["policy"]["processor"], **planned["policy"]}}
        if here != there:
            raise ValueError(f"a worker would not compute what was planned: {changed(there, here)}")
        model = load_model(self.model, attention_backend=self.attention_backend)
        assert model.artefact is not None
        if model.artefact.sha != self.plan.model_sha:
            raise ValueError(f"model={self.model} has changed since the job began")
        return Worker(model, device=device, **self.given)


def told(error: BaseException | None) -> Exception:
    """An error from another process in the class that its sentence is printed for: what else it carries stays there."""
    kinds = (ValueError, ArithmeticError, MemoryError, RuntimeError)
    kind = next((kind for kind in kinds if isinstance(error, kind)), RuntimeError)
    return kind(str(error) or type(error).__name__)


class Alone:
    """This process as a crew.

    Args:
        worker: what computes.
        out: the table.
        on_bad: what becomes of a decision without a score.
        held: how many shards it has at once; None: as many as its device is worth, see `shards_held`.
    """

    def __init__(self, worker: Worker, out: Place, on_bad: OnBad = "stop", held: int | None = None) -> None:
        self._pipeline = Pipeline(worker, DeltaSink(out, worker.plan), on_bad)
        self._held = shards_held(worker.device) if held is None else held

    def __enter__(self) -> Alone:
        return self

    def __exit__(self, *failure: object) -> None:
        self._pipeline.close()

    def idle(self) -> int:
        """As many as it may have beside those that it has."""
        return self._held - len(self._pipeline)

    def give(self, shard: Shard) -> None:
        """Keep it for `outcomes`."""
        self._pipeline.give(shard)

    def outcomes(self, seconds: float) -> Sequence[Outcome]:
        """Compute what was given, until something of it has come to an end."""
        return self._pipeline.outcomes()
