"""Shards computed one behind the other and written behind that: the same table, and never more than a few at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_job import CLASSES, N, recipe, rows, save_model, sha, work
from torch import Tensor

from quantattn.data.pack import plan
from quantattn.score import Progress, Scores, Shard, Worker
from quantattn.score.crew import Alone
from quantattn.score.pipeline import BATCHES_AHEAD, Pipeline
from quantattn.score.plan import costs, make_plan, shard_size
from quantattn.score.processes import Processes
from quantattn.score.run import score_with
from quantattn.score.share import share
from quantattn.score.sink import BETWEEN_CHECKPOINTS, DeltaSink
from quantattn.score.worker import Begun, even_batches


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Hash of the table that one shard after the other gives."""
    job = recipe(model, tmp_path_factory.mktemp("whole") / "out")
    assert score_with(Alone(job.worker("cpu"), job.out, held=1), job.plan, job.out)
    return sha(job.out)


@pytest.mark.parametrize("held", [2, 3, 20])
def test_as_many_shards_at_once_as_one_likes_give_the_same_table(
    model: Path, whole: str, tmp_path: Path, held: int
) -> None:
    job = recipe(model, tmp_path / "out")
    seen: list[Progress] = []
    assert score_with(Alone(job.worker("cpu"), job.out, held=held), job.plan, job.out, watch=seen.append)
    assert sha(job.out) == whole
    assert [at.done for at in seen] == sorted(at.done for at in seen)
    assert seen[-1].done == 3 * N


@dataclass(frozen=True)
class Told(Scores):
    """Scores that tell when a batch is given to the model, and when the rows of a shard are made, and by which thread.

    They are a model's scores all the same.
    """

    events: list[tuple[str, str]] = field(default_factory=list)

    def said(self, *given: Any) -> Mapping[str, Tensor]:
        self.events.append(("batch", threading.current_thread().name))
        return super().said(*given)

    def columns(self, *given: Any) -> Mapping[str, Any]:
        self.events.append(("rows", threading.current_thread().name))
        return super().columns(*given)


def test_rows_are_written_beside_the_computing_and_a_batch_is_fetched_once_two_more_were_given(
    model: Path, tmp_path: Path
) -> None:
    job, told = recipe(model, tmp_path / "out", max_tokens=20), Told(CLASSES)
    worker = replace(job.worker("cpu"), output=told)
    pipeline = Pipeline(worker, DeltaSink(job.out, job.plan))
    pipeline.give(job.plan.shards[0])
    pipeline.give(job.plan.shards[1])
    batches = [len(list(worker.begin(shard).launches())) for shard in job.plan.shards[:2]]
    assert min(batches) >= BATCHES_AHEAD, "the control"
    told.events.clear()
    assert [each.shard for each in pipeline.outcomes()] == [job.plan.shards[0]]
    before = [what for what, _ in told.events].index("rows")
    assert before >= batches[0] + BATCHES_AHEAD, "the next shard was begun before the first was fetched"
    assert len(pipeline) == 1
    assert [each.shard for each in pipeline.outcomes()] == [job.plan.shards[1]]
    assert (len(pipeline), pipeline.outcomes()) == (0, [])
    threads = {what: {name for kind, name in told.events if kind == what} for what in ("batch", "rows")}
    assert threads["batch"] == {threading.current_thread().name}
    assert all(name.startswith("quantattn writer") for name in threads["rows"])
    pipeline.close()


