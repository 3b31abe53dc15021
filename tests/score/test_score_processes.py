"""Several processes at one table: the same rows, whichever of them is lost on the way."""

from __future__ import annotations

import os
import pickle
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from small_job import N, recipe, save_model, sha, work

from quantattn.data.filed import Texts
from quantattn.score import Progress, Worker
from quantattn.score.crew import Alone
from quantattn.score.processes import Processes
from quantattn.score.run import Remaining, score_with
from quantattn.score.share import scratch, share


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model") / "model")


def alone(model: Path, out: Path, **options: object) -> bool:
    job = recipe(model, out, **options)  # type: ignore[arg-type]
    return score_with(Alone(job.worker("cpu"), out), job.plan, out)


def test_two_processes_one_of_them_killed_write_what_one_writes(model: Path, tmp_path: Path) -> None:
    assert alone(model, tmp_path / "whole")
    job = recipe(model, tmp_path / "parts", share(work(), tmp_path))
    crew = Processes(job, ["cpu", "cpu"], held=3)
    seen: list[Progress] = []
    ended: list[tuple[int, int]] = []

    def watch(at: Progress) -> None:
        seen.append(at)
        # Whichever has more than one: on a busy machine one may have done all before the other has begun.
        holding = [number for number, hand in enumerate(crew._hands) if len(hand.shards) > 1]
        if at.done and holding and not ended:
            process = crew._hands[holding[0]].process
            ended.append((holding[0], process.pid or 0))
            os.kill(process.pid or 0, signal.SIGKILL)
            process.join()

    assert score_with(crew, job.plan, job.out, watch=watch)
    assert sha(tmp_path / "parts") == sha(tmp_path / "whole")
    assert (seen[0].done, seen[-1].done, seen[-1].lost) == (0, 3 * N, 1)
    assert ended, "the control: it had more than one shard, and one loss is counted"
    said = next(at.said for at in seen if at.said)
    assert said.startswith("worker {} (process {}) was killed by SIGKILL ".format(*ended[0]))


def test_threads_change_no_bit(model: Path, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    found = set()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            assert alone(model, tmp_path / str(threads))
            found.add(sha(tmp_path / str(threads)))
    finally:
        torch.set_num_threads(before)
    assert len(found) == 1


def test_shared_work_is_names_of_files_and_says_the_same(model: Path, tmp_path: Path) -> None:
    given = work(described={"note": tuple([None, "x"] * 60), "rank": np.arange(3 * N)})
    shared = share(given, tmp_path)
    sent = pickle.dumps(shared)
    again = pickle.loads(sent)
    assert len(sent) < 4_000 < len(pickle.dumps(given))
    assert again.sha == given.sha
    assert (again.entity[3:5], again.described["note"][:2]) == (given.entity[3:5], (None, "x"))
    plan = recipe(model, tmp_path / "out", given).plan
    rows = [
        Worker(recipe(model, tmp_path / "out").worker("cpu").model, each, plan, 40).rows(plan.shards[3])
        for each in (given, again)
    ]
    assert {name: column.to_pylist() for name, column in rows[0].items()} == {
        name: column.to_pylist() for name, column in rows[1].items()
    }
    again.as_of[0] = -1
    assert pickle.loads(sent).as_of[0] == given.as_of[0], "what a process changes reaches no other"


def test_texts_are_a_sequence() -> None:
    texts = ("a", None, "b", "a")
    coded = Texts.of(texts)
    assert (tuple(coded), len(coded), coded[1:3], coded[-1]) == (texts, 4, (None, "b"), "a")
    assert coded.names == ("a", None, "b")


def test_a_scratch_folder_goes_and_so_does_one_whose_process_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = tmp_path / "quantattn-score-left"
    left.mkdir()
    (left / "held").write_text("by a process that is gone")
    with scratch() as one:
        assert not left.exists()
        with scratch() as other:
            assert len({one, other} & set(tmp_path.iterdir())) == 2
    assert not list(tmp_path.iterdir())


def test_two_jobs_part_when_they_meet() -> None:
    """Each job takes a shard, and finds what the other has written; a shard done twice is one both were at at once."""
    jobs = [Remaining(range(64)), Remaining(range(64))]
    written: set[int] = set()
    twice = 0
    while any(map(len, jobs)):
        taken = [job.take() if len(job) else None for job in jobs]
        for job, number in zip(jobs, taken, strict=True):
            if number is None:
                continue
            if number in written:
                job.remove(written)
                job.jump()
            twice += number in written
            written.add(number)
    assert written == set(range(64))
    assert twice <= 7, "one at the start, and one at the end of each stretch that a job has gone into"


def test_one_job_takes_shards_in_order_and_a_lost_one_at_once() -> None:
    left = Remaining([4, 2, 7, 9])
    assert [left.take(), left.take()] == [2, 4]
    left.put_back(2)
    assert [left.take() for _ in range(3)] == [2, 7, 9]
    assert not len(left)
