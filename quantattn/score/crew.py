"""Who computes shards: what every crew of workers offers, and the crew of one, this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from quantattn.nn import load_model
from quantattn.score.plan import Plan, Shard
from quantattn.score.sink import DeltaSink
from quantattn.score.worker import Worker


@dataclass(frozen=True)
class Outcome:
    """What became of a shard.

    Attributes:
        shard: which one; None of a worker that was lost before it had one.
        what: "written"; "found", when another job had written it; "lost", with the process that had it; "failed".
        error: why it failed.
        said: how the process was lost.
    """

    shard: Shard | None
    what: Literal["written", "found", "lost", "failed"]
    error: Exception | None = None
    said: str = ""


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
    """

    model: str
    attention_backend: str | None
    given: dict[str, Any]
    out: Path
    threads: int = 1

    @property
    def plan(self) -> Plan:
        """The plan."""
        plan: Plan = self.given["plan"]
        return plan

    def worker(self, device: str) -> Worker:
        """A worker on a device.

        Raises:
            ValueError: the folder holds another model than was planned with.
        """
        model = load_model(self.model, attention_backend=self.attention_backend)
        assert model.artefact is not None
        if model.artefact.sha != self.plan.model_sha:
            raise ValueError(f"model={self.model} has changed since the job began")
        return Worker(model, device=device, **self.given)


def write_shard(worker: Worker, sink: DeltaSink, shard: Shard) -> Outcome:
    """Compute a shard and write it, unless it is in the table by now."""
    if sink.written([shard.name]):
        return Outcome(shard, "found")
    return Outcome(shard, "written" if sink.write(shard.name, worker.rows(shard)) else "found")


class Alone:
    """This process as a crew."""

    def __init__(self, worker: Worker, out: Path) -> None:
        self._worker, self._sink = worker, DeltaSink(out, worker.plan)
        self._given: list[Shard] = []

    def __enter__(self) -> Alone:
        return self

    def __exit__(self, *failure: object) -> None:
        self._given.clear()

    def idle(self) -> int:
        """One at a time."""
        return 1 - len(self._given)

    def give(self, shard: Shard) -> None:
        """Keep it for `outcomes`."""
        self._given.append(shard)

    def outcomes(self, seconds: float) -> Sequence[Outcome]:
        """Compute what was given."""
        return [write_shard(self._worker, self._sink, self._given.pop()) for _ in range(len(self._given))]
