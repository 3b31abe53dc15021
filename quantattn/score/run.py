"""The loop over shards: who takes which, what becomes of lost workers, and where the job stands."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from quantattn.score.crew import Alone, Crew
from quantattn.score.pipeline import Outcome
from quantattn.score.plan import Plan, Shard
from quantattn.score.sink import DeltaSink, Place
from quantattn.score.worker import Worker

TRIES = 3
"""Workers that may be lost over one shard, or before they were ready with none finished in between."""
SECONDS_BETWEEN_LOOKS = 0.5
"""How often the loop looks up from waiting, to see whether it was told to stop."""


@dataclass(frozen=True)
class Progress:
    """Where a job stands.

    Attributes:
        done: decisions in the table.
        total: decisions in all.
        found: those that were there already, or that another job has written meanwhile.
        seconds: since the first shard was given out.
        lost: workers that were lost and replaced.
        refused: rows without a score that this job has written apart.
        said: how the last of them was lost, when it is news.
        share: what is computed of what was to be computed, between 0 and 1, by its cost and not by its number: of
            filings the long ones take most.
    """

    done: int
    total: int
    found: int
    seconds: float
    lost: int = 0
    refused: int = 0
    said: str = ""
    share: float = 0.0

    @property
    def per_second(self) -> float:
        """Decisions that this job writes in a second, from the pace so far."""
        return (self.done - self.found) / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float:
        """An estimate from the pace so far."""
        return self.seconds * (1 - self.share) / self.share if self.share > 0 else float("nan")


class Remaining:
    """The shards that nobody has taken yet, in an order in which several jobs at one table rarely meet.

    A job takes them one after the other. When it comes upon one that another job has written, it goes on in the middle
    of the longest stretch that is left: two jobs that begin together part at their first shard, and after n meetings
    stretches are 2ⁿ times shorter, so hardly any shard is computed twice. Nobody has to be told of anybody.

    Args:
        shards: numbers of the shards to do.
    """

    def __init__(self, shards: Iterable[int]) -> None:
        self._left = sorted(shards)
        self._next = 0

    def __len__(self) -> int:
        return len(self._left)

    def __iter__(self) -> Iterator[int]:
        return iter(self._left)

    def take(self) -> int:
        """The next one, after the last around to the first."""
        self._next = self._next if self._next < len(self._left) else 0
        return self._left.pop(self._next)

    def put_back(self, number: int) -> None:
        """One that was taken and is to be done again, at once."""
        self._left = sorted([*self._left, number])
        self._next = self._left.index(number)

    def remove(self, numbers: Iterable[int]) -> None:
        """Forget those that another job has written."""
        gone, at = set(numbers), self._left[self._next] if self._next < len(self._left) else None
        self._left = [number for number in self._left if number not in gone]
        self._next = next((i for i, number in enumerate(self._left) if at is not None and number >= at), 0)

    def jump(self) -> None:
        """Go on in the middle of the longest stretch."""
        best = begin = length = 0
        for i in range(len(self._left)):
            if i and self._left[i] != self._left[i - 1] + 1:
                begin = i
            if i + 1 - begin > length:
                best, length = begin, i + 1 - begin
        self._next = best + length // 2


def score(
    worker: Worker,
    out: Place,
    *,
    watch: Callable[[Progress], None] | None = None,
    stop: Callable[[], bool] = bool,
) -> bool:
    """`score_with` a crew of one: this process, and every shard of the plan."""
    return score_with(Alone(worker, out), worker.plan, out, watch=watch, stop=stop)


def score_with(
    crew: Crew,
    plan: Plan,
    out: Place,
    shards: Sequence[Shard] | None = None,
    *,
    watch: Callable[[Progress], None] | None = None,
    stop: Callable[[], bool] = bool,
) -> bool:
    """Write the rows of every shard to the Delta table `out`; shards that are there already are left alone.

    Args:
        crew: who computes them; see `Worker.rows` for the columns.
        plan: what is to be scored.
        out: folder of the table.
        shards: some of the plan's, when other jobs do the others; None: all.
        watch: told where the run stands when it begins, after each shard, and now and then in between.
        stop: asked before a shard is given out. Those that workers are at are waited for.

    Returns:
        Whether every one of the shards is in the table: False when `stop` said so.

    Raises:
        ValueError: `out` holds scores of another plan, a decision could see its own future, or the model gives a score
            that is not finite.
        RuntimeError: the table cannot be written, or workers are lost again and again.
    """
    job = _Job(crew, plan, DeltaSink(out, plan), plan.shards if shards is None else shards)
    with crew:
        if watch is not None:
            watch(job.progress(""))
        while len(job.left) or job.running:
            if job.failure is not None or stop():
                if not job.running:
                    break
            else:
                for _ in range(min(crew.idle(), len(job.left))):
                    job.give()
            for outcome in crew.outcomes(SECONDS_BETWEEN_LOOKS):
                job.take(outcome)
                if watch is not None:
                    watch(job.progress(outcome.said))
    if job.failure is not None:
        raise job.failure
    return not len(job.left)


class _Job:
    """What is left, who is at what, and what has been lost."""

    def __init__(self, crew: Crew, plan: Plan, sink: DeltaSink, shards: Sequence[Shard]) -> None:
        self.crew, self.sink, self.began = crew, sink, time.monotonic()
        self.shards = dict(enumerate(shards))
        self.numbers = {shard.name: number for number, shard in self.shards.items()}
        self.running: set[int] = set()
        self.failure: Exception | None = None
        self._failed: Counter[str | None] = Counter()
        self.lost = self.refused = 0
        self._given = False
        there = sink.written(self.numbers)
        self.left = Remaining(number for name, number in self.numbers.items() if name not in there)
        self.total = sum(shard.decisions for shard in shards)
        self.found = self.done = sum(self.shards[self.numbers[name]].decisions for name in there)
        self._cost = sum(self.shards[number].cost for number in self.left)
        self._computed, self._underway = 0.0, dict[int, float]()

    def give(self) -> None:
        if not self._given:  # what workers need to be made is no measure of their pace
            self._given, self.began = True, time.monotonic()
        number = self.left.take()
        self.running.add(number)
        self.crew.give(self.shards[number])

    def take(self, outcome: Outcome) -> None:
        number = None if outcome.shard is None else self.numbers[outcome.shard.name]
        if number is not None and outcome.what == "underway":
            self._underway[number] = outcome.share
            return
        if number is not None:
            self.running.discard(number)
            self._underway.pop(number, None)
        others = [self.numbers[shard.name] for shard in outcome.others]
        self.running.difference_update(others)
        if outcome.what == "failed":
            self.failure = self.failure or outcome.error
        elif outcome.what == "lost":
            self.lost += 1
            name = None if outcome.shard is None else outcome.shard.name
            self._failed[name] += 1
            for each in (*others[::-1], *([] if number is None else [number])):
                self.left.put_back(each)
            if self._failed[name] >= TRIES:
                self.failure = RuntimeError(
                    f"{TRIES} workers were lost over the same thing, the last one: {outcome.said}"
                )
        elif outcome.shard is not None:
            self.done += outcome.shard.decisions
            self._computed += outcome.shard.cost
            self.refused += outcome.refused
            self._failed[None] = 0
            if outcome.what == "found":
                self.found += outcome.shard.decisions
                self._part()

    def _part(self) -> None:
        """Go away from the job that is at the same shards."""
        there = self.sink.written(self.shards[number].name for number in self.left)
        gone = [self.numbers[name] for name in there]
        decisions = sum(self.shards[number].decisions for number in gone)
        self._cost -= sum(self.shards[number].cost for number in gone)
        self.left.remove(gone)
        self.done, self.found = self.done + decisions, self.found + decisions
        self.left.jump()

    def progress(self, said: str) -> Progress:
        computed = self._computed + sum(self.shards[number].cost * share for number, share in self._underway.items())
        share = computed / self._cost if self._cost else 1.0
        seconds = time.monotonic() - self.began
        return Progress(self.done, self.total, self.found, seconds, self.lost, self.refused, said, share)