def test_a_device_has_two_batches_ahead_at_the_end_of_a_shard_too(model: Path, tmp_path: Path) -> None:
    """Handing a shard over is no batch: whenever one is fetched, two later ones were given, of whichever shard."""
    job = recipe(model, tmp_path / "out", max_tokens=20)
    given = fetched = 0
    lead: list[int] = []

    class Noted(Begun):
        def launches(self) -> Iterator[Callable[[], None]]:
            nonlocal given
            for fetch in super().launches():
                given += 1
                yield partial(self.noted, fetch)

        def noted(self, fetch: Callable[[], None]) -> None:
            nonlocal fetched
            fetched += 1
            lead.append(given - fetched)
            fetch()

    class Noting(Worker):
        def begin(self, shard: Shard, refused: dict[int, str] | None = None) -> Begun:
            return Noted(self, shard, refused)

    plain = job.worker("cpu")
    worker = Noting(**{each.name: getattr(plain, each.name) for each in fields(plain)})
    assert score_with(Alone(worker, job.out, held=12), job.plan, job.out)
    assert len(lead) > 12
    assert set(lead[:-BATCHES_AHEAD]) == {BATCHES_AHEAD}
    assert lead[-BATCHES_AHEAD:] == list(range(BATCHES_AHEAD))[::-1]


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(50, 200))
def test_batches_of_a_shard_are_few_and_even(lengths: list[int], budget: int) -> None:
    sizes = np.asarray(lengths, np.int64)
    full, even = plan(sizes, budget, shuffle=False), even_batches(sizes, budget)
    assert [i for batch in even for i in batch.tolist()] == list(range(len(lengths)))
    assert len(even) == len(full)
    tokens = [int(sizes[batch].sum()) for batch in even]
    assert max(tokens, default=0) <= budget
    assert max(tokens, default=0) <= max((int(sizes[batch].sum()) for batch in full), default=0)


def test_no_batch_of_a_shard_is_left_with_a_few_tokens() -> None:
    """A hundred sequences of one length, 32 to a full batch."""
    assert [len(batch) for batch in even_batches(np.full(100, 10), 320)] == [26, 26, 26, 22]
    assert [len(batch) for batch in plan(np.full(100, 10), 320, shuffle=False)] == [32, 32, 32, 4], "the control"


def test_what_stands_before_a_shard_that_fails_is_written_and_nothing_after_it_is_lost_for_good(
    model: Path, whole: str, tmp_path: Path
) -> None:
    """A code that the model does not know, in the middle of the sixth shard."""
    given = work()
    place = int(given.sequences.decisions.row[65])
    shown = dict(given.sequences.table.fields)
    job = recipe(model, tmp_path / "out")
    shown["code"] = shown["code"].copy()
    shown["code"][place] = 99
    broken_table = replace(given.sequences.table, fields=shown)
    sequences = replace(given.sequences, table=broken_table)
    broken = replace(job.worker("cpu"), work=replace(given, sequences=sequences))
    with pytest.raises(ValueError, match="code"):
        score_with(Alone(broken, job.out, held=4), job.plan, job.out)
    there = rows(job.out)["key"].to_list()
    first = next(s for s in range(12) if 99 in _codes(broken, s, job.plan.shards))
    ends = int(given.sequences.first[job.plan.shards[first].first])
    assert there == list(range(ends)), "all that stands before it, and no more"
    assert score_with(Alone(job.worker("cpu"), job.out, held=4), job.plan, job.out)
    assert sha(job.out) == whole


def _codes(worker: Worker, number: int, shards: Any) -> set[int]:
    batch = worker.work.sequences.pack(list(range(shards[number].first, shards[number].last)))
    return set(batch.fields["code"].tolist())


def test_a_process_that_fails_with_three_shards_ends_the_job_with_its_sentence(model: Path, tmp_path: Path) -> None:
    job = recipe(model, tmp_path / "out", share(work(), tmp_path))
    crew = Processes(replace(job, given={**job.given, "max_tokens": 3}), ["cpu"], held=3)
    with pytest.raises(ValueError, match="more than max_tokens_per_batch = 3"):
        score_with(crew, job.plan, job.out)


@pytest.mark.parametrize(
    ("decisions", "size"), [(1, 10_000), (1_000_000, 10_000), (1_000_001, 10_001), (4e6, 40_000), (1e8, 50_000)]
)
def test_shards_of_many_decisions_are_larger(decisions: float, size: int) -> None:
    assert shard_size(int(decisions)) == size


