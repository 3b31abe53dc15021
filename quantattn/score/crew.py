"""Who computes shards: what every crew of workers offers, and the crew of one, this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from quantattn.nn import load_model
from quantattn.score.installed import installed, processor
from quantattn.score.plan import Plan, Shard, changed
from quantattn.score.quarantine import judged
from quantattn.score.sink import DeltaSink, Place, apart
from quantattn.score.worker import Worker

OnBad = Literal["stop", "quarantine"]
"""What becomes of a decision without a score."""


@dataclass(frozen=True)
class Outcome:
    """What became of a shard.

    Attributes:
        shard: which one; None of a worker that was lost before it had one.
        what: "written"; "found", when another job had written it; "lost", with the process that had it; "failed".
        refused: rows of it that have no score and were written apart.
        error: why it failed.
        said: how the process was lost.
    """

    shard: Shard | None
    what: Literal["written", "found", "lost", "failed"]
    refused: int = 0
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


def write_shard(worker: Worker, sink: DeltaSink, shard: Shard, on_bad: OnBad = "stop") -> Outcome:
    """Compute a shard and write it, unless it is in the table by now.

    Rows without a score go to a table of their own first, as one transaction too: wherever a job is killed between the
    two, going on computes the same again and adds what is missing.

    Raises:
        ValueError: a decision has no score, and that stops the job.
        RuntimeError: see `DeltaSink.write`.
    """
    if sink.written([shard.name]):
        return Outcome(shard, "found")
    rows, refused = (worker.rows(shard), None) if on_bad == "stop" else judged(worker, shard)
    if refused is not None:
        DeltaSink(apart(sink.folder), sink.plan).write(shard.name, refused)
    what: Literal["written", "found"] = "written" if sink.write(shard.name, rows) else "found"
    return Outcome(shard, what, 0 if refused is None else refused.num_rows)


def told(error: BaseException | None) -> Exception:
    """An error from another process in the class that its sentence is printed for: what else it carries stays there."""
    kinds = (ValueError, ArithmeticError, MemoryError, RuntimeError)
    kind = next((kind for kind in kinds if isinstance(error, kind)), RuntimeError)
    return kind(str(error) or type(error).__name__)


class Alone:
    """This process as a crew."""

    def __init__(self, worker: Worker, out: Place, on_bad: OnBad = "stop") -> None:
        self._worker, self._sink, self._on_bad = worker, DeltaSink(out, worker.plan), on_bad
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
        given, self._given = self._given, []
        return [write_shard(self._worker, self._sink, shard, self._on_bad) for shard in given]
