"""The loop over shards: score, write, go on where it stood."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from quantattn.score.sink import DeltaSink
from quantattn.score.worker import Worker


@dataclass(frozen=True)
class Progress:
    """Decisions written so far and in all, those of them that stood there already, and seconds since the start."""

    done: int
    total: int
    found: int
    seconds: float

    @property
    def seconds_left(self) -> float:
        """An estimate from the pace so far."""
        fresh = self.done - self.found
        return self.seconds / fresh * (self.total - self.done) if fresh else float("nan")


def score(
    worker: Worker,
    out: Path,
    *,
    watch: Callable[[Progress], None] | None = None,
    stop: Callable[[], bool] = bool,
) -> bool:
    """Write one row a decision to the Delta table `out`; shards that are there already are left alone.

    Args:
        worker: what computes the rows; see `Worker.rows` for their columns.
        out: folder of the table.
        watch: told where the run stands after each shard.
        stop: asked before each shard.

    Returns:
        Whether every shard is in the table: False when `stop` said so.

    Raises:
        ValueError: `out` holds scores of another plan, a decision could see its own future, or the model gives a score
            that is not finite.
    """
    plan, first = worker.plan, worker.work.sequences.first.tolist()
    sink, began = DeltaSink(out, plan.sha), time.monotonic()
    done = found = 0
    for shard in plan.shards:
        if stop():
            return False
        decisions = first[shard.last] - first[shard.first]
        if sink.has(shard.name):
            found += decisions
        else:
            sink.write(shard.name, worker.rows(shard))
        done += decisions
        if watch is not None:
            watch(Progress(done, first[-1], found, time.monotonic() - began))
    return True