def test_who_opens_the_table_reads_few_commits_one_by_one(model: Path, tmp_path: Path) -> None:
    job = recipe(model, tmp_path / "out", shard=2)
    assert len(job.plan.shards) > 2 * BETWEEN_CHECKPOINTS
    assert score_with(Alone(job.worker("cpu"), job.out), job.plan, job.out)
    log = job.out / "_delta_log"
    last = max(int(path.name.split(".")[0]) for path in log.glob("*.checkpoint.parquet"))
    since = [path for path in log.glob("*.json") if int(path.stem) > last]
    assert len(since) <= BETWEEN_CHECKPOINTS


def test_a_shard_that_another_job_has_written_meanwhile_is_found_and_not_computed(
    model: Path, whole: str, tmp_path: Path
) -> None:
    job, told = recipe(model, tmp_path / "out"), Told(CLASSES)
    crew = Alone(replace(job.worker("cpu"), output=told), job.out, held=3)
    seen: list[Progress] = []
    other = DeltaSink(job.out, job.plan)
    last = job.plan.shards[-1]

    def watch(at: Progress) -> None:
        if not seen:
            assert other.write(last.name, job.worker("cpu").rows(last))
        seen.append(at)

    assert score_with(crew, job.plan, job.out, watch=watch)
    assert sha(job.out) == whole
    assert seen[-1].found == last.decisions
    assert len([what for what, _ in told.events if what == "rows"]) == len(job.plan.shards) - 1


def test_half_precision_is_the_models_own_under_autocast(model: Path, tmp_path: Path) -> None:
    job = recipe(model, tmp_path / "out")
    whole = replace(job.worker("cpu"), max_tokens=7)
    half = replace(whole, autocast=torch.bfloat16)
    one, other = (each.rows(job.plan.shards[0])["prob_up"].to_pylist() for each in (whole, half))
    assert one != other
    assert max(abs(a - b) for a, b in zip(one, other, strict=True)) < 0.05


def test_shards_cost_no_more_than_asked_and_their_costs_add_up() -> None:
    given = work()
    lengths = given.sequences.stop - given.sequences.start
    each = costs(lengths)
    assert each.tolist() == [n * n + 1024 * n for n in lengths.tolist()]
    assert [shard.cost for shard in make_plan(given, "m", 3 * N).shards] == [int(each.sum())]
    for most in (1, int(each.max()), 5 * int(each.max())):
        plan = make_plan(given, "m", 3 * N, most=most)
        assert [shard.first for shard in plan.shards] == [0, *(shard.last for shard in plan.shards[:-1])]
        assert [shard.cost for shard in plan.shards] == [int(each[s.first : s.last].sum()) for s in plan.shards]
        assert plan.shards[-1].last == len(lengths)
        assert all(shard.cost <= most or shard.last == shard.first + 1 for shard in plan.shards)
        further = [int(each[shard.first : shard.last + 1].sum()) for shard in plan.shards[:-1]]
        assert all(cost > most for cost in further), "a shard that had room for another sequence"
    assert len(make_plan(given, "m", 10, most=10**9).shards) == len(make_plan(given, "m", 10).shards) > 1


def test_it_is_told_how_far_a_shard_is_before_its_end(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quantattn.score.pipeline.SECONDS_BETWEEN_SHARES", 0.0)
    job, seen = recipe(model, tmp_path / "out", shard=3 * N), list[Progress]()
    assert score_with(Alone(job.worker("cpu"), job.out), job.plan, job.out, watch=seen.append)
    assert len(job.plan.shards) == 1
    before = [at.share for at in seen if at.done == 0]
    assert before == sorted(before)
    assert len({share for share in before if 0 < share < 1}) >= 3
    assert (seen[0].share, seen[-1].share, seen[-1].seconds_left) == (0.0, 1.0, 0.0)
    assert all(at.seconds_left > 0 for at in seen if 0 < at.share < 1)
