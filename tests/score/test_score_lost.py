"""What the loop makes of workers that are lost, and what the hash of the work hangs on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_job import LENGTH, N, recipe, save_model, sha, work

from quantattn.data.pack import Decisions, SequenceSet, TokenTable
from quantattn.score.crew import Alone
from quantattn.score.pipeline import Outcome
from quantattn.score.plan import Shard
from quantattn.score.run import score_with


class Losing(Alone):
    """A crew of one that is lost over a shard so many times, with what it had computed."""

    def __init__(self, name: str, times: int, *given: Any) -> None:
        super().__init__(*given)
        self.name, self.times, self.taken = name, times, list[Shard]()

    def give(self, shard: Shard) -> None:
        if self.times and shard.name == self.name:
            self.taken.append(shard)
        else:
            super().give(shard)

    def outcomes(self, seconds: float) -> Sequence[Outcome]:
        if self.taken:
            self.times -= 1
            return [Outcome(self.taken.pop(), "lost", said="it was taken away")]
        return super().outcomes(seconds)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model") / "model")


@pytest.mark.parametrize(("name", "times"), [("shard-000000", 2), ("shard-000011", 1)])
def test_a_shard_that_was_lost_is_written_by_another_worker(model: Path, tmp_path: Path, name: str, times: int) -> None:
    whole, parts = (recipe(model, tmp_path / folder) for folder in ("whole", "parts"))
    assert whole.plan.shards[-1].name == "shard-000011"
    assert score_with(Alone(whole.worker("cpu"), whole.out), whole.plan, whole.out)
    assert score_with(Losing(name, times, parts.worker("cpu"), parts.out), parts.plan, parts.out)
    assert sha(parts.out) == sha(whole.out)


def test_three_that_are_lost_over_one_shard_end_the_job(model: Path, tmp_path: Path) -> None:
    job = recipe(model, tmp_path / "out")
    with pytest.raises(
        RuntimeError, match=r"^3 workers were lost over the same thing, the last one: it was taken away"
    ):
        score_with(Losing("shard-000004", 3, job.worker("cpu"), job.out), job.plan, job.out)


def test_whatever_a_model_is_shown_or_a_row_is_called_changes_the_hash_of_the_work() -> None:
    given = work()
    table, cut = given.sequences.table, given.sequences

    def shown(**changes: Any) -> Any:
        parts = {"fields": table.fields, "time": table.time, "offsets": table.offsets, "entities": table.entities}
        return work(sequences=SequenceSet(TokenTable(**(parts | changes)), cut.decisions, LENGTH, "each"))

    code, time, offsets = table.fields["code"].copy(), table.time.copy(), table.offsets.copy()
    code[17], time[-1], offsets[1] = code[17] ^ 1, time[-1] + 1, offsets[1] + 1
    row, as_of = cut.decisions.row.copy(), given.as_of.copy()
    free = next(r for r in range(N * LENGTH) if r not in set(row.tolist()) and r > row[0])
    place = int(np.searchsorted(row, free)) - 1
    row[place], as_of[3] = free, as_of[3] + 1
    names = [*given.entity]
    names[5] = "somebody else"
    several = [
        given,
        shown(fields={"code": code}),
        shown(fields={"kind": table.fields["code"]}),
        shown(time=time),
        shown(offsets=offsets),
        work(sequences=SequenceSet(table, Decisions(row), LENGTH, "each")),
        work(sequences=SequenceSet(table, cut.decisions, LENGTH - 1, "each")),
        work(as_of=as_of),
        work(entity=tuple(names)),
        work(described={"note": (None,) * (3 * N)}),
        work(described={"note": ("",) * (3 * N)}),
        work(described={"rank": np.arange(3 * N)}),
    ]
    assert len({each.sha for each in several}) == len(several)
    assert work().sha == given.sha == shown().sha
