"""Shards one behind the other: batches are packed ahead of a device that computes, and rows are written behind it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Literal

import torch

from quantattn.score.plan import Shard
from quantattn.score.quarantine import judged
from quantattn.score.sink import DeltaSink, apart
from quantattn.score.worker import Begun, Worker

BATCHES_AHEAD = 2
"""Batches that a device was given and of which nothing was fetched yet."""
SECONDS_BETWEEN_SHARES = 1.0
"""How often it is told how far the computation of a shard is."""
OnBad = Literal["stop", "quarantine"]
"""What becomes of a decision without a score."""


@dataclass(frozen=True)
class Outcome:
    """What became of a shard.

    Attributes:
        shard: which one; None of a worker that was lost before it had one.
        what: "written"; "found", when another job had written it; "lost", with the process that had it; "failed"; or
            "underway", which is no end: `share` of it, by its cost, was computed.
        refused: rows of it that have no score and were written apart.
        error: why it failed.
        said: how the process was lost.
        others: further shards that it had and has no longer, when it was lost or failed.
    """

    shard: Shard | None
    what: Literal["written", "found", "lost", "failed", "underway"]
    refused: int = 0
    error: Exception | None = None
    said: str = ""
    others: tuple[Shard, ...] = ()
    share: float = 0.0


def shards_held(device: str) -> int:
    """How many shards a worker has at once: on a GPU one is written, one computed, and one is next.

    A CPU that computes has no time left for more than one.
    """
    return 3 if torch.device(device).type == "cuda" else 1


class Pipeline:
    """What a worker was given: computed in that order, and written by a thread while it goes on.

    No more than two batches are ahead of the one whose scores are waited for.

    Args:
        worker: what computes.
        sink: the table.
        on_bad: what becomes of a decision without a score.
    """

    def __init__(self, worker: Worker, sink: DeltaSink, on_bad: OnBad = "stop") -> None:
        self._worker, self._sink, self._on_bad = worker, sink, on_bad
        self._given: deque[Shard] = deque()
        # What fetches a batch, 1; or hands a shard over of which all was fetched, 0.
        self._launches: Iterator[tuple[Callable[[], None], int]] = iter(())
        self._ahead: deque[tuple[Callable[[], None], int]] = deque()
        self._writing: deque[Future[Outcome]] = deque()
        self._ended: list[Outcome] = []
        self._held = 0
        self._begun: Begun | None = None
        self._told = time.monotonic()
        self._writer = ThreadPoolExecutor(1, "quantattn writer")

    def __len__(self) -> int:
        """Shards that were given and of which no outcome was told."""
        return self._held

    def give(self, shard: Shard) -> None:
        """Add a shard."""
        self._given.append(shard)
        self._held += 1

    def outcomes(self) -> list[Outcome]:
        """Go on until a shard has come to its end, and tell what became of those that have; nothing if none is left.

        Now and then, how far it is with a shard comes before that.

        Raises:
            ValueError: a decision has no score, and that stops the job. Shards before it are written.
            RuntimeError: see `DeltaSink.write`.
        """
        while self._held:
            while self._writing and self._writing[0].done():
                self._ended.append(self._writing.popleft().result())
            if self._ended:
                break
            self._step()
        found, self._ended = self._ended, []
        self._held -= sum(each.what != "underway" for each in found)
        return found

    def close(self) -> None:
        """Wait for what is being written, and write nothing more."""
        self._writer.shutdown(wait=True, cancel_futures=True)

    def _step(self) -> None:
        """Give the device a batch; when there is none to give, wait for the oldest thing that was begun."""
        try:
            given = self._launch()
        except ValueError:
            self._finish()
            raise
        if given:
            while sum(batches for _, batches in self._ahead) > BATCHES_AHEAD:
                self._fetch()
            while self._ahead and not self._ahead[0][1]:
                self._fetch()
        elif self._writing:
            wait([self._writing[0]])
        elif self._ahead:
            self._fetch()

    def _fetch(self) -> None:
        self._ahead.popleft()[0]()

    def _finish(self) -> None:
        """Write the shards before one that failed."""
        while self._ahead:
            self._fetch()
        wait(self._writing)

    def _launch(self) -> bool:
        """Give the device the next batch, of whichever shard; whether there was one."""
        while (fetch := next(self._launches, None)) is None:
            if not self._given:
                return False
            shard = self._given.popleft()
            if self._sink.known(shard.name):
                self._ended.append(Outcome(shard, "found"))
                return True
            begun = self._worker.begin(shard, None if self._on_bad == "stop" else {})
            batches = ((each, 1) for each in begun.launches())
            self._launches, self._begun = chain(batches, [(partial(self._hand_over, begun), 0)]), begun
        self._ahead.append(fetch)
        self._tell()
        return True

    def _tell(self) -> None:
        if self._begun is not None and (now := time.monotonic()) - self._told >= SECONDS_BETWEEN_SHARES:
            self._told = now
            self._ended.append(Outcome(self._begun.shard, "underway", share=self._begun.share))

    def _hand_over(self, begun: Begun) -> None:
        self._writing.append(self._writer.submit(write, begun, self._sink))


def write(begun: Begun, sink: DeltaSink) -> Outcome:
    """Write a shard of which everything was fetched, unless it is in the table by now.

    Rows without a score go to a table of their own first, as one transaction too: wherever a job is killed between the
    two, going on computes the same again and adds what is missing.

    Raises:
        ValueError: a decision has no score, and that stops the job.
        RuntimeError: see `DeltaSink.write`.
    """
    rows, refused = (begun.rows(), None) if begun.refused is None else judged(begun)
    if refused is not None:
        DeltaSink(apart(sink.folder), sink.plan).write(begun.shard.name, refused)
    what: Literal["written", "found"] = "written" if sink.write(begun.shard.name, rows) else "found"
    return Outcome(begun.shard, what, 0 if refused is None else refused.num_rows)


def write_shard(worker: Worker, sink: DeltaSink, shard: Shard, on_bad: OnBad = "stop") -> Outcome:
    """Compute one shard and write it, unless it is in the table by now; see `write`."""
    pipeline = Pipeline(worker, sink, on_bad)
    try:
        pipeline.give(shard)
        while len(pipeline):
            last = pipeline.outcomes()
        return last[-1]
    finally:
        pipeline.close()
